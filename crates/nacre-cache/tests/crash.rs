//! A disk that loses power at each call: after a replay it holds exactly one version, none older
//! than the last that was acknowledged.

use std::cell::{Cell, RefCell};

use nacre_cache::{
    Agreed, At, Buffer, Disk, DiskFailed, Draft, Journal, JournalError, MIN_JOURNAL, Piece,
    Position, RECORDS_AT, agree,
};

const POOL: [u8; 16] = *b"a pool of a test";
/// Home places lie before the journal.
const JOURNAL_AT: u64 = 16384;
const JOURNAL: u64 = MIN_JOURNAL + 3 * 4096;
const DISK: usize = (JOURNAL_AT + JOURNAL) as usize;
const SECTOR: usize = 512;
/// Behind the places that records have the bytes of.
const BESIDE_AT: usize = 12288;

/// What the model does wrong on purpose: each must be found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fault {
    None,
    /// Syncs do nothing.
    Sync,
    /// Writes through the cache stay in it.
    Through,
    /// A damaged record is taken for whole: its sum is made right after the crash.
    Checksum,
    /// Pieces go home before their record is written.
    Early,
    /// What should be beside a record is taken for right: sums are made so after the crash.
    Beside,
}

/// What kind of disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Kind {
    grain: u64,
    gathers: bool,
}

const KINDS: [Kind; 3] = [
    Kind {
        grain: 4096,
        gathers: false,
    },
    Kind {
        grain: 64,
        gathers: false,
    },
    Kind {
        grain: 4096,
        gathers: true,
    },
];

#[derive(Clone)]
struct State {
    durable: Vec<u8>,
    /// Sectors in the cache, oldest first.
    pending: Vec<(usize, [u8; SECTOR])>,
    /// Calls that change the disk until the power fails.
    left: usize,
    fault: Fault,
    kind: Kind,
    /// Bytes that were read.
    read: usize,
}

struct Model(RefCell<State>);

impl Model {
    fn new(durable: Vec<u8>, left: usize, fault: Fault) -> Self {
        Self(RefCell::new(State {
            durable,
            pending: Vec::new(),
            left,
            fault,
            kind: KINDS[0],
            read: 0,
        }))
    }

    /// Memory, for example, writes less than a block at once.
    fn of_kind(self, kind: Kind) -> Self {
        self.0.borrow_mut().kind = kind;
        self
    }

    fn put(&self, at: u64, bytes: &[u8]) -> Result<(), DiskFailed> {
        let mut state = self.0.borrow_mut();
        let whole = state.view();
        let (start, end) = (at as usize, at as usize + bytes.len());
        for sector in start / SECTOR..end.div_ceil(SECTOR) {
            let from = sector * SECTOR;
            let mut now = [0; SECTOR];
            now.copy_from_slice(&whole[from..from + SECTOR]);
            let (low, high) = (from.max(start), (from + SECTOR).min(end));
            now[low - from..high - from].copy_from_slice(&bytes[low - start..high - start]);
            state.pending.push((sector, now));
        }
        state.step()
    }
}

impl State {
    fn step(&mut self) -> Result<(), DiskFailed> {
        self.left = self.left.saturating_sub(1);
        match self.left {
            0 => Err(DiskFailed("no power".into())),
            _ => Ok(()),
        }
    }

    fn view(&self) -> Vec<u8> {
        let mut bytes = self.durable.clone();
        for (sector, now) in &self.pending {
            bytes[sector * SECTOR..][..SECTOR].copy_from_slice(now);
        }
        bytes
    }

    fn settle(&mut self, keep: impl Fn(usize) -> bool) {
        for (sector, now) in std::mem::take(&mut self.pending) {
            match keep(sector) {
                true => self.pending.push((sector, now)),
                false => self.durable[sector * SECTOR..][..SECTOR].copy_from_slice(&now),
            }
        }
    }
}

impl Disk for &Model {
    fn read(&self, at: u64, to: &mut [u8]) -> Result<(), DiskFailed> {
        self.0.borrow_mut().read += to.len();
        let whole = self.0.borrow().view();
        to.copy_from_slice(&whole[at as usize..at as usize + to.len()]);
        Ok(())
    }

    fn grain(&self) -> u64 {
        self.0.borrow().kind.grain
    }

    fn gathers(&self) -> Option<u64> {
        self.0.borrow().kind.gathers.then_some(1)
    }

