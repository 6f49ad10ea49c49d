//! The prepared tree and the operations that are tried on it.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use nacre_fs::{AllocateMode, Cred, Fs};
use nacre_store::layout::MAX_RECORD;
use nacre_store::{FormatOptions, Store, WriteMode};
use nacre_types::{BLOCK_SIZE, StoreKind, UNITS_PER_BLOCK, VolumeOffset};
use nacre_volume::{Arrangement, Volume};

use crate::action::{Action, find};
use crate::bench::Bench;
use crate::ground::Ground;
use nacre_testkit::medium::LANES;
use nacre_testkit::random::Random;
use nacre_testkit::recorder::{Event, Recorder, What};
use nacre_testkit::turns::{Order, Turns};

/// Where programs that run side by side work.
pub const HOMES: [&str; LANES] = ["p0", "p1", "p2"];
const UNIT: u64 = 4096;
/// What free units are full of: stale bytes that nobody may ever see.
const STALE: u8 = 0xEE;
/// Log salt and seed of names of all pools here.
pub const SEED: u64 = 0x5eed;
/// Flag of [`Action::Rename`]: the two names change places.
pub const EXCHANGE: u32 = 2;
const WHITEOUT: u32 = 4;
const NOREPLACE: u32 = 1;
const LONG: &str = "w/long-name-xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx";

/// What is there before the first operation.
pub(crate) const PREPARED: &[Action] = &[
    Action::Create("a"),
    Action::Write("a", 0, 6000),
    Action::Create("b"),
    Action::Write("b", 0, 4096),
    Action::Write("b", 8192, 1808),
    Action::Create("c"),
    Action::Clone("b", 0, "c", 0, 0),
    Action::Create("e"),
    Action::Mkdir("d"),
    Action::Mkdir("d/s"),
    Action::Create("d/f"),
    Action::Write("d/f", 0, 100),
    Action::Link("a", "d/h"),
    Action::Mkdir("g"),
    Action::Symlink("l", 20),
    Action::Symlink("m", 300),
    Action::SetXattr("a", "user.one", 30),
    Action::SetXattr("a", "user.big", 3000),
    Action::Create("x"),
    Action::SetXattr("x", "user.one", 10),
    Action::Mkdir("w"),
];

/// Files in the directory whose next entry splits a node.
const CROWD: usize = 16;

