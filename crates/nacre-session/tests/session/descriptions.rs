//! Open file descriptions: who holds them, who closes them, and death in between.

use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use crate::processes::{
    End, FILE, await_true, await_value, die_at_every_step, fork, mailbox, post, reap, reap_all,
    session, sleep_forever,
};
use nacre_session::{Full, MAX_OFD_NAME, MAX_OFDS, OfdId, OfdInit, Session, SlotRef};
use nacre_types::Ino;

const INIT: OfdInit<'static> = OfdInit {
    ino: FILE,
    ino_generation: 3,
    flags: 0o2,
    mode: 0o100644,
    parent: Ino(1),
    name: b"notes.txt",
};

fn close(session: &Session, id: OfdId, who: SlotRef) -> bool {
    let last = session.unhold(id, who);
    if last {
        session.ofd_free(id);
    }
    last
}

#[test]
fn a_description_is_what_it_was_born_with() {
    let (session, me) = session();
    let id = session.ofd_alloc(me, &INIT).unwrap();
    let ofd = session.ofd(id).unwrap();
    let mut name = [0; MAX_OFD_NAME];
    let len = ofd.name(&mut name);
    assert_eq!(&name[..len], b"notes.txt");
    assert_eq!(
        (ofd.ino(), ofd.ino_generation(), ofd.parent(), ofd.mode()),
        (FILE, 3, Ino(1), 0o100644)
    );
    assert_eq!(ofd.flags.load(Ordering::Relaxed), 0o2);
    assert_eq!(ofd.pos.load(Ordering::Relaxed), 0);
    assert!(session.is_held_by(id, me));
    assert_eq!(OfdId::from_identity(id.identity()), Some(id));
}

#[test]
fn nothing_of_the_last_use_shows_in_the_next() {
    let (session, me) = session();
    let first = session.ofd_alloc(me, &INIT).unwrap();
    session.ofd(first).unwrap().pos.store(99, Ordering::Relaxed);
    assert!(close(&session, first, me));
    assert!(session.ofd(first).is_none());
    assert!(!session.hold(first, me) && !session.is_held_by(first, me));
    let long = [b'x'; 400];
    let second = session
        .ofd_alloc(
            me,
            &OfdInit {
                name: &long,
                ..INIT
            },
        )
        .unwrap();
    assert_eq!(second.index, first.index);
    assert_ne!(second.generation, first.generation);
    assert_eq!(session.ofd(second).unwrap().pos.load(Ordering::Relaxed), 0);
    assert_eq!(
        session.ofd(second).unwrap().name(&mut [0; MAX_OFD_NAME]),
        MAX_OFD_NAME
    );
    assert!(
        !session.unhold(first, me),
        "a stale reference let go of the next use"
    );
    assert!(session.is_held_by(second, me));
}

#[test]
fn the_last_of_two_processes_closes() {
    let (session, me) = session();
    let id = session.ofd_alloc(me, &INIT).unwrap();
    let reserved = session.reserve_child_slot(me).unwrap();
    assert!(session.hold(id, reserved));
    let child = fork(|| {
        session.adopt_slot(reserved).unwrap();
        await_value(&session, 0, 1);
        session.ofd(id).unwrap().pos.store(41, Ordering::Relaxed);
        assert!(close(&session, id, reserved));
        session.release_slot(reserved);
    });
    assert!(!close(&session, id, me));
    assert!(!close(&session, id, me));
    post(&session, 0, 1);
    assert_eq!(child.wait(), End::Exit(0));
    assert!(session.ofd(id).is_none());
}

#[test]
fn of_many_that_let_go_at_once_exactly_one_closes() {
    let (session, _) = session();
    let slots: Vec<SlotRef> = (0..4).map(|_| session.claim_slot().unwrap()).collect();
    let barrier = Barrier::new(slots.len());
    let identity = AtomicU64::new(0);
    let closes = AtomicU64::new(0);
    thread::scope(|scope| {
        for (index, &own) in slots.iter().enumerate() {
            let (session, slots, barrier, identity, closes) =
                (&session, &slots, &barrier, &identity, &closes);
            scope.spawn(move || {
                for round in 1..=2000 {
                    if index == 0 {
                        let id = session.ofd_alloc(own, &INIT).unwrap();
                        assert!(slots.iter().all(|&slot| session.hold(id, slot)));
                        identity.store(id.identity(), Ordering::SeqCst);
                    }
                    barrier.wait();
                    let id = OfdId::from_identity(identity.load(Ordering::SeqCst)).unwrap();
                    closes.fetch_add(u64::from(close(session, id, own)), Ordering::SeqCst);
                    barrier.wait();
                    assert_eq!(closes.load(Ordering::SeqCst), round);
                }
            });
        }
    });
    assert_eq!(session.ofds().count(), 0);
}