    fn write(&self, at: u64, bytes: &[u8]) -> Result<(), DiskFailed> {
        self.put(at, bytes)
    }

    fn write_through(&self, at: u64, bytes: &[u8]) -> Result<(), DiskFailed> {
        self.put(at, bytes)?;
        let mut state = self.0.borrow_mut();
        let sectors = at as usize / SECTOR..(at as usize + bytes.len()).div_ceil(SECTOR);
        if state.fault != Fault::Through {
            state.settle(|sector| !sectors.contains(&sector));
        }
        Ok(())
    }

    fn write_all_through(&self, pieces: &[(u64, &[u8])]) -> Result<(), DiskFailed> {
        for (at, bytes) in pieces {
            self.put(*at, bytes)?;
        }
        let is_there = |sector: usize| {
            let at = (sector * SECTOR) as u64;
            let mut all = pieces.iter();
            all.any(|(start, bytes)| at + 512 > *start && at < start + bytes.len() as u64)
        };
        let mut state = self.0.borrow_mut();
        if state.fault != Fault::Through {
            state.settle(|sector| !is_there(sector));
        }
        Ok(())
    }

    fn sync(&self) -> Result<(), DiskFailed> {
        let mut state = self.0.borrow_mut();
        state.step()?;
        if state.fault != Fault::Sync {
            state.settle(|_| false);
        }
        Ok(())
    }
}

/// A small generator, so that each run is the same.
struct Chance(u64);

impl Chance {
    fn next(&mut self) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 33
    }
}

fn empty() -> Vec<u8> {
    let model = Model::new(vec![0; DISK], usize::MAX, Fault::None);
    Journal::create(&model, POOL, JOURNAL_AT, JOURNAL).unwrap();
    model.0.into_inner().durable
}

/// Version `number` fills three home places, which share no sector, with its number; the middle
/// one moves, so that old records name places that newer ones do not.
fn places(number: u64) -> [u64; 3] {
    [100, 4096 + number % 4 * 1024, 9000]
}

/// Where a version is that is written beside its record; the one before keeps another place.
fn beside(number: u64) -> std::ops::Range<usize> {
    let at = BESIDE_AT + number as usize % 2 * 1536;
    at..at + 1500
}

/// Whether a disk holds a version.
fn shows(disk: &[u8], version: u64) -> bool {
    let own = disk[beside(version)].iter();
    let is_beside = version == 0 || own.copied().all(|byte| byte == version as u8);
    is_beside && has_homes_of(disk, version)
}

/// Whether it has what the record of a version has.
fn has_homes_of(disk: &[u8], version: u64) -> bool {
    disk[..BESIDE_AT] == expected(version)
}

fn expected(version: u64) -> Vec<u8> {
    let mut home = vec![0; BESIDE_AT];
    for number in 1..=version {
        for place in places(number) {
            home[place as usize..][..700].fill(number as u8);
        }
    }
    home
}

fn draft(places: &[u64], len: u64, byte: u8) -> Draft {
    let homes = places.iter().map(|&home| home..home + len).collect();
    let mut draft = Draft::new(Buffer::default(), homes);
    draft.fill(|_, bytes| bytes.fill(byte));
    draft
}

/// What somebody remembers who remembers nothing.
fn nothing(_place: u64, _to: &mut [u8]) -> bool {
    false
}

fn append(journal: &mut Journal<&Model>, number: u64) -> Result<(), JournalError> {
    let homes = places(number).map(|home| home..home + 700).to_vec();
    let mut draft = Draft::with_beside(Buffer::default(), homes, 1);
    draft.fill(|_, bytes| bytes.fill(number as u8));
    let bytes = [number as u8; 1500];
    let home = beside(number).start as u64;
    let beside = [Piece {
        home,
        bytes: &bytes,
    }];
    match journal.append_beside(&mut draft, &beside) {
        Err(JournalError::Full) => {
            journal.checkpoint()?;
            journal.append_beside(&mut draft, &beside)?;
        }
        done => done?,
    }
    journal.bring_home(&draft, &mut Buffer::default(), &nothing)
}

/// Writes home what the next version will have, as if the order did not matter.
fn bring_early(model: &Model, number: u64) -> Result<(), JournalError> {
    if model.0.borrow().fault == Fault::Early {
        for home in places(number) {
            model.write(home, &[number as u8; 700])?;
        }
    }
    Ok(())
}

