//! The redo log: records, the lanes that hold them, transactions and their commit.

pub(crate) mod commit;
pub(crate) mod lane;
pub(crate) mod places;
pub(crate) mod record;
pub(crate) mod tx;
#[cfg(test)]
mod tx_tests;
