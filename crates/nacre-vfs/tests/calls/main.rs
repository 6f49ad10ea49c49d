//! Every call, made by a simulated process on pools in memory.

mod descriptors;
mod life;
mod model;
mod names;
mod opening;
mod paths;
mod protected;
mod sharing;
mod world;
