//! The ordered tree: a B+tree of slotted 4 KiB nodes. One implementation for directories, omaps and
//! extended attributes.

mod ahead;
mod back;
mod change;
mod fill;
pub(crate) mod leave;
mod long_value;
mod patch;
mod place;
mod read;
mod shrink;
mod walk;

pub use long_value::LongValue;
pub(crate) use read::TreeId;
pub use read::Visit;
pub(crate) use walk::{TreePart, release, walk};