/// Works until the power fails; gives the last version that was acknowledged.
fn work(model: &Model, from: u64) -> u64 {
    let Ok(mut journal) = Journal::open(model, POOL, JOURNAL_AT, JOURNAL) else {
        return from;
    };
    assert!(journal.version() >= from);
    for number in journal.version() + 1..=from + 8 {
        if bring_early(model, number).is_err() || append(&mut journal, number).is_err() {
            return number - 1;
        }
    }
    from + 8
}

/// What a power cut leaves: any sectors of the cache, each in any of its versions.
fn cut(model: Model, chance: &mut Chance) -> Vec<u8> {
    let state = model.0.into_inner();
    let mut left = state.durable;
    for (sector, now) in state.pending {
        if chance.next().is_multiple_of(2) {
            left[sector * SECTOR..][..SECTOR].copy_from_slice(&now);
        }
    }
    match state.fault {
        Fault::Checksum => forge(&mut left),
        Fault::Beside => forge_beside(&mut left),
        _ => {}
    }
    left
}

/// Makes the sums of all records right, as if nobody compared them.
fn forge(disk: &mut [u8]) {
    for block in (JOURNAL_AT as usize + 8192..DISK).step_by(4096) {
        let record = &mut disk[block..];
        let mut len = [0; 8];
        len.copy_from_slice(&record[32..40]);
        let len = u64::from_le_bytes(len) as usize;
        if record.starts_with(b"NACREjrr") && (48..=record.len()).contains(&len) {
            record[44..48].fill(0);
            let crc = nacre_types::crc32c(&record[..len]);
            record[44..48].copy_from_slice(&crc.to_le_bytes());
        }
    }
}

/// Makes the sums of what is beside whole records right, as if nobody compared them.
fn forge_beside(disk: &mut [u8]) {
    let word = |disk: &[u8], at: usize| {
        let bytes = disk.get(at..at + 8)?.try_into().ok()?;
        Some(u64::from_le_bytes(bytes))
    };
    for at in (JOURNAL_AT as usize + 8192..DISK).step_by(4096) {
        let len = word(disk, at + 32).unwrap_or(0) as usize;
        let whole = (48..=DISK - at).contains(&len) && {
            let mut record = disk[at..at + len].to_vec();
            let sum = record.splice(44..48, [0; 4]).collect::<Vec<_>>();
            sum == nacre_types::crc32c(&record).to_le_bytes()
        };
        let number = word(disk, at + 8).unwrap_or(0);
        if whole && disk[at..].starts_with(b"NACREjrr") {
            let sum = nacre_types::crc32c(&disk[beside(number)]);
            disk[at + len - 4..at + len].copy_from_slice(&sum.to_le_bytes());
            disk[at + 44..at + 48].fill(0);
            let sum = nacre_types::crc32c(&disk[at..at + len]);
            disk[at + 44..at + 48].copy_from_slice(&sum.to_le_bytes());
        }
    }
}

/// One life of the disk with a cut at call `call`, a second one in the replay perhaps. `Err` tells
/// what is wrong with what is left.
fn life(
    start: &[u8],
    call: usize,
    (fault, kind): (Fault, Kind),
    chance: &mut Chance,
) -> Result<(), String> {
    let model = Model::new(start.to_vec(), call, fault).of_kind(kind);
    let acknowledged = work(&model, 0);
    let mut disk = cut(model, chance);
    for again in [1 + chance.next() as usize % 9, usize::MAX] {
        let model = Model::new(disk, again, fault).of_kind(kind);
        let replayed = Journal::open(&model, POOL, JOURNAL_AT, JOURNAL)
            .and_then(|mut journal| journal.checkpoint().map(|_| journal.version()));
        let Ok(version) = replayed else {
            if again == usize::MAX {
                return Err("the journal is damaged".into());
            }
            disk = cut(model, chance);
            continue;
        };
        if !(acknowledged..=acknowledged + 1).contains(&version) {
            return Err(format!("{acknowledged} was acknowledged, {version} found"));
        }
        if !shows(&model.0.borrow().view(), version) {
            return Err(format!("the disk does not hold version {version}"));
        }
        disk = cut(model, chance);
    }
    Ok(())
}

