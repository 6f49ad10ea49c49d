//! What can go wrong at this front end. Each message names the object and says what to do.

use nacre_emulator::{EmulationError, ProfileError};
use nacre_fs::FsError;
use nacre_runtime::RuntimeError;
use nacre_store::StoreError;
use nacre_volume::{MediaError, VolumeError};
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Why a command did not succeed.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The devices or labels; these messages carry the object.
    #[error("{}{}", .0, remedy_for_volume(.0))]
    Volume(#[from] VolumeError),
    /// Names field and remedy itself.
    #[error(transparent)]
    Profile(#[from] ProfileError),
    #[error(transparent)]
    Emulation(#[from] EmulationError),
    #[error(transparent)]
    Runtime(#[from] RuntimeError),
    #[error("{}: {error}{}", pool.display(), remedy_for_store(error))]
    Store { pool: PathBuf, error: StoreError },
    #[error("{}: {error}", pool.display())]
    Objects { pool: PathBuf, error: String },
    #[error("{object}: {error}{}", remedy_for_fs(object, error))]
    Fs { object: String, error: FsError },
    #[error("{object}: {}", in_words(error))]
    Io { object: String, error: io::Error },
    #[error("{}: in use by {}; end {} first, or ask with `nacre info`", pool.display(), processes(pids), if pids.len() == 1 { "it" } else { "them" })]
    InUse { pool: PathBuf, pids: Vec<u32> },
    #[error("{}: {error}{remedy}", folder.display())]
    Mount {
        folder: PathBuf,
        error: io::Error,
        remedy: &'static str,
    },
    /// What the pool, as it is now, does not allow.
    #[error("{0}")]
    Refused(String),
    /// Wrong use that the parser cannot see, whatever the pool is.
    #[error("{0}")]
    Usage(String),
    /// Found where the default pool is, but somebody else wrote it or could write it.
    #[error("{}: a pool of user {owner} that others than you can write is not used unasked; name it with --pool if you trust them, or remove it", pool.display())]
    ForeignPool { pool: PathBuf, owner: u32 },
    #[error("{}: {problems} {}", pool.display(), remedy_for_damage(*repaired))]
    Damaged {
        pool: PathBuf,
        problems: String,
        repaired: bool,
    },
    /// Sealed contents of a file that no copy has any more.
    #[error("{file}: from byte {offset} on: no copy holds what was there when it was sealed; `nacre scrub --repair {}` keeps what is there now", pool.display())]
    Lost {
        file: String,
        offset: u64,
        pool: PathBuf,
    },
    /// An output where everybody makes names.
    #[error("{}: others may have put it there; name what is yours alone, or a new file", .0.display())]
    ForeignName(PathBuf),
    /// `run` could not start the program.
    #[error("{program}: cannot be started: {error}{}", remedy_for_start(error))]
    Start { program: String, error: io::Error },
    /// `run` would start a program that cannot be served and looks for the pool's files.
    #[error("{0}")]
    Unserved(String),
    /// `run` failed before the program was started.
    #[error("{0}")]
    BeforeStart(Box<Failure>),
    #[error(
        "{name} is not {place}; build it with `cargo build --release`, or name it in {variable}"
    )]
    NoPreload {
        name: &'static str,
        variable: &'static str,
        place: String,
    },
}

/// Result of a command.
pub type Result<T> = std::result::Result<T, Failure>;

/// Names the pool in an error of the store.
pub fn store_failure(pool: &Path, error: StoreError) -> Failure {
    match error {
        StoreError::Volume(error) => Failure::Volume(*error),
        error => Failure::Store {
            pool: pool.to_path_buf(),
            error,
        },
    }
}

/// Names the object in an error of the file system.
pub fn fs_failure(object: impl ToString) -> impl FnOnce(FsError) -> Failure {
    let object = object.to_string();
    move |error| Failure::Fs { object, error }
}

/// An error of the system without its number.
fn in_words(error: &io::Error) -> String {
    let text = error.to_string();
    match error.raw_os_error() {
        Some(number) => text.replace(&format!(" (os error {number})"), ""),
        None => text,
    }
}

impl Failure {
    /// An error of the system about an object.
    pub fn io(object: impl ToString, error: impl Into<io::Error>) -> Failure {
        Failure::Io {
            object: object.to_string(),
            error: error.into(),
        }
    }

    /// The exit status that scripts see.
    pub fn exit_code(&self) -> ExitCode {
        ExitCode::from(match self {
            Failure::Usage(_) | Failure::Volume(VolumeError::NotAsManyDevices { .. }) => 2,
            Failure::BeforeStart(inner) => match **inner {
                Failure::Usage(_) => 2,
                _ => 125,
            },
            Failure::Start { error, .. } if error.kind() == io::ErrorKind::NotFound => 127,
            Failure::Start { .. } | Failure::Unserved(_) => 126,
            _ => 1,
        })
    }
}

fn processes(pids: &[u32]) -> String {
    let list: Vec<String> = pids.iter().take(5).map(ToString::to_string).collect();
    let more = if pids.len() > 5 { ", ..." } else { "" };
    let word = if pids.len() == 1 {
        "process"
    } else {
        "processes"
    };
    format!("{word} {}{more}", list.join(", "))
}

/// What this program has for it. Most messages say themselves what to do: programs that use the
/// library show them, too.
fn remedy_for_volume(error: &VolumeError) -> String {
    const NEW: &str = "`nacre create --size 10G FILE`";
    match error {
        VolumeError::SizeNeeded(_) => " (--size)".to_owned(),
        VolumeError::TooSmall { least, .. }
        | VolumeError::PoolTooSmall { least, .. }
        | VolumeError::NoRoomToGrow { least, .. } => {
            format!(" (--size {}M)", least >> 20)
        }
        VolumeError::NotAPool { is_blank: true, .. } => {
            ", or make a pool of it with `nacre create`".to_owned()
        }
        VolumeError::NotAPool { .. } => format!(", or make a pool in a new file with {NEW}"),
        VolumeError::Media(MediaError::PermissionDenied(_) | MediaError::MountedReadOnly(_)) => {
            "; with read permission alone `nacre run` and `nacre mount` show it with --read-only"
                .to_owned()
        }
        _ => String::new(),
    }
}

fn remedy_for_store(error: &StoreError) -> &'static str {
    match error {
        StoreError::NoSpace => "; grow it with `nacre grow`, or remove files",
        StoreError::NotAPool => "; make it one with `nacre create --force`",
        StoreError::Corrupt(_) => "; look at the whole pool with `nacre check`",
        StoreError::OlderFormat { .. } => {
            "; copy what it holds to a new pool with the Nacre that wrote it"
        }
        StoreError::NewerFormat { .. } | StoreError::UnknownFeatures(_) => "; use a newer Nacre",
        _ => "",
    }
}

