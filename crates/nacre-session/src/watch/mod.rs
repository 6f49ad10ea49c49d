//! Watches of inodes (inotify), and how their watchers hear of changes (D49).
//!
//! Each watch has an entry in a table that all processes see, and a folder of its own beside the
//! session, the shadow, which the watcher's inotify instance watches for new names. Whoever changes
//! something makes a name there that says what happened, and removes it. Queueing, waking,
//! overflow, order among the files of the host, fork, exec and the end of an instance are the
//! kernel's so.

mod liveness;
mod message;
mod ring;
mod table;

pub use message::{Message, MessageKey};
pub(crate) use table::{WATCHES, WatchEntry};
pub use table::{Watch, WatchId};
