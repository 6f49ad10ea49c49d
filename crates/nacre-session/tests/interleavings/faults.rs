//! Faults planted into the protocols, each noticed by a scene that passes without it.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

use nacre_session::step::{self, Fault};
use nacre_session::{
    Dentry, DentryKey, DentryTarget, LockKind, LockOwner, LockRange, LockRequest, Session, SlotRef,
};

use crate::stage::{Fate, Play, explore};
use crate::{
    CANARY_SCHEDULES, COUNTER, FILE, Inside, SCHEDULES, let_go, let_go_together, lock,
    lock_in_turns,
};

/// One has a lock that another one gives back.
fn a_stranger_unlocks(play: &mut Play) {
    let inside = Arc::new(Inside::default());
    for stranger in [true, false, false] {
        let inside = Arc::clone(&inside);
        play.start(Fate::Immortal, move |session, me| {
            let word = &session.icore(COUNTER).lock;
            if stranger {
                return word.unlock(me);
            }
            lock(session, word, me);
            inside.enter(me);
            inside.leave();
            word.unlock(me);
        });
    }
    play.wait();
}

/// Three take slots, which they keep.
fn take_slots(play: &mut Play) {
    let taken: Arc<Mutex<BTreeSet<u16>>> = Arc::default();
    for _ in 0..3 {
        let taken = Arc::clone(&taken);
        play.start(Fate::Immortal, move |session, _| {
            let SlotRef { slot, .. } = session.claim_slot().unwrap();
            assert!(taken.lock().unwrap().insert(slot), "two have one slot");
        });
    }
    play.wait();
}

/// Two children are given a description at the same time.
fn give_to_two(play: &mut Play) {
    let parent = play.session.claim_slot().unwrap();
    let id = play.session.ofd_alloc(parent, &FILE).unwrap();
    let children = [(); 2].map(|()| play.session.claim_slot().unwrap());
    for child in children {
        play.start_thread(Fate::Immortal, parent, move |session, _| {
            assert!(session.hold(id, child));
        });
    }
    play.wait();
    for child in children {
        assert!(play.session.is_held_by(id, child), "a holder was forgotten");
    }
}

/// One process lets go of a description while it gives a share of it to a child; another one may
/// have it, too.
fn give_while_closing(play: &mut Play, others: usize) {
    let closed = Arc::new(AtomicU64::new(0));
    let parent = play.session.claim_slot().unwrap();
    let id = play.session.ofd_alloc(parent, &FILE).unwrap();
    for _ in 0..others {
        let other = play.session.claim_slot().unwrap();
        assert!(play.session.hold(id, other));
        let closed = Arc::clone(&closed);
        play.start_thread(Fate::Immortal, other, move |session, me| {
            let_go(session, id, me, &closed);
        });
    }
    let child = play.session.claim_slot().unwrap();
    let by_parent = Arc::clone(&closed);
    play.start_thread(Fate::Immortal, parent, move |session, me| {
        let_go(session, id, me, &by_parent);
    });
    let given = Arc::new(AtomicU64::new(0));
    let by_thread = Arc::clone(&given);
    play.start_thread(Fate::Immortal, parent, move |session, _| {
        by_thread.store(u64::from(session.hold(id, child)), SeqCst);
    });
    play.wait();
    let open = play.session.ofd(id).is_some();
    let (given, closed) = (given.load(SeqCst) == 1, closed.load(SeqCst));
    assert!(
        given == open && closed == u64::from(!open),
        "closed under its new holder"
    );
}

/// The last two let go of a description.
fn close_together(play: &mut Play) {
    let closed = Arc::new(AtomicU64::new(0));
    let holders = [(); 2].map(|()| play.session.claim_slot().unwrap());
    let id = play.session.ofd_alloc(holders[0], &FILE).unwrap();
    assert!(play.session.hold(id, holders[1]));
    for holder in holders {
        let closed = Arc::clone(&closed);
        play.start_thread(Fate::Immortal, holder, move |session, me| {
            if session.unhold(id, me) {
                closed.fetch_add(1, SeqCst);
            }
        });
    }
    play.wait();
    assert_eq!(closed.load(SeqCst), 1, "closed by two, or by nobody");
}

/// Three make descriptions, which they keep.
fn make_three(play: &mut Play) {
    let made: Arc<Mutex<BTreeSet<u32>>> = Arc::default();
    for _ in 0..3 {
        let made = Arc::clone(&made);
        play.start(Fate::Immortal, move |session, me| {
            let id = session.ofd_alloc(me, &FILE).unwrap();
            assert!(
                made.lock().unwrap().insert(id.index),
                "two have one description"
            );
        });
    }
    play.wait();
}

/// Two find one dead and recover it.
fn recover_together(play: &mut Play) {
    let inside = Arc::new(Inside::default());
    play.start(Fate::Mortal, |_, _| (0..100).for_each(|_| step::point()));
    for _ in 0..2 {
        let inside = Arc::clone(&inside);
        play.start(Fate::Immortal, move |session, me| {
            for _ in 0..30 {
                step::point();
                let dead: Vec<SlotRef> = session.dead_slots().collect();
                for slot in dead {
                    let recovered: Result<(), Infallible> = session.reap(me, slot, &mut |_| {
                        inside.enter(me);
                        inside.leave();
                        Ok(())
                    });
                    recovered.unwrap();
                }
            }
        });
    }
    play.wait();
}

fn name() -> DentryKey<'static> {
    DentryKey::new(1, 1, b"a name of more than one word").unwrap()
}

/// A fact all parts of which are one number.
fn fact(number: u32) -> Dentry {
    let found = DentryTarget {
        object: u64::from(number),
        generation: number,
        kind: 8,
    };
    Dentry {
        mode: number,
        uid: number,
        gid: number,
        found: Some(found),
    }
}

