//! An emulated pool: what every attached process does at each persist and read, and counts.

use std::path::PathBuf;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use nacre_media::{Observer, Owner};
use nacre_runtime::Trust;
use nacre_types::{DeviceOffset, LINE_SIZE, StoreKind, Uuid};
use rustix::fs::{Gid, Mode, Uid, fchmod, fchown, ftruncate};

use crate::clock::{Pace, now_ns, ticks, wait_until};
use crate::crowd::place;
use crate::error::EmulationError;
use crate::outside::learn;
use crate::place::CounterPlace;
use crate::profile::Profile;
use crate::shared::{
    Crowding, DEVICES, DeviceModel, Header, LINES, MAGIC, MODULES, Shared, VERSION,
};

/// Delays are injected.
const DELAYS: u64 = 1;
/// Stores are counted by granule.
const WEAR: u64 = 2;
/// Fixed-point one of the delays.
const ONE: u64 = 1 << 16;

/// What to emulate.
#[derive(Clone, Copy, Debug)]
pub struct Settings<'a> {
    /// The device.
    pub profile: &'a Profile,
    /// Inject its delays.
    pub delays: bool,
    /// Count stores by granules of so many bytes, a power of two from 64 on.
    pub wear: Option<u64>,
}

impl Settings<'_> {
    pub(crate) fn granularity(&self) -> u64 {
        self.wear.unwrap_or(4096)
    }

    fn pace(&self) -> Result<Pace, EmulationError> {
        if self.delays {
            learn();
            Pace::measure()
        } else {
            Ok(Pace { per_ns: 1.0 })
        }
    }

    /// What is on.
    fn active(&self) -> u64 {
        let wear = if self.wear.is_some() { WEAR } else { 0 };
        let delays = if self.delays { DELAYS } else { 0 };
        wear | delays
    }
}

/// A pool, as the emulation knows it.
#[derive(Clone, Debug)]
pub struct Pool {
    /// Its identity.
    pub uuid: Uuid,
    /// Bytes of its devices.
    pub devices: Vec<u64>,
    /// The users who may use it.
    pub owner: Owner,
}

/// The emulation of a pool, shared by all processes that are attached to it.
pub struct Emulation {
    pub(crate) shared: Shared,
    pub(crate) place: CounterPlace,
}

/// Name of the file in the pool's run-time folder.
pub const FILE_NAME: &str = "emulation";

impl Emulation {
    /// Makes the emulation of a pool that nobody uses now; what was counted before is forgotten.
    pub fn create(
        place: impl Into<CounterPlace>,
        settings: &Settings<'_>,
        pool: &Pool,
    ) -> Result<Self, EmulationError> {
        let place = place.into();
        let granularity = settings.granularity();
        if !granularity.is_power_of_two() || granularity < 64 {
            return Err(EmulationError::Granularity(granularity));
        }
        let pace = settings.pace()?;
        let counted = |&size: &u64| {
            if settings.wear.is_some() {
                size.div_ceil(granularity)
            } else {
                0
            }
        };
        let granules: u64 = pool.devices.iter().map(counted).sum::<u64>().max(1);
        let shared = new_file(&place, granules, pool.owner)?;
        let header = shared.header();
        fill(header, settings, pace, pool);
        let mut first = 0;
        for (place, size) in header.first.iter().zip(pool.devices.iter().chain(&[0])) {
            place.store(first, Relaxed);
            first += counted(size);
        }
        for (place, size) in header.used.iter().zip(&pool.devices) {
            place.store(counted(size), Relaxed);
        }
        header.active.store(settings.active(), Release);
        Ok(Self { shared, place })
    }

    /// Joins the emulation of a pool, if it is on.
    pub fn join(
        place: impl Into<CounterPlace>,
        pool: Uuid,
        owner: Owner,
    ) -> Result<Option<Self>, EmulationError> {
        let found = Self::open(place, pool, owner)?;
        Ok(found.filter(Self::is_on))
    }

