//! What processes hold in a pool beside its files: slots, open file descriptions, advisory locks.

mod descriptions;
mod locks;
mod slots;
