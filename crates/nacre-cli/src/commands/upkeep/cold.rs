//! Whoever stays beside the programs keeps room in front of a disk.

use std::path::Path;
use std::time::Duration;

use nacre_fs::Fs;

use super::End;

/// How often it is looked how full the front is.
const LOOKS: Duration = Duration::from_secs(1);
/// The longest time from one look to the next, where nothing could move.
const LONGEST: Duration = Duration::from_secs(64);

/// Moves what is cold behind as long as the front is too full. A failure is told once: programs
/// that find no room are told, too.
pub fn keep_moving(path: &Path, fs: &Fs, end: &End) {
    let (mut pause, mut told) = (LOOKS, false);
    while !end.within(pause) {
        pause = match fs.store().keep_room() {
            Ok(0) if fs.store().is_front_full() => (pause * 2).min(LONGEST),
            Ok(0) => LOOKS,
            Ok(_) => Duration::ZERO,
            Err(error) => {
                if !told {
                    eprintln!("nacre: {}: moving what is cold: {error}", path.display());
                }
                told = true;
                LONGEST
            }
        };
    }
}
