//! The journal of a disk: versions of a pool, each whole on the disk or not there at all.
//!
//! A version is a set of pieces: bytes and their home places. [`Journal::append`] writes them as
//! one record, sequentially; the record is durable on return. [`Journal::checkpoint`] brings the
//! pieces of all records to their home places and begins the journal again. Most of that is done
//! before, while the journal fills ([`Journal::bring_home`]). After a power cut
//! [`Journal::open`] finds the records that are whole, and a checkpoint replays them.
//!
//! # Invariants
//! - J1: A record counts if its checksum holds, its number follows that of the record before it,
//!   and all that it names are places where homes may be. The first number is that of the header.
//! - J2: The header moves on only when the home places of all records before it are durable.
//! - J3: While a record counts, its home places are written from records alone: by a checkpoint,
//!   or before, from those that are durable, in their order.
//! - J5: Of disks that hold the same, each step is done on all before the next one begins. So after
//!   a crash one is at most a step behind another ([`agree`]).
//! - J6: What is written home beside a record was needed by nothing that counts, and stays as it is
//!   until the next record is durable. So only the newest record may be there without it, and that
//!   counts if the checksums hold that it has of it.
//! - J7: Nothing is written behind a record or a header that may not be durable: whoever goes on
//!   where another one failed or died writes it again first, where it is: of the same bytes a torn
//!   write leaves the same ([`Journal::affirm`]).
//! - J8: Whoever comes to a journal writes a header before his first record. So a record that was
//!   not noted behind a known header is of whom noted that one ([`Journal::goes_on_from`]).
//! - J4: A header is written over the older of two, so a torn one leaves the newer.
#![forbid(unsafe_code)]

mod agree;
mod buffer;
mod disk;
mod draft;
mod error;
mod journal;
mod layout;
mod newest;
mod passes;
mod piece;
mod record;

pub use agree::{Agreed, agree};
pub use buffer::Buffer;
pub use disk::{Disk, DiskFailed};
pub use draft::Draft;
pub use error::JournalError;
pub use journal::{At, Journal, Position, Recall};
pub use layout::{BESIDE_MAX, MIN_JOURNAL, RECORDS_AT};
pub use piece::Piece;
