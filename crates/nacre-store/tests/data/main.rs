//! File data of the store, from outside: against a model, at the edges of space, and across
//! crashes.

mod check;
mod chunks;
mod crash;
mod failing;
mod in_place;
mod model;
mod pool;
mod remembered;
mod space;
