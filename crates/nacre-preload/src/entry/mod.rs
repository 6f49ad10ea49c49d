//! From a rewritten call or a symbol to its handler and back: the table, arguments, errno.

pub(crate) mod abi;
pub(crate) mod call;
pub(crate) mod dispatch;
pub(crate) mod errno;
pub(crate) mod symbols;
pub(crate) mod table;
pub(crate) mod user;
