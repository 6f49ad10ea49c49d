//! The crash explorer: every state that a power loss can leave, or a good sample of them, is
//! recovered and looked at.
#![forbid(unsafe_code)]

pub mod action;
pub mod bench;
pub mod campaign;
pub mod canary;
#[cfg(feature = "explore")]
mod copies_files;
#[cfg(feature = "explore")]
mod copies_judge;
#[cfg(feature = "explore")]
pub mod copies_scene;
#[cfg(feature = "explore")]
mod copies_story;
pub mod damage;
#[cfg(feature = "explore")]
pub mod disk_scene;
pub mod format;
pub mod ground;
#[cfg(feature = "explore")]
pub mod grow;
pub mod judge;
#[cfg(feature = "explore")]
mod kept_file;
#[cfg(feature = "explore")]
pub mod leave_scene;
#[cfg(feature = "explore")]
pub mod mutate;
pub mod object_plan;
mod objects_lanes;
pub mod objects_scene;
mod objects_seen;
pub mod plan;
mod processors;
pub mod record;
pub mod repair_scene;
pub mod sabotage;
pub mod scenes;
pub mod sequence;
#[cfg(feature = "explore")]
mod source;
#[cfg(feature = "explore")]
mod two_files;
pub mod violation;
pub mod visible;
pub mod work_on;
pub mod workload;
