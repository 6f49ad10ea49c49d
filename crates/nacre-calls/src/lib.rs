//! Calls of the C library as a C program makes them, without what safe crates add.

use std::ffi::CStr;
use std::io;
use std::ptr::NonNull;

/// An open directory stream, which nobody else has.
struct Stream(NonNull<libc::DIR>);

impl Stream {
    fn open(folder: &CStr) -> io::Result<Stream> {
        // SAFETY: the name ends with a NUL.
        let stream = unsafe { libc::opendir(folder.as_ptr()) };
        NonNull::new(stream)
            .map(Stream)
            .ok_or_else(io::Error::last_os_error)
    }

    /// Whether there was one more entry.
    #[inline]
    fn advance(&mut self) -> io::Result<bool> {
        // SAFETY: errno is the thread's own; the stream is open and this thread's alone.
        let (entry, errno) = unsafe {
            *libc::__errno_location() = 0;
            (libc::readdir(self.0.as_ptr()), *libc::__errno_location())
        };
        match (entry.is_null(), errno) {
            (false, _) => Ok(true),
            (true, 0) => Ok(false),
            (true, errno) => Err(io::Error::from_raw_os_error(errno)),
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: open, and not used after this. That it was open is all that could be refused.
        unsafe { libc::closedir(self.0.as_ptr()) };
    }
}

/// Entries of a directory, with `.` and `..`, read by `readdir` one by one.
pub fn count_entries(folder: &CStr) -> io::Result<usize> {
    let mut stream = Stream::open(folder)?;
    let mut count = 0;
    while stream.advance()? {
        count += 1;
    }
    Ok(count)
}

#[cfg(test)]
mod tests {
    use super::count_entries;
    use std::ffi::CString;
    use std::fs;
    use std::io::ErrorKind;

    #[test]
    fn every_entry_counts_once_and_what_is_no_folder_fails() {
        let folder = tempfile::tempdir().expect("a folder");
        for name in 0..3000 {
            fs::write(folder.path().join(name.to_string()), "").expect("made");
        }
        let path = folder.path().to_str().expect("a name");
        let counted = count_entries(&CString::new(path).expect("a path"));
        assert_eq!(counted.expect("read"), 3002);
        let file = CString::new(format!("{path}/17")).expect("a path");
        let refused = count_entries(&file).expect_err("no folder");
        assert_eq!(refused.kind(), ErrorKind::NotADirectory);
    }
}
