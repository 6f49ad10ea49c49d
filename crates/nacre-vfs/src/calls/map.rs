//! What the front end needs to map files into memory.
//!
//! A mapping is an open file description of its own, so that it is counted, inherited by fork and
//! cleaned up after death like an open file.

use crate::abi::{O_ACCMODE, S_IFREG};
use crate::calls::open::{readable, writable};
use crate::error::{ErrorKind, VfsError};
use crate::fd::table::FileId;
use crate::reply::{Answer, Reply, done};
use crate::state::{OpenFile, Vfs};
use nacre_fs::{Fs, Holes, InodeRef, MapAccess, MapRun, ShownPage};
use nacre_media::UserBytesMut;
use nacre_session::{MAX_OFD_NAME, OFD_MAPPED, OFD_STORED, OfdInit};
use nacre_types::{FileOffset, UNIT_SIZE};
use std::ops::Range;
use std::os::fd::AsRawFd;

/// A wish to map part of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MapRequest {
    /// With `PROT_WRITE`.
    pub write: bool,
    /// With `PROT_EXEC`.
    pub exec: bool,
    /// `MAP_SHARED` or `MAP_SHARED_VALIDATE`.
    pub shared: bool,
    /// First byte of the file; a multiple of 4096.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
}

/// A mapping's hold on its file. A plain name: whoever tracks mappings gives it back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MapHold(FileId);

/// A part of a mapping that shows part of a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MapPiece {
    /// Bytes from the start of the wanted range, rounded down to the granule.
    pub at: u64,
    /// The device's fd.
    pub device_fd: i32,
    /// Byte of the device.
    pub device_offset: u64,
    /// Bytes; a multiple of the granule.
    pub len: u64,
}

/// What to map of a part of a file.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct MapRange {
    /// Pages beyond the end of the file have no piece, unless a granule reaches over the end. Nor
    /// have holes, unless they were filled.
    pub pieces: Vec<MapPiece>,
    /// Of a private mapping: parts of the range, as offset and length, that get a copy of the
    /// file's bytes. What is neither a piece nor a copy is zero.
    pub copies: Vec<(u64, u64)>,
    /// Bytes of the range that lie in pages before the end of the file.
    pub shown: u64,
}

/// How long units of a shared mapping are mapped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Staying {
    /// Until the mapping ends. On a disk they have come to memory, and stay there.
    Always,
    /// For a window of time. On a disk they come when that begins.
    Window,
}

/// How a mapping shows its file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Showing {
    /// By its units.
    Shared,
    /// By its units, until the process stores: it gets pages of its own then.
    Private,
    /// By copies of what the process touches.
    Touched,
    /// By a copy.
    Copy,
}

/// Private mappings of fewer bytes are a copy: that takes less time.
const LEAST_SHOWN: u64 = 32 << 10;
/// Where units cannot be shown, so many bytes of a file and more are copied as they are touched.
const LEAST_TOUCHED: u64 = 1 << 20;
/// Units that lie apart are copied where there are more pieces than one for so many bytes: a
/// process can have 65530 mappings.
const BYTES_PER_PIECE: u64 = 64 << 10;

/// How to map what was wished for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MapPlan {
    /// To be given to `mapping_removed` in the end.
    pub hold: MapHold,
    /// Bytes of the range before the end of the file.
    pub file_bytes: u64,
    /// Whether `range` is to be mapped, or the file's bytes to be copied.
    pub showing: Showing,
    /// What to map, if anything.
    pub range: MapRange,
    /// Pieces are mapped at addresses that are congruent to the file's bytes modulo this.
    pub granule: u64,
    /// Whether the file was opened so that `PROT_WRITE` may be added later.
    pub may_write: bool,
    /// The range has no pieces: what is touched of it is mapped for a while, or copied.
    pub windows: bool,
}

impl Vfs {
    /// Device and inode of the files that are mapped whole: of the pools and their sessions.
    pub fn mapped_files(&self) -> Vec<(u64, u64)> {
        let mut files = Vec::new();
        for mount in self.attached() {
            files.extend(mount.fs.session_file());
            for path in mount.fs.device_paths() {
                let found = rustix::fs::stat(&path).ok();
                files.extend(found.map(|stat| (stat.st_dev, stat.st_ino)));
            }
        }
        files
    }

