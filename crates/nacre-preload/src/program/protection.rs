//! What the system is set to refuse of names of others.

use core::ffi::CStr;

use nacre_media::is_confined;
use nacre_vfs::Protection;

use crate::runtime::kernel::{call, checked};

/// As most systems are set: what counts where nobody can ask.
const USUAL: u32 = 1;

/// The setting, which may change at any time.
pub fn setting(which: Protection) -> u32 {
    let path = match which {
        Protection::Hardlinks => c"/proc/sys/fs/protected_hardlinks",
        Protection::Symlinks => c"/proc/sys/fs/protected_symlinks",
        Protection::Regular => c"/proc/sys/fs/protected_regular",
        Protection::Fifos => c"/proc/sys/fs/protected_fifos",
    };
    // A filter of calls may kill who asks.
    let told = (!is_confined()).then(|| read(path)).flatten();
    told.unwrap_or(USUAL)
}

fn read(path: &CStr) -> Option<u32> {
    let flags = (libc::O_RDONLY | libc::O_CLOEXEC) as usize;
    let args = [libc::AT_FDCWD as usize, path.as_ptr() as usize, flags];
    let fd = checked(libc::SYS_openat, &args).ok()?;
    let mut text = [0u8; 16];
    let args = [fd, text.as_mut_ptr() as usize, text.len()];
    let len = checked(libc::SYS_read, &args);
    call(libc::SYS_close, &[fd]);
    let text = str::from_utf8(text.get(..len.ok()?)?).ok()?;
    text.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::{Protection, read, setting};

    #[test]
    fn settings_are_as_the_kernel_tells() {
        let kinds = [
            (Protection::Hardlinks, "hardlinks"),
            (Protection::Symlinks, "symlinks"),
            (Protection::Regular, "regular"),
            (Protection::Fifos, "fifos"),
        ];
        for (which, name) in kinds {
            let told = std::fs::read_to_string(format!("/proc/sys/fs/protected_{name}"));
            assert_eq!(setting(which).to_string(), told.expect("a setting").trim());
        }
        assert_eq!(read(c"/proc/sys/fs/none"), None);
        assert_eq!(read(c"/proc/sys/kernel/ostype"), None);
    }
}
