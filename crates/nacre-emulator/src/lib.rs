//! Behaving like a device that is not there: profiles of devices, a model of how they perform, and
//! what an attached pool adds to each access to be as slow, with counters of where it would wear
//! the device.

mod arch;
mod bed;
mod clock;
mod crowd;
mod emulation;
mod error;
mod files;
mod kept;
pub mod model;
mod outside;
mod place;
mod profile;
mod shared;
mod verify;
mod wear;

pub use bed::Exchange;
pub use clock::{Pace, ticks, wait_until};
pub use emulation::{Emulation, FILE_NAME, Pool, Settings};
pub use error::{EmulationError, ProfileError};
pub use files::FileId;
pub use place::CounterPlace;
pub use profile::{Buffer, Cells, Controller, Endurance, Fit, Latency, Layout, Processor, Profile};
pub use verify::{Accuracy, verify};
pub use wear::{Granule, Spread, Totals, Wear};
