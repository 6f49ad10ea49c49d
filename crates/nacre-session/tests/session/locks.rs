//! Locks between processes, and what happens when their holders die.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;

use crate::processes::{
    self, End, await_true, await_value, die_at_every_step, fork, post, reap, reap_all, session,
    sleep_forever,
};
use nacre_session::{DeadOwner, Liveness, Session, SlotRef, report_stalls, stall_text};

const COUNTER: u64 = 1;

fn count_under_lock(session: &Session, me: SlotRef, rounds: u64) {
    let core = session.icore(COUNTER);
    for _ in 0..rounds {
        core.lock.lock(session, me).unwrap();
        let count = core.alloc_hint.load(Ordering::Relaxed);
        std::hint::spin_loop();
        core.alloc_hint.store(count + 1, Ordering::Relaxed);
        core.lock.unlock(me);
    }
}

#[test]
fn only_one_thread_of_all_processes_is_inside() {
    let (session, me) = session();
    let children: Vec<_> = (0..4)
        .map(|_| {
            fork(|| {
                let own = session.claim_slot().unwrap();
                thread::scope(|scope| {
                    for _ in 0..2 {
                        scope.spawn(|| count_under_lock(&session, own, 5000));
                    }
                });
                session.release_slot(own);
            })
        })
        .collect();
    count_under_lock(&session, me, 5000);
    for child in children {
        assert_eq!(child.wait(), End::Exit(0));
    }
    assert_eq!(
        session.icore(COUNTER).alloc_hint.load(Ordering::Relaxed),
        4 * 2 * 5000 + 5000
    );
    assert_eq!(session.icore(COUNTER).lock.owner(), None);
}

static STALLED_BY: AtomicU32 = AtomicU32::new(0);

#[test]
fn whoever_waits_for_a_stopped_process_is_told_and_goes_on_with_it() {
    let (session, me) = session();
    let mut child = fork(|| {
        let own = session.claim_slot().unwrap();
        session.icore(COUNTER).lock.lock(&session, own).unwrap();
        // SAFETY: stops this process, which its parent lets go on.
        unsafe { libc::raise(libc::SIGSTOP) };
        session.icore(COUNTER).lock.unlock(own);
        session.release_slot(own);
    });
    assert!(child.await_stop());
    report_stalls(|pid| STALLED_BY.store(pid, Ordering::SeqCst));
    thread::scope(|scope| {
        let waiter = scope.spawn(|| session.icore(COUNTER).lock.lock(&session, me));
        await_true(|| STALLED_BY.load(Ordering::SeqCst) == child.pid());
        child.go_on();
        assert_eq!(waiter.join().unwrap(), Ok(()));
    });
    assert!(stall_text(child.pid()).contains(&format!("kill -CONT {}", child.pid())));
    assert_eq!(child.wait(), End::Exit(0));
}

#[test]
fn who_cannot_take_a_version_yet_lets_others_store() {
    let (session, me) = session();
    let [stopped, other] = [(); 2].map(|()| session.claim_slot().unwrap());
    let gate = session.store_gate();
    assert!(gate.enter(stopped.slot));
    thread::scope(|scope| {
        let taker = scope.spawn(|| session.while_nobody_stores(me, || gate.enter(other.slot)));
        // Each of them finds the gate shut, as nobody stores in between.
        for _ in 0..2 {
            await_true(|| match gate.enter(other.slot) {
                true => {
                    gate.leave(other.slot);
                    false
                }
                false => true,
            });
            session.wait_at_gate();
        }
        gate.leave(stopped.slot);
        assert!(
            !taker.join().unwrap(),
            "it was shut when the version was taken"
        );
    });
    assert!(gate.enter(other.slot), "it is open afterwards");
}

/// A child that holds the lock of `COUNTER` until it is killed.
fn child_with_lock(session: &Session) -> (processes::Child, SlotRef) {
    let child = fork(|| {
        let own = session.claim_slot().unwrap();
        session.icore(COUNTER).lock.lock(session, own).unwrap();
        post(session, 0, 1);
        sleep_forever();
    });
    await_value(session, 0, 1);
    let owner = session.icore(COUNTER).lock.owner().unwrap();
    (child, owner)
}

#[test]
fn a_waiter_learns_of_the_death_of_the_holder_and_goes_on_after_reaping() {
    let (session, me) = session();
    let (child, dead) = child_with_lock(&session);
    assert_eq!(session.liveness(dead), Liveness::Alive);
    child.kill();
    let lock = &session.icore(COUNTER).lock;
    assert_eq!(lock.lock(&session, me), Err(DeadOwner(dead)));
    assert!(!session.is_tainted());
    reap(&session, me, dead);
    assert!(session.is_tainted());
    assert_eq!(lock.lock(&session, me), Ok(()));
    assert!(lock.is_held_by(me));
}

