//! Life of slots: claim, exec, fork, release, death.

use std::collections::HashSet;
use std::env;
use std::ffi::CString;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crate::files::{made, place};
use crate::processes::{
    self, End, await_true, await_value, die_at_every_step, fork, post, reap, reap_all, session,
    sleep_forever,
};
use nacre_session::{Liveness, MAX_SLOTS, SPARE_SLOTS, Session, SlotError, SlotRef};

/// Recovers the dead; nobody else is there then.
fn only_one_is_left(session: &Session, me: SlotRef, step: u64) {
    reap_all(session, me);
    let left: Vec<SlotRef> = session.current_slots().collect();
    assert_eq!(left, [me], "step {step}");
}

#[test]
fn a_recycled_slot_has_another_generation() {
    let (session, me) = session();
    let first = session.claim_slot().unwrap();
    assert_ne!(first.slot, me.slot);
    session.slot(first).umask.store(0o77, Ordering::Relaxed);
    session.release_slot(first);
    assert!(!session.is_current(first));
    assert_eq!(session.liveness(first), Liveness::Dead);
    let second = session.claim_slot().unwrap();
    assert_eq!(second.slot, first.slot);
    assert_ne!(second.generation, first.generation);
    assert_eq!(session.slot(second).umask.load(Ordering::Relaxed), 0);
    session.release_slot(first);
    assert!(
        session.is_current(second),
        "a stale reference released the slot of its next user"
    );
    assert_eq!(session.pid_of(second), Some(std::process::id()));
    assert_eq!(session.pid_of(first), None);
}

#[test]
fn all_slots_can_be_claimed_and_no_more() {
    let (session, _me) = session();
    let claimed: HashSet<SlotRef> = (1..MAX_SLOTS)
        .map(|_| session.claim_slot().unwrap())
        .collect();
    assert_eq!(claimed.len(), MAX_SLOTS - 1);
    assert_eq!(session.claim_slot(), Err(SlotError::Full));
    assert_eq!(
        session.reserve_child_slot(*claimed.iter().next().unwrap()),
        Err(SlotError::Full)
    );
}

#[test]
fn who_attaches_gets_in_and_recovers_the_dead_when_they_have_all_slots() {
    let (session, me) = session();
    // Not waited for, so that nobody gets its number.
    let child = fork(|| {});
    let mut reserved = Vec::new();
    while let Ok(slot) = session.reserve_child_slot(me) {
        session.child_forked(slot, child.pid());
        reserved.push(slot);
    }
    await_true(|| session.liveness(reserved[0]) == Liveness::Dead);
    for left in (0..SPARE_SLOTS).rev() {
        let slot = session.claim_slot().unwrap();
        assert!(slot.is_spare() && session.is_current(slot), "{left} left");
        if left > 0 {
            continue;
        }
        let all: Vec<SlotRef> = session.dead_slots().collect();
        assert_eq!(all.len(), MAX_SLOTS - SPARE_SLOTS - 1);
        for dead in all {
            session.reap(slot, dead, &mut |_| Ok::<_, ()>(())).unwrap();
        }
    }
    let next = session.claim_slot().unwrap();
    assert!(!next.is_spare());
    assert!(session.reserve_child_slot(next).is_ok());
}

#[test]
fn far_more_than_a_thousand_processes_have_a_slot() {
    let (session, me) = session();
    let children: Vec<SlotRef> = (0..5000)
        .map(|_| session.reserve_child_slot(me).unwrap())
        .collect();
    let last = children[4999];
    assert_eq!(session.liveness(last), Liveness::Alive);
    children
        .iter()
        .for_each(|&child| session.release_slot(child));
    assert!(!session.is_current(last) && session.current_slots().eq([me]));
}

#[test]
fn a_child_adopts_its_reserved_slot() {
    let (session, me) = session();
    session.slot(me).umask.store(0o27, Ordering::Relaxed);
    let reserved = session.reserve_child_slot(me).unwrap();
    assert_eq!(session.liveness(reserved), Liveness::Alive);
    let child = fork(|| {
        assert_eq!(session.adopt_slot(reserved), Ok(()));
        assert_eq!(session.find_own_slot(), Some(reserved));
        assert_eq!(session.slot(reserved).umask.load(Ordering::Relaxed), 0o27);
        post(&session, 0, 1);
        sleep_forever();
    });
    session.child_forked(reserved, child.pid());
    await_value(&session, 0, 1);
    assert_eq!(session.pid_of(reserved), Some(child.pid()));
    assert_eq!(session.find_own_slot(), Some(me));
    child.kill();
    await_true(|| session.liveness(reserved) == Liveness::Dead);
    assert_eq!(session.dead_slots().collect::<Vec<_>>(), [reserved]);
}

