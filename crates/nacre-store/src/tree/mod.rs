//! The ordered tree: a B+tree of slotted 4 KiB nodes. One implementation for directories, omaps and
//! extended attributes.

mod ahead;
mod change;
mod edit;
#[cfg(test)]
mod hostile_tests;
mod node;
mod patch;
mod read;
mod walk;

pub(crate) use edit::{DirtyWords, NodeImage, Payload, each_run};
pub(crate) use node::{NodeBytes, SearchKey, View, reseal, salvage, verify};
pub(crate) use patch::LeafPatch;
pub use read::Visit;
pub(crate) use walk::{TreePart, release, walk};
