//! Attributes and times, as the kernel wants them.

use fuser::{FileAttr, INodeNo, TimeOrNow};
use nacre_fs::{FileType, SetTime, Stat};
use nacre_types::Timestamp;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The kernel asks again each time: preloaded programs may have changed the pool meanwhile.
pub(crate) const NOT_KEPT: Duration = Duration::ZERO;
const PERMISSIONS: u32 = 0o7777;

pub(crate) fn file_attr(stat: &Stat) -> FileAttr {
    FileAttr {
        ino: INodeNo(stat.ino.0),
        size: stat.size,
        blocks: stat.blocks,
        atime: system_time(stat.atime),
        mtime: system_time(stat.mtime),
        ctime: system_time(stat.ctime),
        crtime: system_time(stat.btime),
        kind: stat.file_type().map_or(fuser::FileType::RegularFile, kind),
        perm: (stat.mode & PERMISSIONS) as u16,
        nlink: stat.nlink,
        uid: stat.uid,
        gid: stat.gid,
        // The kernel's 32-bit form is the lower half of that of libc.
        rdev: stat.rdev as u32,
        blksize: stat.block_size,
        flags: 0,
    }
}

pub(crate) fn kind(file_type: FileType) -> fuser::FileType {
    match file_type {
        FileType::Fifo => fuser::FileType::NamedPipe,
        FileType::CharDevice => fuser::FileType::CharDevice,
        FileType::Directory => fuser::FileType::Directory,
        FileType::BlockDevice => fuser::FileType::BlockDevice,
        FileType::Regular => fuser::FileType::RegularFile,
        FileType::Symlink => fuser::FileType::Symlink,
        FileType::Socket => fuser::FileType::Socket,
    }
}

fn system_time(time: Timestamp) -> SystemTime {
    let seconds = Duration::from_secs(time.seconds().unsigned_abs());
    let whole = if time.seconds() < 0 {
        UNIX_EPOCH - seconds
    } else {
        UNIX_EPOCH + seconds
    };
    whole + Duration::from_nanos(u64::from(time.nanoseconds()))
}

pub(crate) fn set_time(time: Option<TimeOrNow>) -> SetTime {
    match time {
        None => SetTime::Omit,
        Some(TimeOrNow::Now) => SetTime::Now,
        Some(TimeOrNow::SpecificTime(time)) => SetTime::At(timestamp(time)),
    }
}

/// `fuser` takes the nanoseconds of times before 1970 off instead of adding them; this turns it
/// round.
fn timestamp(time: SystemTime) -> Timestamp {
    let seconds = |of: Duration| i64::try_from(of.as_secs()).unwrap_or(i64::MAX);
    match time.duration_since(UNIX_EPOCH) {
        Ok(after) => Timestamp::from_parts(seconds(after), after.subsec_nanos()),
        Err(before) => {
            let before = before.duration();
            Timestamp::from_parts(-seconds(before), before.subsec_nanos())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{system_time, timestamp};
    use nacre_types::Timestamp;
    use std::time::{Duration, UNIX_EPOCH};

    #[test]
    fn times_go_to_the_kernel_and_come_back() {
        let time = Timestamp::from_parts(1_700_000_000, 123_456_789);
        assert_eq!(timestamp(system_time(time)), time);
        let early = system_time(Timestamp::from_parts(-5, 250_000_000));
        assert_eq!(early, UNIX_EPOCH - Duration::from_millis(4750));
        // As fuser gives the time 4.75 seconds before the epoch.
        let given = UNIX_EPOCH - Duration::from_millis(5250);
        assert_eq!(timestamp(given), Timestamp::from_parts(-5, 250_000_000));
    }
}