    /// Whether it is on. Who may be delayed by it learns what passes outside of delays.
    fn is_on(&self) -> bool {
        let active = self.shared.header().active.load(Acquire);
        if active & DELAYS != 0 {
            learn();
        }
        active != 0
    }

    /// Opens the counters of a pool, whether they are in use or not. `None` if there are none. They
    /// must have been made by those who may write a file with this owner and mode.
    pub fn open(
        place: impl Into<CounterPlace>,
        pool: Uuid,
        owner: Owner,
    ) -> Result<Option<Self>, EmulationError> {
        let place = place.into();
        let Owner { uid, gid, mode } = owner;
        let Some(shared) = Shared::open(&place, Trust { uid, gid, mode })? else {
            return Ok(None);
        };
        let header = shared.header();
        let sound = header.magic.load(Relaxed) == MAGIC
            && header.version.load(Relaxed) == VERSION
            && header.granularity.load(Relaxed).is_power_of_two()
            && header.each.iter().all(DeviceModel::is_sound)
            && header.devices.load(Relaxed) as usize <= DEVICES
            && header.is_ordered(shared.granules());
        if !sound {
            return Err(EmulationError::Foreign(place.path()));
        }
        if header.pool.each_ref().map(|word| word.load(Relaxed)) != words(pool) {
            return Err(EmulationError::OtherPool(place.path()));
        }
        Ok(Some(Self { shared, place }))
    }

    /// Switches counters on again, with settings that may be others but for the granularity.
    pub(crate) fn resume(
        &self,
        settings: &Settings<'_>,
        pool: &Pool,
    ) -> Result<(), EmulationError> {
        let header = self.shared.header();
        let found = header.granularity.load(Relaxed);
        if found != settings.granularity() {
            return Err(EmulationError::OtherGranularity {
                path: self.path(),
                found,
            });
        }
        let sizes = pool.devices.iter().map(|size| size.div_ceil(found));
        let known = header.used.iter().map(|used| used.load(Relaxed));
        if header.devices.load(Relaxed) != pool.devices.len() as u64
            || !known.zip(sizes).all(|(known, size)| known == size)
        {
            return Err(EmulationError::OtherSize(self.path()));
        }
        header.cell_bytes.store(header.cell_bytes(), Relaxed);
        fill(header, settings, settings.pace()?, pool);
        // The processor's counter may have started again since.
        for busy in &header.busy {
            busy.store(0, Relaxed);
        }
        header.active.store(settings.active(), Release);
        Ok(())
    }

    /// Gives each device modules of its own, and its profile, instead of the same of one kind for
    /// all. The pool is not in use.
    pub fn set_devices(&self, profiles: &[&Profile]) -> Result<(), EmulationError> {
        let header = self.shared.header();
        let pace = match header.active.load(Acquire) & DELAYS {
            0 => Pace { per_ns: 1.0 },
            _ => Pace::measure()?,
        };
        let modules: u64 = profiles
            .iter()
            .map(|one| u64::from(one.layout.modules))
            .sum();
        if modules > MODULES as u64 {
            return Err(EmulationError::Modules(modules));
        }
        let mut first = 0;
        let places = header.each.iter().zip(&header.crowding);
        for ((model, crowding), profile) in places.zip(profiles) {
            model.fill(profile, pace, first);
            crowding.fill(profile);
            first += u64::from(profile.layout.modules);
        }
        header.describe(profiles);
        Ok(())
    }

    /// Starts a stretch of use, for the projected lifetime.
    pub fn begin_use(&self) {
        self.shared
            .header()
            .since_ns
            .store(now_ns().max(1), Relaxed);
    }

    /// Ends it and switches all off: who attaches later pays nothing.
    pub fn end_use(&self) {
        let header = self.shared.header();
        let since = header.since_ns.swap(0, AcqRel);
        if since > 0 {
            header
                .used_ns
                .fetch_add(now_ns().saturating_sub(since), Relaxed);
        }
        header.active.store(0, Release);
    }

