//! Devices come into a pool, grow, and leave it.

mod add_copy;
mod grow;
mod grow_all;
mod join;
pub(crate) mod leave;
mod replace;