/// Everything that is tried, alone and in pairs.
pub const ACTIONS: &[Action] = &[
    Action::Create("n"),
    Action::Create("d/s/n"),
    Action::Create(LONG),
    Action::Mkdir("g/n"),
    Action::Mkdir("n"),
    Action::Symlink("n", 10),
    Action::Symlink("d/n", 400),
    Action::Mknod("n"),
    Action::Temporary("n"),
    Action::Unlink("a"),
    Action::Unlink("b"),
    Action::Unlink("d/h"),
    Action::Unlink("m"),
    Action::Unlink("x"),
    Action::UnlinkOpen("c"),
    Action::Rmdir("g"),
    Action::Rmdir("d/s"),
    Action::Rmdir("d"),
    Action::Link("b", "n"),
    Action::Link("e", "g/n"),
    Action::Rename("a", "n", 0),
    Action::Rename("b", "g/n", 0),
    Action::Rename("b", "a", 0),
    Action::Rename("a", "d/f", 0),
    Action::Rename("a", "d/h", 0),
    Action::Rename("g", "d/s", 0),
    Action::Rename("d", "g", 0),
    Action::Rename("d/s", "g/n", 0),
    Action::Rename("d", "n", 0),
    Action::Rename("a", "b", EXCHANGE),
    Action::Rename("d/s", "x", EXCHANGE),
    Action::Rename("x", "n", NOREPLACE),
    Action::Rename("x", LONG, 0),
    Action::Rename("a", "n", WHITEOUT),
    Action::Rename("b", "d/f", WHITEOUT),
    Action::Rename("d/s", "g/n", WHITEOUT),
    Action::Write("a", 0, 100),
    Action::Write("a", 4090, 12),
    Action::Write("a", 0, 4096),
    Action::Write("a", 3000, 6000),
    Action::Write("a", 5990, 5000),
    Action::Write("b", 4096, 4096),
    Action::Write("b", 5000, 10),
    Action::Write("b", 0, 10000),
    Action::Write("c", 100, 50),
    Action::Write("c", 0, 8192),
    Action::Write("e", 0, 5),
    Action::Write("e", 9000, 100),
    Action::Write("d/f", 20000, 4096),
    Action::Write("d/f", 2_200_000, 10),
    Action::Append("a", 10),
    Action::Append("a", 9000),
    Action::Append("b", 300),
    Action::Append("e", 4096),
    Action::Append("d/f", 1),
    Action::Append("n", 300),
    Action::Truncate("a", 0),
    Action::Truncate("a", 100),
    Action::Truncate("a", 4096),
    Action::Truncate("a", 20000),
    Action::Truncate("b", 9000),
    Action::Truncate("b", 5000),
    Action::Truncate("c", 10),
    Action::Truncate("e", 4000),
    Action::Truncate("e", 20000),
    Action::Allocate("a", AllocateMode::Extend, 4000, 20000),
    Action::Allocate("b", AllocateMode::KeepSize, 0, 30000),
    Action::Allocate("a", AllocateMode::PunchHole, 100, 5000),
    Action::Allocate("b", AllocateMode::PunchHole, 0, 10000),
    Action::Allocate("c", AllocateMode::PunchHole, 0, 4096),
    Action::Allocate(
        "a",
        AllocateMode::ZeroRange { keep_size: false },
        3000,
        9000,
    ),
    Action::Allocate("c", AllocateMode::ZeroRange { keep_size: true }, 0, 5000),
    Action::SetXattr("a", "user.one", 40),
    Action::SetXattr("a", "user.big", 3500),
    Action::SetXattr("a", "user.big", 5),
    Action::SetXattr("e", "user.new", 200),
    Action::SetXattr("g", "user.new", 6000),
    Action::RemoveXattr("a", "user.big"),
    Action::RemoveXattr("x", "user.one"),
    Action::Chmod("a", 0o600),
    Action::Chmod("d", 0o700),
    Action::Chown("b", 1000),
    Action::Utimens("a"),
    Action::Clone("a", 0, "e", 0, 0),
    Action::Clone("b", 0, "a", 0, 4096),
    Action::Clone("b", 0, "d/f", 8192, 0),
    Action::Clone("d/f", 0, "e", 0, 0),
    Action::Copy("b", 100, "a", 200, 4000),
    Action::CloneTree("d", "n"),
    Action::CloneTree("b", "g/n"),
    Action::Snapshot("d", "q"),
    Action::Fsync("a"),
    Action::Store("a", 104, 5000),
    Action::Store("b", 4000, 400),
    Action::Store("c", 0, 64),
    Action::Mapped("a", &Action::Write("a", 100, 3000)),
    Action::Mapped("a", &Action::Write("a", 5000, 6000)),
    Action::Mapped("c", &Action::Write("c", 0, 100)),
    Action::Mapped("a", &Action::Clone("a", 0, "e", 0, 0)),
    Action::Mapped("a", &Action::Clone("b", 0, "a", 0, 4096)),
    Action::Mapped("a", &Action::Truncate("a", 100)),
    Action::Mapped("a", &Action::Truncate("a", 20000)),
    Action::Mapped(
        "b",
        &Action::Allocate("b", AllocateMode::PunchHole, 100, 9000),
    ),
    Action::Mapped(
        "a",
        &Action::Allocate("a", AllocateMode::PunchHole, 0, 4096),
    ),
    Action::CreateInNewBlock("n"),
    Action::Remount,
];