#[test]
fn a_child_that_dies_before_adopting_leaves_a_dead_reservation() {
    let (session, me) = session();
    let reserved = session.reserve_child_slot(me).unwrap();
    let child = fork(|| {});
    session.child_forked(reserved, child.pid());
    assert_eq!(child.wait(), End::Exit(0));
    assert_eq!(session.dead_slots().collect::<Vec<_>>(), [reserved]);
    reap(&session, me, reserved);
    assert!(!session.is_current(reserved));
}

#[test]
fn a_child_that_is_faster_than_its_parent_leaves_the_slots_next_user_alone() {
    let (session, me) = session();
    let reserved = session.reserve_child_slot(me).unwrap();
    let child = fork(|| {
        session.adopt_slot(reserved).unwrap();
        session.release_slot(reserved);
    });
    let pid = child.pid();
    assert_eq!(child.wait(), End::Exit(0));
    let next = session.reserve_child_slot(me).unwrap();
    assert_eq!(next.slot, reserved.slot);
    session.child_forked(reserved, pid);
    assert_eq!(session.liveness(next), Liveness::Alive);
    reap(&session, me, reserved);
    reap(&session, me, next);
    let child = fork(|| {
        await_value(&session, 0, 1);
        session.adopt_slot(next).unwrap();
    });
    session.child_forked(next, child.pid());
    session.child_forked(reserved, pid);
    assert_eq!(session.liveness(next), Liveness::Alive);
    post(&session, 0, 1);
    assert_eq!(child.wait(), End::Exit(0));
}

#[test]
fn what_a_child_renounces_is_dead_while_it_lives() {
    let (session, me) = session();
    let reserved = session.reserve_child_slot(me).unwrap();
    let child = fork(|| {
        session.renounce_slot(reserved);
        let adopted = session.adopt_slot(reserved);
        post(&session, 0, if adopted.is_ok() { 1 } else { 2 });
        sleep_forever();
    });
    session.child_forked(reserved, child.pid());
    await_true(|| processes::mailbox(&session, 0).load(Ordering::SeqCst) != 0);
    assert_eq!(processes::mailbox(&session, 0).load(Ordering::SeqCst), 2);
    assert_eq!(session.dead_slots().collect::<Vec<_>>(), [reserved]);
    reap(&session, me, reserved);
    assert!(!session.is_current(reserved));
    // Somebody else has it meanwhile.
    let next = session.claim_slot().unwrap();
    assert_eq!(next.slot, reserved.slot);
    session.renounce_slot(reserved);
    assert_eq!(session.liveness(next), Liveness::Alive);
}

fn pack(slot: SlotRef) -> u64 {
    u64::from(slot.generation) << 16 | u64::from(slot.slot)
}

fn unpack(word: u64) -> SlotRef {
    SlotRef {
        slot: word as u16,
        generation: (word >> 16) as u32,
    }
}

/// A parent that reserves, forks and dies at once; its child waits for mail before it adopts.
/// Returns the reservation.
fn orphaned_reservation(session: &Session, tells_child: bool) -> SlotRef {
    let parent = fork(|| {
        let own = session.claim_slot().unwrap();
        let reserved = session.reserve_child_slot(own).unwrap();
        let child = fork(|| {
            await_value(session, 1, 1);
            let adopted = session.adopt_slot(reserved);
            post(session, 2, if adopted.is_ok() { 1 } else { 2 });
            await_value(session, 1, 2);
        });
        if tells_child {
            session.child_forked(reserved, child.pid());
        }
        std::mem::forget(child);
        post(session, 0, pack(reserved));
    });
    assert_eq!(parent.wait(), End::Exit(0));
    let reserved = processes::mailbox(session, 0).load(Ordering::SeqCst);
    assert_ne!(reserved, 0);
    unpack(reserved)
}