fn explore(fault: Fault, kind: Kind) -> Result<(), String> {
    // What is not written with a record may be anything.
    let mut start = empty();
    start[(JOURNAL_AT + RECORDS_AT) as usize..].fill(0xa5);
    let mut chance = Chance(7);
    for call in 1..40 {
        for _ in 0..40 {
            life(&start, call, (fault, kind), &mut chance)
                .map_err(|what| format!("cut at call {call}: {what}"))?;
        }
    }
    Ok(())
}

#[test]
fn a_power_cut_leaves_one_version() {
    for kind in KINDS {
        explore(Fault::None, kind).unwrap();
    }
}

#[test]
fn whatever_is_switched_off_is_found() {
    for fault in [
        Fault::Sync,
        Fault::Through,
        Fault::Checksum,
        Fault::Early,
        Fault::Beside,
    ] {
        for kind in KINDS {
            let found = explore(fault, kind);
            assert!(found.is_err(), "{fault:?} was not found on {kind:?}");
        }
    }
}

#[test]
fn what_gathers_goes_home_with_its_record_and_a_checkpoint_reads_nothing() {
    for kind in KINDS {
        let model = Model::new(empty(), usize::MAX, Fault::None).of_kind(kind);
        let mut journal = Journal::open(&model, POOL, JOURNAL_AT, JOURNAL).unwrap();
        append(&mut journal, 1).unwrap();
        append(&mut journal, 2).unwrap();
        let home = shows(&model.0.borrow().view(), 2);
        assert_eq!(home, kind.gathers);
        model.0.borrow_mut().read = 0;
        journal.checkpoint().unwrap();
        assert_eq!(model.0.borrow().read == 0, kind.gathers);
        assert!(shows(&model.0.borrow().durable, 2));
    }
}

/// How what is remembered of records differs from them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Memory {
    Right,
    Nothing,
    /// As long ago, all of it.
    Old,
    /// The newer record is missing.
    Behind,
    /// A byte of the newer record's contents.
    Turned,
    /// Of another pool.
    Foreign,
}

impl Memory {
    /// Changes what the disk has of two records, of which the newer one is the second half.
    fn change(self, to: &mut [u8]) {
        let half = to.len() / 2;
        match self {
            Self::Right | Self::Nothing => {}
            Self::Old => to.fill(0),
            Self::Behind => to[half..].fill(0),
            Self::Turned => to[half + 200] ^= 1,
            Self::Foreign => to.iter_mut().for_each(|byte| *byte ^= 0x20),
        }
    }
}

#[test]
fn what_is_remembered_of_records_is_not_read_and_not_trusted() {
    use Memory::{Behind, Foreign, Nothing, Old, Right, Turned};
    for memory in [Right, Nothing, Old, Behind, Turned, Foreign] {
        let model = Model::new(empty(), usize::MAX, Fault::None).of_kind(KINDS[2]);
        let mut journal = Journal::open(&model, POOL, JOURNAL_AT, JOURNAL).unwrap();
        let [_, _, newest] = [1, 2, 3].map(|number| {
            let mut draft = draft(&places(number), 700, number as u8);
            journal.append(&mut draft).unwrap();
            draft
        });
        let recall = |place: u64, to: &mut [u8]| {
            let at = (JOURNAL_AT + place) as usize;
            to.copy_from_slice(&model.0.borrow().view()[at..at + to.len()]);
            memory.change(to);
            memory != Nothing
        };
        model.0.borrow_mut().read = 0;
        journal
            .bring_home(&newest, &mut Buffer::default(), &recall)
            .unwrap();
        // As much as twice the newest one goes home.
        let home = has_homes_of(&model.0.borrow().view(), 2);
        assert!(home, "{memory:?}");
        assert_eq!(model.0.borrow().read == 0, memory == Right, "{memory:?}");
    }
}

#[test]
fn the_newest_record_goes_home_from_memory() {
    let model = Model::new(empty(), usize::MAX, Fault::None).of_kind(KINDS[2]);
    let mut journal = Journal::open(&model, POOL, JOURNAL_AT, JOURNAL).unwrap();
    model.0.borrow_mut().read = 0;
    for number in 1..=3 {
        append(&mut journal, number).unwrap();
        let home = shows(&model.0.borrow().view(), number);
        assert!(home && model.0.borrow().read == 0, "record {number}");
    }
}

