//! The prepared tree and the operations that are tried on it.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use nacre_fs::{AllocateMode, Fs};
use nacre_store::layout::{RawSuperblock, SUPERBLOCK_AT};
use nacre_store::{AttachOptions, FormatOptions, SessionChoice, Store};
use nacre_types::{StoreKind, VolumeOffset, crc32c};
use nacre_volume::Volume;

use crate::action::Action;

const POOL: u64 = 8 * nacre_types::BLOCK_SIZE;
const UNIT: u64 = 4096;
/// What free units are full of: stale bytes that nobody may ever see.
const STALE: u8 = 0xEE;
const SEED: u64 = 0x5eed;
const EXCHANGE: u32 = 2;
const NOREPLACE: u32 = 1;
const LONG: &str = "w/long-name-xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx";

/// What is there before the first operation.
const PREPARED: &[Action] = &[
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
    Action::Truncate("a", 0),
    Action::Truncate("a", 100),
    Action::Truncate("a", 4096),
    Action::Truncate("a", 20000),
    Action::Truncate("b", 9000),
    Action::Truncate("b", 5000),
    Action::Truncate("c", 10),
    Action::Truncate("e", 4000),
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
    Action::Copy("b", 100, "a", 200, 4000),
    Action::Fsync("a"),
];

/// Contents of the prepared pool: an image as after a crash, free units full of stale bytes.
pub fn prepare() -> Result<Arc<[u8]>, String> {
    let volume = Volume::memory(POOL).map_err(|e| e.to_string())?;
    Store::format(&volume, &FormatOptions::default()).map_err(|e| e.to_string())?;
    set_seeds(&volume);
    let options = AttachOptions {
        session: SessionChoice::Memory,
        ..AttachOptions::default()
    };
    let fs = Fs::new(Store::attach(volume, &options).map_err(|e| e.to_string())?);
    for (salt, action) in (0..).zip(PREPARED) {
        let failed = |e| format!("prepare {action}: {e}");
        action.run(&fs, 1000 + salt).map_err(failed)?;
    }
    for number in 0..CROWD {
        crowd(&fs, number).map_err(|e| format!("prepare the crowd: {e}"))?;
    }
    spoil_free_units(&fs);
    let volume = fs.into_store().abandon();
    let mut bytes = vec![0; volume.len() as usize];
    volume.read(VolumeOffset(0), &mut bytes);
    Ok(bytes.into())
}

fn crowd(fs: &Fs, number: usize) -> nacre_fs::Result<()> {
    let cred = nacre_fs::Cred::root();
    let dir = crate::action::find(fs, "w")?;
    let name = format!("{number:02}-{}", "y".repeat(200));
    fs.unpin(fs.create(&cred, dir, name.as_bytes(), 0o644)?.ino)
}

/// Names hash alike and records check alike on every run.
fn set_seeds(volume: &Volume) {
    const SEED_AT: usize = std::mem::offset_of!(RawSuperblock, dir_seed);
    const SALT_AT: usize = std::mem::offset_of!(RawSuperblock, log_salt);
    for at in SUPERBLOCK_AT {
        let mut bytes: [u8; UNIT as usize] = volume.read_array(at);
        bytes[SEED_AT..SEED_AT + 8].copy_from_slice(&SEED.to_le_bytes());
        bytes[SALT_AT..SALT_AT + 8].copy_from_slice(&SEED.to_le_bytes());
        let crc = crc32c(&bytes[12..]);
        bytes[8..12].copy_from_slice(&crc.to_le_bytes());
        volume.fence(volume.write(at, &bytes, StoreKind::Metadata));
    }
}

fn spoil_free_units(fs: &Fs) {
    let (store, stale) = (fs.store(), [STALE; UNIT as usize]);
    for (word, bits) in (0..).zip(store.session().unit_bits()) {
        let bits = bits.load(Relaxed);
        for unit in (0..64).filter(|bit| bits >> bit & 1 == 0) {
            let at = VolumeOffset((word * 64 + unit) * UNIT);
            if at.0 < store.volume().len() {
                let stored = store.volume().write(at, &stale, StoreKind::Data);
                store.volume().fence(stored);
            }
        }
    }
}