    /// Plans a mapping and counts it: `mapping_removed` must follow, also after a failure.
    pub fn mmap_plan(&self, fd: i32, request: MapRequest) -> Answer<MapPlan> {
        let Some(file) = self.io_file(fd)? else {
            return Ok(Reply::Kernel);
        };
        check_request(&file, request)?;
        let showing = showing(&file, request)?;
        let hold = self.begin_mapping(&file, showing, request.write)?;
        let plan = self.plan(&file, hold, request, showing);
        if plan.is_err() {
            self.mapping_removed(hold);
        }
        done(plan?)
    }

    fn plan(
        &self,
        file: &OpenFile<'_>,
        hold: MapHold,
        request: MapRequest,
        showing: Showing,
    ) -> Result<MapPlan, VfsError> {
        let (offset, len) = (request.offset, request.len);
        let size = file.mount.fs.size(file.node())?;
        let file_bytes = size.saturating_sub(offset).min(len);
        let windows = match showing {
            Showing::Touched => true,
            Showing::Shared => !request.exec && file.mount.fs.maps_by_windows(file_bytes),
            Showing::Private | Showing::Copy => false,
        };
        Ok(MapPlan {
            hold,
            file_bytes,
            showing,
            range: match showing {
                Showing::Shared | Showing::Touched if windows => {
                    self.window_range(hold, offset, len)?
                }
                Showing::Shared => {
                    self.map_range(hold, (offset, len), Holes::Leave, Staying::Always)?
                }
                Showing::Private => self.private_range(hold, offset, len)?,
                Showing::Touched | Showing::Copy => MapRange::default(),
            },
            granule: match showing {
                Showing::Touched => UNIT_SIZE,
                _ => file.mount.fs.map_granule(),
            },
            may_write: !request.shared || writable(file.flags()),
            windows,
        })
    }

    /// A description that stands for one mapping.
    fn begin_mapping(
        &self,
        file: &OpenFile<'_>,
        showing: Showing,
        stores: bool,
    ) -> Result<MapHold, VfsError> {
        let (fs, node) = (&file.mount.fs, file.node());
        let (access, mark) = match stores && showing == Showing::Shared {
            false => (MapAccess::Load, OFD_MAPPED),
            true => (MapAccess::Store, OFD_MAPPED | OFD_STORED),
        };
        let holds = matches!(showing, Showing::Shared | Showing::Private);
        fs.pin(node)?;
        if holds && let Err(error) = fs.map_begin(node, access) {
            fs.unpin(node.ino)?;
            return Err(error.into());
        }
        let mut name = [0; MAX_OFD_NAME];
        let len = file.ofd.name(&mut name);
        let init = OfdInit {
            ino: node.ino,
            ino_generation: node.generation,
            flags: file.flags() & O_ACCMODE | if holds { mark } else { 0 },
            mode: S_IFREG,
            parent: file.ofd.parent(),
            name: &name[..len],
        };
        match self.describe(file.mount, &init) {
            Ok(id) => Ok(MapHold(id)),
            Err(error) => {
                if holds {
                    fs.map_end(node.ino, access)?;
                }
                fs.unpin(node.ino)?;
                Err(error)
            }
        }
    }

    /// What a part of a file shows in a mapping that comes by windows: no piece yet.
    pub fn window_range(&self, hold: MapHold, offset: u64, len: u64) -> Result<MapRange, VfsError> {
        let file = self.mapped_file(hold)?;
        let size = file.mount.fs.size(file.node())?;
        let end = size.next_multiple_of(UNIT_SIZE);
        Ok(MapRange {
            shown: end.saturating_sub(offset).min(len),
            ..MapRange::default()
        })
    }

    /// Whether what comes of a mapping from now on should come by windows.
    pub fn wants_windows(&self, hold: MapHold, len: u64) -> bool {
        let file = self.mapped_file(hold);
        file.is_ok_and(|file| file.mount.fs.maps_by_windows(len))
    }

    /// How many bytes of windows of a file this process should have at most.
    pub fn window_share(&self, hold: MapHold) -> Result<u64, VfsError> {
        Ok(self.mapped_file(hold)?.mount.fs.window_share())
    }

    /// A range of a mapping's device is about to be mapped, and stays in memory until
    /// [`Vfs::end_window`]. `false`: for good. `store`: the program may store there.
    pub fn begin_window(
        &self,
        hold: MapHold,
        range: Range<u64>,
        store: bool,
    ) -> Result<bool, VfsError> {
        Ok(self
            .mapped_file(hold)?
            .mount
            .fs
            .begin_window(range, store)?)
    }

