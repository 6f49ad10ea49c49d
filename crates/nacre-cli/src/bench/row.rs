//! The rows of the benchmark.

use super::target::Target;
use serde::{Deserialize, Serialize};

/// How much data there is.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Scale {
    /// Length of the files that are read and written at random places.
    pub file_bytes: u64,
    /// Entries of the large folder.
    pub entries: usize,
}

/// What is done again and again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Action {
    /// The loop alone: what each operation costs that is none.
    Nothing,
    /// Reading the clock, once for each sample.
    Clock,
    Pread,
    Pwrite,
    PwriteFsync,
    Append,
    OpenClose,
    Stat,
    StatMissing,
    CreateClose,
    Rename,
    UnlinkEmpty,
    UnlinkFull,
    Mkdir,
    Rmdir,
    OpenReadClose,
    Readdir,
    /// A system call that Nacre does not serve.
    NotOurs,
    /// A child that ends at once, and waiting for it.
    Fork,
    /// A program that uses no file, from its start to its end.
    Start,
    /// A program that reads a small file.
    StartReader,
}

/// Whether several callers work on the same file or folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Sharing {
    Same,
    Own,
}

/// One line of the benchmark that workers measure.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    pub name: String,
    pub action: Action,
    /// Bytes of each operation.
    pub size: usize,
    pub threads: usize,
    pub processes: usize,
    pub sharing: Sharing,
    #[serde(skip)]
    pub group: &'static str,
    #[serde(skip)]
    pub target: Option<Target>,
}

impl Row {
    fn new(group: &'static str, name: impl Into<String>, action: Action, size: usize) -> Row {
        Row {
            name: name.into(),
            action,
            size,
            threads: 1,
            processes: 1,
            sharing: Sharing::Same,
            group,
            target: None,
        }
    }

    /// A row that is shown only as overhead of the benchmark itself.
    pub fn overhead(action: Action) -> Row {
        Row::new("overhead", "overhead", action, 64)
    }

    /// A planted slowdown for those who compare figures.
    pub fn canary() -> Row {
        Row::new("overhead", CANARY, Action::Pread, 64)
    }

    pub fn is_canary(&self) -> bool {
        self.name == CANARY
    }

    fn target(mut self, target: Target) -> Row {
        self.target = Some(target);
        self
    }

    pub fn callers(&self) -> usize {
        self.threads * self.processes
    }
}

const CANARY: &str = "canary: pread 64 B, one in ten twice";

pub const READS: &str = "random reads";
pub const WRITES: &str = "writes";
pub const NAMES: &str = "files and folders";
pub const SCALING: &str = "several callers (mean: between completions of any)";
pub const PROCESS: &str = "processes";

/// What is started to measure starts.
pub const PROGRAM: &str = "true";
/// What is started to read a file.
pub const READER: &str = "cat";
/// What is started to fork.
pub const SHELL: &str = "sh";

const SIZES: [usize; 6] = [64, 256, 1 << 10, 4 << 10, 64 << 10, 1 << 20];

/// All rows that contain one of the words, or all.
pub fn chosen(words: &[String]) -> Vec<Row> {
    let mut rows = data();
    rows.extend(names());
    rows.extend(scaling());
    rows.push(
        Row::new(PROCESS, "getppid: a call not ours", Action::NotOurs, 0)
            .target(Target::PlusRaw(8.0)),
    );
    rows.extend(processes());
    rows.retain(|row| is_chosen(&row.name, words));
    rows
}

fn processes() -> [Row; 3] {
    let row = |name, action, more| Row::new(PROCESS, name, action, 0).target(Target::PlusRaw(more));
    [
        row("fork and exit by sh", Action::Fork, 40e3),
        row("start and end of true", Action::Start, 250e3),
        row("start and end of cat FILE", Action::StartReader, 400e3),
    ]
}

/// Whether a row was asked for.
pub fn is_chosen(name: &str, words: &[String]) -> bool {
    words.is_empty() || words.iter().any(|word| name.contains(word.as_str()))
}

fn data() -> Vec<Row> {
    let mut rows = Vec::new();
    for size in SIZES {
        let name = format!("pread {}", bytes(size));
        let row = Row::new(READS, name, Action::Pread, size);
        rows.push(match size {
            64 => row.target(Target::AtMost(90.0)),
            4096 => row.target(Target::TimesRaw(1.15)),
            65536.. => row.target(Target::TimesRaw(1.1)),
            _ => row,
        });
    }
    for size in SIZES {
        let name = format!("pwrite {}", bytes(size));
        let row = Row::new(WRITES, name, Action::Pwrite, size);
        rows.push(match size {
            64 | 4096 => row.target(Target::PlusRaw(100.0)),
            65536.. => row.target(Target::TimesRaw(1.15)),
            _ => row,
        });
    }
    for size in [64, 4 << 10, 64 << 10] {
        let name = format!("append {}", bytes(size));
        let row = Row::new(WRITES, name, Action::Append, size);
        rows.push(match size {
            64 | 4096 => row.target(Target::MeanPlusRaw(150.0)),
            _ => row,
        });
    }
    for size in [64, 4 << 10] {
        let name = format!("pwrite+fsync {}", bytes(size));
        let beside = Target::PlusRow(format!("pwrite {}", bytes(size)), 30.0);
        rows.push(Row::new(WRITES, name, Action::PwriteFsync, size).target(beside));
    }
    rows
}

