//! Objects, allocation, redo log, transactions, recovery and check: the only crate that orders durability.
//!
//! A [`Store`] is one attached pool. It is `Send + Sync`; all processes that attach the pool share one
//! session and work on the medium in place. docs/layout.md describes the medium, docs/durability.md the
//! invariants that the code cites as I1, I2 ...
#![forbid(unsafe_code)]

mod alloc;
mod attach;
pub mod check;
mod commit;
mod data;
mod error;
mod format;
pub mod keyed;
mod lane;
pub mod layout;
mod lock;
mod log;
mod long;
mod map;
mod object;
mod onode;
pub mod repair;
pub mod runtime;
mod scan;
mod snapshot;
mod store;
pub mod structure_index;
mod superblock;
mod thread_cache;
mod tree;
mod tx;

pub use attach::{AttachOptions, AttachReport, SessionChoice};
pub use data::{
    ATOMIC_LIMIT, ATOMIC_MAPPED_LIMIT, CHUNK_PAGES, CacheUpdates, Extent, FileHead, MAX_FILE_SIZE,
    MappedRun, Statfs, WritePosition,
};
pub use error::{Result, StoreError};
pub use format::FormatOptions;
pub use layout::{INLINE_MAX, MIN_POOL_BYTES, Tree};
pub use lock::{ChangeMark, ObjectGuard, OwnedGuard};
pub use onode::{Attrs, NewObject};
pub use store::{PoolInfo, Store, WriteMode};
pub use tree::Visit;
pub use tx::Tx;