    /// The program may store to a part of a window from now on.
    pub fn store_through_window(&self, hold: MapHold, range: Range<u64>) -> Result<(), VfsError> {
        let file = self.mapped_file(hold)?;
        file.mount.fs.store_through_window(range);
        Ok(())
    }

    /// A window ends. `stays`: it is mapped for good from now on.
    pub fn end_window(
        &self,
        hold: MapHold,
        range: Range<u64>,
        stays: bool,
    ) -> Result<(), VfsError> {
        Ok(self.mapped_file(hold)?.mount.fs.end_window(range, stays)?)
    }

    /// The device ranges behind a shared mapping of a range of the file, as offset and length,
    /// widened to whole granules. `NoMemory`: so much may not stay.
    pub fn map_range(
        &self,
        hold: MapHold,
        (offset, len): (u64, u64),
        holes: Holes,
        staying: Staying,
    ) -> Result<MapRange, VfsError> {
        let file = self.mapped_file(hold)?;
        let granule = file.mount.fs.map_granule();
        let end = offset
            .checked_add(len)
            .and_then(|end| end.checked_next_multiple_of(granule))
            .ok_or(ErrorKind::Overflow)?;
        let first = (offset & !(granule - 1)) / UNIT_SIZE;
        let pages = end / UNIT_SIZE - first;
        let mapped = file.mount.fs.map_pages(file.node(), first, pages, holes)?;
        let units: u64 = mapped.runs.iter().map(|run| run.count).sum();
        if staying == Staying::Always && !file.mount.fs.may_stay(units * UNIT_SIZE) {
            return Err(ErrorKind::NoMemory.into());
        }
        let mut pieces = Vec::new();
        for run in mapped.runs {
            add_pieces(&mut pieces, &file.mount.fs, first, run, staying)?;
        }
        let shown = (mapped.end * UNIT_SIZE).saturating_sub(offset).min(len);
        let copies = Vec::new();
        Ok(MapRange {
            pieces,
            copies,
            shown,
        })
    }

    /// What `len` bytes of a private mapping show from byte `offset` of the file on, both whole
    /// pages.
    pub fn private_range(
        &self,
        hold: MapHold,
        offset: u64,
        len: u64,
    ) -> Result<MapRange, VfsError> {
        let file = self.mapped_file(hold)?;
        let (first, pages) = (offset / UNIT_SIZE, len.div_ceil(UNIT_SIZE));
        let found = file.mount.fs.private_pages(file.node(), first, pages)?;
        let (mut pieces, mut copies) = (Vec::new(), Vec::new());
        for run in found.runs {
            let added = add_pieces(&mut pieces, &file.mount.fs, first, run, Staying::Always);
            if added.is_err() {
                // The pool has no device that could be mapped.
                copies.push(((run.page - first) * UNIT_SIZE, run.count * UNIT_SIZE));
            }
        }
        for (page, count) in found.copies {
            copies.push(((page - first) * UNIT_SIZE, count * UNIT_SIZE));
        }
        if pieces.len() as u64 > 1 + len / BYTES_PER_PIECE {
            copies.extend(pieces.drain(..).map(|piece| (piece.at, piece.len)));
        }
        let shown = (found.end * UNIT_SIZE).saturating_sub(offset).min(len);
        Ok(MapRange {
            pieces,
            copies,
            shown,
        })
    }

    /// What a page of a shared mapping shows, at byte `offset` of the file; zeros are for at most
    /// `len` bytes from there on.
    pub fn show_mapped(&self, hold: MapHold, offset: u64, len: u64) -> Result<ShownPage, VfsError> {
        let file = self.mapped_file(hold)?;
        let (page, pages) = (offset / UNIT_SIZE, len / UNIT_SIZE);
        Ok(file.mount.fs.show_page(file.node(), page, pages)?)
    }

    /// Fills the memory of a private mapping from byte `offset` of the file on; answers how many
    /// bytes the file had.
    pub fn fill_private(
        &self,
        hold: MapHold,
        offset: u64,
        buffer: UserBytesMut<'_>,
    ) -> Result<usize, VfsError> {
        let file = self.mapped_file(hold)?;
        Ok(file
            .mount
            .fs
            .read(file.node(), FileOffset(offset), buffer)?)
    }