/// What single places in the source are needed for, each with the reason.
pub const DIRECTED: &[&[&[Action]]] = &[
    // A record that is not retired and comes back.
    &[&[Action::Create("n"), Action::Append("n", 300)]],
    &[&[Action::Write("a", 4090, 12), Action::Store("a", 104, 5000)]],
    // A map that grows without the size.
    &[&[Action::Truncate("e", 20000), Action::Write("e", 9000, 100)]],
    // A metadata block that moves, for this program and for another one.
    &[&[Action::Utimens("a"), Action::CreateInMovedBlock("n")]],
    &[
        &[Action::CreateInMovedBlock("n")],
        &[Action::Create("n"), Action::Unlink("a")],
    ],
    // A metadata block that is given back, and what becomes of its units and of its numbers.
    &[&[Action::EmptyBlock, Action::Hoard, Action::Append("b", 9000)]],
    &[&[
        Action::EmptyBlock,
        Action::GiveBlocksBack,
        Action::CreateInNewBlock("n"),
        Action::Unlink("n"),
    ]],
    &[&[
        Action::EmptyBlock,
        Action::GiveBlocksBack,
        Action::Remount,
        Action::Create("n"),
    ]],
    &[
        &[Action::EmptyBlock, Action::GiveBlocksBack],
        &[Action::Create("n"), Action::Unlink("a")],
    ],
    // Bytes behind the end that are not zeros, and an end that moves over them.
    &[&[Action::Truncate("a", 4500), Action::Append("a", 300)]],
    // Such bytes up to the last one of a page.
    &[&[Action::Truncate("a", 100), Action::Truncate("a", 9000)]],
    // A saved state that is not true any more, or whose second edition got out in part over the
    // first.
    &[&[Action::Remount, Action::Create("n")]],
    &[&[Action::Remount, Action::CreateInNewBlock("n")]],
    &[&[Action::Remount, Action::Append("a", 9000), Action::Remount]],
    &[&[Action::Remount, Action::Create("n"), Action::Remount]],
    // Times that only fsync makes durable.
    &[&[Action::Write("a", 0, 100), Action::Fsync("a")]],
    // Units that are freed while a word that got lost still names them, and taken at once as there
    // are no others.
    &[&[
        Action::Hoard,
        Action::Truncate("a", 0),
        Action::Append("b", 9000),
    ]],
    &[&[
        Action::Hoard,
        Action::Unlink("a"),
        Action::Unlink("d/h"),
        Action::Append("b", 9000),
    ]],
    &[&[Action::Hoard, PUNCH_A, Action::Append("b", 9000)]],
    // A mapping made by one program, stored to by another one.
    &[&[MAP_B, Action::Store("b", 4000, 400)]],
    // Bytes that are overwritten at once, as this program remembers where they lie.
    &[&[Action::Write("a", 0, 100), Action::Write("a", 50, 100)]],
    &[&[
        Action::Write("a", 0, 100),
        Action::Write("a", 4090, 12),
        Action::Truncate("a", 4094),
    ]],
    &[
        &[Action::Write("k", 0, 100), Action::Write("k", 50, 100)],
        &[Action::Write("k", 0, 8192)],
    ],
    // Units that two programs share until one of them has a copy.
    &[
        &[Action::Write("k", 0, 4096)],
        &[Action::Write("k", 0, 4096)],
    ],
    &[
        &[Action::Write("k", 100, 50)],
        &[Action::Write("k", 0, 8192)],
    ],
    &[
        &[Action::Truncate("k", 100)],
        &[Action::Write("k", 0, 8192)],
    ],
    &[&[ZERO_K], &[Action::Write("k", 0, 8192)]],
    &[&[Action::Store("k", 0, 64)], &[Action::Store("k", 0, 64)]],
    &[
        &[Action::Mapped("k", &Action::Write("k", 0, 100))],
        &[Action::Mapped("k", &Action::Write("k", 0, 100))],
    ],
    // Trees that are copied, and what becomes of the units that they share.
    &[&[
        Action::CloneTree("d", "n"),
        Action::Write("d/f", 0, 100),
        Action::Write("n/f", 50, 10),
        Action::Unlink("n/f"),
    ]],
    &[&[
        Action::Snapshot("d", "q"),
        Action::Snapshot("d", "r"),
        Action::DeleteSnapshot("d", "q"),
        Action::Append("d/f", 9000),
    ]],
    &[&[
        Action::Snapshot("d", "q"),
        Action::Write("d/f", 0, 5000),
        Action::Create("d/n"),
        Action::Restore("d", "q"),
        Action::Write("d/f", 0, 100),
    ]],
    &[&[Action::Map("a"), Action::CloneTree("a", "n")]],
    &[
        &[Action::CloneTree("d", "n"), Action::Snapshot("d", "q")],
        &[Action::Append("d/f", 300), Action::Unlink("d/h")],
    ],
    &[
        &[Action::CloneTree("k", "n")],
        &[Action::Write("k", 0, 8192)],
    ],
    // Contents that move behind, and what becomes of them and of where they were.
    &[&[Action::MoveCold]],
    &[&[Action::MoveCold, Action::Remount]],
    &[&[Action::Hoard, Action::MoveCold, Action::Append("e", 4096)]],
    &[&[Action::MoveCold, Action::Write("a", 0, 100)]],
    &[&[Action::MoveCold, Action::Write("a", 4090, 12)]],
    &[&[
        Action::MoveCold,
        Action::Write("a", 0, 4096),
        Action::MoveCold,
    ]],
    &[&[Action::MoveCold, Action::Append("a", 9000)]],
    &[&[
        Action::MoveCold,
        Action::Truncate("a", 100),
        Action::Append("a", 300),
    ]],
    &[&[Action::MoveCold, PUNCH_A, Action::MoveCold]],
    &[&[Action::MoveCold, Action::Store("a", 104, 5000)]],
    &[&[Action::MoveCold, Action::Chunk("a")]],
    &[&[
        Action::MoveCold,
        Action::Clone("b", 0, "e", 0, 0),
        Action::Write("b", 0, 10),
    ]],
    &[&[
        Action::MoveCold,
        Action::CloneTree("d", "n"),
        Action::Unlink("d/f"),
    ]],
    &[&[
        Action::MoveCold,
        Action::Unlink("a"),
        Action::Unlink("d/h"),
        Action::Write("b", 0, 100),
        Action::MoveCold,
    ]],
    // A third log block.
    &[
        &[Action::Create("n"), Action::Unlink("a")],
        &[Action::Create("n"), Action::Unlink("a")],
        &[Action::Create("n"), Action::Unlink("a")],
    ],
    // Contents that move to 2 MiB, and what takes the place.
    &[
        &[Action::Chunk("a"), Action::Hoard, Action::Append("e", 4096)],
        &[Action::Utimens("a")],
    ],
    &[&[Action::Chunk("b")], &[Action::Utimens("a")]],
    &[
        &[Action::Chunk("a"), Action::Hoard],
        &[Action::Utimens("a"), Action::Append("a", 9000)],
    ],
    // Bytes behind the end of a file that stays mapped, and an end that moves over them.
    &[&[
        Action::Map("a"),
        Action::Truncate("a", 100),
        Action::Truncate("a", 9000),
    ]],
    &[&[
        Action::Map("b"),
        Action::Truncate("b", 9000),
        Action::Append("b", 3000),
    ]],
    // A further metadata block, which another program uses before the one that made it goes on.
    &[
        &[Action::CreateInNewBlock("n")],
        &[Action::Create("n"), Action::Create("d/n")],
    ],
    // A log block that moves, and records behind it.
    &[&[Action::Utimens("a"), Action::MoveLog("e", 0o606)]],
    &[&[Action::MoveLog("e", 0o606), Action::Create("n")]],
    &[
        &[Action::MoveLog("e", 0o606)],
        &[Action::Create("n"), Action::Unlink("a")],
    ],
    // One that comes back to where the first record of this log still lies.
    &[
        &[Action::MoveLog("e", 0o606), Action::MoveLog("e", 0o607)],
        &[Action::Fsync("a")],
    ],
    // Contents that move to a device that was added, and what becomes of both places.
    &[&[Action::Rebalance]],
    &[&[Action::Rebalance, Action::Remount]],
    &[&[Action::Rebalance, Action::Devour("e")]],
    &[&[Action::Rebalance, Action::Write("a", 0, 100)]],
    &[&[Action::Rebalance, Action::Write("a", 4090, 12)]],
    &[&[Action::Rebalance, Action::Append("a", 9000)]],
    &[&[
        Action::Rebalance,
        Action::Truncate("a", 100),
        Action::Append("a", 300),
    ]],
    &[&[Action::Rebalance, PUNCH_A, Action::Append("b", 9000)]],
    &[&[Action::Rebalance, Action::Store("a", 104, 5000)]],
    &[&[Action::Rebalance, Action::Chunk("a")]],
    &[&[
        Action::Rebalance,
        Action::Clone("b", 0, "e", 0, 0),
        Action::Write("b", 0, 10),
    ]],
    &[&[
        Action::Rebalance,
        Action::CloneTree("d", "n"),
        Action::Unlink("d/f"),
    ]],
    &[&[
        Action::Rebalance,
        Action::Unlink("a"),
        Action::Unlink("d/h"),
        Action::Append("b", 9000),
    ]],
    &[&[
        Action::Rebalance,
        Action::Append("b", 90_000),
        Action::Truncate("b", 0),
        Action::Append("e", 9000),
    ]],
];