#[test]
fn a_lock_of_a_living_holder_is_waited_for_however_long_it_takes() {
    let (session, me) = session();
    let (child, _) = child_with_lock(&session);
    let got = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let taken = session.icore(COUNTER).lock.lock(&session, me);
            got.store(true, Ordering::SeqCst);
            assert!(matches!(taken, Err(DeadOwner(_))));
        });
        // Many rounds of the waiter's time-out.
        thread::sleep(std::time::Duration::from_millis(100));
        assert!(!got.load(Ordering::SeqCst));
        child.kill();
    });
}

#[test]
fn the_lock_of_a_recovered_slot_counts_as_free() {
    let (session, me) = session();
    let gone = session.claim_slot().unwrap();
    let lock = &session.icore(COUNTER).lock;
    lock.lock(&session, gone).unwrap();
    assert!(!lock.try_lock(&session, me));
    session.release_slot(gone);
    let next = session.claim_slot().unwrap();
    assert_eq!(next.slot, gone.slot);
    assert!(lock.try_lock(&session, me));
    lock.unlock(me);
    lock.lock(&session, gone).unwrap();
    assert_eq!(lock.lock(&session, me), Ok(()));
}

#[test]
fn a_lock_is_stolen_by_one_only() {
    let (session, me) = session();
    let (child, dead) = child_with_lock(&session);
    child.kill();
    let lock = &session.icore(COUNTER).lock;
    let other = session.claim_slot().unwrap();
    assert!(lock.steal(dead, me));
    assert!(!lock.steal(dead, other));
    assert!(lock.is_held_by(me));
    lock.unlock(me);
    assert!(lock.try_lock(&session, other));
}

#[test]
fn a_guard_copied_by_fork_unlocks_nothing() {
    let (session, me) = session();
    let lock = &session.icore(COUNTER).lock;
    lock.lock(&session, me).unwrap();
    let child = fork(|| {
        let own = session.claim_slot().unwrap();
        lock.unlock(own);
    });
    assert_eq!(child.wait(), End::Exit(0));
    assert!(lock.is_held_by(me));
}

#[test]
fn a_second_thread_of_the_holder_waits() {
    let (session, me) = session();
    let lock = &session.icore(COUNTER).lock;
    let inside = AtomicBool::new(false);
    lock.lock(&session, me).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| {
            lock.lock(&session, me).unwrap();
            inside.store(true, Ordering::SeqCst);
            lock.unlock(me);
        });
        thread::sleep(std::time::Duration::from_millis(50));
        assert!(!inside.load(Ordering::SeqCst));
        lock.unlock(me);
    });
    assert!(inside.load(Ordering::SeqCst));
}

#[test]
fn death_at_any_step_of_locking_leaves_a_lock_that_can_be_taken() {
    let (session, me) = session();
    let lock = &session.icore(COUNTER).lock;
    let body = || {
        let own = session.claim_slot().unwrap();
        for _ in 0..2 {
            lock.lock(&session, own).unwrap();
            lock.unlock(own);
        }
        assert!(lock.try_lock(&session, own));
        lock.unlock(own);
        session.release_slot(own);
    };
    let deaths = die_at_every_step(&session, body, |n| {
        if let Err(DeadOwner(dead)) = lock.lock(&session, me) {
            reap(&session, me, dead);
            lock.lock(&session, me).unwrap();
        }
        lock.unlock(me);
        reap_all(&session, me);
        assert_eq!(
            session.current_slots().collect::<Vec<_>>(),
            [me],
            "step {n}"
        );
    });
    assert!(deaths >= 12);
}

#[test]
fn death_while_waiting_harms_nobody() {
    let (session, me) = session();
    let lock = &session.icore(COUNTER).lock;
    lock.lock(&session, me).unwrap();
    let child = fork(|| {
        let own = session.claim_slot().unwrap();
        post(&session, 0, 1);
        let _ = lock.lock(&session, own);
    });
    await_value(&session, 0, 1);
    thread::sleep(std::time::Duration::from_millis(30));
    child.kill();
    await_true(|| session.dead_slots().next().is_some());
    lock.unlock(me);
    assert!(lock.try_lock(&session, me));
    reap_all(&session, me);
    assert!(lock.is_held_by(me));
}
