//! Advisory locks: their rules, waiting, deadlock, full table, death.

use std::sync::atomic::Ordering;
use std::thread;

use crate::processes::{
    End, FILE, await_true, await_value, die_at_every_step, fork, mailbox, post, reap, reap_all,
    session, sleep_forever,
};
use nacre_session::{
    AdvisoryError, LockKind, LockOwner, LockRange, LockRequest, OfdId, OfdInit, Session, SlotRef,
};
use nacre_types::Ino;

use LockKind::{Exclusive, Shared};

const ENTRIES: u64 = 32768;

fn range(first: u64, last: u64) -> LockRange {
    LockRange { first, last }
}

fn request(owner: LockOwner, first: u64, last: u64, kind: LockKind) -> LockRequest {
    LockRequest {
        ino: FILE,
        owner,
        range: range(first, last),
        kind,
    }
}

fn set(
    session: &Session,
    who: SlotRef,
    first: u64,
    last: u64,
    kind: LockKind,
) -> Result<(), AdvisoryError> {
    session.record_lock_set(who, &request(LockOwner::Process(who), first, last, kind))
}

fn unlock(session: &Session, who: SlotRef, first: u64, last: u64) {
    session
        .record_unlock(who, FILE, LockOwner::Process(who), range(first, last))
        .unwrap();
}

fn wait(session: &Session, who: SlotRef, first: u64, last: u64) -> Result<(), AdvisoryError> {
    session.record_lock_wait(
        who,
        &request(LockOwner::Process(who), first, last, Exclusive),
        &|| false,
    )
}

/// What `who` sees of the others' locks on one byte.
fn seen(session: &Session, who: SlotRef, byte: u64) -> Option<(LockKind, LockRange)> {
    let conflict = session.record_lock_test(
        who,
        &request(LockOwner::Process(who), byte, byte, Exclusive),
    )?;
    Some((conflict.kind, conflict.range))
}

fn description(session: &Session, who: SlotRef) -> OfdId {
    let init = OfdInit {
        ino: FILE,
        ino_generation: 1,
        flags: 0,
        mode: 0,
        parent: Ino(1),
        name: b"f",
    };
    session.ofd_alloc(who, &init).unwrap()
}

#[test]
fn shared_locks_live_together_and_exclusive_ones_do_not() {
    let (session, a) = session();
    let b = session.claim_slot().unwrap();
    set(&session, a, 0, 99, Shared).unwrap();
    set(&session, b, 50, 149, Shared).unwrap();
    assert_eq!(
        set(&session, b, 50, 60, Exclusive),
        Err(AdvisoryError::WouldBlock)
    );
    assert_eq!(seen(&session, b, 50), Some((Shared, range(0, 99))));
    set(&session, b, 100, 149, Exclusive).unwrap();
    assert_eq!(seen(&session, a, 120), Some((Exclusive, range(100, 149))));
    assert_eq!(seen(&session, a, 60), Some((Shared, range(50, 99))));
    let conflict = session
        .record_lock_test(a, &request(LockOwner::Process(a), 0, 200, Exclusive))
        .unwrap();
    assert_eq!(
        (conflict.owner, conflict.pid),
        (LockOwner::Process(b), Some(std::process::id()))
    );
}

#[test]
fn unlocking_the_middle_splits_and_locking_it_again_merges() {
    let (session, a) = session();
    let b = session.claim_slot().unwrap();
    set(&session, a, 0, 99, Exclusive).unwrap();
    unlock(&session, a, 40, 59);
    assert_eq!(seen(&session, b, 39), Some((Exclusive, range(0, 39))));
    assert_eq!(seen(&session, b, 60), Some((Exclusive, range(60, 99))));
    assert_eq!(seen(&session, b, 40), None);
    set(&session, a, 40, 59, Exclusive).unwrap();
    assert_eq!(seen(&session, b, 99), Some((Exclusive, range(0, 99))));
    set(&session, a, 10, 19, Shared).unwrap();
    assert_eq!(seen(&session, b, 9), Some((Exclusive, range(0, 9))));
    assert_eq!(seen(&session, b, 10), Some((Shared, range(10, 19))));
    assert_eq!(seen(&session, b, 20), Some((Exclusive, range(20, 99))));
    unlock(&session, a, 0, i64::MAX as u64);
    assert_eq!(set(&session, b, 0, 99, Exclusive), Ok(()));
}