#[test]
fn what_may_not_be_home_is_written_there_from_the_journal() {
    let model = Model::new(empty(), usize::MAX, Fault::None).of_kind(KINDS[2]);
    let mut journal = Journal::open(&model, POOL, JOURNAL_AT, JOURNAL).unwrap();
    append(&mut journal, 1).unwrap();
    // A sync failed, and the disk has thrown away what had gathered.
    let unknown = Position {
        home: At::default(),
        ..journal.position()
    };
    model
        .0
        .borrow_mut()
        .settle(|sector| sector * SECTOR < JOURNAL_AT as usize);
    model.0.borrow_mut().pending.clear();
    let place = (JOURNAL_AT, JOURNAL);
    let mut journal = Journal::resume(&model, POOL, place, unknown).unwrap();
    append(&mut journal, 2).unwrap();
    let home = |version| shows(&model.0.borrow().view(), version);
    assert!(home(2), "what had been home goes there again");
    journal.checkpoint().unwrap();
    assert!(shows(&model.0.borrow().durable, 2));
    append(&mut journal, 3).unwrap();
    assert!(home(3));
}

#[test]
fn no_more_is_written_than_the_disk_has_to() {
    for (grain, written) in [(4096, 4096), (512, 1024), (64, 768)] {
        let kind = Kind { grain, ..KINDS[0] };
        let mut start = empty();
        start[(JOURNAL_AT + RECORDS_AT) as usize..].fill(0xa5);
        let model = Model::new(start, usize::MAX, Fault::None).of_kind(kind);
        let mut journal = Journal::open(&model, POOL, JOURNAL_AT, JOURNAL).unwrap();
        let mut one = draft(&[100], 700, 1);
        journal.append(&mut one).unwrap();
        drop(journal);
        let disk = model.0.into_inner().view();
        let record = &disk[(JOURNAL_AT + RECORDS_AT) as usize..];
        let behind = record.iter().rposition(|&byte| byte == 0).unwrap() + 1;
        assert_eq!(behind, written);
    }
}

#[test]
fn bad_sizes_and_large_versions_are_refused() {
    let model = Model::new(empty(), usize::MAX, Fault::None);
    for len in [0, MIN_JOURNAL - 4096, MIN_JOURNAL + 1] {
        let refused = Journal::open(&model, POOL, JOURNAL_AT, len);
        assert_eq!(refused.err(), Some(JournalError::BadSize(len)));
    }
    let mut journal = Journal::open(&model, POOL, JOURNAL_AT, JOURNAL).unwrap();
    let refused = journal.append(&mut draft(&[DISK as u64], JOURNAL, 1));
    assert!(matches!(refused, Err(JournalError::TooLarge { .. })));
    append(&mut journal, 1).unwrap();
}

#[test]
fn a_journal_of_another_pool_is_refused() {
    let model = Model::new(empty(), usize::MAX, Fault::None);
    let refused = Journal::open(&model, [1; 16], JOURNAL_AT, JOURNAL);
    assert_eq!(refused.err(), Some(JournalError::Damaged));
}

#[test]
fn after_a_failure_nothing_is_written() {
    let model = Model::new(empty(), 1, Fault::None);
    let mut journal = Journal::open(&model, POOL, JOURNAL_AT, JOURNAL).unwrap();
    assert!(append(&mut journal, 1).is_err());
    model.0.borrow_mut().left = usize::MAX;
    assert_eq!(append(&mut journal, 1), Err(JournalError::Failed));
    assert_eq!(journal.checkpoint(), Err(JournalError::Failed));
}

#[test]
#[should_panic(expected = "where none may be")]
fn a_home_place_in_the_journal_is_a_bug() {
    let model = Model::new(empty(), usize::MAX, Fault::None);
    let mut journal = Journal::open(&model, POOL, JOURNAL_AT, JOURNAL).unwrap();
    let _never = journal.append(&mut draft(&[JOURNAL_AT - 1], 2, 0));
}

