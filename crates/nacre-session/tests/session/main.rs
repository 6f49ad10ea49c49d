//! The session as several processes see it.

mod advisory;
mod descriptions;
mod files;
mod locks;
mod processes;
mod slots;
mod watches;