#[test]
fn random_locking_agrees_with_a_byte_by_byte_model() {
    const BYTES: u64 = 24;
    let (session, a) = session();
    let owners = [
        a,
        session.claim_slot().unwrap(),
        session.claim_slot().unwrap(),
    ];
    let observer = session.claim_slot().unwrap();
    let mut model = [[None; BYTES as usize]; 3];
    let mut state = 0x1234_5678_9abc_def0u64;
    let mut random = |below: u64| {
        state = state
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (state >> 33) % below
    };
    for step in 0..6000 {
        let who = random(3) as usize;
        let (x, y) = (random(BYTES), random(BYTES));
        let bytes = x.min(y) as usize..=x.max(y) as usize;
        let wish = [None, Some(Shared), Some(Exclusive)][random(3) as usize];
        let blocked = wish.is_some_and(|kind| {
            let others = (0..3).filter(|&other| other != who);
            others
                .flat_map(|other| model[other][bytes.clone()].to_vec())
                .flatten()
                .any(|held| held == Exclusive || kind == Exclusive)
        });
        let (first, last) = (*bytes.start() as u64, *bytes.end() as u64);
        match wish {
            None => unlock(&session, owners[who], first, last),
            Some(kind) => {
                let expected = if blocked {
                    Err(AdvisoryError::WouldBlock)
                } else {
                    Ok(())
                };
                assert_eq!(
                    set(&session, owners[who], first, last, kind),
                    expected,
                    "step {step}"
                );
            }
        }
        if !blocked {
            model[who][bytes].fill(wish);
        }
        for byte in 0..BYTES {
            let held = model.iter().filter_map(|owner| owner[byte as usize]);
            let strongest = held.max_by_key(|&kind| kind == Exclusive);
            assert_eq!(
                seen(&session, observer, byte).map(|(kind, _)| kind),
                strongest,
                "step {step}, byte {byte}"
            );
        }
    }
    for who in owners {
        session.advisory_clear_owner(who, LockOwner::Process(who));
    }
    assert_eq!(seen(&session, observer, 5), None);
}

#[test]
fn closing_a_file_drops_the_locks_of_this_file_only() {
    let (session, a) = session();
    let b = session.claim_slot().unwrap();
    let elsewhere = LockRequest {
        ino: Ino(8),
        ..request(LockOwner::Process(a), 0, 9, Exclusive)
    };
    set(&session, a, 0, 9, Exclusive).unwrap();
    set(&session, a, 20, 29, Shared).unwrap();
    session.record_lock_set(a, &elsewhere).unwrap();
    session.record_lock_clear(a, FILE, LockOwner::Process(a));
    assert_eq!(set(&session, b, 0, 100, Exclusive), Ok(()));
    let by_b = LockRequest {
        owner: LockOwner::Process(b),
        ..elsewhere
    };
    assert!(session.record_lock_test(b, &by_b).is_some());
    session.advisory_clear_owner(a, LockOwner::Process(a));
    assert!(session.record_lock_test(b, &by_b).is_none());
}

#[test]
fn description_locks_and_process_locks_exclude_each_other() {
    let (session, a) = session();
    let (x, y) = (description(&session, a), description(&session, a));
    let of = |id, kind| request(LockOwner::Description(id), 0, 9, kind);
    session.record_lock_set(a, &of(x, Exclusive)).unwrap();
    assert_eq!(
        session.record_lock_set(a, &of(y, Shared)),
        Err(AdvisoryError::WouldBlock)
    );
    assert_eq!(
        set(&session, a, 5, 5, Shared),
        Err(AdvisoryError::WouldBlock)
    );
    let conflict = session.record_lock_test(a, &of(y, Shared)).unwrap();
    assert_eq!(
        (conflict.owner, conflict.pid),
        (LockOwner::Description(x), None)
    );
    assert!(session.unhold(x, a));
    assert_eq!(
        session.record_lock_set(a, &of(y, Shared)),
        Ok(()),
        "a closed description still locks"
    );
}

