//! One module for each subcommand.

pub mod calibrate;
pub mod cat;
pub mod check;
pub mod cp;
pub mod create;
pub mod delete;
pub mod emulate;
pub mod fileserver;
pub mod grow;
pub mod info;
pub mod ls;
pub mod model;
pub mod run;
pub mod wear;