/// Lets the orphan adopt its slot, and what came of it: 1 done, 2 refused.
fn adoption(session: &Session) -> u64 {
    post(session, 1, 1);
    await_true(|| processes::mailbox(session, 2).load(Ordering::SeqCst) != 0);
    processes::mailbox(session, 2).load(Ordering::SeqCst)
}

#[test]
fn a_child_survives_the_death_of_its_parent_before_it_adopts() {
    let (session, me) = session();
    let reserved = orphaned_reservation(&session, true);
    assert_eq!(session.liveness(reserved), Liveness::Alive);
    reap(&session, me, reserved);
    assert_eq!(adoption(&session), 1, "adopting failed");
    assert_eq!(session.liveness(reserved), Liveness::Alive);
    post(&session, 1, 2);
}

#[test]
fn a_reservation_given_up_cannot_be_adopted() {
    let (session, me) = session();
    let reserved = orphaned_reservation(&session, false);
    assert_eq!(session.liveness(reserved), Liveness::Dead);
    reap(&session, me, reserved);
    assert_eq!(adoption(&session), 2, "adopted what was given up");
    post(&session, 1, 2);
}

#[test]
fn death_at_any_step_of_joining_leaves_only_slots_that_can_be_reaped() {
    let (session, me) = session();
    let body = || {
        let own = session.claim_slot().unwrap();
        let reserved = session.reserve_child_slot(own).unwrap();
        session.adopt_slot(reserved).unwrap();
        session.release_slot(own);
        session.release_slot(reserved);
    };
    let deaths = die_at_every_step(&session, body, |n| {
        only_one_is_left(&session, me, n);
    });
    assert!(deaths >= 10);
}

#[test]
fn a_reaper_that_dies_at_any_step_is_replaced() {
    let (session, me) = session();
    let victim = std::cell::Cell::new(None);
    let prepare = || {
        let child = fork(|| post(&session, 3, pack(session.claim_slot().unwrap())));
        assert_eq!(child.wait(), End::Exit(0));
        victim.set(Some(unpack(
            processes::mailbox(&session, 3).load(Ordering::SeqCst),
        )));
    };
    prepare();
    let body = || {
        let own = session.claim_slot().unwrap();
        reap(&session, own, victim.get().unwrap());
        session.release_slot(own);
    };
    let deaths = die_at_every_step(&session, body, |n| {
        only_one_is_left(&session, me, n);
        prepare();
    });
    assert!(deaths >= 6);
}

#[test]
fn the_living_are_never_reaped() {
    let (session, me) = session();
    let other = session.claim_slot().unwrap();
    let mut called = false;
    let result: Result<(), ()> = session.reap(me, other, &mut |_| {
        called = true;
        Ok(())
    });
    assert_eq!(result, Ok(()));
    assert!(!called && session.is_current(other) && !session.is_tainted());
}

#[test]
fn a_recovery_that_fails_leaves_the_slot_for_the_next_try() {
    let (session, me) = session();
    assert_eq!(
        fork(|| assert!(session.claim_slot().is_ok())).wait(),
        End::Exit(0)
    );
    let dead = session.dead_slots().next().unwrap();
    assert_eq!(
        session.reap(me, dead, &mut |_| Err("device")),
        Err("device")
    );
    assert!(session.is_current(dead));
    reap(&session, me, dead);
    assert!(!session.is_current(dead));
}

const EXEC_SESSION: &str = "NACRE_TEST_EXEC_SESSION";
const EXEC_SLOT: &str = "NACRE_TEST_EXEC_SLOT";

/// Runs as a test of its own only after the exec of `a_process_finds_its_slot_after_exec`.
#[test]
fn after_exec() {
    let Some(path) = env::var_os(EXEC_SESSION) else {
        return;
    };
    let session = Session::open(&place(Path::new(&path))).unwrap();
    let before: u64 = env::var(EXEC_SLOT).unwrap().parse().unwrap();
    assert_eq!(session.find_own_slot(), Some(unpack(before)));
}

