//! The protocols of the session under thousands of schedules, with deaths at any step.

mod faults;
mod stage;

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use nacre_session::{
    DeadOwner, LockKind, LockOwner, LockRange, LockRequest, OfdId, OfdInit, OwnedLock, Session,
    SlotRef, step,
};
use nacre_types::Ino;
use stage::{Fate, Play, explore, is_dead};

const SCHEDULES: usize = 1500;
/// A planted fault shows in some schedules only, one of 400 to 15000. The first ends the search.
const CANARY_SCHEDULES: usize = 160 * SCHEDULES;
const COUNTER: u64 = 1;

/// Whoever is inside what only one may be in.
#[derive(Default)]
struct Inside(AtomicU64);

impl Inside {
    fn enter(&self, me: SlotRef) {
        let number = |slot: SlotRef| u64::from(slot.slot) + 1;
        let before = self.0.swap(number(me), SeqCst);
        let other = SlotRef {
            slot: before.wrapping_sub(1) as u16,
            generation: 1,
        };
        assert!(
            before == 0 || is_dead(other) || is_dead(me),
            "two are inside"
        );
        step::point();
        let still = self.0.load(SeqCst);
        assert!(
            still == number(me) || is_dead(me),
            "somebody else is inside"
        );
    }

    fn leave(&self) {
        self.0.store(0, SeqCst);
    }
}

fn reap(session: &Session, me: SlotRef, dead: SlotRef) {
    let recovered: Result<(), Infallible> = session.reap(me, dead, &mut |_| Ok(()));
    recovered.unwrap();
}

fn lock(session: &Session, lock: &OwnedLock, me: SlotRef) {
    while let Err(DeadOwner(dead)) = lock.lock(session, me) {
        reap(session, me, dead);
    }
}

fn fates() -> [Fate; 3] {
    [Fate::Immortal, Fate::Mortal, Fate::Mortal]
}

/// Three lock in turns.
fn lock_in_turns(play: &mut Play) {
    let inside = Arc::new(Inside::default());
    for fate in fates() {
        let inside = Arc::clone(&inside);
        play.start(fate, move |session, me| {
            for _ in 0..2 {
                let word = &session.icore(COUNTER).lock;
                lock(session, word, me);
                inside.enter(me);
                inside.leave();
                word.unlock(me);
            }
        });
    }
    play.wait();
}

#[test]
fn only_one_holds_a_lock_and_nobody_waits_for_the_dead() {
    explore(SCHEDULES, lock_in_turns);
}

#[test]
#[should_panic(expected = "exceeded max_steps")]
fn canary_a_waiter_whom_the_owner_did_not_see_needs_the_end_of_its_round() {
    explore(CANARY_SCHEDULES, |play| {
        play.sleep_without_rounds();
        for fate in [Fate::Immortal; 2] {
            play.start(fate, |session, me| {
                let word = &session.icore(COUNTER).lock;
                lock(session, word, me);
                word.unlock(me);
            });
        }
        play.wait();
    });
}

#[test]
#[should_panic(expected = "inside")]
fn canary_a_lock_that_is_taken_away_from_a_living_owner_is_noticed() {
    explore(CANARY_SCHEDULES, |play| {
        let inside = Arc::new(Inside::default());
        let owner = play.session.claim_slot().unwrap();
        let left = Arc::new(AtomicU64::new(0));
        let by_owner = Arc::clone(&left);
        play.session
            .icore(COUNTER)
            .lock
            .lock(&play.session, owner)
            .unwrap();
        play.start_thread(Fate::Immortal, owner, move |session, me| {
            by_owner.store(1, SeqCst);
            session.icore(COUNTER).lock.unlock(me);
        });
        for steals in [true, false] {
            let (inside, left) = (Arc::clone(&inside), Arc::clone(&left));
            play.start(Fate::Immortal, move |session, me| {
                let word = &session.icore(COUNTER).lock;
                while left.load(SeqCst) == 0 {
                    step::point();
                }
                if !(steals && word.steal(owner, me)) {
                    lock(session, word, me);
                }
                inside.enter(me);
                inside.leave();
                word.unlock(me);
            });
        }
        play.wait();
    });
}