#[test]
fn a_holder_that_comes_while_the_last_one_goes_either_has_it_or_not() {
    let (session, me) = session();
    let comer = session.claim_slot().unwrap();
    let (barrier, identity, closes) = (Barrier::new(2), AtomicU64::new(0), AtomicU64::new(0));
    const ROUNDS: u64 = 5000;
    let attempt = |own: SlotRef| {
        for _ in 0..ROUNDS {
            if own == me {
                identity.store(
                    session.ofd_alloc(me, &INIT).unwrap().identity(),
                    Ordering::SeqCst,
                );
            }
            barrier.wait();
            let id = OfdId::from_identity(identity.load(Ordering::SeqCst)).unwrap();
            if own == me || session.hold(id, own) {
                assert!(session.ofd(id).is_some());
                closes.fetch_add(u64::from(close(&session, id, own)), Ordering::SeqCst);
            }
            barrier.wait();
        }
    };
    thread::scope(|scope| {
        scope.spawn(|| attempt(comer));
        attempt(me);
    });
    assert_eq!(closes.load(Ordering::SeqCst), ROUNDS);
    assert_eq!(session.ofds().count(), 0);
}

#[test]
fn a_description_sent_over_a_socket_stays() {
    let (session, me) = session();
    let id = session.ofd_alloc(me, &INIT).unwrap();
    session.ofd(id).unwrap().mark_passed();
    assert!(!session.unhold(id, me));
    let receiver = session.claim_slot().unwrap();
    assert!(session.hold(id, receiver));
}

#[test]
fn a_full_table_says_so_and_recovers() {
    let (session, me) = session();
    let all: Vec<OfdId> = (0..MAX_OFDS)
        .map(|_| session.ofd_alloc(me, &INIT).unwrap())
        .collect();
    assert_eq!(
        session.ofd_alloc(me, &INIT),
        Err(Full("open file descriptions"))
    );
    assert_eq!(session.ofds_held_by(me).count(), MAX_OFDS as usize);
    assert!(close(&session, all[777], me));
    assert_eq!(session.ofd_alloc(me, &INIT).unwrap().index, 777);
}

#[test]
fn what_only_the_dead_held_is_closed_once_and_what_others_hold_stays() {
    let (session, me) = session();
    let shared = session.ofd_alloc(me, &INIT).unwrap();
    let reserved = session.reserve_child_slot(me).unwrap();
    assert!(session.hold(shared, reserved));
    let child = fork(|| {
        session.adopt_slot(reserved).unwrap();
        let id = session.ofd_alloc(reserved, &INIT).unwrap();
        post(&session, 0, id.identity());
        sleep_forever();
    });
    await_true(|| mailbox(&session, 0).load(Ordering::SeqCst) != 0);
    let own = OfdId::from_identity(mailbox(&session, 0).load(Ordering::SeqCst)).unwrap();
    child.kill();
    drop(child);
    let mut closed = Vec::new();
    let reaped: Result<(), ()> = session.reap(me, reserved, &mut |dead| {
        session.release_ofds_of(me, dead, &mut |id| closed.push(id));
        Ok(())
    });
    assert_eq!(reaped, Ok(()));
    assert_eq!(closed, [own]);
    assert!(session.is_held_by(shared, me) && !session.is_held_by(shared, reserved));
    assert!(session.ofd(own).is_none());
}

/// How many of the first `count` entries behind the one that is kept cannot be had.
fn entries_in_use(session: &Session, me: SlotRef, count: u32) -> usize {
    let taken: Vec<OfdId> = (0..MAX_OFDS)
        .map(|_| session.ofd_alloc(me, &INIT).unwrap())
        .take_while(|id| id.index <= count)
        .collect();
    let beyond = session.ofds_held_by(me).filter(|id| id.index > count);
    for id in beyond.chain(taken.iter().copied()) {
        assert!(close(session, id, me));
    }
    count as usize - taken.len()
}

#[test]
fn death_at_any_step_leaves_no_description_behind() {
    let (session, me) = session();
    let kept = session.ofd_alloc(me, &INIT).unwrap();
    let body = || {
        let own = session.claim_slot().unwrap();
        assert!(session.hold(kept, own));
        let id = session.ofd_alloc(own, &INIT).unwrap();
        assert_eq!(id.index, 1, "the table grows with every death");
        let child = session.reserve_child_slot(own).unwrap();
        assert!(session.hold(id, child));
        assert!(!close(&session, id, own));
        assert!(close(&session, id, child));
        assert!(!close(&session, kept, own));
        session.release_slot(child);
        session.release_slot(own);
    };
    let deaths = die_at_every_step(&session, body, |n| {
        reap_all(&session, me);
        assert_eq!(session.ofds().collect::<Vec<_>>(), [kept], "step {n}");
        assert_eq!(entries_in_use(&session, me, 2), 0, "step {n}");
    });
    assert!(deaths >= 20);
    assert!(session.is_held_by(kept, me));
}