#[test]
fn flock_locks_are_of_another_world_and_convert_by_letting_go() {
    let (session, a) = session();
    let (x, y) = (description(&session, a), description(&session, a));
    set(&session, a, 0, 9, Exclusive).unwrap();
    session.flock_set(a, FILE, x, Shared).unwrap();
    session.flock_set(a, FILE, y, Shared).unwrap();
    assert_eq!(
        session.flock_set(a, FILE, x, Exclusive),
        Err(AdvisoryError::WouldBlock)
    );
    assert_eq!(
        session.flock_set(a, FILE, y, Exclusive),
        Ok(()),
        "the failed conversion kept its old lock"
    );
    assert_eq!(
        session.flock_set(a, FILE, x, Shared),
        Err(AdvisoryError::WouldBlock)
    );
    session.flock_unlock(a, FILE, y);
    assert_eq!(session.flock_set(a, FILE, x, Exclusive), Ok(()));
}

#[test]
fn a_waiter_gets_the_lock_when_the_holder_lets_go() {
    let (session, a) = session();
    set(&session, a, 0, 9, Exclusive).unwrap();
    let child = fork(|| {
        let own = session.claim_slot().unwrap();
        post(&session, 0, 1);
        wait(&session, own, 5, 5).unwrap();
        post(&session, 0, 2);
        await_value(&session, 1, 1);
    });
    await_value(&session, 0, 1);
    thread::sleep(std::time::Duration::from_millis(30));
    assert_eq!(mailbox(&session, 0).load(Ordering::SeqCst), 1);
    set(&session, a, 0, 9, Shared).unwrap();
    thread::sleep(std::time::Duration::from_millis(30));
    assert_eq!(mailbox(&session, 0).load(Ordering::SeqCst), 1);
    unlock(&session, a, 5, 9);
    await_value(&session, 0, 2);
    assert_eq!(
        set(&session, a, 5, 5, Shared),
        Err(AdvisoryError::WouldBlock)
    );
    post(&session, 1, 1);
    assert_eq!(child.wait(), End::Exit(0));
    assert_eq!(
        set(&session, a, 5, 5, Shared),
        Ok(()),
        "the lock of a process outlived it"
    );
}

#[test]
fn death_of_the_holder_frees_its_locks_even_before_it_is_reaped() {
    let (session, a) = session();
    let child = fork(|| {
        let own = session.claim_slot().unwrap();
        set(&session, own, 0, 9, Exclusive).unwrap();
        let ofd = description(&session, own);
        session.flock_set(own, FILE, ofd, Exclusive).unwrap();
        post(&session, 0, 1);
        sleep_forever();
    });
    await_value(&session, 0, 1);
    let ofd = description(&session, a);
    assert_eq!(
        session.flock_set(a, FILE, ofd, Shared),
        Err(AdvisoryError::WouldBlock)
    );
    thread::scope(|scope| {
        scope.spawn(|| wait(&session, a, 0, 0).unwrap());
        scope.spawn(|| session.flock_wait(a, FILE, ofd, Shared, &|| false).unwrap());
        thread::sleep(std::time::Duration::from_millis(20));
        child.kill();
    });
}

#[test]
fn a_lock_of_a_description_lives_as_long_as_any_process_that_holds_it() {
    let (session, a) = session();
    let other = description(&session, a);
    let child = fork(|| {
        let own = session.claim_slot().unwrap();
        let ofd = description(&session, own);
        session.flock_set(own, FILE, ofd, Exclusive).unwrap();
        assert!(session.hold(ofd, a));
        post(&session, 0, ofd.identity());
    });
    assert_eq!(child.wait(), End::Exit(0));
    let shared = OfdId::from_identity(mailbox(&session, 0).load(Ordering::SeqCst)).unwrap();
    reap_all(&session, a);
    assert_eq!(
        session.flock_set(a, FILE, other, Shared),
        Err(AdvisoryError::WouldBlock)
    );
    assert!(session.unhold(shared, a));
    assert_eq!(session.flock_set(a, FILE, other, Shared), Ok(()));
}