fn names() -> Vec<Row> {
    let row = |name: &str, action, size| Row::new(NAMES, name, action, size);
    vec![
        row("open+close", Action::OpenClose, 0).target(Target::AtMost(250.0)),
        row("stat", Action::Stat, 0).target(Target::AtMost(130.0)),
        row("stat of a missing name", Action::StatMissing, 0).target(Target::AtMost(130.0)),
        row("create+close", Action::CreateClose, 0).target(Target::AtMost(900.0)),
        row("rename", Action::Rename, 0).target(Target::AtMost(1000.0)),
        row("unlink, empty", Action::UnlinkEmpty, 0).target(Target::AtMost(700.0)),
        row("unlink, 4 KiB", Action::UnlinkFull, 4096).target(Target::AtMost(700.0)),
        row("mkdir", Action::Mkdir, 0).target(Target::AtMost(1000.0)),
        row("rmdir", Action::Rmdir, 0),
        row("open+read 4 KiB+close", Action::OpenReadClose, 4096),
        row("readdir, an entry", Action::Readdir, 0).target(Target::AtMost(50.0)),
    ]
}

fn scaling() -> Vec<Row> {
    let kinds = [
        ("pread 4 KiB", Action::Pread, 4096, "file"),
        ("pwrite 4 KiB", Action::Pwrite, 4096, "file"),
        ("create+close", Action::CreateClose, 0, "folder"),
    ];
    let ways = [
        (1, 1, Sharing::Same),
        (2, 1, Sharing::Same),
        (2, 1, Sharing::Own),
        (1, 2, Sharing::Same),
        (1, 2, Sharing::Own),
    ];
    let mut rows = Vec::new();
    for (what, action, size, object) in kinds {
        let alone = format!("{what}: 1 thread");
        for (threads, processes, sharing) in ways {
            let name = match (threads, processes) {
                (1, 1) => alone.clone(),
                (2, 1) => format!("{what}: 2 threads, {}", whose(sharing, object)),
                _ => format!("{what}: 2 processes, {}", whose(sharing, object)),
            };
            let mut row = Row::new(SCALING, name, action, size);
            (row.threads, row.processes, row.sharing) = (threads, processes, sharing);
            row.target = match (threads, processes, sharing) {
                (2, 1, Sharing::Same) if size > 0 => Some(Target::Speedup(alone.clone(), 1.7)),
                (1, 2, Sharing::Own) => Some(Target::Speedup(alone.clone(), 1.9)),
                _ => None,
            };
            rows.push(row);
        }
    }
    rows
}

fn whose(sharing: Sharing, object: &str) -> String {
    match sharing {
        Sharing::Same => format!("same {object}"),
        Sharing::Own => format!("own {object}s"),
    }
}

/// `4 KiB`, without digits that are always zero.
fn bytes(size: usize) -> String {
    match size {
        0..1024 => format!("{size} B"),
        1024..0x10_0000 => format!("{} KiB", size >> 10),
        _ => format!("{} MiB", size >> 20),
    }
}

#[cfg(test)]
mod tests {
    use super::{chosen, data};
    use std::collections::HashSet;

    #[test]
    fn names_are_unique() {
        let rows = chosen(&[]);
        let names: HashSet<&str> = rows.iter().map(|row| row.name.as_str()).collect();
        assert_eq!(names.len(), rows.len());
    }

    #[test]
    fn words_choose() {
        let rows = chosen(&["pwrite+fsync".to_string(), "readdir".to_string()]);
        let names: Vec<&str> = rows.iter().map(|row| row.name.as_str()).collect();
        let expected = [
            "pwrite+fsync 64 B",
            "pwrite+fsync 4 KiB",
            "readdir, an entry",
        ];
        assert_eq!(names, expected);
        assert!(chosen(&["nothing like it".to_string()]).is_empty());
    }

    #[test]
    fn sizes_read_well() {
        let names: Vec<String> = data().into_iter().map(|row| row.name).collect();
        for expected in ["pread 64 B", "pread 1 KiB", "pwrite 64 KiB", "pwrite 1 MiB"] {
            assert!(names.iter().any(|name| name == expected), "{expected}");
        }
    }
}
