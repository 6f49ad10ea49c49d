//! Where pools appear among the paths of the process.

use crate::error::{ErrorKind, VfsError};
use nacre_fs::Fs;
use nacre_session::SlotRef;
use std::ops::Deref;
use std::sync::OnceLock;

/// Major device number that `stat` shows for files of pools; the kernel assigns none this high.
const DEVICE_MAJOR: u32 = 3870;
const DEVICE_MINOR_MASK: u32 = 0xf_ffff;

/// A pool and the path under which the process sees it.
pub struct MountSpec {
    /// Absolute, without trailing slash, `.`, `..` or doubled slashes; not `/`.
    pub prefix: Vec<u8>,
    /// The attached pool; None: it is attached when it is first used ([`crate::Kernel::attach`]).
    pub fs: Option<Fs>,
    /// Refuse all changes through this mount.
    pub read_only: bool,
}

pub(crate) struct Mount {
    pub(crate) index: usize,
    pub(crate) prefix: Vec<u8>,
    /// The first byte of the prefix behind its slash.
    pub(crate) start: u8,
    pub(crate) fs: AttachedFs,
    pub(crate) read_only: bool,
}

/// The file system of a pool, once that is attached. Whoever holds an open file of the pool, or a
/// path into it, knows that it is.
pub(crate) struct AttachedFs(OnceLock<(Fs, (u32, u32))>);

impl AttachedFs {
    const fn none() -> AttachedFs {
        AttachedFs(OnceLock::new())
    }

    #[inline(always)]
    pub(crate) fn get(&self) -> Option<&Fs> {
        self.0.get().map(|(fs, _)| fs)
    }

    /// The pool is attached. Not to be called twice.
    pub(crate) fn set(&self, fs: Fs) -> Result<(), VfsError> {
        let id = fs.statfs()?.id;
        let minor = (id ^ id >> 20 ^ id >> 40) as u32 & DEVICE_MINOR_MASK;
        // Whoever sets it is the only one, so it is not there yet.
        let _ = self.0.set((fs, (DEVICE_MAJOR, minor)));
        Ok(())
    }
}

impl Deref for AttachedFs {
    type Target = Fs;

    #[inline(always)]
    fn deref(&self) -> &Fs {
        self.get().expect("who names a pool's file has it attached")
    }
}

impl Mount {
    pub(crate) fn new(index: usize, spec: MountSpec) -> Result<Mount, VfsError> {
        if spec.prefix.len() < 2 || normalize(&spec.prefix) != spec.prefix {
            return Err(ErrorKind::Invalid.into());
        }
        let fs = AttachedFs::none();
        spec.fs.map_or(Ok(()), |attached| fs.set(attached))?;
        Ok(Mount {
            index,
            start: spec.prefix[1],
            prefix: spec.prefix,
            fs,
            read_only: spec.read_only,
        })
    }

    /// The same mount, whose pool is attached when it is first used.
    pub(crate) fn unattached(&self) -> Mount {
        Mount {
            fs: AttachedFs::none(),
            prefix: self.prefix.clone(),
            ..*self
        }
    }

    /// The same for a child that runs in this process's memory.
    pub(crate) fn for_child(&self, slot: Option<SlotRef>) -> Mount {
        let fs = AttachedFs::none();
        if let (Some((parent, device)), Some(slot)) = (self.fs.0.get(), slot) {
            // It is fresh, so nothing is there yet.
            let _ = fs.0.set((parent.for_child(slot), *device));
        }
        Mount {
            fs,
            ..self.unattached()
        }
    }

    /// What `stat` shows as the device of its files.
    pub(crate) fn device(&self) -> (u32, u32) {
        self.fs
            .0
            .get()
            .map_or((DEVICE_MAJOR, 0), |&(_, device)| device)
    }

    pub(crate) fn check_writable(&self) -> Result<(), VfsError> {
        if self.read_only {
            return Err(ErrorKind::ReadOnly.into());
        }
        Ok(())
    }

    /// What follows the mount point in an absolute path inside the mount.
    #[inline]
    pub(crate) fn inside<'p>(&self, path: &'p [u8]) -> Option<&'p [u8]> {
        let rest = path.strip_prefix(self.prefix.as_slice())?;
        (rest.is_empty() || rest[0] == b'/').then_some(rest)
    }

    /// Whether a relative path begins with a component of the mount point's path.
    #[inline]
    pub(crate) fn begins(&self, path: &[u8]) -> bool {
        begins_in(&self.prefix, path)
    }

    /// Whether `name` is a component of the mount point's path.
    pub(crate) fn has_component(&self, name: &[u8]) -> bool {
        self.components().any(|one| one == name)
    }

    /// The components of the mount point's path.
    pub(crate) fn components(&self) -> impl Iterator<Item = &[u8]> {
        self.prefix[1..].split(|&byte| byte == b'/')
    }

    /// The directory that holds the mount point.
    pub(crate) fn parent(&self) -> &[u8] {
        let slash = self
            .prefix
            .iter()
            .rposition(|&byte| byte == b'/')
            .unwrap_or(0);
        &self.prefix[..slash.max(1)]
    }

    /// Absolute path of a path inside the pool (which begins with a slash).
    pub(crate) fn absolute(&self, inside: &[u8]) -> Vec<u8> {
        let mut path = self.prefix.clone();
        if inside != b"/" {
            path.extend_from_slice(inside);
        }
        path
    }
}