#[test]
fn waiting_can_be_interrupted() {
    let (session, a) = session();
    let b = session.claim_slot().unwrap();
    set(&session, a, 0, 9, Exclusive).unwrap();
    let rounds = std::cell::Cell::new(0);
    let interrupted = || {
        rounds.set(rounds.get() + 1);
        rounds.get() > 3
    };
    let wanted = request(LockOwner::Process(b), 0, 0, Exclusive);
    assert_eq!(
        session.record_lock_wait(b, &wanted, &interrupted),
        Err(AdvisoryError::Interrupted)
    );
    unlock(&session, a, 0, 9);
    assert_eq!(set(&session, a, 0, 9, Exclusive), Ok(()));
}

/// `count` processes, each of which holds its own byte and then waits for its neighbour's; at least
/// one must be refused, all must end.
fn ring_of_waiters(count: u64) {
    let (session, _) = session();
    let children: Vec<_> = (0..count)
        .map(|index| {
            let session = &session;
            fork(move || {
                let own = session.claim_slot().unwrap();
                set(session, own, index, index, Exclusive).unwrap();
                mailbox(session, 0).fetch_add(1, Ordering::SeqCst);
                await_value(session, 0, count);
                let next = (index + 1) % count;
                match wait(session, own, next, next) {
                    Ok(()) => {}
                    Err(AdvisoryError::Deadlock) => {
                        _ = mailbox(session, 1).fetch_add(1, Ordering::SeqCst)
                    }
                    Err(error) => panic!("{error}"),
                }
                session.advisory_clear_owner(own, LockOwner::Process(own));
                session.release_slot(own);
            })
        })
        .collect();
    for child in children {
        assert_eq!(child.wait(), End::Exit(0));
    }
    assert_eq!(
        mailbox(&session, 1).load(Ordering::SeqCst),
        1,
        "not exactly one process was refused"
    );
}

#[test]
fn a_deadlock_of_two_is_refused_to_one() {
    (0..20).for_each(|_| ring_of_waiters(2));
}

#[test]
fn a_deadlock_of_five_is_refused_to_one() {
    (0..5).for_each(|_| ring_of_waiters(5));
}

#[test]
fn processes_that_take_turns_are_never_refused() {
    let (session, _) = session();
    let children: Vec<_> = (0..3)
        .map(|_| {
            fork(|| {
                let own = session.claim_slot().unwrap();
                for _ in 0..300 {
                    wait(&session, own, 0, 0).unwrap();
                    wait(&session, own, 1, 1).unwrap();
                    let count = mailbox(&session, 0).load(Ordering::Relaxed);
                    mailbox(&session, 0).store(count + 1, Ordering::Relaxed);
                    unlock(&session, own, 0, 0);
                    unlock(&session, own, 1, 1);
                }
            })
        })
        .collect();
    for child in children {
        assert_eq!(child.wait(), End::Exit(0));
    }
    assert_eq!(mailbox(&session, 0).load(Ordering::Relaxed), 900);
}

#[test]
fn a_full_table_refuses_and_changes_nothing() {
    let (session, a) = session();
    let b = session.claim_slot().unwrap();
    set(&session, a, 0, 99, Exclusive).unwrap();
    for other in 1..ENTRIES {
        let wanted = LockRequest {
            ino: Ino(1000 + other),
            ..request(LockOwner::Process(a), 0, 9, Exclusive)
        };
        session.record_lock_set(a, &wanted).unwrap();
    }
    assert_eq!(
        set(&session, a, 200, 299, Exclusive),
        Err(AdvisoryError::NoLocks)
    );
    assert_eq!(
        set(&session, a, 40, 50, Shared),
        Err(AdvisoryError::NoLocks)
    );
    let middle = session.record_unlock(a, FILE, LockOwner::Process(a), range(40, 50));
    assert_eq!(middle, Err(AdvisoryError::NoLocks));
    assert_eq!(seen(&session, b, 45), Some((Exclusive, range(0, 99))));
    unlock(&session, a, 50, 99);
    assert_eq!(seen(&session, b, 49), Some((Exclusive, range(0, 49))));
    session.advisory_clear_owner(a, LockOwner::Process(a));
    assert_eq!(set(&session, b, 200, 299, Exclusive), Ok(()));
}

