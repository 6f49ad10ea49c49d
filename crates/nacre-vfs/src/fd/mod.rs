//! Numbers and what is known of them: the table, placeholders, uses.

pub(crate) mod placeholder;
pub(crate) mod table;
pub(crate) mod uses;
pub(crate) mod word;
