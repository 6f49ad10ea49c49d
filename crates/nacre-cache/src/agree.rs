//! Journals of disks that hold the same, after a crash.

use crate::disk::Disk;
use crate::error::JournalError;
use crate::journal::Journal;

/// What came of one of several disks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Agreed {
    /// Its journal is where all are now.
    Yes,
    /// Its journal is damaged, or was not at most one step behind: nothing on it is to be trusted.
    No,
    /// It could not be read, or brought up.
    Fails(JournalError),
}

/// Makes the journals of disks that hold the same agree: all get the last step, if one has it (J5).
/// That it was not acknowledged yet does no harm. Where not all `may_write`, nothing is written,
/// and a disk that is a step behind stays so.
pub fn agree<D: Disk + Clone>(
    disks: &[D],
    (pool, at, len): ([u8; 16], u64, u64),
    may_write: bool,
) -> Result<Vec<Agreed>, JournalError> {
    let open = |disk: &D| Journal::open(disk.clone(), pool, at, len);
    let mut found: Vec<_> = disks.iter().map(open).collect();
    let Some(ahead) = furthest(&found) else {
        let first = found.into_iter().find_map(Result::err);
        return first.map_or(Ok(Vec::new()), Err);
    };
    let ahead = open(&disks[ahead])?;
    let agreed = found.iter_mut().map(|other| match other {
        Ok(other) if !ahead.is_at_most_a_step_ahead_of(other) => Agreed::No,
        Ok(other) if may_write && other.position() != ahead.position() => {
            match other.catch_up(&ahead) {
                Ok(()) => Agreed::Yes,
                Err(why) => of_failure(why),
            }
        }
        Ok(_) => Agreed::Yes,
        Err(why) => of_failure(why.clone()),
    });
    Ok(agreed.collect())
}

fn of_failure(why: JournalError) -> Agreed {
    match why {
        JournalError::Disk(_) => Agreed::Fails(why),
        _ => Agreed::No,
    }
}

/// The place of the journal that has got furthest.
fn furthest<D: Disk>(found: &[Result<Journal<D>, JournalError>]) -> Option<usize> {
    let opened = found.iter().enumerate();
    let opened = opened.filter_map(|(place, journal)| Some((place, journal.as_ref().ok()?)));
    let far = |(_, journal): &(usize, &Journal<D>)| {
        let position = journal.position();
        (position.turn, position.next)
    };
    opened.max_by_key(far).map(|(place, _)| place)
}