const PUNCH_A: Action = Action::Allocate("a", AllocateMode::PunchHole, 0, 4096);
const ZERO_K: Action =
    Action::Allocate("k", AllocateMode::ZeroRange { keep_size: true }, 100, 5000);
const MAP_B: Action = Action::Mapped("b", &Action::Unlink("nothing"));

/// Contents of prepared pools: images as after a crash, free units full of stale bytes.
pub struct Worlds {
    /// For one program at a time.
    pub alone: Arc<[u8]>,
    /// For several, each in a directory of [`HOMES`].
    pub beside: Arc<[u8]>,
    /// As `alone`, but left in order: the allocation state is saved.
    pub clean: Arc<[u8]>,
    /// As `alone`, with [`BEHIND`] bytes of a device behind, in which nothing is.
    pub behind: Arc<[u8]>,
    /// Units of `alone` that hold metadata.
    pub metadata: BTreeSet<u64>,
}

/// Bytes of the device behind, where there is one.
pub const BEHIND: u64 = 2 * BLOCK_SIZE;

/// Bytes of the device that was added, if `behind` is taken as a pool that grew: as many as make
/// files of two pages uneven.
pub const ADDED: u64 = 5 * BLOCK_SIZE;

/// Makes them.
pub fn prepare() -> Result<Worlds, String> {
    let (alone, metadata) = prepare_pool(&[8 * BLOCK_SIZE], &[""])?;
    let (behind, _) = prepare_pool(&[8 * BLOCK_SIZE, BEHIND], &[""])?;
    let (beside, _) = prepare_pool(&[LANES as u64 * 16 * BLOCK_SIZE], &HOMES)?;
    let volume = nacre_testkit::image::volume_of(&alone);
    let fs = Bench::attach_clean(volume, WriteMode::Direct)?;
    let volume = fs.into_store().close().map_err(|e| e.to_string())?;
    Ok(Worlds {
        clean: contents(&volume),
        alone,
        beside,
        behind,
        metadata,
    })
}

