//! The labels of a pool whose devices all hold the same, and where these devices are.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

#[cfg(feature = "explore")]
use nacre_media::Media;
use nacre_media::{Access, Device, LegFacts, LegRegistry, LegState, MediaFailed, Mirror};
use nacre_runtime::Trust;
use nacre_types::Uuid;

use crate::error::VolumeError;
use crate::label::{self, LabelDevice, LabelInfo};
use crate::layout::DATA_START;
use crate::members::presence::{Presence, enter};
use crate::members::{Member, places};

/// Knows the labels of a pool's devices.
pub(crate) struct Labels {
    pool: Uuid,
    /// What those who use the devices know the pool by, also where labels could not be told so.
    home: (u64, u64),
    trust: Trust,
    folder: Option<PathBuf>,
    devices: Mutex<Vec<(Uuid, Arc<Device>)>>,
}

impl Labels {
    /// Of a pool with such a table and these devices, at least one.
    pub fn new(table: &LabelInfo, trust: Trust, known: Vec<(Uuid, Arc<Device>)>) -> Self {
        let first = known.first().map(|(_, device)| device.real_path());
        Self {
            pool: table.pool,
            home: table.home,
            trust,
            folder: first.as_deref().and_then(Path::parent).map(Path::to_owned),
            devices: Mutex::new(known),
        }
    }

    /// Devices that this process has.
    pub fn known(&self) -> Vec<(Uuid, Arc<Device>)> {
        let known = self.devices.lock();
        known.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The newest label among devices that this process knows.
    pub fn newest(&self) -> Option<LabelInfo> {
        let known = self.known();
        let newest = newest_of(self.pool, known.iter().map(|(_, device)| device))?;
        Some(LabelInfo {
            home: self.home,
            ..newest
        })
    }

    /// A device of the pool; it is looked for if this process has not had it yet.
    pub fn device(&self, uuid: Uuid) -> Option<Arc<Device>> {
        let known = self.known().into_iter().find(|(known, _)| *known == uuid);
        known.map_or_else(|| self.open(uuid.0), |(_, device)| Some(device))
    }

    /// Whoever is alone with a device is about to make something else of it.
    fn find(&self, entry: &LabelDevice) -> Option<Member> {
        let found = find_copy(self.pool, entry, self.folder.as_deref(), self.trust)?;
        let entered = enter(&found.device, Presence::Member);
        entered.is_ok_and(|entered| entered).then_some(found)
    }

    pub fn add(&self, uuid: Uuid, device: &Arc<Device>) {
        let known = self.devices.lock();
        let mut known = known.unwrap_or_else(PoisonError::into_inner);
        known.push((uuid, Arc::clone(device)));
    }
}

impl LegRegistry for Labels {
    fn open(&self, leg: [u8; 16]) -> Option<Arc<Device>> {
        let table = self.newest()?;
        let entry = table.devices.iter().find(|entry| entry.uuid.0 == leg)?;
        let found = self.find(entry)?;
        self.add(entry.uuid, &found.device);
        Some(found.device)
    }

    fn came(&self, leg: [u8; 16], device: &Arc<Device>) {
        self.add(Uuid(leg), device);
    }

    fn is_still(&self, leg: [u8; 16], device: &Arc<Device>) -> bool {
        let ours = |label: &LabelInfo| label.pool == self.pool && label.own().uuid.0 == leg;
        label::begins_as_one(device) && label::read(device).is_ok_and(|label| ours(&label))
    }

    #[cfg(feature = "explore")]
    fn mapped(&self, device: &Device, windows: [&Media; 2]) {
        for window in windows {
            crate::tap::watch(device.path(), window);
        }
    }

    fn record(&self, legs: &[LegFacts]) -> Result<(), MediaFailed> {
        let mut table = self.newest().ok_or(MediaFailed)?;
        for entry in &mut table.devices {
            if let Some(leg) = legs.iter().find(|leg| leg.id == entry.uuid.0) {
                entry.state = Some(leg.state);
            }
        }
        table.sequence += 1;
        // One that did not take it has failed, and will be found out.
        match write_to_legs(&table, legs) {
            0 => Err(MediaFailed),
            _ => Ok(()),
        }
    }
}

/// Gives the legs that are stored to their labels. Answers how many that are current have them.
pub(crate) fn write_to_legs(table: &LabelInfo, legs: &[LegFacts]) -> usize {
    let stored_to = legs.iter().filter(|leg| leg.state.is_stored_to());
    let devices = stored_to.filter_map(|leg| Some((leg, leg.device.as_ref()?)));
    let mut current = 0;
    for (leg, device) in devices {
        let done = write_as(table, Uuid(leg.id), device);
        current += usize::from(done.is_ok() && leg.state == LegState::Current);
    }
    current
}

/// The newest label of the pool on some devices.
pub(crate) fn newest_of<'a>(
    pool: Uuid,
    devices: impl Iterator<Item = &'a Arc<Device>>,
) -> Option<LabelInfo> {
    devices
        .filter_map(|device| label::read(device).ok())
        .filter(|label| label.pool == pool)
        .max_by_key(|label| label.sequence)
}

/// The device of an entry of the pool's table, wherever it is now.
pub(crate) fn find_copy(
    pool: Uuid,
    entry: &LabelDevice,
    folder: Option<&Path>,
    trust: Trust,
) -> Option<Member> {
    places(entry, folder).find_map(|path| {
        let member = Member::found(&path, Access::ReadWrite, trust).ok()?;
        (member.uuid() == entry.uuid && member.label.pool == pool).then_some(member)
    })
}

/// A copy in memory that does not begin as one may have lost what it says in front of its data, too
/// (M11). To be called before it gets a label, behind which nothing tells that any more.
pub(crate) fn forget_front(table: &LabelInfo, device: &Arc<Device>) -> Result<(), VolumeError> {
    if !table.has_copies() || table.journal > 0 || label::begins_as_one(device) {
        return Ok(());
    }
    let window = DATA_START..DATA_START + table.devices[0].data;
    match Mirror::forget_front(table.pool.0, window, device)? {
        true => Ok(()),
        false => Err(VolumeError::WriteFailed(device.path().to_owned())),
    }
}

/// Gives a device the label of its place in a table.
pub(crate) fn write_as(
    table: &LabelInfo,
    uuid: Uuid,
    device: &Arc<Device>,
) -> Result<(), VolumeError> {
    let Some(index) = table.devices.iter().position(|entry| entry.uuid == uuid) else {
        return Ok(());
    };
    forget_front(table, device)?;
    let own = label::read(device);
    let granularity = own.map(|label| label.granularity).unwrap_or_default();
    let label = LabelInfo {
        index,
        intact: true,
        granularity,
        ..table.clone()
    };
    label::write(device, &label)
}
