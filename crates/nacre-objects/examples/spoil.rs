//! Damages metadata of objects on one device of a pool in memory, while others use it:
//! `spoil POOL DEVICE KIND EVERY` inverts one in so many onodes, maps, trees or values, or all of
//! them. Tells how many that were. For tests of what becomes of it (`ceph/copies.sh`).
#![forbid(unsafe_code)]

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::process::ExitCode;

use nacre_objects::{OpenOptions, Pool};
use nacre_store::structure_index::{Part, Structure, survey};

type Done<T> = Result<T, Box<dyn std::error::Error>>;

/// Where data begins on a device.
const DATA_START: u64 = 2 << 20;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        [pool, device, kind, every] => match spoil(pool, device, kind, every) {
            Ok(count) => println!("{count} {kind} of {device}"),
            Err(error) => {
                eprintln!("spoil: {error}");
                return ExitCode::FAILURE;
            }
        },
        _ => {
            eprintln!("usage: spoil POOL DEVICE onodes|maps|trees|values|all EVERY");
            return ExitCode::from(2);
        }
    }
    ExitCode::SUCCESS
}

fn spoil(pool: &str, device: &str, kind: &str, every: &str) -> Done<usize> {
    let every: usize = every.parse()?;
    let parts = survey(Pool::open(pool, OpenOptions::default())?.store());
    let device = File::options().read(true).write(true).open(device)?;
    let chosen = parts.iter().filter(|part| is_of(kind, part.what));
    let chosen: Vec<&Part> = chosen.step_by(every.max(1)).collect();
    for part in &chosen {
        let (at, mut bytes) = (DATA_START + part.at.0, vec![0; part.len as usize]);
        device.read_exact_at(&mut bytes, at)?;
        bytes.iter_mut().for_each(|byte| *byte = !*byte);
        device.write_all_at(&bytes, at)?;
    }
    Ok(chosen.len())
}

fn is_of(kind: &str, what: Structure) -> bool {
    let name = match what {
        Structure::Onode => "onodes",
        Structure::MapNode(..) | Structure::PartsNode(..) => "maps",
        Structure::TreeNode(..) => "trees",
        Structure::Value => "values",
        _ => return false,
    };
    kind == name || kind == "all"
}