#[test]
fn a_copy_that_went_its_own_way_is_not_gone_on_with() {
    let open = |disk: &[u8]| {
        let model = Model::new(disk.to_vec(), usize::MAX, Fault::None);
        let position = Journal::open(&model, POOL, JOURNAL_AT, JOURNAL)
            .unwrap()
            .position();
        (model, position)
    };
    // From one disk on, with other bytes and the same numbers.
    let gone_on = |disk: &[u8], bytes: &[u8], checkpoint: bool| {
        let (model, _) = open(disk);
        let mut journal = Journal::open(&model, POOL, JOURNAL_AT, JOURNAL).unwrap();
        for &byte in bytes {
            journal.append(&mut draft(&[100], 700, byte)).unwrap();
        }
        if checkpoint {
            journal.checkpoint().unwrap();
        }
        let position = journal.position();
        drop(journal);
        (model.0.into_inner().view(), position)
    };
    let first = gone_on(&empty(), &[1], false).0;
    for checkpoint in [false, true] {
        let (mine, position) = gone_on(&first, &[2, 3], checkpoint);
        let (theirs, other) = gone_on(&first, &[2, 4], checkpoint);
        assert_eq!(
            Position {
                past: 0,
                ..position
            },
            Position { past: 0, ..other }
        );
        let goes_on = |disk: &[u8]| {
            let (model, _) = open(disk);
            let journal = Journal::open(&model, POOL, JOURNAL_AT, JOURNAL).unwrap();
            journal.goes_on_from(position)
        };
        assert!(goes_on(&mine) && !goes_on(&theirs) && !goes_on(&first));
        let one_more = gone_on(&mine, &[5], false).0;
        let two_more = gone_on(&gone_on(&mine, &[5], true).0, &[6], false).0;
        let theirs = gone_on(&theirs, &[5], false).0;
        assert!(goes_on(&one_more) && !goes_on(&two_more) && !goes_on(&theirs));
    }
}

#[test]
fn somebodys_record_behind_a_header_of_his_own_is_not_gone_on_with() {
    for (before, after) in [(0, 0), (1, 0), (0, 1), (1, 1)] {
        let model = Model::new(empty(), usize::MAX, Fault::None);
        let mut journal = Journal::open(&model, POOL, JOURNAL_AT, JOURNAL).unwrap();
        for byte in 0..before {
            append(&mut journal, byte).unwrap();
        }
        let position = journal.position();
        let goes_on = || {
            let journal = Journal::open(&model, POOL, JOURNAL_AT, JOURNAL).unwrap();
            journal.goes_on_from(position)
        };
        // Who came to it has changed nothing so far.
        journal.checkpoint().unwrap();
        assert!(goes_on());
        append(&mut journal, 7).unwrap();
        for _ in 0..after {
            journal.checkpoint().unwrap();
        }
        assert!(!goes_on(), "{before} {after}");
    }
}

/// Two disks that hold the same: each is written, the second one after the first.
struct Twins<'m>([&'m Model; 2], Cell<bool>);

impl Twins<'_> {
    fn on_both(&self, work: impl Fn(&Model) -> Result<(), DiskFailed>) -> Result<(), DiskFailed> {
        let order = match self.1.get() {
            true => [1, 0],
            false => [0, 1],
        };
        order.into_iter().try_for_each(|one| work(self.0[one]))
    }
}

impl Disk for &Twins<'_> {
    fn read(&self, at: u64, to: &mut [u8]) -> Result<(), DiskFailed> {
        self.0[0].read(at, to)
    }

    fn gathers(&self) -> Option<u64> {
        self.0[0].gathers()
    }

    fn write(&self, at: u64, bytes: &[u8]) -> Result<(), DiskFailed> {
        self.on_both(|disk| Disk::write(&disk, at, bytes))
    }

    fn write_through(&self, at: u64, bytes: &[u8]) -> Result<(), DiskFailed> {
        self.on_both(|disk| Disk::write_through(&disk, at, bytes))
    }

    fn sync(&self) -> Result<(), DiskFailed> {
        self.on_both(|disk| Disk::sync(&disk))
    }
}

/// What a recovery of twins does wrong on purpose.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Wrong {
    Nothing,
    /// Journals are not made to agree.
    Alone,
}

/// Replays what is left of twins: their journals agree first.
fn recover(twins: &Twins<'_>, wrong: Wrong) -> Result<u64, JournalError> {
    let journal = (POOL, JOURNAL_AT, JOURNAL);
    if wrong != Wrong::Alone {
        let agreed = agree(&twins.0, journal, true)?;
        if agreed != vec![Agreed::Yes; 2] {
            return Err(JournalError::Damaged);
        }
    }
    let mut journal = Journal::open(twins, POOL, JOURNAL_AT, JOURNAL)?;
    // Half of the time programs go on without a checkpoint.
    if twins.1.get() {
        journal.checkpoint()?;
    }
    Ok(journal.version())
}

