//! Calls on several files at the same time.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Mutex;

use rustix::fs::fdatasync;
use rustix::io::{Errno, pwrite};

use crate::aio::{Context, MOST, Request};
use crate::error::last_errno;
use crate::guest::may_share_memory;

/// A call that may take long.
#[derive(Clone, Copy, Debug)]
pub enum FileCall<'c> {
    /// Writes at a place; as durable on return as the file was opened for.
    Write(BorrowedFd<'c>, u64, &'c [u8]),
    /// As `Write`, of memory that others may change meanwhile: what they change is written as it
    /// was or as it is then. It is mapped until the call is done.
    WriteShared(BorrowedFd<'c>, u64, *const [u8]),
    /// All that was written is durable on return.
    Sync(BorrowedFd<'c>),
}

static CONTEXT: Mutex<Context> = Mutex::new(Context::new());

impl FileCall<'_> {
    /// Makes it and waits for it, though it may have done less than it should.
    pub fn make_alone(&self) -> Result<usize, Errno> {
        match *self {
            FileCall::Write(fd, at, bytes) => pwrite(fd, bytes, at),
            FileCall::WriteShared(fd, at, memory) => {
                let (start, len) = (memory.cast(), memory.len());
                // SAFETY: the kernel reads memory, if it is mapped, and stores nothing.
                let done = unsafe { libc::pwrite(fd.as_raw_fd(), start, len, at as i64) };
                usize::try_from(done).map_err(|_| last_errno())
            }
            FileCall::Sync(fd) => fdatasync(fd).map(|()| 0),
        }
    }

    fn request(&self) -> Request {
        match *self {
            FileCall::Write(fd, at, bytes) => Request::write(fd, at, bytes),
            FileCall::WriteShared(fd, at, memory) => Request::write(fd, at, memory),
            FileCall::Sync(fd) => Request::sync(fd),
        }
    }
}

/// What became of calls, each; `None` for one that was not done, and has to be done alone.
pub type Results = Vec<Option<Result<usize, Errno>>>;

/// Does calls at the same time and waits for all. Answers what each of them gave, as the call alone
/// would. After an error the kernel may still be at them.
///
/// It may be at those of a process that is gone, too: see [`crate::SharedLegs::make_calls`].
/// Children in the memory of this one would keep it from waiting for long, and nothing is done here
/// if there may be any.
pub fn together(calls: &[FileCall<'_>]) -> Result<Results, Errno> {
    let mut results = Vec::new();
    for calls in calls.chunks(MOST) {
        results.append(&mut at_once(calls)?);
    }
    Ok(results)
}

/// As [`together`], of at most [`MOST`].
fn at_once(calls: &[FileCall<'_>]) -> Result<Results, Errno> {
    let mut results = vec![None; calls.len()];
    // Not waited for: it may have been held when this process was forked.
    if let Ok(mut context) = CONTEXT.try_lock()
        && calls.len() > 1
        && !may_share_memory()
    {
        let requests = calls.iter().enumerate();
        let requests = requests.map(|(number, call)| call.request().numbered(number));
        let mut requests: Vec<Request> = requests.collect();
        // SAFETY: files and buffers are the caller's, who waits here. After an error the kernel
        // reads the caller's bytes, if it still does, and stores nothing.
        let begun = unsafe { context.begin(&mut requests) };
        context.wait(begun, |number, result| results[number] = result_of(result))?;
    }
    Ok(results)
}

/// What a call gave; `None` if the file cannot be used in this way.
fn result_of(result: i64) -> Option<Result<usize, Errno>> {
    match usize::try_from(result) {
        Ok(len) => Some(Ok(len)),
        Err(_) => {
            let errno = Errno::from_raw_os_error(-result as i32);
            let other_way = [Errno::INVAL, Errno::AGAIN, Errno::OPNOTSUPP, Errno::NOSYS];
            (!other_way.contains(&errno)).then_some(Err(errno))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsFd;
    use std::os::unix::fs::FileExt;

    use rustix::io::Errno;

    use super::{FileCall, together};

    #[test]
    fn calls_give_what_they_give_alone() {
        let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let file = |name| {
            let path = folder.path().join(name);
            File::options()
                .read(true)
                .write(true)
                .create_new(true)
                .open(path)
                .unwrap()
        };
        let (one, two) = (file("one"), file("two"));
        let to_read = File::open(folder.path().join("one")).unwrap();
        for round in 0..20u8 {
            let bytes = [round; 5000];
            let results = together(&[
                FileCall::Write(one.as_fd(), 100, &bytes),
                FileCall::Write(two.as_fd(), 8192, &bytes),
                FileCall::Write(to_read.as_fd(), 0, &bytes),
                FileCall::Sync(two.as_fd()),
            ])
            .unwrap();
            for (place, result) in results.into_iter().enumerate() {
                let wanted = match place {
                    0 | 1 => Ok(5000),
                    2 => Err(Errno::BADF),
                    _ => Ok(0),
                };
                // A file that cannot be used is told so when calls are begun.
                assert!(
                    result.is_none_or(|result| result == wanted),
                    "{place}: {result:?}"
                );
            }
        }
    }

    #[test]
    fn two_writes_are_done() {
        let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let file = |name| {
            File::options()
                .read(true)
                .write(true)
                .create_new(true)
                .open(folder.path().join(name))
                .unwrap()
        };
        let (one, two) = (file("one"), file("two"));
        let calls = [
            FileCall::Write(one.as_fd(), 100, &[1; 5000]),
            FileCall::Write(two.as_fd(), 9000, &[2; 5000]),
        ];
        let results = together(&calls).unwrap();
        for ((place, file), result) in [(100, &one), (9000, &two)].into_iter().zip(results) {
            if result == Some(Ok(5000)) {
                let mut bytes = [0; 5000];
                file.read_exact_at(&mut bytes, place).unwrap();
                assert!(bytes[0] > 0 && bytes.iter().all(|byte| *byte == bytes[0]));
            }
        }
        assert_eq!(
            together(&calls[..1]).unwrap(),
            [None],
            "one alone is done alone"
        );
    }

    #[test]
    fn a_call_alone_does_the_same() {
        let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, [0; 10]).unwrap();
        let file = File::options().write(true).open(&path).unwrap();
        let calls = [
            FileCall::Write(file.as_fd(), 2, b"ab"),
            FileCall::WriteShared(file.as_fd(), 4, &raw const *b"cde".as_slice()),
            FileCall::Sync(file.as_fd()),
        ];
        let done = calls.map(|call| call.make_alone());
        assert_eq!(done, [Ok(2), Ok(3), Ok(0)]);
        assert_eq!(std::fs::read(&path).unwrap(), b"\0\0abcde\0\0\0");
        let to_read = File::open(&path).unwrap();
        let refused = FileCall::WriteShared(to_read.as_fd(), 0, &raw const *b"x".as_slice());
        assert_eq!(refused.make_alone(), Err(Errno::BADF));
    }
}
