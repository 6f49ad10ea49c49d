//! Attributes and times, as the kernel wants them.

use crate::wire::Output;
use nacre_fs::Stat;
use nacre_types::Timestamp;
use std::time::Duration;

/// `STATX_BASIC_STATS` and `STATX_BTIME`.
const STATX_KNOWN: u32 = 0xfff;

/// Bytes of an inode's attributes.
const ATTRIBUTES: usize = 88;

/// What the kernel asks for again each time.
pub(crate) const NOT_KEPT: Duration = Duration::ZERO;

impl Output {
    /// A known inode, and for how long its name and its attributes are good.
    pub(crate) fn entry(&mut self, number: u64, stat: &Stat, good: [Duration; 2]) -> &mut Self {
        self.u64(number).u64(u64::from(stat.generation));
        let [name, attributes] = good;
        self.u64(name.as_secs()).u64(attributes.as_secs());
        self.u32(name.subsec_nanos()).u32(attributes.subsec_nanos());
        self.attributes(stat)
    }

    /// There is no inode of a name, and for how long that is good.
    pub(crate) fn no_entry(&mut self, good: Duration) -> &mut Self {
        self.zeros(16).u64(good.as_secs()).zeros(8);
        self.u32(good.subsec_nanos()).zeros(4 + ATTRIBUTES)
    }

    /// Attributes, and for how long the kernel may keep them.
    pub(crate) fn attributes_now(&mut self, stat: &Stat, good: Duration) -> &mut Self {
        self.u64(good.as_secs()).u32(good.subsec_nanos()).u32(0);
        self.attributes(stat)
    }

    fn attributes(&mut self, stat: &Stat) -> &mut Self {
        let times = [stat.atime, stat.mtime, stat.ctime];
        self.u64(stat.ino.0).u64(stat.size).u64(stat.blocks);
        for time in times {
            self.u64(time.seconds() as u64);
        }
        for time in times {
            self.u32(time.nanoseconds());
        }
        // The kernel's 32-bit form of a device is the lower half of that of libc.
        self.u32(stat.mode)
            .u32(stat.nlink)
            .u32(stat.uid)
            .u32(stat.gid);
        self.u32(stat.rdev as u32).u32(stat.block_size).u32(0)
    }

    /// As `statx` shows them, and for how long the kernel may keep them.
    pub(crate) fn extended(&mut self, stat: &Stat, good: Duration) -> &mut Self {
        self.u64(good.as_secs()).u32(good.subsec_nanos()).zeros(20);
        self.u32(STATX_KNOWN).u32(stat.block_size).u64(0);
        self.u32(stat.nlink).u32(stat.uid).u32(stat.gid);
        self.u16(stat.mode as u16).u16(0);
        self.u64(stat.ino.0).u64(stat.size).u64(stat.blocks).u64(0);
        for time in [stat.atime, stat.btime, stat.ctime, stat.mtime] {
            self.time(time);
        }
        // The kernel knows the device itself.
        self.zeros(16 + 112)
    }

    fn time(&mut self, time: Timestamp) -> &mut Self {
        self.u64(time.seconds() as u64)
            .u32(time.nanoseconds())
            .u32(0)
    }
}

#[cfg(test)]
mod tests {
    use super::NOT_KEPT;
    use crate::wire::Output;
    use nacre_fs::Stat;
    use nacre_types::{Ino, Timestamp};

    #[test]
    fn answers_are_as_long_as_the_kernel_wants_them() {
        let time = Timestamp::from_parts(-5, 250_000_000);
        let stat = Stat {
            ino: Ino(9),
            generation: 3,
            mode: 0o100_644,
            nlink: 1,
            uid: 2,
            gid: 4,
            rdev: 0,
            size: 5,
            blocks: 8,
            block_size: 4096,
            atime: time,
            mtime: time,
            ctime: time,
            btime: time,
        };
        let len = |fill: &dyn Fn(&mut Output)| {
            let mut output = Output::new();
            fill(&mut output);
            output.len()
        };
        assert_eq!(len(&|to| _ = to.entry(9, &stat, [NOT_KEPT; 2])), 128);
        assert_eq!(len(&|to| _ = to.no_entry(NOT_KEPT)), 128);
        assert_eq!(len(&|to| _ = to.attributes_now(&stat, NOT_KEPT)), 104);
        assert_eq!(len(&|to| _ = to.extended(&stat, NOT_KEPT)), 288);
    }
}
