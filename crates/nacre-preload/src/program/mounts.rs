//! `NACRE_MOUNTS`:
//! `DIR=POOL[,mode=direct|atomic|cached][,granularity=POLICY][,ro][,pool=UUID][,file=IDENTITY]
//! [,owner=OWNER][,copy=DEVICE]`, several separated by `;`.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::str::FromStr;

use nacre_store::WriteMode;
use nacre_types::Uuid;
#[cfg(doc)]
use nacre_types::mount_table;
use nacre_volume::{Owner, Policy};

/// Begins an option that names another device of a pool with copies.
const COPY: &[u8] = b"copy=";
/// Begins the option that says which pool it is.
const POOL: &[u8] = b"pool=";
/// Begins the option that says which file it is, as [`mount_table::identity`].
const FILE: &[u8] = b"file=";
/// Begins the option that says whose the pool's devices are.
const OWNER: &[u8] = b"owner=";

/// One pool and where it appears.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// Absolute folder, without trailing slash.
    pub prefix: Vec<u8>,
    /// A device of the pool.
    pub pool: PathBuf,
    /// Overrides the pool's own mode.
    pub mode: Option<WriteMode>,
    /// Overrides what the pool's labels say.
    pub granularity: Option<Policy>,
    /// Without changes.
    pub read_only: bool,
    /// The pool that it was when the program's `nacre run` began. `None`: whichever is there.
    pub uuid: Option<Uuid>,
    /// The file that it was, as [`mount_table::identity`].
    pub file: Option<String>,
    /// Devices that hold the same, for when that one is lost.
    pub copies: Vec<PathBuf>,
    /// The owner that they must have. `None`: they are not used.
    pub owner: Option<Owner>,
}

/// Reads the setting. The error says what is wrong with it.
pub fn parse(setting: &[u8]) -> Result<Vec<Mount>, String> {
    setting
        .split(|&b| b == b';')
        .map(<[u8]>::trim_ascii)
        .filter(|one| !one.is_empty())
        .map(mount)
        .collect()
}

fn mount(text: &[u8]) -> Result<Mount, String> {
    let shown = String::from_utf8_lossy(text).into_owned();
    let wrong = |what: &str| {
        format!(
            "NACRE_MOUNTS: {what} in `{shown}`; it should read DIR=POOL[,mode=direct|atomic|cached][,granularity=none|optane[:MODULES]|calibrated][,ro]"
        )
    };
    let equals = text
        .iter()
        .position(|&b| b == b'=')
        .ok_or_else(|| wrong("no `=`"))?;
    let (prefix, rest) = (&text[..equals], &text[equals + 1..]);
    let mut parts = rest.split(|&b| b == b',');
    let pool = parts
        .next()
        .filter(|pool| !pool.is_empty())
        .ok_or_else(|| wrong("no pool"))?;
    let mut mount = Mount {
        prefix: prefix.strip_suffix(b"/").unwrap_or(prefix).to_vec(),
        pool: PathBuf::from(OsStr::from_bytes(pool)),
        mode: None,
        granularity: None,
        read_only: false,
        uuid: None,
        file: None,
        copies: Vec::new(),
        owner: None,
    };
    if mount.prefix.len() < 2 || mount.prefix[0] != b'/' {
        return Err(wrong("DIR is not an absolute folder"));
    }
    for option in parts {
        mount.set(option).map_err(wrong)?;
    }
    Ok(mount)
}

impl Mount {
    /// Heeds an option; the error says what is wrong with it.
    fn set(&mut self, option: &[u8]) -> Result<(), &'static str> {
        match option {
            b"ro" => self.read_only = true,
            b"mode=direct" => self.mode = Some(WriteMode::Direct),
            b"mode=cached" => self.mode = Some(WriteMode::Cached),
            b"mode=atomic" => self.mode = Some(WriteMode::Atomic),
            _ => return self.set_value(option),
        }
        Ok(())
    }

    fn set_value(&mut self, option: &[u8]) -> Result<(), &'static str> {
        if let Some(device) = option.strip_prefix(COPY) {
            self.copies.push(PathBuf::from(OsStr::from_bytes(device)));
        } else if let Some(owner) = option.strip_prefix(OWNER) {
            self.owner = Some(parsed(owner).ok_or("bad owner")?);
        } else if let Some(uuid) = option.strip_prefix(POOL) {
            self.uuid = Some(parsed(uuid).ok_or("bad pool")?);
        } else if let Some(file) = option.strip_prefix(FILE) {
            self.file = parsed(file);
        } else {
            self.granularity = Some(policy(option).ok_or("unknown option")?);
        }
        Ok(())
    }
}

fn parsed<T: FromStr>(text: &[u8]) -> Option<T> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

fn policy(option: &[u8]) -> Option<Policy> {
    parsed(option.strip_prefix(b"granularity=")?)
}

#[cfg(test)]
mod tests {
    use super::{Owner, PathBuf, Policy, WriteMode, parse};

    #[test]
    fn one_mount_with_options() {
        let text = b"/nacre=/dev/shm/p,mode=atomic,granularity=optane:2,ro,owner=7:8:640,copy=/q,\
            pool=c35248ba-93a6-499a-92f3-f79575435660,file=fe00-1";
        let mounts = parse(text).unwrap();
        assert_eq!(mounts[0].prefix, b"/nacre");
        assert_eq!(mounts[0].pool, PathBuf::from("/dev/shm/p"));
        assert_eq!(mounts[0].mode, Some(WriteMode::Atomic));
        assert_eq!(mounts[0].granularity, Some(Policy::Optane { modules: 2 }));
        assert!(mounts[0].read_only);
        assert_eq!(mounts[0].copies, [PathBuf::from("/q")]);
        let uuid = mounts[0].uuid.map(|uuid| uuid.to_string());
        assert_eq!(
            uuid.as_deref(),
            Some("c35248ba-93a6-499a-92f3-f79575435660")
        );
        assert_eq!(mounts[0].file.as_deref(), Some("fe00-1"));
        let (uid, gid, mode) = (7, 8, 0o640);
        assert_eq!(mounts[0].owner, Some(Owner { uid, gid, mode }));
    }

    #[test]
    fn several_mounts_and_none() {
        assert_eq!(parse(b"/a=x;/b/=y").unwrap()[1].prefix, b"/b");
        assert!(parse(b"").unwrap().is_empty());
    }

    #[test]
    fn nonsense_is_refused() {
        for text in [
            "a=b",
            "/a",
            "/a=",
            "/a=b,wo",
            "/a=b,granularity=",
            "/a=b,owner=7",
            "/a=b,pool=7",
            "/=b",
        ] {
            assert!(parse(text.as_bytes()).is_err(), "{text}");
        }
    }
}
