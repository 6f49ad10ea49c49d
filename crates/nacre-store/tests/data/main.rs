//! File data of the store, from outside: against a model, at the edges of space, and across crashes.

mod model;
mod pool;
mod space;
