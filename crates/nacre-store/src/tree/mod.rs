//! The ordered tree: a B+tree of slotted 4 KiB nodes. One implementation for directories, omaps and
//! extended attributes.

mod ahead;
mod change;
mod fill;
pub(crate) mod leave;
mod patch;
mod place;
mod read;
mod walk;

pub(crate) use read::TreeId;
pub use read::Visit;
pub use walk::LongValue;
pub(crate) use walk::{TreePart, release, walk};
