//! Counts of who stores and loads at the moment, for the sizes in which media does it.

use std::sync::Arc;

use nacre_media::{SharedTraffic, Traffic};

use crate::Session;
use crate::mapping::{Mapping, Region, SharedWords};

// SAFETY: made of atomics.
unsafe impl SharedWords for Traffic {}

/// The traffic region and the mapping that it is a view of.
struct Shared {
    devices: Region<Traffic>,
    _mapping: Arc<Mapping>,
}

// SAFETY: the region never moves, and its mapping lives as long as this.
unsafe impl SharedTraffic for Shared {
    fn traffic(&self, device: u16) -> &Traffic {
        let all = self.devices.all();
        &all[usize::from(device) % all.len()]
    }
}

impl Session {
    /// Where the traffic of each device is counted, usable beyond the session's life.
    pub fn traffic(&self) -> Arc<dyn SharedTraffic> {
        Arc::new(Shared {
            devices: self.memory.traffic(),
            _mapping: Arc::clone(&self.memory.mapping),
        })
    }

    /// Forgets whom dead processes left counted.
    pub(crate) fn forget_traffic(&self) {
        self.memory.traffic().all().iter().for_each(Traffic::forget);
    }
}
