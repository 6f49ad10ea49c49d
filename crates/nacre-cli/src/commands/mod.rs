//! One module for each subcommand, and what several of them share.

pub mod calibrate;
pub mod cat;
pub mod check;
pub mod completions;
pub mod cp;
pub mod create;
pub mod default_pool;
pub mod delete;
pub mod emulate;
pub mod export;
pub mod fileserver;
pub mod grow;
pub mod import;
pub mod info;
pub mod list;
pub mod ls;
pub mod mkdir;
pub mod model;
pub mod mount;
pub mod mv;
pub mod objects;
pub mod rm;
pub mod run;
pub mod survival;
pub mod sync;
pub mod wear;
