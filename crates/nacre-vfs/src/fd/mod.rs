//! From a number to an open file: the table, placeholder fds, uses.

pub(crate) mod descriptor;
pub(crate) mod placeholder;
pub(crate) mod table;
pub(crate) mod uses;
pub(crate) mod word;