#[test]
#[should_panic(expected = "inside")]
fn canary_a_lock_that_is_not_atomic_is_noticed() {
    explore(CANARY_SCHEDULES, |play| {
        let inside = Arc::new(Inside::default());
        for fate in [Fate::Immortal; 2] {
            let inside = Arc::clone(&inside);
            play.start(fate, move |session, me| {
                let word = &session.icore(COUNTER).alloc_hint;
                while word.load(SeqCst) != 0 {
                    step::point();
                }
                step::point();
                word.store(1, SeqCst);
                inside.enter(me);
                inside.leave();
                word.store(0, SeqCst);
            });
        }
        play.wait();
    });
}

/// A lane's record: written under the lane's lock, to be applied and retired by whoever has it.
fn transact(session: &Session, me: SlotRef) {
    let lane = session.lane(0);
    while let Err(DeadOwner(dead)) = lane.lock.lock(session, me) {
        recover_lane(session, me, dead);
        reap(session, me, dead);
    }
    let waiting = lane.aux[0].load(SeqCst) != 0;
    assert!(
        !waiting || is_dead(me),
        "a lane with a waiting record was taken"
    );
    step::point();
    lane.aux[0].store(1, SeqCst);
    step::point();
    lane.aux[0].store(0, SeqCst);
    lane.lock.unlock(me);
}

fn recover_lane(session: &Session, me: SlotRef, dead: SlotRef) {
    let lane = session.lane(0);
    if lane.lock.steal(dead, me) {
        step::point();
        lane.aux[0].store(0, SeqCst);
        lane.lock.unlock(me);
    }
}

#[test]
fn a_lane_is_recovered_before_anybody_uses_it_again() {
    explore(SCHEDULES, |play| {
        for fate in fates() {
            play.start(fate, |session, me| {
                for _ in 0..2 {
                    transact(session, me);
                }
            });
        }
        play.wait();
    });
}

#[test]
#[should_panic(expected = "waiting record")]
fn canary_a_lane_taken_over_without_recovery_is_noticed() {
    explore(CANARY_SCHEDULES, |play| {
        for fate in fates() {
            play.start(fate, |session, me| {
                let lane = session.lane(0);
                while let Err(DeadOwner(dead)) = lane.lock.lock(session, me) {
                    reap(session, me, dead);
                }
                lane.lock.unlock(me);
                transact(session, me);
            });
        }
        play.wait();
    });
}

/// Three look for the dead and recover them, and take slots.
fn recover_the_dead(play: &mut Play) {
    let turns: Arc<[AtomicU64; 2]> = Arc::default();
    play.start(Fate::Mortal, |_, _| (0..100).for_each(|_| step::point()));
    for fate in fates() {
        let turns = Arc::clone(&turns);
        play.start(fate, move |session, me| {
            for _ in 0..10 {
                step::point();
                session
                    .dead_slots()
                    .collect::<Vec<_>>()
                    .into_iter()
                    .for_each(|dead| {
                        let recovered: Result<(), Infallible> =
                            session.reap(me, dead, &mut |slot| {
                                assert!(
                                    session.is_current(slot),
                                    "recovered after it was released"
                                );
                                turns[0].fetch_add(1, SeqCst);
                                step::point();
                                Ok(())
                            });
                        recovered.unwrap();
                        assert!(
                            !session.is_current(dead) || is_dead(me),
                            "reaped, and still there"
                        );
                    });
            }
            let own = session.claim_slot().unwrap();
            assert!(session.is_current(own) && own != me);
            session.release_slot(own);
        });
    }
    play.wait();
}

#[test]
fn a_dead_slot_is_recovered_by_one_at_a_time_and_released_once() {
    explore(SCHEDULES, recover_the_dead);
}

const FILE: OfdInit<'static> = OfdInit {
    ino: Ino(7),
    ino_generation: 1,
    flags: 0,
    mode: 0,
    parent: Ino(1),
    name: b"f",
};

fn let_go(session: &Session, id: OfdId, me: SlotRef, closed: &AtomicU64) {
    if session.unhold(id, me) {
        closed.fetch_add(1, SeqCst);
        session.ofd_free(id);
    }
}