/// Removes `.`, `..` and surplus slashes from an absolute path, without looking at any file.
pub(crate) fn normalize(path: &[u8]) -> Vec<u8> {
    let mut out: Vec<u8> = Vec::with_capacity(path.len());
    for name in path.split(|&byte| byte == b'/') {
        match name {
            b"" | b"." => {}
            b".." => pop(&mut out),
            _ => push(&mut out, name),
        }
    }
    if out.is_empty() {
        out.push(b'/');
    }
    out
}

/// Removes the last component of a normalized path; the empty path is the root.
pub(crate) fn pop(path: &mut Vec<u8>) {
    let slash = path.iter().rposition(|&byte| byte == b'/').unwrap_or(0);
    path.truncate(slash);
}

/// Appends a component; the empty path is the root.
pub(crate) fn push(path: &mut Vec<u8>, name: &[u8]) {
    path.push(b'/');
    path.extend_from_slice(name);
}

/// `base` and `path` with a slash between; `base` alone if there is no path.
pub(crate) fn join(base: &[u8], path: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(base.len() + path.len() + 1);
    out.extend_from_slice(base);
    if !path.is_empty() && out.last() != Some(&b'/') && path[0] != b'/' {
        out.push(b'/');
    }
    out.extend_from_slice(path);
    out
}

/// Whether a path has `.`, `..` or empty components (or a trailing slash).
pub(crate) fn is_not_normalized(path: &[u8]) -> bool {
    let (words, rest) = path.as_chunks::<8>();
    let mut last = [b'x'; 8];
    last[..rest.len()].copy_from_slice(rest);
    let mut before = 0;
    words.iter().chain([&last]).any(|&word| {
        let slashes = places_in(word, b'/');
        let behind = slashes << 8 | before;
        before = slashes >> 56;
        behind & (slashes | places_in(word, b'.')) != 0
    })
}

/// The highest bit of each byte that is `wanted`, the first byte lowest.
fn places_in(bytes: [u8; 8], wanted: u8) -> u64 {
    const LOW: u64 = u64::from_ne_bytes([0x7f; 8]);
    let other = u64::from_le_bytes(bytes) ^ u64::from_ne_bytes([wanted; 8]);
    !(((other & LOW) + LOW) | other | LOW)
}

/// Whether a path has a `..` component.
pub(crate) fn climbs(path: &[u8]) -> bool {
    path.windows(2).any(|pair| pair == b"..")
        && path.split(|&byte| byte == b'/').any(|name| name == b"..")
}

/// Whether a relative path begins with a component of an absolute one.
#[inline]
fn begins_in(whole: &[u8], path: &[u8]) -> bool {
    let is_first = |name| match path.strip_prefix(name) {
        Some(rest) => matches!(rest.first(), None | Some(b'/')),
        None => false,
    };
    whole[1..].split(|&byte| byte == b'/').any(is_first)
}

/// The first component that is not `.`.
pub(crate) fn first_component(path: &[u8]) -> &[u8] {
    let mut names = path.split(|&byte| byte == b'/');
    names
        .find(|name| !matches!(*name, b"" | b"."))
        .unwrap_or(b"")
}

#[cfg(test)]
mod tests {
    use super::{begins_in, climbs, first_component, is_not_normalized, join, normalize};

    #[test]
    fn normalize_is_lexical() {
        let cases: [(&[u8], &[u8]); 8] = [
            (b"/", b"/"),
            (b"/a/b", b"/a/b"),
            (b"//a///b/", b"/a/b"),
            (b"/a/./b/.", b"/a/b"),
            (b"/a/../b", b"/b"),
            (b"/../../a", b"/a"),
            (b"/a/b/../..", b"/"),
            (b"/a/..b/...", b"/a/..b/..."),
        ];
        for (path, expected) in cases {
            assert_eq!(
                normalize(path),
                expected,
                "{}",
                String::from_utf8_lossy(path)
            );
        }
    }

    #[test]
    fn filters_see_what_they_should() {
        assert!(climbs(b"a/../b") && climbs(b"..") && !climbs(b"a..b/c..") && !climbs(b"a/..."));
        assert!(
            is_not_normalized(b"/a//b")
                && is_not_normalized(b"/./a")
                && is_not_normalized(b"/a/../b")
                && !is_not_normalized(b"/a/b")
        );
        for len in 2..20 {
            for at in 0..len - 1 {
                for (pair, not_normalized) in [(b"//", true), (b"/.", true), (b"./", false)] {
                    let mut path = vec![b'a'; len];
                    path[at..at + 2].copy_from_slice(pair);
                    assert_eq!(is_not_normalized(&path), not_normalized, "{path:?}");
                }
            }
        }
        assert_eq!(first_component(b".//./nacre/x"), b"nacre");
        assert_eq!(first_component(b"./"), b"");
        for (path, begins) in [
            (&b"a"[..], true),
            (b"bc/x", true),
            (b"ab", false),
            (b"b", false),
            (b"x/a", false),
        ] {
            assert_eq!(begins_in(b"/a/bc", path), begins, "{path:?}");
        }
        assert_eq!(join(b"/", b"a"), b"/a");
        assert_eq!(join(b"/x", b"a"), b"/x/a");
        assert_eq!(join(b"/x", b"/a"), b"/x/a");
    }
}