/// Works on twins until one of them has no power; gives the last version that both have.
fn work_on_twins(twins: &Twins<'_>, wrong: Wrong) -> (u64, bool) {
    let Ok(from) = recover(twins, wrong) else {
        return (0, false);
    };
    let Ok(mut journal) = Journal::open(twins, POOL, JOURNAL_AT, JOURNAL) else {
        return (from, false);
    };
    for number in from + 1..=from + 8 {
        let mut draft = draft(&places(number), 700, number as u8);
        let mut append = || match journal.append(&mut draft) {
            Err(JournalError::Full) => {
                journal.checkpoint()?;
                journal.append(&mut draft)
            }
            done => done,
        };
        if append().is_err()
            || journal
                .bring_home(&draft, &mut Buffer::default(), &nothing)
                .is_err()
        {
            return (number - 1, true);
        }
    }
    (from + 8, true)
}

/// Some lives of twins, each disk with a cut of its own; then each disk alone must have what was
/// acknowledged.
fn life_of_twins(
    start: &[u8],
    (kind, wrong): (Kind, Wrong),
    chance: &mut Chance,
) -> Result<(), String> {
    let mut disks = [start.to_vec(), start.to_vec()];
    let mut acknowledged = 0;
    for _ in 0..3 {
        let models = disks.map(|disk| {
            Model::new(disk, 1 + chance.next() as usize % 40, Fault::None).of_kind(kind)
        });
        let twins = Twins(
            [&models[0], &models[1]],
            Cell::new(chance.next().is_multiple_of(2)),
        );
        let (version, worked) = work_on_twins(&twins, wrong);
        acknowledged = match worked {
            true => version.max(acknowledged),
            false => acknowledged,
        };
        disks = models.map(|model| cut(model, chance));
        for disk in &disks {
            alone(disk, acknowledged, kind)?;
        }
    }
    Ok(())
}

/// What one disk has when the other is lost.
fn alone(disk: &[u8], acknowledged: u64, kind: Kind) -> Result<(), String> {
    let model = Model::new(disk.to_vec(), usize::MAX, Fault::None).of_kind(kind);
    let replayed = Journal::open(&model, POOL, JOURNAL_AT, JOURNAL)
        .and_then(|mut journal| journal.checkpoint().map(|_| journal.version()));
    let version = replayed.map_err(|why| why.to_string())?;
    if !(acknowledged..=acknowledged + 1).contains(&version) {
        return Err(format!("{acknowledged} was acknowledged, {version} found"));
    }
    match has_homes_of(&model.0.borrow().view(), version) {
        true => Ok(()),
        false => Err(format!("the disk does not hold version {version}")),
    }
}

fn explore_twins(kind: Kind, wrong: Wrong) -> Result<(), String> {
    let mut start = empty();
    start[(JOURNAL_AT + RECORDS_AT) as usize..].fill(0xa5);
    let mut chance = Chance(11);
    for life in 0..3000 {
        life_of_twins(&start, (kind, wrong), &mut chance)
            .map_err(|what| format!("life {life}: {what}"))?;
    }
    Ok(())
}

#[test]
fn each_of_two_disks_alone_has_what_was_acknowledged() {
    for kind in [KINDS[0], KINDS[2]] {
        explore_twins(kind, Wrong::Nothing).unwrap();
    }
}

#[test]
fn journals_that_do_not_agree_are_found() {
    for kind in [KINDS[0], KINDS[2]] {
        assert!(explore_twins(kind, Wrong::Alone).is_err());
    }
}

/// As `append`, with nothing beside.
fn append_alone(journal: &mut Journal<&Model>, number: u64) -> Result<(), JournalError> {
    journal.append(&mut draft(&places(number), 700, number as u8))
}

