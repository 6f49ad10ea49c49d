//! Calls on several files at the same time.
//!
//! The kernel does them asynchronously, so no thread is needed: programs that these libraries are
//! loaded into may not expect any.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::null_mut;
use std::sync::{Mutex, MutexGuard};

use libc::{c_long, syscall};
use rustix::io::Errno;

/// A call that may take long.
#[derive(Clone, Copy, Debug)]
pub enum FileCall<'c> {
    /// Writes at a place; as durable on return as the file was opened for.
    Write(BorrowedFd<'c>, u64, &'c [u8]),
    /// All that was written is durable on return.
    Sync(BorrowedFd<'c>),
}

/// As the kernel knows a call.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Request {
    data: u64,
    key_and_flags: u64,
    operation: u16,
    priority: i16,
    fd: u32,
    buffer: u64,
    len: u64,
    at: i64,
    reserved: u64,
    flags: u32,
    event_fd: u32,
}

/// What became of one.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Done {
    data: u64,
    request: u64,
    result: i64,
    more: i64,
}

const WRITE: u16 = 1;
const SYNC: u16 = 3;
/// The most calls at a time.
const MOST: usize = 8;

/// The context of this process; 0: none yet.
static CONTEXT: Mutex<u64> = Mutex::new(0);

impl FileCall<'_> {
    fn request(&self, number: usize) -> Request {
        let request = Request {
            data: number as u64,
            ..Request::default()
        };
        match self {
            FileCall::Write(fd, at, bytes) => Request {
                operation: WRITE,
                fd: fd.as_raw_fd() as u32,
                buffer: bytes.as_ptr().expose_provenance() as u64,
                len: bytes.len() as u64,
                at: *at as i64,
                ..request
            },
            FileCall::Sync(fd) => Request {
                operation: SYNC,
                fd: fd.as_raw_fd() as u32,
                ..request
            },
        }
    }
}

/// Does calls at the same time and waits for all. Answers what each of them gave, as the call alone
/// would: `None` for one that was not done, and has to be done alone.
pub fn together(calls: &[FileCall<'_>]) -> Vec<Option<Result<usize, Errno>>> {
    calls.chunks(MOST).flat_map(at_once).collect()
}

/// As [`together`], of at most [`MOST`].
fn at_once(calls: &[FileCall<'_>]) -> Vec<Option<Result<usize, Errno>>> {
    let mut results = vec![None; calls.len()];
    // Not waited for: it may have been held when this process was forked.
    if let Ok(mut context) = CONTEXT.try_lock()
        && calls.len() > 1
    {
        let requests = calls.iter().enumerate();
        let mut requests: Vec<Request> = requests.map(|(at, call)| call.request(at)).collect();
        let begun = submit(&mut context, &mut requests);
        wait(*context, begun, &mut results);
    }
    results
}

fn answer(result: c_long) -> Result<usize, Errno> {
    let failed = || Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO);
    usize::try_from(result).map_err(|_| failed())
}

/// Begins requests, the first ones; answers how many.
fn submit(context: &mut MutexGuard<'_, u64>, requests: &mut [Request]) -> usize {
    let mut pointers: Vec<*mut Request> = requests.iter_mut().map(|one| one as *mut _).collect();
    for _ in 0..2 {
        if **context == 0 && make(context).is_err() {
            return 0;
        }
        // SAFETY: the requests live until `together` has waited for those that were begun, and so
        // do the files and buffers that they name.
        let begun = answer(unsafe {
            syscall(
                libc::SYS_io_submit,
                **context,
                pointers.len(),
                pointers.as_mut_ptr(),
            )
        });
        match begun {
            // Perhaps it was made by the process that this one was forked from.
            Err(Errno::INVAL) => drop_context(context),
            begun => return begun.unwrap_or(0),
        }
    }
    0
}

fn drop_context(context: &mut MutexGuard<'_, u64>) {
    // SAFETY: the call takes a number; one that is no context of this process is refused.
    unsafe { syscall(libc::SYS_io_destroy, **context) };
    **context = 0;
}

fn make(context: &mut MutexGuard<'_, u64>) -> Result<(), Errno> {
    let mut made = 0u64;
    // SAFETY: the kernel stores a number to a word of this thread's.
    answer(unsafe { syscall(libc::SYS_io_setup, MOST, &raw mut made) })?;
    **context = made;
    Ok(())
}

/// Waits for requests that were begun.
fn wait(context: u64, mut begun: usize, results: &mut [Option<Result<usize, Errno>>]) {
    let mut done = [Done::default(); MOST];
    while begun > 0 {
        let place = done.as_mut_ptr();
        // SAFETY: the kernel stores at most as many results as there is room for.
        let came = answer(unsafe {
            syscall(
                libc::SYS_io_getevents,
                context,
                1usize,
                begun,
                place,
                null_mut::<u8>(),
            )
        });
        let came = match came {
            Ok(came) => came,
            Err(Errno::INTR) => continue,
            // The kernel reads the caller's bytes, if it still does, and stores nothing.
            Err(errno) => {
                results.fill(Some(Err(errno)));
                return;
            }
        };
        for one in &done[..came] {
            results[one.data as usize] = result_of(one.result);
        }
        begun -= came;
    }
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
            ]);
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
        let results = together(&calls);
        for ((place, file), result) in [(100, &one), (9000, &two)].into_iter().zip(results) {
            if result == Some(Ok(5000)) {
                let mut bytes = [0; 5000];
                file.read_exact_at(&mut bytes, place).unwrap();
                assert!(bytes[0] > 0 && bytes.iter().all(|byte| *byte == bytes[0]));
            }
        }
        assert_eq!(together(&calls[..1]), [None], "one alone is done alone");
    }
}