fn prepare_pool(
    lens: &[u64],
    homes: &[&'static str],
) -> Result<(Arc<[u8]>, BTreeSet<u64>), String> {
    let arrangement = Arrangement {
        behind: lens.len() - 1,
        ..Arrangement::default()
    };
    let volume = Volume::memories(lens, arrangement).map_err(|e| e.to_string())?;
    let recorder = Recorder::of(&volume);
    recorder.note_offsets(&volume);
    // Names hash alike and records check alike on every run.
    let options = FormatOptions {
        seed: Some(SEED),
        ..FormatOptions::default()
    };
    Store::format(&volume, &options).map_err(|e| e.to_string())?;
    let fs = Bench::attach_clean(volume, WriteMode::Direct)?;
    for home in homes {
        prepare_home(&fs, home)?;
    }
    let mut events = recorder.stop();
    if homes.len() > 1 {
        share(&fs, homes)?;
        add_lane(&fs, &recorder)?;
    } else {
        events.extend(go_to_end_of_ring(&fs, &recorder)?);
    }
    spoil_free_units(&fs);
    let volume = fs.into_store().abandon();
    Ok((contents(&volume), metadata_units(&events)))
}

fn prepare_home(fs: &Fs, home: &str) -> Result<(), String> {
    let top = Ground::of(fs);
    if !home.is_empty() {
        let made = fs.mkdir(&Cred::root(), top.root, home.as_bytes(), 0o755);
        made.map_err(|e| format!("prepare {home}: {e}"))?;
    }
    let root = find(top, home).map_err(|e| e.to_string())?;
    let ground = Ground { fs, root };
    for (salt, action) in (1000..).zip(PREPARED) {
        let failed = |e| format!("prepare {action}: {e}");
        action.run(ground, salt).map_err(failed)?;
    }
    (0..CROWD)
        .try_for_each(|number| crowd(ground, number))
        .map_err(|e| format!("prepare the crowd: {e}"))
}

/// A file whose units two homes share.
fn share(fs: &Fs, homes: &[&'static str]) -> Result<(), String> {
    let ground = Ground::of(fs);
    let found = |home: &str| find(ground, home).map_err(|e| e.to_string());
    let (one, other) = (found(homes[0])?, found(homes[1])?);
    let copy = || {
        let cred = &Cred::root();
        Action::Create("k").run(Ground { fs, root: one }, 0)?;
        Action::Write("k", 0, 8192).run(Ground { fs, root: one }, 2000)?;
        Action::Create("k").run(Ground { fs, root: other }, 0)?;
        let from = fs.lookup(cred, one, b"k")?.node;
        let to = fs.lookup(cred, other, b"k")?.node;
        fs.pin(to)?;
        fs.clone_range(cred, (from, 0), (to, 0), 0)?;
        fs.unpin(to.ino)
    };
    copy().map_err(|e: nacre_fs::FsError| format!("share: {e}"))
}

fn contents(volume: &Volume) -> Arc<[u8]> {
    let mut bytes = vec![0; volume.len() as usize];
    volume.read(VolumeOffset(0), &mut bytes);
    bytes.into()
}

/// Units with stores that are not file data; of a log block only the first.
fn metadata_units(events: &[Event]) -> BTreeSet<u64> {
    let stores = events.iter().filter_map(|event| match event.what {
        What::Store { at, kind, .. } => Some((at, kind)),
        _ => None,
    });
    let (mut units, mut data) = (BTreeSet::new(), BTreeSet::new());
    for (at, kind) in stores {
        let unit = at / UNIT;
        match kind {
            StoreKind::Data => data.insert(unit),
            StoreKind::Log => units.insert(unit / UNITS_PER_BLOCK * UNITS_PER_BLOCK),
            StoreKind::Metadata => units.insert(unit),
        };
    }
    units.difference(&data).copied().collect()
}

/// Fills the log ring, twice with records of equal length, up to the last ones of a round: old
/// records lie where new ones will, and the next operations begin a new round.
fn go_to_end_of_ring(fs: &Fs, recorder: &Recorder) -> Result<Vec<Event>, String> {
    const ROUNDS: usize = 3;
    let last = BLOCK_SIZE - MAX_RECORD as u64 - 1500;
    let (mut round, mut before, mut all) = (0, 0, Vec::new());
    for number in 0.. {
        recorder.start();
        let mode = 0o600 + number % 64;
        Action::Chmod("e", mode)
            .run(Ground::of(fs), 0)
            .map_err(|e| format!("fill the log: {e}"))?;
        let events = recorder.stop();
        let place = events.iter().find_map(record_place).unwrap_or(0);
        round += usize::from(place < before);
        before = place;
        all.extend(events);
        if round == ROUNDS - 1 && place > last || number > 10_000 {
            break;
        }
    }
    Ok(all)
}

/// Where in its block a record was stored.
fn record_place(event: &Event) -> Option<u64> {
    match &event.what {
        What::Store {
            at,
            bytes,
            kind: StoreKind::Log,
        } if bytes.len() > 8 => Some(at % BLOCK_SIZE),
        _ => None,
    }
}

/// Makes two transactions overlap, so that the pool has two log blocks and three programs need one
/// more.
fn add_lane(fs: &Fs, recorder: &Arc<Recorder>) -> Result<(), String> {
    for seed in 0..20 {
        if fs.store().info().lanes > 1 {
            return Ok(());
        }
        let turns = Arc::new(Turns::new(2, Order::Random(Random::new(seed, 0))));
        recorder.set_turns(Some(Arc::clone(&turns)));
        recorder.start();
        std::thread::scope(|scope| {
            for (lane, home) in HOMES.iter().enumerate().take(2) {
                let turns = &turns;
                scope.spawn(move || {
                    turns.begin(lane);
                    nacre_testkit::recorder::set_lane(lane);
                    let root = find(Ground::of(fs), home);
                    // What it comes to shows in the number of lanes.
                    let _ =
                        root.and_then(|root| Action::Chmod("e", 0o604).run(Ground { fs, root }, 0));
                    turns.end(lane);
                });
            }
        });
        recorder.stop();
        recorder.set_turns(None);
    }
    Err("no second log block was made".into())
}

fn crowd(ground: Ground<'_>, number: usize) -> nacre_fs::Result<()> {
    let dir = find(ground, "w")?;
    let name = format!("{number:02}-{}", "y".repeat(200));
    let made = ground
        .fs
        .create(&Cred::root(), dir, name.as_bytes(), 0o644)?;
    ground.fs.unpin(made.ino)
}

pub(crate) fn spoil_free_units(fs: &Fs) {
    let (store, stale) = (fs.store(), [STALE; UNIT as usize]);
    for (word, bits) in (0..).zip(store.session().unit_bits()) {
        let bits = bits.load(Relaxed);
        for unit in (0..64).filter(|bit| bits >> bit & 1 == 0) {
            let at = VolumeOffset((word * 64 + unit) * UNIT);
            if at.0 < store.volume().len() {
                let stored = store.volume().write(at, &stale, StoreKind::Data);
                store
                    .volume()
                    .fence(stored)
                    .expect("a device that does not fail");
            }
        }
    }
}