    /// Nanoseconds that all processes together were told to wait.
    pub fn waited_ns(&self, pace: Pace) -> f64 {
        pace.ns(self.shared.header().totals.waited.load(Relaxed))
    }

    /// Where the file is, for messages and for programs that get a path.
    pub fn path(&self) -> PathBuf {
        self.place.path()
    }

    /// Removes the file. Whoever has joined already goes on.
    pub fn remove(&self) -> Result<(), EmulationError> {
        self.place.remove().map_err(|errno| EmulationError::System {
            path: self.path(),
            action: "remove it",
            errno,
        })
    }

    /// Counts the granules that hold `len` bytes at `at`.
    #[inline]
    fn count(&self, header: &Header, device: u16, at: u64, len: u64, kind: StoreKind) {
        let device = usize::from(device).min(DEVICES - 1);
        let first = header.first[device].load(Relaxed);
        let last = header.first[device + 1].load(Relaxed).max(first + 1) - 1;
        let shift = header.granularity.load(Relaxed).trailing_zeros();
        for granule in at >> shift..=(at + len - 1) >> shift {
            self.shared
                .counter(kind, (first + granule).min(last))
                .fetch_add(1, Relaxed);
        }
    }

    /// Puts the lines of a store into the modules' buffers; gives when the busiest of them has room
    /// again, in ticks.
    fn buffer(&self, header: &Header, device: u16, at: u64, len: u64, now: u64) -> u64 {
        let (model, at) = (header.model(device), far_apart(device, at));
        let line_size = model.line.load(Relaxed);
        let interleave = model.interleave.load(Relaxed);
        let mut ready = now;
        // Without delays nobody is there at the same time as others.
        let timed = now > 0 && len >= line_size && line_size > LINE_SIZE;
        let me = timed.then(place);
        let written = me.map_or(1.0, |me| header.crowded(me, device, len, now));
        let mut all = 0;
        for line in at / line_size..=(at + len - 1) / line_size {
            let module = model.module_of(line * line_size / interleave);
            let from = at.max(line * line_size) % line_size / LINE_SIZE;
            let to = ((at + len).min((line + 1) * line_size) - 1) % line_size / LINE_SIZE;
            let parts = (u64::MAX >> (63 - (to - from))) << from;
            let place = (model, module, line);
            let cells = self.combine(header, place, parts, line_size / LINE_SIZE);
            if cells > 0 {
                let lines = if to - from + 1 == line_size / LINE_SIZE {
                    self.split(header, written) + cells
                } else {
                    cells
                };
                all += lines;
                let time = lines * model.line_ticks.load(Relaxed) / ONE;
                ready = ready.max(occupy(header, model, module, (time, now)));
            }
        }
        header.cell_bytes.fetch_add(all * line_size, Relaxed);
        if let Some(me) = me {
            header.stores_until(me, device, len, ready);
        }
        ready
    }

    /// Counts what the cells write for a line more than once, on average `written` times; gives how
    /// often this time.
    fn split(&self, header: &Header, written: f64) -> u64 {
        let more = ((written - 1.0) * ONE as f64) as u64;
        if more == 0 {
            return 0;
        }
        let before = header.split.fetch_add(more, Relaxed);
        let lines = (before % ONE + more) / ONE;
        if lines > 0 {
            header.totals.cells.fetch_add(lines, Relaxed);
            header.totals.merged.fetch_add(lines, Relaxed);
        }
        lines
    }

    /// Has the modules' cells read the lines of a load that their buffers do not hold; gives when
    /// the busiest of them has kept up, in ticks.
    fn fetch(&self, header: &Header, device: u16, at: u64, len: u64, now: u64) -> u64 {
        let (model, at) = (header.model(device), far_apart(device, at));
        let line_size = model.line.load(Relaxed);
        let together = model.interleave.load(Relaxed) / line_size;
        let (mut line, last) = (at / line_size, (at + len - 1) / line_size);
        let mut ready = now;
        while line <= last {
            let piece = line / together;
            let next = ((piece + 1) * together).min(last + 1);
            let module = model.module_of(piece);
            let misses = (line..next).filter(|&line| self.misses(model, module, line));
            let misses = misses.count() as u64;
            if misses > 0 {
                header.totals.fetched.fetch_add(misses, Relaxed);
                let time = misses * model.fetch_ticks.load(Relaxed) / ONE;
                ready = ready.max(occupy(header, model, module, (time, now)));
            }
            line = next;
        }
        ready
    }

