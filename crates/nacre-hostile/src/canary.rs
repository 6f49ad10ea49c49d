//! Readers that trust the medium. A harness that does not find them is broken.

use std::hint::black_box;

use nacre_store::layout::{ONODE_SIZE, RawOnode};
use nacre_store::structure_index::{Part, Structure};
use nacre_types::{StoreKind, VolumeOffset};
use nacre_volume::Volume;

use crate::pool::Prepared;

/// Which validation is missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trust {
    /// None: nothing is planted.
    Nobody,
    /// A length on the medium is used as an index: a panic.
    Length,
    /// A chain on the medium is followed to its end: a hang.
    Chain,
    /// A length on the medium is allocated: memory without bound.
    Memory,
    /// What check says is not listened to.
    Blind,
    /// Bytes of a file change behind everybody's back.
    Silent,
}

/// Those that must be found, and their names on the command line.
pub const PLANTED: [(Trust, &str); 5] = [
    (Trust::Length, "length"),
    (Trust::Chain, "chain"),
    (Trust::Memory, "memory"),
    (Trust::Blind, "blind"),
    (Trust::Silent, "silent"),
];

/// Runs the planted reader on a damaged pool.
pub fn trust(trust: Trust, prepared: &Prepared, volume: &Volume) {
    let onodes = || prepared.parts.iter().filter(|p| p.what == Structure::Onode);
    match trust {
        Trust::Nobody | Trust::Blind => {}
        Trust::Length => onodes().for_each(|part| {
            let inline = [0u8; 64];
            black_box(&inline[..inline_len(volume, part)]);
        }),
        Trust::Memory => onodes().for_each(|part| {
            black_box(vec![1u8; inline_len(volume, part)]);
        }),
        Trust::Chain => onodes().for_each(|part| follow(prepared, volume, part)),
        Trust::Silent => {
            let data = |part: &&Part| matches!(part.what, Structure::Data(0));
            if let Some(part) = prepared.parts.iter().find(data) {
                let byte = volume.load_u8(part.at) ^ 1;
                volume
                    .fence(volume.write(part.at, &[byte], StoreKind::Data))
                    .expect("a device that does not fail");
            }
        }
    }
}

fn field(volume: &Volume, part: &Part, at: usize) -> u64 {
    debug_assert!(at + 8 <= ONODE_SIZE);
    volume.load_u64(VolumeOffset(part.at.0 + at as u64))
}

fn inline_len(volume: &Volume, part: &Part) -> usize {
    let word = field(volume, part, std::mem::offset_of!(RawOnode, inline_len));
    word as u32 as usize
}

/// Follows the parents of a directory up to the root.
fn follow(prepared: &Prepared, volume: &Volume, part: &Part) {
    let mut at = Some(*part);
    while let Some(here) = at.filter(|here| here.object.is_some_and(|id| id.0 > 1)) {
        let parent = field(volume, &here, std::mem::offset_of!(RawOnode, parent));
        let mut parts = prepared.parts.iter();
        at = parts
            .find(|p| p.what == Structure::Onode && p.object.is_some_and(|id| id.0 == parent))
            .copied();
    }
}
