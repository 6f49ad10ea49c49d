//! Objects, allocation, redo log, transactions, recovery and check: the only crate that orders
//! durability.
//!
//! A [`Store`] is one attached pool. It is `Send + Sync`; all processes that attach the pool share
//! one session and work on the medium in place. docs/layout.md describes the medium,
//! docs/durability.md the invariants that the code cites as I1, I2 ...
#![forbid(unsafe_code)]

mod alloc;
mod balance;
mod block_map;
pub mod check;
mod cold;
mod commit;
mod data;
mod error;
mod gather;
mod kept;
pub mod keyed;
mod lane;
pub mod layout;
mod leaving;
mod log;
mod moving;
mod node;
mod object;
mod other_copy;
mod placed_word;
mod problem;
mod rebuild;
mod recovery;
pub mod repair;
pub mod runtime;
pub mod scrub;
mod store;
pub mod structure_index;
mod superblock;
mod thread;
mod tree;
mod trim;
mod tx;
mod worth;
mod write_mode;

pub use balance::{RebalanceProgress, Rebalanced};
pub use data::{
    ATOMIC_LIMIT, ATOMIC_MAPPED_LIMIT, CHUNK_PAGES, CacheUpdates, EndOfFile, Extent, FileHead,
    Holes, LoadedRange, MAX_FILE_SIZE, MappedRange, MappedRun, Shares, SharesSum, ShownPage,
    Statfs, WritePosition, WriteTicket,
};
pub use error::{Corruption, Fast, Result, StoreError};
pub use layout::{INLINE_MAX, MIN_POOL_BYTES, Tree};
pub use leaving::{Drained, LeftThere};
pub use object::lock::{ChangeMark, ObjectGuard, OwnedGuard};
pub use object::onode::{Attrs, NewObject};
pub use recovery::attach::{AttachOptions, SessionChoice, address_space};
pub use recovery::format::FormatOptions;
pub use recovery::image::give_all_to_disk;
pub use store::{AttachReport, PoolInfo, Store};
pub use tree::Visit;
pub use trim::{TrimProgress, Trimmed};
pub use tx::Tx;
pub use write_mode::WriteMode;
