//! Commits: of a transaction, and of the disk behind an image.

mod disk;
mod transaction;