    /// Whether a line is not in a module's buffer for loads, where it is from now on.
    fn misses(&self, model: &DeviceModel, module: usize, line: u64) -> bool {
        let place = (line % model.read_lines.load(Relaxed)) as usize;
        let place = self.shared.fetched(module, place);
        // 0 is an empty place.
        let misses = place.load(Relaxed) != line + 1;
        if misses {
            place.store(line + 1, Relaxed);
        }
        misses
    }

    /// Lines that the modules' cells have read for loads, of all processes.
    pub fn fetched_lines(&self) -> u64 {
        self.shared.header().totals.fetched.load(Relaxed)
    }

    /// Adds parts of a line to a module's buffer; gives how many lines the cells write for it.
    fn combine(
        &self,
        header: &Header,
        (model, module, line): (&DeviceModel, usize, u64),
        parts: u64,
        whole: u64,
    ) -> u64 {
        // A place holds the line's number, its low 16 bits the parts that were written: lines of up
        // to 1 KiB combine.
        let parts = parts & 0xffff;
        let full = (1u64 << whole.min(16)) - 1;
        let place = self
            .shared
            .line(module, (line % model.lines.load(Relaxed)) as usize);
        let mut cells = 0;
        let mut merged = 0;
        let before = place.load(Relaxed);
        let mut now = parts;
        if before & 0xffff != 0 && before >> 16 == line & (u64::MAX >> 16) {
            now |= before & 0xffff;
        } else if before & 0xffff != 0 {
            (cells, merged) = (1, 1);
        }
        let after = if now == full {
            cells += 1;
            0
        } else {
            line << 16 | now
        };
        // Two threads at one place at the same moment: one of them is not combined, as in a real
        // buffer.
        place.store(after, Relaxed);
        if cells > 0 {
            header.totals.cells.fetch_add(cells, Relaxed);
            header.totals.merged.fetch_add(merged, Relaxed);
        }
        cells
    }
}

/// Adds work to what a module's cells have to do for all processes; gives when no more is left than
/// its buffer holds, in ticks.
fn occupy(header: &Header, model: &DeviceModel, module: usize, (time, now): (u64, u64)) -> u64 {
    let room = model.lines.load(Relaxed) * model.line_ticks.load(Relaxed) / ONE;
    let busy = &header.busy[module % MODULES];
    let mut until = busy.load(Relaxed);
    loop {
        let next = until.max(now) + time;
        match busy.compare_exchange_weak(until, next, Relaxed, Relaxed) {
            Ok(_) => return next.saturating_sub(room),
            Err(other) => until = other,
        }
    }
}

/// Devices that share modules lie side by side for them.
fn far_apart(device: u16, at: u64) -> u64 {
    at + (u64::from(device) << 44)
}

impl Observer for Emulation {
    fn store(&self, _: u16, _: DeviceOffset, _: &[u8], _: StoreKind, _: bool) {}

    fn flush(&self, _: u16, _: DeviceOffset, _: u64) {}

    fn fence(&self, _: u16) {}

    fn wants_stores(&self) -> bool {
        false
    }