fn remedy_for_damage(repaired: bool) -> &'static str {
    match repaired {
        false => {
            "found; nothing was changed. Put right what can be put right with `nacre check --repair`"
        }
        true => "left. Copy what you need out of it (`nacre cp -r`), then make it again",
    }
}

fn remedy_for_fs(object: &str, error: &FsError) -> &'static str {
    match error {
        FsError::NoSpace => "; grow the pool with `nacre grow`, or remove files",
        FsError::IsDirectory => "; copy folders with -r",
        FsError::ReadOnly if object.contains("/.snapshots") => {
            "; snapshots do not change. One is removed with `nacre snapshot delete FOLDER NAME`"
        }
        FsError::ReadOnly => "; the pool takes no changes: is its device write-protected?",
        _ => "",
    }
}

fn remedy_for_start(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::NotFound => "; check its name and PATH",
        io::ErrorKind::PermissionDenied => "; make it executable",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::{Failure, VolumeError, processes};
    use std::io;

    #[test]
    fn exit_codes_follow_env_and_timeout() {
        let start = |kind: io::ErrorKind| Failure::Start {
            program: "p".into(),
            error: kind.into(),
        };
        let code = |failure: Failure| format!("{:?}", failure.exit_code());
        let expected = |n: u8| format!("{:?}", std::process::ExitCode::from(n));
        assert_eq!(code(start(io::ErrorKind::NotFound)), expected(127));
        assert_eq!(code(start(io::ErrorKind::PermissionDenied)), expected(126));
        assert_eq!(code(Failure::Usage("u".into())), expected(2));
        assert_eq!(code(Failure::Refused("r".into())), expected(1));
        let (copies, devices) = (2, 1);
        let few = VolumeError::NotAsManyDevices { copies, devices };
        assert_eq!(code(few.into()), expected(2));
        let inner = Box::new(Failure::NoPreload {
            name: "a.so",
            variable: "A",
            place: "there".into(),
        });
        assert_eq!(code(Failure::BeforeStart(inner)), expected(125));
    }

    #[test]
    fn processes_are_listed_shortly() {
        assert_eq!(processes(&[7]), "process 7");
        assert_eq!(
            processes(&[1, 2, 3, 4, 5, 6]),
            "processes 1, 2, 3, 4, 5, ..."
        );
    }
}
