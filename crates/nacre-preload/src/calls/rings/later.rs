//! A request that would wait for a disk, to be served by another thread. The file is held, and what
//! the program wrote about its buffers is read, before the call returns that handed the request in.

use nacre_media::{UserBytes, UserBytesMut, is_confined};
use nacre_vfs::{Answer, Held, Reply, Wish};

use super::request::{Request, Transfer};
use crate::entry::call::{Call, Vector, sink, source};
use crate::entry::errno::Stop;
use crate::entry::user;
use crate::mapping::holes;
use crate::runtime::tls::thread;

/// What is told of the result.
pub type Tell = Box<dyn FnOnce(i32) + Send>;

/// A request with all that it takes to serve it.
pub struct Job {
    pub request: HeldRequest,
    pub tell: Tell,
}

impl Job {
    /// Serves it.
    pub fn run(self) {
        (self.tell)(self.request.serve());
    }
}

/// What is to be done with a file that is held.
pub struct HeldRequest {
    file: Held<'static>,
    deed: Deed,
}

enum Deed {
    Transfer { of: Transfer, parts: Vec<Vector> },
    Sync,
}

impl HeldRequest {
    /// Of a transfer at an offset; `None` if it need not wait.
    pub fn transfer(c: &Call<'_>, of: Transfer) -> Option<HeldRequest> {
        const MOST: usize = 1024;
        let offset = u64::try_from(of.offset).ok()?;
        if !c.vfs().ours(of.fd) || !can_wait() || (of.vectored && of.len > MOST) {
            return None;
        }
        let parts = parts(of)?;
        let wish = match of.write {
            true => Wish::Write { flags: of.flags },
            false => {
                let len = parts.iter().map(|part| part.len as u64).sum();
                Wish::Read { offset, len }
            }
        };
        let file = c.vfs().hold_for_later(of.fd, wish)?;
        let deed = Deed::Transfer { of, parts };
        Some(HeldRequest { file, deed })
    }

    /// Of a call that syncs a file.
    pub fn sync(c: &Call<'_>, request: Request) -> Option<HeldRequest> {
        let fd = request.first() as i32;
        if !request.syncs() || c.vfs().try_fsync_fast(fd).is_some() || !can_wait() {
            return None;
        }
        let file = c.vfs().hold_for_later(fd, Wish::Sync)?;
        Some(HeldRequest {
            file,
            deed: Deed::Sync,
        })
    }

    /// The pool of its file.
    pub fn pool(&self) -> usize {
        self.file.pool()
    }

    /// Asks for what it reads, to be told of with this tag. False if nothing will be told.
    pub fn begin_load(&self, tag: u64) -> bool {
        match &self.deed {
            Deed::Transfer { of, parts } if !of.write => {
                let len = parts.iter().map(|part| part.len as u64).sum();
                self.file.begin_load(of.offset as u64, len, tag)
            }
            _ => false,
        }
    }

    /// Does it, and answers as the kernel's completions do.
    fn serve(&self) -> i32 {
        let answer = match &self.deed {
            Deed::Sync => self.file.sync().map(|()| 0).map_err(Stop::from),
            Deed::Transfer { of, parts } => self.move_bytes(*of, parts),
        };
        match answer {
            Ok(value) => value,
            Err(Stop::Errno(errno)) => -errno,
            Err(Stop::Native) => -libc::EBADF,
        }
    }

    fn move_bytes(&self, of: Transfer, parts: &[Vector]) -> Result<i32, Stop> {
        let each = parts.iter();
        let answer = match of.write {
            true => {
                let from: Result<Vec<UserBytes<'_>>, Stop> =
                    each.map(|part| source(part.start, part.len)).collect();
                self.file.write(&from?, of.offset, of.flags)
            }
            false => {
                let to: Result<Vec<UserBytesMut<'_>>, Stop> =
                    each.map(|part| sink(part.start, part.len)).collect();
                self.file.read(&mut to?, of.offset, of.flags)
            }
        };
        value(answer)
    }
}

/// Whether requests of the caller may be served by another thread.
fn can_wait() -> bool {
    !is_confined() && thread().origin.view().is_none() && !holes::exist()
}

fn value(answer: Answer) -> Result<i32, Stop> {
    match answer {
        Ok(Reply::Done(value)) => Ok(value as i32),
        Ok(_) => Err(Stop::Native),
        Err(error) => Err(error.into()),
    }
}

/// The buffers of a transfer.
fn parts(of: Transfer) -> Option<Vec<Vector>> {
    if !of.vectored {
        return Some(vec![Vector {
            start: of.at,
            len: of.len,
        }]);
    }
    let part = |i| user::read(of.at.wrapping_add(i * size_of::<Vector>())).ok();
    (0..of.len).map(part).collect()
}