    fn persisted(&self, device: u16, at: DeviceOffset, len: u64, kind: StoreKind) {
        let header = self.shared.header();
        let active = header.active.load(Relaxed);
        if active == 0 || len == 0 {
            return;
        }
        let now = if active & DELAYS != 0 { ticks() } else { 0 };
        let at = at.get();
        let totals = &header.totals;
        totals.stores[kind.index()].fetch_add(1, Relaxed);
        totals.bytes[kind.index()].fetch_add(len, Relaxed);
        let lines = (at + len - 1) / LINE_SIZE - at / LINE_SIZE + 1;
        totals.lines[kind.index()].fetch_add(lines, Relaxed);
        if active & WEAR != 0 {
            self.count(header, device, at, len, kind);
        }
        let ready = self.buffer(header, device, at, len, now);
        if active & DELAYS != 0 {
            let model = header.model(device);
            let units = len.div_ceil(model.unit.load(Relaxed));
            let end = (now + units * model.write_delay.load(Relaxed) / ONE).max(ready);
            totals.waited.fetch_add(end - now, Relaxed);
            wait_until(end);
        }
    }

    fn read(&self, device: u16, at: DeviceOffset, len: u64) {
        let header = self.shared.header();
        let active = header.active.load(Relaxed);
        if active == 0 || len == 0 {
            return;
        }
        let now = if active & DELAYS != 0 { ticks() } else { 0 };
        header.totals.reads.fetch_add(1, Relaxed);
        header.totals.read_bytes.fetch_add(len, Relaxed);
        let model = header.model(device);
        let delay = model.read_delay.load(Relaxed);
        let ready = self.fetch(header, device, at.get(), len, now);
        if active & DELAYS != 0 && delay > 0 {
            let units = len.div_ceil(model.unit.load(Relaxed));
            let end = (now + units * delay / ONE).max(ready);
            header.totals.waited.fetch_add(end - now, Relaxed);
            wait_until(end);
        }
    }
}

pub(crate) fn words(pool: Uuid) -> [u64; 2] {
    let number = u128::from_le_bytes(pool.0);
    [number as u64, (number >> 64) as u64]
}

fn put(place: &AtomicU64, value: u64) {
    place.store(value, Relaxed);
}

fn fill(header: &Header, settings: &Settings<'_>, pace: Pace, pool: &Pool) {
    let profile = settings.profile;
    put(&header.magic, MAGIC);
    put(&header.version, VERSION);
    for (place, word) in header.pool.iter().zip(words(pool.uuid)) {
        put(place, word);
    }
    put(&header.granularity, settings.granularity());
    for model in &header.each {
        model.fill(profile, pace, 0);
    }
    for crowding in &header.crowding {
        crowding.fill(profile);
    }
    for precedence in &header.precedence {
        put(
            precedence,
            (profile.controller.precedence * 1000.0).round() as u64,
        );
    }
    for writer in &header.writers {
        put(&writer.until, 0);
    }
    put(&header.devices, pool.devices.len() as u64);
    header.describe(&[profile]);
}

impl Header {
    /// The names of the profiles, as far as there is room, and what the cells bear that bear least.
    fn describe(&self, profiles: &[&Profile]) {
        let bears = profiles.iter().map(|profile| profile.endurance.writes);
        let limited = bears.filter(|&writes| writes > 0.0);
        let least = limited.reduce(f64::min).unwrap_or(0.0);
        put(&self.endurance, least.to_bits());
        let mut names: Vec<&str> = Vec::new();
        for profile in profiles {
            if !names.contains(&profile.name.as_str()) {
                names.push(&profile.name);
            }
        }
        let names = names.join(", ");
        let mut words = names.as_bytes().chunks(8);
        for place in &self.name {
            let bytes = words.next().unwrap_or_default();
            let mut word = [0; 8];
            word[..bytes.len()].copy_from_slice(bytes);
            put(place, u64::from_le_bytes(word));
        }
    }
}

impl Crowding {
    fn fill(&self, profile: &Profile) {
        put(&self.queue, u64::from(profile.controller.queue));
        put(&self.of_one, u64::from(profile.controller.stores_waiting));
    }
}

