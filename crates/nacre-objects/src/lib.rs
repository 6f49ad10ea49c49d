//! Collections of objects in a pool: bytes, attributes, omaps, and durable transactions over any
//! number of them.
//!
//! docs/objects.md has the contract.
#![forbid(unsafe_code)]

mod error;
#[doc(hidden)]
pub mod osd;
mod pool;
mod read;
mod run;
mod transaction;

pub use error::{Error, Result};
pub use pool::{OpenOptions, Pool, Stat, Usage};
pub use transaction::{Bytes, HashBits, Operation, Target, Transaction};

pub use nacre_store::keyed::layout::{
    ATTRIBUTE_NAME_MAX, LONG_KEY_MAX as KEY_MAX, LONG_VALUE_MAX as VALUE_MAX,
};