/// Entries that can be taken; all of them are given back.
fn free_entries(session: &Session, who: SlotRef) -> u64 {
    let owner = LockOwner::Process(who);
    let wanted = |index: u64| LockRequest {
        ino: Ino(5000 + index),
        ..request(owner, 0, 9, Exclusive)
    };
    let count = (0..)
        .take_while(|&index| session.record_lock_set(who, &wanted(index)).is_ok())
        .count();
    session.advisory_clear_owner(who, owner);
    count as u64
}

#[test]
fn death_at_any_step_frees_the_locks_of_the_dead_and_loses_no_entry() {
    let (session, me) = session();
    let body = || {
        let own = session.claim_slot().unwrap();
        set(&session, own, 0, 99, Exclusive).unwrap();
        set(&session, own, 40, 59, Shared).unwrap();
        unlock(&session, own, 10, 19);
        set(&session, own, 0, 99, Shared).unwrap();
        unlock(&session, own, 0, 200);
        session.release_slot(own);
    };
    let deaths = die_at_every_step(&session, body, |n| {
        assert_eq!(set(&session, me, 0, 99, Exclusive), Ok(()), "step {n}");
        unlock(&session, me, 0, 99);
        reap_all(&session, me);
        assert_eq!(session.check_advisory_lists(), Ok(()), "step {n}");
    });
    assert!(deaths > 60);
    assert_eq!(free_entries(&session, me), ENTRIES);
}

#[test]
fn death_at_any_step_of_a_change_never_makes_the_locks_of_a_shared_description_too_small() {
    let (session, me) = session();
    let observer = session.claim_slot().unwrap();
    let ofd = description(&session, me);
    let owner = LockOwner::Description(ofd);
    let whole = request(owner, 0, 99, Exclusive);
    let body = || {
        let own = session.claim_slot().unwrap();
        session
            .record_lock_set(own, &request(owner, 40, 59, Shared))
            .unwrap();
        session
            .record_unlock(own, FILE, owner, range(10, 19))
            .unwrap();
    };
    session.record_lock_set(me, &whole).unwrap();
    let deaths = die_at_every_step(&session, body, |n| {
        for byte in (0..10).chain(20..100) {
            assert!(
                seen(&session, observer, byte).is_some(),
                "step {n}, byte {byte}"
            );
        }
        reap_all(&session, me);
        assert_eq!(session.check_advisory_lists(), Ok(()), "step {n}");
        session.record_lock_set(me, &whole).unwrap();
    });
    assert!(deaths > 20);
    session
        .record_unlock(me, FILE, owner, range(0, 200))
        .unwrap();
    assert_eq!(seen(&session, observer, 50), None);
    assert_eq!(free_entries(&session, me), ENTRIES);
}

#[test]
fn a_dead_waiter_stands_in_nobodys_way() {
    let (session, a) = session();
    set(&session, a, 0, 9, Exclusive).unwrap();
    let child = fork(|| {
        let own = session.claim_slot().unwrap();
        set(&session, own, 20, 29, Exclusive).unwrap();
        post(&session, 0, 1);
        let _ = wait(&session, own, 0, 0);
    });
    await_value(&session, 0, 1);
    thread::sleep(std::time::Duration::from_millis(30));
    child.kill();
    await_true(|| session.dead_slots().next().is_some());
    assert_eq!(
        wait(&session, a, 20, 20),
        Ok(()),
        "the dead one's wish counts for a deadlock"
    );
    let dead: Vec<SlotRef> = session.dead_slots().collect();
    dead.into_iter().for_each(|dead| reap(&session, a, dead));
    unlock(&session, a, 0, 100);
    assert_eq!(free_entries(&session, a), ENTRIES);
}