    /// One more mapping is backed by the same hold (a mapping was split).
    pub fn mapping_added(&self, hold: MapHold) {
        self.uses.add(hold.0, self.alone());
    }

    /// A mapping (or part of one, counted by `mapping_added`) is gone.
    pub fn mapping_removed(&self, hold: MapHold) {
        self.release(hold.0);
    }

    /// In a child after fork: it has inherited a mapping.
    pub fn mapping_inherited(&self, hold: MapHold) {
        self.note_use(hold.0);
    }

    /// The program may store through a mapping that was made without [`MapRequest::write`], as soon
    /// as this has succeeded.
    pub fn mapping_stores(&self, hold: MapHold) -> Result<(), VfsError> {
        let file = self.mapped_file(hold)?;
        Ok(file.mount.fs.map_stores(file.ofd)?)
    }

    /// `msync`: makes what was stored through a shared mapping durable.
    pub fn sync_mapping(&self, hold: MapHold, offset: u64, len: u64) -> Result<(), VfsError> {
        let file = self.mapped_file(hold)?;
        let node: InodeRef = file.node();
        file.mount.fs.sync_mapped(node, offset, len)?;
        Ok(())
    }

    fn mapped_file(&self, hold: MapHold) -> Result<OpenFile<'_>, VfsError> {
        self.open_file(hold.0, false)
    }
}

/// How a mapping is to show its file.
fn showing(file: &OpenFile<'_>, request: MapRequest) -> Result<Showing, VfsError> {
    let fs = &file.mount.fs;
    if request.shared {
        return Ok(Showing::Shared);
    }
    if fs.maps_privately() {
        let shown = request.len >= LEAST_SHOWN;
        return Ok(if shown {
            Showing::Private
        } else {
            Showing::Copy
        });
    }
    let bytes = fs.size(file.node())?.saturating_sub(request.offset);
    let touched = bytes.min(request.len) >= LEAST_TOUCHED && !request.exec;
    Ok(if touched {
        Showing::Touched
    } else {
        Showing::Copy
    })
}

fn check_request(file: &OpenFile<'_>, request: MapRequest) -> Result<(), VfsError> {
    let flags = file.flags();
    if file.format() != S_IFREG {
        return Err(ErrorKind::CannotMap.into());
    }
    if !readable(flags) || (request.shared && request.write && !writable(flags)) {
        return Err(ErrorKind::Denied.into());
    }
    if request.len == 0 || !request.offset.is_multiple_of(UNIT_SIZE) {
        return Err(ErrorKind::Invalid.into());
    }
    if request
        .offset
        .checked_add(request.len)
        .is_none_or(|end| i64::try_from(end).is_err())
    {
        return Err(ErrorKind::Overflow.into());
    }
    Ok(())
}

/// Adds where a run lies, in a range that begins with page `first`.
fn add_pieces(
    pieces: &mut Vec<MapPiece>,
    fs: &Fs,
    first: u64,
    run: MapRun,
    staying: Staying,
) -> Result<(), VfsError> {
    let mut at = (run.page - first) * UNIT_SIZE;
    let mut left = run.count * UNIT_SIZE;
    let mut place = run.unit.offset();
    while left > 0 {
        let found = match staying {
            Staying::Always => fs.locate(place, left),
            Staying::Window => fs.place_of(place, left),
        };
        let (device, device_offset, there) = found.ok_or(ErrorKind::NoDevice)?;
        let part = there.min(left);
        if part == 0 {
            return Err(ErrorKind::Io.into());
        }
        let piece = MapPiece {
            at,
            device_fd: device.as_raw_fd(),
            device_offset: device_offset.0,
            len: part,
        };
        append(pieces, piece);
        at += part;
        left -= part;
        place = place.add(part);
    }
    Ok(())
}

/// Adds a piece, joining it to the one before where both owners are contiguous.
fn append(pieces: &mut Vec<MapPiece>, piece: MapPiece) {
    if let Some(last) = pieces.last_mut() {
        let joins = last.device_fd == piece.device_fd
            && last.at + last.len == piece.at
            && last.device_offset + last.len == piece.device_offset;
        if joins {
            last.len += piece.len;
            return;
        }
    }
    pieces.push(piece);
}
