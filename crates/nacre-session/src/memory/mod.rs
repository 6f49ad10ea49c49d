//! What lies where in the session file: header, sizes, plan.

pub(crate) mod geometry;
pub(crate) mod header;
pub(crate) mod plan;
