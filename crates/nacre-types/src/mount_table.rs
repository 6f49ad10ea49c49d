//! Pools in the kernel's table of mounts, `/proc/self/mountinfo`. Pure functions: whoever asks
//! reads the table.

/// The attribute of all that a mount shows that tells which file the pool is: its path may be
/// another's by now. It is not listed.
pub const IDENTITY: &core::ffi::CStr = c"system.nacre.pool";

/// The value of [`IDENTITY`] for the file with this device and inode number. No other file gets
/// them as long as the pool is served.
pub fn identity(device: u64, inode: u64) -> String {
    format!("{device:x}-{inode:x}")
}

/// What stands in the table as the type of a pool.
pub const TYPE: &[u8] = b"fuse.nacre";

/// A pool that the kernel shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelMount {
    /// Path of the pool.
    pub source: Vec<u8>,
    /// The user who mounted it, who is trusted with what stands there.
    pub user: u32,
    /// Other users may look there.
    pub for_all: bool,
}

/// The pool that is mounted at a folder.
pub fn find(table: &[u8], folder: &[u8]) -> Option<KernelMount> {
    let found = pools(table).find(|(at, _)| at == folder);
    found.map(|(_, mount)| mount)
}

/// Where pools are mounted, or folders of them; what was mounted last comes first.
pub fn pools(table: &[u8]) -> impl Iterator<Item = (Vec<u8>, KernelMount)> {
    table.rsplit(|&byte| byte == b'\n').filter_map(in_line)
}

/// All mounts: where, and the type.
pub fn all(table: &[u8]) -> impl Iterator<Item = (Vec<u8>, &[u8])> {
    table.split(|&byte| byte == b'\n').filter_map(|line| {
        let mut words = line.split(|&byte| byte == b' ');
        let at = unescaped(words.nth(4)?);
        let kind = words.skip_while(|&word| word != b"-").nth(1)?;
        Some((at, kind))
    })
}

fn in_line(line: &[u8]) -> Option<(Vec<u8>, KernelMount)> {
    let mut words = line.split(|&byte| byte == b' ');
    let at = words.nth(4)?;
    let mut origin = words.skip_while(|&word| word != b"-").skip(1);
    if origin.next()? != TYPE {
        return None;
    }
    let source = unescaped(origin.next()?);
    let options: Vec<&[u8]> = origin.next()?.split(|&byte| byte == b',').collect();
    let user = options
        .iter()
        .find_map(|option| option.strip_prefix(b"user_id="))?;
    let mount = KernelMount {
        source,
        user: str::from_utf8(user).ok()?.parse().ok()?,
        for_all: options.contains(&&b"allow_other"[..]),
    };
    Some((unescaped(at), mount))
}

/// Decodes `\040` and the like.
fn unescaped(text: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut rest = text;
    while let [first, others @ ..] = rest {
        let digits = others
            .get(..3)
            .and_then(|digits| str::from_utf8(digits).ok());
        let octal = digits.and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match (first, octal) {
            (b'\\', Some(byte)) => {
                bytes.push(byte);
                rest = &others[3..];
            }
            _ => {
                bytes.push(*first);
                rest = others;
            }
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::{KernelMount, find, pools};

    #[test]
    fn pools_are_found_in_the_table() {
        let table = br"30 1 0:30 / / rw - ext4 /dev/sda rw
36 35 0:42 / /mnt/a\040b rw,nosuid shared:7 - fuse.nacre /p/my.pool rw,user_id=7,allow_other
37 35 0:43 / /mnt/c rw,nosuid - fuse.nacre /p/other.pool rw,user_id=0
38 35 0:44 / /mnt/d rw,nosuid - fuse.sshfs /p rw
";
        let found = KernelMount {
            source: b"/p/my.pool".to_vec(),
            user: 7,
            for_all: true,
        };
        assert_eq!(find(table, b"/mnt/a b"), Some(found));
        assert!(find(table, b"/mnt/c").is_some_and(|found| !found.for_all));
        assert_eq!(find(table, b"/mnt/a"), None);
        assert_eq!(find(table, b"/mnt/d"), None);
        assert_eq!(find(b"", b"/"), None);
        let all: Vec<Vec<u8>> = pools(table).map(|(at, _)| at).collect();
        assert_eq!(all, [b"/mnt/c".to_vec(), b"/mnt/a b".to_vec()]);
    }
}
