//! The limit: the same bytes in the same pattern, copied from and to mapped memory of the same
//! kind, without any file system.

use super::files::{Clock, Forks, NotOurs, Nothing, Places, Program, contents};
use super::measure::Work;
use super::row::{Action, Row, Scale};
use nacre_media::{Access, Media, Unfenced};
use nacre_types::{DeviceOffset, StoreKind};
use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;

/// Stores shorter than this stay in the cache on memory.
const CACHED_PIECE: usize = 4096;

struct Load {
    media: Arc<Media>,
    places: Places,
    buffer: Vec<u8>,
}

impl Work for Load {
    fn step(&mut self, _: usize) -> io::Result<()> {
        let at = DeviceOffset(self.places.next());
        self.media.read(at, &mut self.buffer);
        Ok(())
    }
}

/// Stores and a fence.
struct Store {
    media: Arc<Media>,
    places: Next,
    buffer: Vec<u8>,
    /// Longest piece that is handed to the medium at once.
    piece: usize,
}

/// Where the next store goes.
enum Next {
    Random(Places),
    Append { at: u64, end: u64 },
}

impl Next {
    #[inline]
    fn offset(&mut self, len: usize) -> u64 {
        match self {
            Next::Random(places) => places.next(),
            Next::Append { at, end } => {
                let here = if *at + len as u64 > *end { 0 } else { *at };
                *at = here + len as u64;
                here
            }
        }
    }
}

impl Work for Store {
    fn step(&mut self, _: usize) -> io::Result<()> {
        let mut at = DeviceOffset(self.places.offset(self.buffer.len()));
        let mut done = Unfenced::nothing();
        for piece in self.buffer.chunks(self.piece) {
            done = done.and(self.media.write(at, piece, StoreKind::Data));
            at = at.add(piece.len() as u64);
        }
        self.media.fence(done).map_err(io::Error::other)
    }
}

/// Ways to do what the row does; the fastest one is the limit. None if memory has no such thing.
pub fn ways(row: &Row, file: &Path, caller: usize, scale: Scale) -> io::Result<Vec<Box<dyn Work>>> {
    let places = || {
        Places::new(
            scale.file_bytes,
            row.size,
            caller,
            row.callers(),
            row.sharing,
        )
    };
    let folder = file.parent().unwrap_or(file);
    Ok(match row.action {
        Action::Nothing => vec![Box::new(Nothing(places()))],
        Action::Clock => vec![Box::new(Clock)],
        Action::NotOurs => vec![Box::new(NotOurs)],
        Action::Fork => vec![Box::new(Forks::start(folder)?)],
        Action::Start => vec![Box::new(Program::idle())],
        Action::StartReader => vec![Box::new(Program::reader(folder)?)],
        Action::Pread => vec![Box::new(Load {
            media: mapped(file, scale.file_bytes)?,
            places: places(),
            buffer: vec![0; row.size],
        })],
        Action::Pwrite | Action::PwriteFsync => {
            let media = mapped(file, scale.file_bytes)?;
            stores(&media, row.size, || Next::Random(places()))
        }
        Action::Append => {
            let media = mapped(file, scale.file_bytes)?;
            let end = scale.file_bytes;
            stores(&media, row.size, || Next::Append { at: 0, end })
        }
        _ => Vec::new(),
    })
}

fn mapped(path: &Path, bytes: u64) -> io::Result<Arc<Media>> {
    if !path.exists() {
        let file = File::create_new(path)?;
        rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, bytes)?;
    }
    let media = Media::open(path, Access::ReadWrite).map_err(io::Error::other)?;
    // Touched once, so that no page fault is measured.
    let page = contents(CACHED_PIECE);
    for at in (0..media.len()).step_by(CACHED_PIECE) {
        let _durability_is_not_wanted = media.write(DeviceOffset(at), &page, StoreKind::Data);
    }
    Ok(Arc::new(media))
}

/// Past the cache where the medium would do so, and through it.
fn stores(media: &Arc<Media>, size: usize, places: impl Fn() -> Next) -> Vec<Box<dyn Work>> {
    let way = |piece| -> Box<dyn Work> {
        Box::new(Store {
            media: Arc::clone(media),
            places: places(),
            buffer: contents(size),
            piece,
        })
    };
    let mut ways = vec![way(size)];
    if size > CACHED_PIECE {
        ways.push(way(CACHED_PIECE));
    }
    ways
}

#[cfg(test)]
mod tests {
    use super::{Next, mapped, stores, ways};
    use crate::bench::row::PROCESS;
    use crate::bench::row::Scale;
    use crate::bench::row::{Action, Row, chosen};

    const SCALE: Scale = Scale {
        file_bytes: 1 << 20,
        entries: 1,
    };

    #[test]
    fn stores_reach_the_medium_in_either_way() {
        let folder = tempfile::tempdir_in("/dev/shm").expect("a folder");
        let path = folder.path().join("raw");
        let media = mapped(&path, 1 << 20).expect("mapped");
        let ways = stores(&media, 16 << 10, || Next::Append {
            at: 0,
            end: 1 << 20,
        });
        assert_eq!(ways.len(), 2);
        for mut way in ways {
            std::fs::write(&path, vec![0; 1 << 20]).expect("cleared");
            way.step(0).expect("a step");
            let bytes = std::fs::read(&path).expect("read");
            assert_eq!(bytes[..16 << 10], super::contents(16 << 10));
            assert!(bytes[16 << 10..].iter().all(|&byte| byte == 0));
        }
    }

    #[test]
    fn appending_wraps_before_the_end() {
        let mut next = Next::Append { at: 0, end: 10 };
        let seen: Vec<u64> = (0..4).map(|_| next.offset(4)).collect();
        assert_eq!(seen, [0, 4, 0, 4]);
    }

    #[test]
    fn data_rows_have_a_limit_and_names_have_none() {
        let folder = tempfile::tempdir_in("/dev/shm").expect("a folder");
        let count = |row: &Row| {
            ways(row, &folder.path().join("raw"), 0, SCALE)
                .expect("ways")
                .len()
        };
        for row in chosen(&[]) {
            let is_data = matches!(
                row.action,
                Action::Pread | Action::Pwrite | Action::PwriteFsync | Action::Append
            );
            let expected = is_data || row.group == PROCESS;
            assert_eq!(count(&row) > 0, expected, "{}", row.name);
        }
    }
}