impl DeviceModel {
    fn fill(&self, profile: &Profile, pace: Pace, first_module: u64) {
        let fixed = |ns: f64| (ns * pace.per_ns * ONE as f64).round() as u64;
        let places = |lines: u32| u64::from(lines).min(LINES as u64);
        put(&self.write_delay, fixed(profile.write_delay_ns()));
        put(&self.read_delay, fixed(profile.read_delay_ns()));
        put(&self.unit, profile.latency.unit);
        put(&self.line_ticks, fixed(profile.media.write_ns));
        put(&self.fetch_ticks, fixed(profile.media.read_ns));
        put(&self.line, profile.media.line);
        put(&self.lines, places(profile.buffer.lines));
        put(&self.read_lines, places(profile.buffer.read_lines));
        put(&self.first_module, first_module);
        put(&self.modules, u64::from(profile.layout.modules));
        put(&self.interleave, profile.layout.interleave);
    }
}

/// A file of its own, which then takes the place of an older one.
fn new_file(place: &CounterPlace, granules: u64, owner: Owner) -> Result<Shared, EmulationError> {
    let failed = |action| {
        move |errno| EmulationError::System {
            path: place.path(),
            action,
            errno,
        }
    };
    let fd = place.make_fresh().map_err(failed("make it"))?;
    // Only root may give files away; otherwise it stays ours, and its mode lets the others in.
    let _ = fchown(
        &fd,
        Some(Uid::from_raw(owner.uid)),
        Some(Gid::from_raw(owner.gid)),
    );
    let mode = Mode::from_raw_mode(owner.mode & 0o666);
    let made = fchmod(&fd, mode)
        .and_then(|()| ftruncate(&fd, Shared::len_for(granules)))
        .and_then(|()| place.replace());
    made.map_err(failed("size it"))?;
    Shared::map(fd, granules).map_err(failed("map it"))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering::Relaxed;

    use nacre_media::{Observer, Owner};
    use nacre_types::{DeviceOffset, StoreKind, Uuid};

    use super::{Emulation, ONE, Pool, Settings, occupy};
    use crate::error::EmulationError;
    use crate::profile::Profile;

    /// Two processes' views of one emulation, without delays, of two modules.
    fn two(folder: &std::path::Path) -> [Emulation; 2] {
        let mut profile = Profile::load("optane-100").unwrap();
        profile.layout.modules = 2;
        let owner = Owner {
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            mode: 0o600,
        };
        let pool = Pool {
            uuid: Uuid([7; 16]),
            devices: vec![1 << 20; 2],
            owner,
        };
        let settings = Settings {
            profile: &profile,
            delays: false,
            wear: Some(4096),
        };
        let place = folder.join("e");
        let made = Emulation::create(&place, &settings, &pool).unwrap();
        let joined = Emulation::join(&place, pool.uuid, owner).unwrap().unwrap();
        [made, joined]
    }

    #[test]
    fn the_cells_of_a_module_work_for_one_process_after_the_other() {
        let folder = tempfile::tempdir().unwrap();
        let [one, other] = two(folder.path());
        let (one, other) = (one.shared.header(), other.shared.header());
        let model = one.model(0);
        let room = model.lines.load(Relaxed) * model.line_ticks.load(Relaxed) / ONE;
        assert_eq!(occupy(one, model, 0, (room, 1000)), 1000);
        assert_eq!(occupy(other, model, 0, (500, 1000)), 1500);
        assert_eq!(occupy(one, model, 0, (500, 1000)), 2000);
        // The other module has done nothing, and an idle one saves no time.
        assert_eq!(occupy(other, model, 1, (room + 300, 1000)), 1300);
        assert_eq!(occupy(other, model, 0, (room + 7, 1_000_000)), 1_000_007);
    }

    #[test]
    fn loads_keep_the_cells_of_their_modules_busy_once_for_each_line() {
        let folder = tempfile::tempdir().unwrap();
        let [one, other] = two(folder.path());
        let header = one.shared.header();
        let line = header.model(0).fetch_ticks.load(Relaxed);
        let busy = |module: usize| header.busy[module].load(Relaxed);
        one.read(0, DeviceOffset(100), 8);
        other.read(0, DeviceOffset(64), 192);
        assert_eq!((one.fetched_lines(), busy(0), busy(1)), (1, line / ONE, 0));
        // A page on each module, but for the line that is there already.
        other.read(0, DeviceOffset(0), 8192);
        assert_eq!(one.fetched_lines(), 32);
        assert_eq!(
            (busy(0), busy(1)),
            (line / ONE + 15 * line / ONE, 16 * line / ONE)
        );
        // What was read long ago is read again; the other device has lines of its own.
        one.read(0, DeviceOffset(1 << 16), 1 << 16);
        one.read(0, DeviceOffset(100), 8);
        one.read(1, DeviceOffset(100), 8);
        assert_eq!(other.fetched_lines(), 32 + 256 + 2);
    }

    #[test]
    fn stores_of_many_at_once_are_split_and_those_of_one_are_not() {
        let folder = tempfile::tempdir().unwrap();
        let [one, other] = two(folder.path());
        let (header, now) = (one.shared.header(), 1000);
        let cells = || header.totals.cells.load(Relaxed);
        one.buffer(header, 0, 0, 1 << 16, now);
        assert_eq!(cells(), 256, "nobody else");
        let alone = header.busy[0].load(Relaxed);
        for writer in &other.shared.header().writers {
            writer.halves.store(14, Relaxed);
            writer.until.store(now + 1, Relaxed);
        }
        one.buffer(header, 0, 1 << 16, 1 << 16, now);
        let split = cells() - 256;
        assert!((400..1024).contains(&split), "{split}");
        let crowded = header.busy[0].load(Relaxed) - alone;
        assert!(crowded > (alone - now) * 3 / 2, "{crowded} {alone}");
        // Their time is over, and none of them has said so.
        one.buffer(header, 0, 1 << 17, 1 << 16, now + 1);
        assert_eq!(cells(), 256 + split + 256);
    }

    #[test]
    fn devices_have_modules_and_profiles_of_their_own() {
        let folder = tempfile::tempdir().unwrap();
        let [one, other] = two(folder.path());
        let mut profiles = ["optane-100", "pcm"].map(|name| Profile::load(name).unwrap());
        for profile in &mut profiles {
            profile.layout.modules = 1;
        }
        one.set_devices(&profiles.each_ref()).unwrap();
        let header = other.shared.header();
        let busy = |module: usize| header.busy[module].load(Relaxed);
        one.read(0, DeviceOffset(0), 256);
        let first = header.model(0).fetch_ticks.load(Relaxed) / ONE;
        assert_eq!((busy(0), busy(1)), (first, 0));
        other.read(1, DeviceOffset(0), header.model(1).line.load(Relaxed));
        let second = header.model(1).fetch_ticks.load(Relaxed) / ONE;
        assert_eq!((busy(0), busy(1)), (first, second));
        assert_ne!(first, second);
        // A line of each, of 256 and 64 bytes.
        one.persisted(0, DeviceOffset(0), 256, StoreKind::Data);
        other.persisted(1, DeviceOffset(0), 64, StoreKind::Data);
        let wear = one.wear().unwrap();
        assert_eq!((wear.totals.cell_bytes, wear.totals.ewr()), (320, 1.0));
        assert_eq!(wear.profile, "optane-100, pcm");
        let least = profiles.each_ref().map(|it| it.endurance.writes);
        assert_eq!(wear.endurance, least[0].min(least[1]));
        // As in a file that was kept by a version that counted no bytes.
        header.cell_bytes.store(0, Relaxed);
        assert_eq!(one.wear().unwrap().totals.cell_bytes, 2 * 256);
        // No letters of a longer name stay.
        one.set_devices(&[&Profile::load("fast-ssd").unwrap()])
            .unwrap();
        assert_eq!(one.wear().unwrap().profile, "fast-ssd");
        profiles[0].layout.modules = 64;
        let refused = one.set_devices(&profiles.each_ref());
        assert!(matches!(refused, Err(EmulationError::Modules(65))));
    }
}
