//! Durable objects in memory that is not volatile, by load and store instead of block I/O.
//!
//! A [`Pool`] is a file on a DAX file system, on tmpfs or on a disk, or a device. It holds
//! *collections* of *objects*. Both have names of up to 64 KiB and are listed in the order of
//! these. An object has bytes, which are read and written at any offset; attributes; and an *omap*,
//! an ordered map from keys to values, with a header.
//!
//! All changes are made by a [`Transaction`]: any number of operations on any number of objects.
//! When [`Pool::commit`] returns, all of them are durable. If it returns an error, none of them
//! happened, unless the device failed. If the process dies or the power fails before it returns,
//! all of them are there or none.
//!
//! ```
//! # fn main() -> nacre::Result<()> {
//! # let folder = tempfile::tempdir().unwrap();
//! # let path = folder.path().join("my.pool");
//! use nacre::{Pool, Transaction};
//!
//! let pool = Pool::create(&path, 64 << 20)?;
//! let mut t = Transaction::new();
//! t.create_collection(b"accounts")
//!     .write(b"accounts", b"anna", 0, b"100 coins".as_slice())
//!     .set_omap(b"accounts", b"anna", b"2026-11-23", b"opened".as_slice());
//! pool.commit(&t)?;
//!
//! let mut bytes = [0; 3];
//! pool.read(b"accounts", b"anna", 0, &mut bytes)?;
//! assert_eq!(&bytes, b"100");
//! pool.close()
//! # }
//! ```
//!
//! # Threads and processes
//!
//! A pool may be shared by threads and opened by several processes at once, beside programs that
//! use its files (`nacre run`). Transactions on different collections run side by side; those on
//! the same one wait for each other. Reads take no locks and wait for nobody: each sees every
//! object as it was at one moment between two transactions. After `fork` the child opens the pool
//! again. A pool that is dropped without [`Pool::close`] stays in use until the process ends.
//!
//! # Errors
//!
//! An [`Error`] says what to do where something can be done. [`Error::Operation`] names the
//! operation of a transaction that was refused; nothing of that transaction happened.
#![forbid(unsafe_code)]

pub use nacre_objects::{
    ATTRIBUTE_NAME_MAX, Bytes, Error, HashBits, KEY_MAX, OpenOptions, Operation, Pool, Result,
    Stat, Target, Transaction, Usage, VALUE_MAX,
};
