//! Names of run-time files: folders that no other user can enter, take or replace.
//!
//! All of them stand in one base folder (`/dev/shm`, or `NACRE_SESSION_DIR`), where everybody may
//! make names. What is trusted is therefore never a name: it is the owner and mode of what was
//! opened, asked of the descriptor. Below a trusted folder only single names are used, and no link
//! is followed.

#![forbid(unsafe_code)]

mod base;
mod error;
mod find;
mod folder;
mod identity;
mod memory;
mod plans;
mod setting;
mod shared_name;
mod sweep;
mod trust;

pub use base::{base, use_base};
pub use error::RuntimeError;
pub use find::{PoolKey, old_default_pool, own_file};
pub use folder::Folder;
pub use identity::{ask_user_by, one_user};
pub use memory::memory_limit;
pub use plans::{installed_plans, plans_beside};
pub use setting::{is_secure, setting};
pub use shared_name::{has_other_names, may_be_of_others};
pub use sweep::{PoolFolder, pool_folders, sweep};
pub use trust::Trust;
#[cfg(feature = "unchecked")]
pub use trust::ignore_checks;