/// Ends what the dead left; true if anybody had died while closing.
fn reap_all(session: &Session, me: SlotRef, closed: &AtomicU64) -> bool {
    let mut closing = false;
    let dead: Vec<SlotRef> = session.dead_slots().collect();
    for slot in dead {
        closing |= session.ofds_closing_by(slot).next().is_some();
        let recovered: Result<(), Infallible> = session.reap(me, slot, &mut |slot| {
            session.release_ofds_of(me, slot, &mut |_| {
                closed.fetch_add(1, SeqCst);
            });
            Ok(())
        });
        recovered.unwrap();
    }
    closing
}

/// Four let go of a description.
fn let_go_together(play: &mut Play) {
    let closed = Arc::new(AtomicU64::new(0));
    let judge = play.session.claim_slot().unwrap();
    let parent = play.session.claim_slot().unwrap();
    let id = play.session.ofd_alloc(parent, &FILE).unwrap();
    for fate in fates() {
        let child = play.session.claim_slot().unwrap();
        assert!(play.session.hold(id, child));
        let closed = Arc::clone(&closed);
        play.start_thread(fate, child, move |session, me| {
            assert!(session.ofd(id).is_some(), "closed while it was held");
            let_go(session, id, me, &closed);
        });
    }
    let by_parent = Arc::clone(&closed);
    play.start_thread(Fate::Mortal, parent, move |session, me| {
        let_go(session, id, me, &by_parent);
    });
    play.wait();
    let closing = reap_all(&play.session, judge, &closed);
    assert_eq!(
        play.session.ofds().count(),
        0,
        "a description without holders is left"
    );
    let closes = closed.load(SeqCst);
    assert!(
        closes == 1 || closes == 0 && closing,
        "closed {closes} times"
    );
}

#[test]
fn a_description_is_closed_once_by_whoever_is_last() {
    explore(SCHEDULES, let_go_together);
}

/// One thread closes the description while another gives a share of it to a child.
fn close_while_forking(play: &mut Play) {
    let closed = Arc::new(AtomicU64::new(0));
    let judge = play.session.claim_slot().unwrap();
    let parent = play.session.claim_slot().unwrap();
    let child = play.session.claim_slot().unwrap();
    let id = play.session.ofd_alloc(parent, &FILE).unwrap();
    let by_parent = Arc::clone(&closed);
    play.start_thread(Fate::Mortal, parent, move |session, me| {
        let_go(session, id, me, &by_parent);
    });
    play.start_thread(Fate::Immortal, parent, move |session, _| {
        session.hold(id, child);
    });
    play.wait();
    reap_all(&play.session, judge, &closed);
    let session = Arc::clone(&play.session);
    if session.is_held_by(id, child) && session.ofds().any(|used| used == id) {
        // Whoever has the dead parent's slot now decides nothing.
        let grandchild = session.claim_slot().unwrap();
        play.start_thread(Fate::Immortal, grandchild, move |session, me| {
            assert!(session.hold(id, me), "an open description cannot be shared");
        });
        play.wait();
    }
}

#[test]
fn a_holder_who_died_while_deciding_stops_nobody() {
    explore(SCHEDULES, close_while_forking);
}

#[test]
fn record_locks_exclude_each_other_and_die_with_their_owner() {
    explore(SCHEDULES, |play| {
        let inside = Arc::new(Inside::default());
        for fate in fates() {
            let inside = Arc::clone(&inside);
            play.start(fate, move |session, me| {
                let owner = LockOwner::Process(me);
                let request = LockRequest {
                    ino: Ino(7),
                    owner,
                    range: LockRange::ALL,
                    kind: LockKind::Exclusive,
                };
                while session.record_lock_set(me, &request).is_err() && !is_dead(me) {
                    step::point();
                }
                inside.enter(me);
                inside.leave();
                session
                    .record_unlock(me, Ino(7), owner, LockRange::ALL)
                    .unwrap();
            });
        }
        play.wait();
        let judge = play.session.claim_slot().unwrap();
        reap_all(&play.session, judge, &AtomicU64::new(0));
        play.session.check_advisory_lists().unwrap();
    });
}
