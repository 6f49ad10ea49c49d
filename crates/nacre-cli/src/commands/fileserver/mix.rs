//! What one thread of a file server does.

/// One call, on one of the thread's own files.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Call {
    Create(u64),
    /// At the end of the file.
    Append(u64, u64),
    /// From an offset on.
    Read(u64, u64, u64),
    Delete(u64),
}

/// What of reading and writing stands in the ratio of 1 to 2.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum Ratio {
    /// Bytes
    Bytes,
    /// Operations on files, as in filebench: one is written whole, one appended to, one read whole
    Operations,
}

/// Sizes of files and of calls.
#[derive(Clone, Copy, Debug)]
pub struct Mix {
    pub file: u64,
    pub io: u64,
    pub ratio: Ratio,
}

/// A file lives for so many rounds.
const LIFE: u64 = 2;

impl Mix {
    /// Round `number` of a thread: a new file is written whole and appended to, the one before is
    /// read whole, every second time or each time, and the oldest is deleted.
    pub fn round(&self, number: u64) -> Vec<Call> {
        let offsets = || (0..self.file).step_by(self.io as usize);
        let len = |at: u64| self.io.min(self.file - at);
        let mut calls = vec![Call::Create(number)];
        calls.extend(offsets().map(|at| Call::Append(number, len(at))));
        calls.push(Call::Append(number, self.io));
        let reads = self.ratio == Ratio::Operations || number % 2 == 1;
        if let Some(before) = number.checked_sub(1).filter(|_| reads) {
            calls.extend(offsets().map(|at| Call::Read(before, at, len(at))));
        }
        if let Some(old) = number.checked_sub(LIFE) {
            calls.push(Call::Delete(old));
        }
        calls
    }
}

#[cfg(test)]
mod tests {
    use super::{Call, Mix, Ratio};

    #[test]
    fn a_third_of_the_bytes_is_read_and_files_come_and_go() {
        count(Ratio::Bytes, 5);
    }

    #[test]
    fn by_operations_each_round_reads_a_file() {
        count(Ratio::Operations, 10);
    }

    fn count(ratio: Ratio, files_read: u64) {
        let mix = Mix {
            file: 100_000,
            io: 16384,
            ratio,
        };
        let calls: Vec<Call> = (2..12).flat_map(|round| mix.round(round)).collect();
        let (mut written, mut read, mut files) = (0, 0, 0i64);
        for call in calls {
            match call {
                Call::Create(_) => files += 1,
                Call::Append(_, len) => written += len,
                Call::Read(_, at, len) => {
                    assert!(at + len <= mix.file);
                    read += len;
                }
                Call::Delete(_) => files -= 1,
            }
        }
        assert_eq!(files, 0);
        assert_eq!(read, files_read * mix.file);
        assert_eq!(written, 10 * (mix.file + mix.io));
    }
}