#[test]
fn death_of_the_reaper_at_any_step_leaves_no_description_behind() {
    let (session, me) = session();
    let kept = session.ofd_alloc(me, &INIT).unwrap();
    let body = || {
        let victim = fork(|| {
            nacre_session::step::arm(u64::MAX);
            let own = session.claim_slot().unwrap();
            assert!(session.hold(kept, own));
            session.ofd_alloc(own, &INIT).unwrap();
            session.ofd_alloc(own, &INIT).unwrap();
        });
        assert_eq!(victim.wait(), End::Exit(0));
        let own = session.claim_slot().unwrap();
        let dead: Vec<SlotRef> = session.dead_slots().collect();
        dead.into_iter().for_each(|dead| reap(&session, own, dead));
        session.release_slot(own);
    };
    let deaths = die_at_every_step(&session, body, |n| {
        reap_all(&session, me);
        assert_eq!(session.ofds().collect::<Vec<_>>(), [kept], "step {n}");
        assert_eq!(
            session.current_slots().collect::<Vec<_>>(),
            [me],
            "step {n}"
        );
        assert_eq!(entries_in_use(&session, me, 2), 0, "step {n}");
    });
    assert!(deaths >= 20);
}

/// The child that lets go stops at its n-th step; meanwhile another holder comes.
fn meet_at_step(session: &Session, me: SlotRef, n: u64) -> bool {
    let id = session.ofd_alloc(me, &INIT).unwrap();
    let leaver = session.reserve_child_slot(me).unwrap();
    assert!(session.hold(id, leaver) && !session.unhold(id, me));
    post(session, 0, 0);
    let mut child = fork(|| {
        session.adopt_slot(leaver).unwrap();
        nacre_session::step::arm_stop(n);
        post(session, 0, u64::from(close(session, id, leaver)));
        session.release_slot(leaver);
    });
    let stopped = child.await_stop();
    let held = thread::scope(|scope| {
        let comer = scope.spawn(|| session.hold(id, me));
        // Time for the comer to set its bit and to look.
        thread::sleep(std::time::Duration::from_millis(2));
        if stopped {
            child.go_on();
            assert!(!child.await_stop());
        }
        comer.join().unwrap()
    });
    let closed_by_child = mailbox(session, 0).load(Ordering::SeqCst) == 1;
    assert_ne!(held, closed_by_child, "step {n}");
    if held {
        assert!(
            session.is_held_by(id, me) && close(session, id, me),
            "step {n}"
        );
    }
    stopped
}

#[test]
fn at_every_step_of_the_last_close_a_new_holder_has_it_or_not() {
    let (session, me) = session();
    let steps = (1..).take_while(|&n| meet_at_step(&session, me, n)).count();
    assert!(steps >= 8);
    assert_eq!(session.ofds().count(), 0);
}

/// The child that comes stops at its n-th step; meanwhile the description ends and its entry is
/// used again.
fn come_too_late_at_step(session: &Session, me: SlotRef, n: u64) -> bool {
    let id = session.ofd_alloc(me, &INIT).unwrap();
    let comer = session.reserve_child_slot(me).unwrap();
    let mut child = fork(|| {
        session.adopt_slot(comer).unwrap();
        nacre_session::step::arm_stop(n);
        let held = session.hold(id, comer);
        nacre_session::step::arm(u64::MAX);
        post(session, 0, 1 + u64::from(held));
        close(session, id, comer);
        session.release_slot(comer);
    });
    if !child.await_stop() {
        assert!(close(session, id, me));
        return false;
    }
    let ended = close(session, id, me);
    let next = session.ofd_alloc(me, &INIT).unwrap();
    assert_eq!(next.index == id.index, ended);
    child.go_on();
    assert!(!child.await_stop());
    let held = mailbox(session, 0).load(Ordering::SeqCst) == 2;
    assert_ne!(held, ended, "step {n}");
    assert!(
        session.is_held_by(next, me) && close(session, next, me),
        "step {n}"
    );
    true
}

#[test]
fn a_holder_that_comes_too_late_leaves_the_next_use_alone() {
    let (session, me) = session();
    let steps = (1..).take_while(|&n| come_too_late_at_step(&session, me, n));
    assert!(steps.count() >= 1);
    assert_eq!(session.ofds().count(), 0);
}

#[test]
fn slots_behind_the_first_thousand_hold_descriptions_as_the_first_do() {
    let (session, me) = session();
    let mut far = me;
    while far.slot < 1500 {
        far = session.claim_slot().unwrap();
    }
    let next = session.claim_slot().unwrap();
    let id = session.ofd_alloc(me, &INIT).unwrap();
    assert!(session.hold(id, far) && session.hold(id, next));
    assert!(session.is_held_by(id, far) && session.ofds_held_by(far).eq([id]));
    assert!(!session.unhold(id, me) && !session.unhold(id, next));
    assert!(!session.unhold(id, next), "it was let go of before");
    assert!(close(&session, id, far));
    assert!(session.ofd(id).is_none());
    // The entry's next use is held by nobody but its maker, who is far, too.
    let again = session.ofd_alloc(far, &INIT).unwrap();
    assert!(session.is_held_by(again, far) && !session.is_held_by(again, next));
    assert!(!session.hold(id, next));
    assert!(close(&session, again, far));
}
