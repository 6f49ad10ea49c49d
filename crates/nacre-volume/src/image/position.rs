//! What the image knows of the journal: where it ends, what went home, what may be under way.

use std::sync::atomic::Ordering::SeqCst;

use nacre_cache::{At, JournalError, Position};
use nacre_media::{Image, ImageWord};
use nacre_types::{Uuid, site};

use crate::disk::cache::Cache;
use crate::scrub::settle_doubted;

pub(crate) fn position(image: &Image) -> Position {
    let word = |skip| image.word(ImageWord::Journal, skip).load(SeqCst);
    Position {
        turn: word(0),
        first: word(1),
        next: word(2),
        end: word(3),
        past: image.word(ImageWord::JournalPast, 0).load(SeqCst) as u32,
        home: At::default(),
    }
}

/// Nobody knows any more which records went home, until somebody says so again (C13).
pub(crate) fn forget_home(image: &Image) -> At {
    let place = image.word(ImageWord::HomePlace, 0).load(SeqCst);
    let home = image.word(ImageWord::HomeNext, 0);
    let number = match site::step() {
        true => home.swap(0, SeqCst),
        false => home.load(SeqCst),
    };
    At { number, place }
}

/// Before anything is written. Answers which record is the first that may have to go home.
pub(crate) fn begin(cache: &Cache, image: &Image, pool: Uuid) -> Result<At, JournalError> {
    cache.begin_calls(image)?;
    let home = forget_home(image);
    cache.check_label(pool)?;
    if let Some(legs) = cache.disk.legs() {
        settle_doubted(legs, image)?;
    }
    Ok(home)
}

/// Records before this one went home, and no write failed since.
pub(crate) fn now_home(image: &Image, next: At) {
    image
        .word(ImageWord::HomePlace, 0)
        .store(next.place, SeqCst);
    image
        .word(ImageWord::HomeNext, 0)
        .store(next.number, SeqCst);
}

/// A record or a header is under way, until [`set_position`]: whoever writes it may fail or die. Or
/// the image has just come to the disk.
pub(crate) fn begin_step(image: &Image) {
    image.word(ImageWord::JournalUnknown, 0).store(1, SeqCst);
}

/// Notes where the journal is now.
pub(crate) fn set_position(image: &Image, position: Position) {
    let Position {
        turn,
        first,
        next,
        end,
        past,
        home: _,
    } = position;
    begin_step(image);
    for (skip, value) in [turn, first, next, end].into_iter().enumerate() {
        image.word(ImageWord::Journal, skip).store(value, SeqCst);
    }
    // With its number, so that the two always belong together.
    let past = next << 32 | u64::from(past);
    image.word(ImageWord::JournalPast, 0).store(past, SeqCst);
    image.word(ImageWord::JournalUnknown, 0).store(0, SeqCst);
}

/// The newest record that is known for sure: its number and checksum belong together.
pub(crate) fn surely_written(image: &Image) -> Position {
    let known = position(image);
    let number = (image.word(ImageWord::JournalPast, 0).load(SeqCst) >> 32) as u32;
    let ahead = (known.next as u32).wrapping_sub(number);
    Position {
        next: known.next.wrapping_sub(ahead.into()),
        ..known
    }
}