#[test]
fn a_process_finds_its_slot_after_exec() {
    let (_folder, path, session) = made(1);
    session.set_ready();
    let program = CString::new(env::current_exe().unwrap().to_str().unwrap()).unwrap();
    let child = fork(|| {
        let own = session.claim_slot().unwrap();
        let arguments = [
            program.clone(),
            CString::new("--exact").unwrap(),
            CString::new("slots::after_exec").unwrap(),
        ];
        let variables = [
            format!("{EXEC_SESSION}={}", path.display()),
            format!("{EXEC_SLOT}={}", pack(own)),
        ]
        .map(|text| CString::new(text).unwrap());
        let argv: Vec<_> = arguments
            .iter()
            .map(|text| text.as_ptr())
            .chain([std::ptr::null()])
            .collect();
        let envp: Vec<_> = variables
            .iter()
            .map(|text| text.as_ptr())
            .chain([std::ptr::null()])
            .collect();
        // SAFETY: both vectors hold pointers to live C strings and end with null.
        unsafe { libc::execve(program.as_ptr(), argv.as_ptr(), envp.as_ptr()) };
        panic!("exec failed");
    });
    assert_eq!(child.wait(), End::Exit(0));
}

#[test]
fn the_kernel_keeps_nothing_once_somebody_else_has_a_slot() {
    let (session, me) = session();
    assert!(session.begin_kernel_cache(me));
    assert!(!session.wait_for_kernel_cache_end(me, Duration::ZERO));
    let ended = AtomicBool::new(false);
    let other = thread::scope(|scope| {
        let other = scope.spawn(|| {
            let other = session.claim_slot().unwrap();
            assert!(ended.load(Ordering::SeqCst), "a slot was taken too early");
            other
        });
        while !session.wait_for_kernel_cache_end(me, Duration::from_secs(1)) {}
        thread::sleep(Duration::from_millis(1));
        ended.store(true, Ordering::SeqCst);
        session.end_kernel_cache();
        other.join().unwrap()
    });
    assert!(!session.begin_kernel_cache(me), "somebody else is there");
    session.release_slot(other);
    assert!(session.begin_kernel_cache(me));
    // As if this process had died: the next one ends it.
    session.release_slot(me);
    let next = session.claim_slot().unwrap();
    assert_eq!(next.slot, me.slot);
    assert!(session.begin_kernel_cache(next));
}

#[test]
fn nobody_waits_for_ever_for_a_server_that_is_stopped() {
    let (session, me) = session();
    assert!(session.begin_kernel_cache(me));
    session.release_slot(session.claim_slot().unwrap());
    // Once it goes on, it is told to make the kernel forget.
    assert!(session.wait_for_kernel_cache_end(me, Duration::ZERO));
}

#[test]
fn who_only_looks_keeps_nobody_from_keeping() {
    let (session, me) = session();
    assert!(session.begin_kernel_cache(me));
    let looks = session.claim_slot_to_look().unwrap();
    assert!(!session.wait_for_kernel_cache_end(me, Duration::ZERO));
    session.end_kernel_cache();
    assert!(session.begin_kernel_cache(me), "it changes nothing");
    let ended = AtomicBool::new(false);
    thread::scope(|scope| {
        let changes = scope.spawn(|| {
            session.will_change(looks);
            assert!(ended.load(Ordering::SeqCst), "it may change too early");
        });
        while !session.wait_for_kernel_cache_end(me, Duration::from_secs(1)) {}
        ended.store(true, Ordering::SeqCst);
        session.end_kernel_cache();
        changes.join().unwrap();
    });
    assert!(!session.begin_kernel_cache(me));
    session.only_looks(looks);
    assert!(session.begin_kernel_cache(me));
}

#[test]
fn who_waits_goes_on_waiting_for_a_server_that_makes_the_kernel_forget() {
    let (session, me) = session();
    assert!(session.begin_kernel_cache(me));
    let ended = AtomicBool::new(false);
    thread::scope(|scope| {
        let other = scope.spawn(|| {
            session.claim_slot().unwrap();
            assert!(ended.load(Ordering::SeqCst), "it waited for less");
        });
        while !session.wait_for_kernel_cache_end(me, Duration::from_secs(1)) {}
        // Longer than is waited for one that is stopped.
        for _ in 0..60 {
            thread::sleep(Duration::from_millis(100));
            session.show_kernel_cache_end();
        }
        ended.store(true, Ordering::SeqCst);
        session.end_kernel_cache();
        other.join().unwrap();
    });
}
