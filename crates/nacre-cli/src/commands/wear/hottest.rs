//! `nacre wear --hottest`: what lies where a device is written most.

use crate::attached::Attached;
use crate::failure::{Result, fs_failure};
use crate::output::harmless_name;
use crate::size;
use crate::tree_path::{Location, TreePath, entries};
use nacre_emulator::{Granule, Wear};
use nacre_fs::{Extent, FileType, Fs, InodeRef};
use nacre_types::VolumeOffset;
use nacre_volume::{Access, DeviceInfo, Volume};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::ops::ControlFlow;
use std::path::Path;

/// The granules that were written most, by number, with the files that lie there now.
struct Hottest {
    granularity: u64,
    /// The device of a range of granules: its first one.
    devices: Vec<(DeviceInfo, u64)>,
    files: BTreeMap<u64, Vec<String>>,
}

/// One of them.
#[derive(Serialize)]
pub struct HotPlace {
    /// The byte of its device that it begins with; with several devices, whose.
    address: String,
    data: u32,
    metadata: u32,
    log: u32,
    /// What lies there now.
    holds: String,
}

/// The `count` granules that were written most, the first the most.
pub fn hottest(pool: &Path, wear: &Wear, count: usize) -> Result<Vec<HotPlace>> {
    let mut most: Vec<&Granule> = wear.written.iter().collect();
    most.sort_by_key(|granule| std::cmp::Reverse(granule.total()));
    most.truncate(count);
    Attached::with(pool, Access::ReadOnly, |fs| {
        let mut hottest = Hottest {
            granularity: wear.granularity,
            devices: first_granules(fs.store().volume(), wear.granularity),
            files: most.iter().map(|it| (it.number, Vec::new())).collect(),
        };
        let root = Location::parse_tree(pool.as_os_str());
        hottest.find_below(fs, fs.root(), &root)?;
        Ok(most.iter().map(|granule| hottest.place(granule)).collect())
    })
}

/// A line for each of these granules.
pub fn table(granularity: u64, places: &[HotPlace]) -> String {
    let mut text = format!(
        "hottest    granules of {}\n{:>14} {:>10} {:>10} {:>10}  what lies there now\n",
        size::human(granularity),
        "address",
        "data",
        "metadata",
        "log"
    );
    for place in places {
        let _ = writeln!(
            text,
            "{:>14} {:>10} {:>10} {:>10}  {}",
            place.address, place.data, place.metadata, place.log, place.holds
        );
    }
    text
}

/// Granules are numbered without gaps between devices.
fn first_granules(volume: &Volume, granularity: u64) -> Vec<(DeviceInfo, u64)> {
    let mut next = 0;
    let first = |device: DeviceInfo| {
        let first = next;
        next += device.size.div_ceil(granularity);
        (device, first)
    };
    volume.devices().into_iter().map(first).collect()
}

impl Hottest {
    fn find_below(&mut self, fs: &Fs, folder: InodeRef, place: &TreePath) -> Result<()> {
        for entry in entries(fs, folder, place)? {
            let place = place.join(&entry.name);
            match entry.file_type {
                FileType::Directory => self.find_below(fs, entry.node, &place)?,
                FileType::Regular => self.find_in(fs, entry.node, &place)?,
                _ => {}
            }
        }
        Ok(())
    }

    fn find_in(&mut self, fs: &Fs, file: InodeRef, place: &TreePath) -> Result<()> {
        let volume = fs.store().volume();
        let path = harmless_name(&place.path);
        fs.extents(file, &mut |extent| {
            self.note(volume, &extent, &path);
            ControlFlow::Continue(())
        })
        .map_err(fs_failure(place))
    }

    /// Remembers the file with each of the granules that its extent touches.
    fn note(&mut self, volume: &Volume, extent: &Extent, path: &str) {
        let (mut from, end) = (
            extent.unit.offset(),
            extent.unit.offset().get() + extent.len,
        );
        while from.get() < end {
            let Some((first, len)) = self.granule_at(volume, from, end - from.get()) else {
                return;
            };
            let last = (first.1 + len - 1) / self.granularity;
            let numbers = first.0 + first.1 / self.granularity..=first.0 + last;
            for (number, files) in self.files.range_mut(numbers) {
                let into = ((number - first.0) * self.granularity).saturating_sub(first.1);
                let at = extent.offset + (from.get() - extent.unit.offset().get()) + into;
                files.push(format!("{path} at {at}"));
            }
            from = VolumeOffset(from.get() + len);
        }
    }

    /// The first granule of the device that holds `at`, the place of `at` on it, and how many of
    /// `len` bytes lie there.
    fn granule_at(&self, volume: &Volume, at: VolumeOffset, len: u64) -> Option<((u64, u64), u64)> {
        let holds = |(device, _): &&(DeviceInfo, u64)| device.range.contains(&at);
        let (_, first) = self.devices.iter().find(holds)?;
        let (_, place, len) = volume.locate(at, len)?;
        Some(((*first, place.get()), len))
    }

    fn place(&self, granule: &Granule) -> HotPlace {
        let [data, metadata, log] = granule.writes;
        HotPlace {
            address: self.address(granule.number),
            data,
            metadata,
            log,
            holds: self.what(granule),
        }
    }

    fn address(&self, number: u64) -> String {
        let behind = self.devices.partition_point(|(_, first)| *first <= number);
        let device = behind.saturating_sub(1);
        let first = self.devices.get(device).map_or(0, |(_, first)| *first);
        let address = (number - first) * self.granularity;
        match self.devices.len() {
            1 => format!("{address:#x}"),
            _ => format!("{device}:{address:#x}"),
        }
    }

    fn what(&self, granule: &Granule) -> String {
        let files = self.files.get(&granule.number);
        match files.map(Vec::as_slice).unwrap_or_default() {
            [] if granule.writes[0] == 0 => "structures of the file system".into(),
            [] => "no file any more".into(),
            [one] => one.clone(),
            [one, rest @ ..] => format!("{one} and {} more", rest.len()),
        }
    }
}