/// Two remember other things of one name, which a third one asks for.
fn remember_and_ask(play: &mut Play) {
    let when = play.session.validity_stamp(&name(), 0);
    play.session.remember_dentry(&name(), when, &fact(1));
    for number in [2, 3] {
        play.start(Fate::Immortal, move |session, _| {
            session.remember_dentry(&name(), when, &fact(number));
        });
    }
    play.start(Fate::Immortal, |session, _| {
        for _ in 0..4 {
            let told = session.dentry(&name(), 0);
            let whole = told.is_ok_and(|told| told == fact(told.mode));
            assert!(whole || told.is_err(), "parts of two facts");
        }
    });
    play.wait();
}

/// Two change names of one bucket.
fn change_names(play: &mut Play) {
    let count = |session: &Session| session.validity_stamp(&name(), 0).counts().0;
    let before = count(&play.session);
    for _ in 0..2 {
        play.start(Fate::Immortal, |session, _| {
            session.forget_dentries(session.dentry_bucket(&name()));
        });
    }
    play.wait();
    assert_eq!(count(&play.session), before + 2, "a change was not counted");
}

/// Three lock bytes of one file, none in the other's way, and keep them.
fn lock_bytes(play: &mut Play) {
    let request = |owner: SlotRef, byte: u64| LockRequest {
        ino: FILE.ino,
        owner: LockOwner::Process(owner),
        range: LockRange {
            first: byte * 10,
            last: byte * 10,
        },
        kind: LockKind::Exclusive,
    };
    for byte in 0..3 {
        play.start(Fate::Immortal, move |session, me| {
            session.record_lock_set(me, &request(me, byte)).unwrap();
        });
    }
    play.wait();
    let (session, judge) = (&play.session, play.session.claim_slot().unwrap());
    let is_there = |byte| {
        session
            .record_lock_set(judge, &request(judge, byte))
            .is_err()
    };
    assert!(
        session.check_advisory_lists().is_ok() && (0..3).all(is_there),
        "locks were lost"
    );
}

fn give_while_one_closes(play: &mut Play) {
    give_while_closing(play, 0);
}

fn give_while_two_close(play: &mut Play) {
    give_while_closing(play, 1);
}

#[test]
fn a_stranger_gives_no_lock_back() {
    explore(SCHEDULES, a_stranger_unlocks);
}

#[test]
fn no_two_processes_take_one_slot() {
    explore(SCHEDULES, take_slots);
}

#[test]
fn both_of_two_new_holders_count() {
    explore(SCHEDULES, give_to_two);
}

#[test]
fn no_two_processes_make_one_description() {
    explore(SCHEDULES, make_three);
}

#[test]
fn what_is_told_of_a_name_is_one_fact() {
    explore(SCHEDULES, remember_and_ask);
}

#[test]
fn one_at_a_time_recovers_the_dead() {
    explore(SCHEDULES, recover_together);
}

#[test]
fn every_change_of_names_counts() {
    explore(SCHEDULES, change_names);
}

#[test]
fn locks_of_several_on_one_file_stay() {
    explore(SCHEDULES, lock_bytes);
}

#[test]
fn one_of_the_last_two_closes() {
    explore(SCHEDULES, close_together);
}

#[test]
fn what_was_given_away_stays_open() {
    explore(SCHEDULES, give_while_one_closes);
    explore(SCHEDULES, give_while_two_close);
}

macro_rules! noticed {
    ($($name:ident: $fault:ident, $scene:ident, $expected:literal;)*) => {
        $(
            #[test]
            #[should_panic(expected = $expected)]
            fn $name() {
                let _planted = step::plant(Fault::$fault);
                explore(CANARY_SCHEDULES, $scene);
            }
        )*
    };
}

noticed! {
    canary_a_lock_taken_by_load_and_store: TornLock, lock_in_turns, "inside";
    canary_a_lock_given_back_by_a_stranger: ForeignUnlock, a_stranger_unlocks, "inside";
    canary_a_lock_taken_over_from_the_living: LivingIsStale, lock_in_turns, "inside";
    canary_a_slot_taken_by_load_and_store: TornSlot, take_slots, "two have one slot";
    canary_a_description_changed_by_load_and_store: TornDescription, close_together, "closed by two, or by nobody";
    canary_a_holder_added_by_load_and_store: TornHold, give_to_two, "a holder was forgotten";
    canary_a_holder_removed_by_load_and_store: TornLetGo, let_go_together, "without holders";
    canary_a_close_without_a_second_look: NoSecondLook, give_while_one_closes, "closed under";
    canary_a_last_close_without_a_second_look: NoSecondLook, give_while_two_close, "closed under";
    canary_a_holder_that_does_not_wait: NoWaitForDecision, give_while_two_close, "closed under";
    canary_a_holder_that_looks_first: HoldAfterLook, give_while_two_close, "closed under";
    canary_a_second_holder_without_a_mark: NoSharedMark, give_while_one_closes, "closed under";
    canary_a_description_made_by_load_and_store: TornDescription, make_three, "two have one description";
    canary_a_name_that_is_read_while_it_is_written: NameReadOnce, remember_and_ask, "parts of two facts";
    canary_a_name_that_two_write: NameWrittenByTwo, remember_and_ask, "parts of two facts";
    canary_a_change_of_names_counted_by_load_and_store: TornNameCount, change_names, "a change was not counted";
    canary_a_list_of_locks_without_its_lock: NoListLock, lock_bytes, "locks were lost";
    canary_a_recovery_without_its_lock: NoRecoveryLock, recover_together, "inside";
}