#[test]
fn a_disk_that_is_more_than_a_step_behind_is_not_trusted() {
    let models = [(); 3].map(|()| Model::new(empty(), usize::MAX, Fault::None));
    let records = [3, 3, 2];
    for (model, records) in models.iter().zip(records) {
        let mut journal = Journal::open(model, POOL, JOURNAL_AT, JOURNAL).unwrap();
        (1..=records).for_each(|number| append_alone(&mut journal, number).unwrap());
    }
    let place = (POOL, JOURNAL_AT, JOURNAL);
    let all = |write| agree(&[&models[0], &models[1], &models[2]], place, write).unwrap();
    assert_eq!(all(false), vec![Agreed::Yes; 3]);
    let version = |model| {
        Journal::open(model, POOL, JOURNAL_AT, JOURNAL)
            .unwrap()
            .version()
    };
    assert_eq!(version(&models[2]), 2, "nothing was written");
    let mut ahead = Journal::open(&models[0], POOL, JOURNAL_AT, JOURNAL).unwrap();
    append_alone(&mut ahead, 4).unwrap();
    assert_eq!(all(true), [Agreed::Yes, Agreed::Yes, Agreed::No]);
    assert_eq!(version(&models[1]), 4);
    ahead.checkpoint().unwrap();
    assert_eq!(all(true), [Agreed::Yes, Agreed::Yes, Agreed::No]);
    append_alone(&mut ahead, 5).unwrap();
    assert_eq!(all(true)[..2], vec![Agreed::Yes; 2]);
    append_alone(&mut ahead, 6).unwrap();
    ahead.checkpoint().unwrap();
    assert_eq!(all(true), [Agreed::Yes, Agreed::No, Agreed::No]);
}

#[test]
fn records_that_differ_are_not_trusted() {
    let models = [(); 2].map(|()| Model::new(empty(), usize::MAX, Fault::None));
    for (model, byte) in models.iter().zip([1, 2]) {
        let mut journal = Journal::open(model, POOL, JOURNAL_AT, JOURNAL).unwrap();
        journal.append(&mut draft(&[100], 700, byte)).unwrap();
    }
    let place = (POOL, JOURNAL_AT, JOURNAL);
    let agreed = agree(&[&models[0], &models[1]], place, true).unwrap();
    assert_eq!(agreed.iter().filter(|it| **it == Agreed::No).count(), 1);
    let damaged = Model::new(vec![0; DISK], usize::MAX, Fault::None);
    let agreed = agree(&[&damaged, &models[0]], place, true).unwrap();
    assert_eq!(agreed, [Agreed::No, Agreed::Yes]);
    assert!(agree(&[&damaged, &damaged], place, true).is_err());
}

#[test]
fn nothing_is_written_behind_what_may_not_be_durable() {
    // The record comes to the cache of the disk, and no further.
    let model = Model::new(empty(), 2, Fault::None);
    let mut journal = Journal::open(&model, POOL, JOURNAL_AT, JOURNAL).unwrap();
    let mut draft = Draft::with_beside(Buffer::default(), Vec::new(), 1);
    let (home, bytes) = (BESIDE_AT as u64, &[5; 4096]);
    let failed = journal.append_beside(&mut draft, &[Piece { home, bytes }]);
    assert!(failed.is_err());
    model.0.borrow_mut().left = usize::MAX;
    let mut journal = Journal::open(&model, POOL, JOURNAL_AT, JOURNAL).unwrap();
    assert_eq!(journal.version(), 1, "it is shown");
    journal.affirm().unwrap();
    let mut next = Draft::new(Buffer::default(), Vec::new());
    journal.append(&mut next).unwrap();
    // The power goes.
    let durable = model.0.borrow().durable.clone();
    assert!(durable[BESIDE_AT..][..bytes.len()] == *bytes);
    let model = Model::new(durable, usize::MAX, Fault::None);
    let journal = Journal::open(&model, POOL, JOURNAL_AT, JOURNAL).unwrap();
    assert_eq!(journal.version(), 2);
}

#[test]
fn nothing_is_written_behind_a_header_that_may_not_be_durable() {
    let model = Model::new(empty(), usize::MAX, Fault::None);
    let mut journal = Journal::open(&model, POOL, JOURNAL_AT, JOURNAL).unwrap();
    journal.append(&mut draft(&[100], 700, 1)).unwrap();
    // It goes home and is synced; the header comes to the cache of the disk, and no further.
    model.0.borrow_mut().left = 3;
    assert!(journal.checkpoint().is_err());
    model.0.borrow_mut().left = usize::MAX;
    let mut journal = Journal::open(&model, POOL, JOURNAL_AT, JOURNAL).unwrap();
    assert_eq!(journal.room(), JOURNAL - RECORDS_AT, "it is shown");
    journal.affirm().unwrap();
    journal.append(&mut draft(&[100], 700, 2)).unwrap();
    // The power goes.
    let durable = model.0.borrow().durable.clone();
    let model = Model::new(durable, usize::MAX, Fault::None);
    let journal = Journal::open(&model, POOL, JOURNAL_AT, JOURNAL).unwrap();
    assert_eq!(journal.version(), 2);
}
