//! The image of a disk: making it, joining it, what is known of it.

mod ahead;
mod commit;
mod memory;
mod position;
pub(crate) mod version;

use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use nacre_cache::{At, Piece};
use nacre_media::{Access, Image, ImageWord};
use nacre_types::{DeviceOffset, UNIT_SIZE, VolumeOffset};

use crate::disk::cache::{Cache, CacheInfo};
use crate::error::VolumeError;
use crate::image::position::{begin_step, now_home, set_position, surely_written};
use crate::layout::DATA_START;
use crate::volume::Volume;

/// Stores wait for a commit when so much of the journal's room is dirty.
const DIRTY_SHARE: u64 = 4;

/// And when so much is, as all of it is copied while nobody stores.
const DIRTY_MAX: u64 = 64 << 20;

impl Volume {
    /// Whether processes use an image of the disk. It must be brought up before anything of the
    /// volume is used.
    pub fn is_cached(&self) -> bool {
        self.cache.is_some()
    }

    /// After how long the disk gets what was stored, where nobody waits for that: the pool is one
    /// in memory that is saved.
    pub fn saved_every(&self) -> Option<Duration> {
        self.cache.as_ref()?.saved_every
    }

    /// Whether the image is there.
    pub fn has_image(&self) -> bool {
        self.head.media.image().is_some()
    }

    /// Bytes that are in memory alone.
    pub fn dirty_bytes(&self) -> u64 {
        self.cached().map_or(0, |(_, image)| image.dirty_bytes())
    }

    /// Whether so much is in memory alone that whoever stays beside the programs should commit,
    /// before they have to.
    pub fn fills(&self) -> bool {
        self.cached().is_some_and(|(_, image)| image.fills())
    }

    pub(crate) fn cached(&self) -> Option<(&Cache, &Image)> {
        Some((self.cache.as_ref()?, self.head.media.image()?))
    }

    /// Makes the image in an empty file in shared memory, of what the disk holds. The caller holds
    /// the pool's exclusive lock, or the file is its own.
    ///
    /// What a power cut left in the journal is brought home first, or, where the disk may not be
    /// written, into the image.
    pub fn make_image(&self, file: OwnedFd) -> Result<(), VolumeError> {
        let Some(cache) = &self.cache else {
            return Ok(());
        };
        let mut journal = cache
            .open_journal(self.uuid())
            .map_err(|why| cache.failed(why))?;
        let writable = self.access() == Access::ReadWrite;
        let has_records = journal.room() < cache.len - nacre_cache::RECORDS_AT;
        if writable && has_records {
            journal.affirm().map_err(|why| cache.failed(why))?;
            journal.checkpoint().map_err(|why| cache.failed(why))?;
        }
        let image = Image::create(file, &cache.device, cache.key(self.uuid()));
        let image = image.map_err(|why| cache.unusable(why))?;
        cache.look_for_room(&image)?;
        set_position(&image, journal.position());
        if writable && !has_records {
            // Nobody knows how whoever wrote the header has ended: who commits first affirms it,
            // and writes one of this image's own (J8).
            begin_step(&image);
        }
        image.set_room(cache.room(&image));
        cache.share_legs(&image, true)?;
        // What records have is not at home, where nobody may write it.
        self.use_image(image, writable || !has_records)?;
        if writable {
            return Ok(());
        }
        let put = |piece: Piece<'_>, _| {
            self.head.media.restore(piece.home, piece.bytes);
            Ok(())
        };
        journal.each_piece(put).map_err(|why| cache.failed(why))
    }

    /// Uses an image that was made before. `false`: it is not of this pool as the disk has it now,
    /// and is of no use. The caller holds the pool's exclusive lock.
    pub fn join_image(&self, file: OwnedFd) -> Result<bool, VolumeError> {
        let Some(cache) = &self.cache else {
            return Ok(true);
        };
        let opened = Image::open(file, &cache.device, cache.key(self.uuid()));
        let Some(image) = opened.map_err(|why| cache.unusable(why))? else {
            return Ok(false);
        };
        let alone = image.enter(true).map_err(|why| cache.unusable(why))?;
        // Somebody may be removing it, as the pool seemed to be gone.
        while image.has_name() && !image.enter(alone).map_err(|why| cache.unusable(why))? {
            std::thread::sleep(Duration::from_millis(1));
        }
        if !image.has_name() {
            return Ok(false);
        }
        if alone && !self.is_of_disk(cache, &image)? {
            return Ok(false);
        }
        if alone {
            image.recount();
            image.end_all_windows();
            // Its maker may have been allowed more, or killed for taking too much.
            image.set_room(cache.room(&image));
        }
        cache.share_legs(&image, alone)?;
        self.use_image(image, true)?;
        Ok(true)
    }

    /// Whether the disk is as the image knows it: nobody has written to it without the image.
    fn is_of_disk(&self, cache: &Cache, image: &Image) -> Result<bool, VolumeError> {
        let journal = cache
            .open_journal(self.uuid())
            .map_err(|why| cache.failed(why))?;
        let is_of_disk = journal.goes_on_from(surely_written(image));
        if is_of_disk {
            set_position(image, journal.position());
            // The next who commits looks again, affirms what was found, and writes a header:
            // another image may be there that goes on from the same (J8).
            begin_step(image);
            // Of pages that could not be written while nobody had it open nobody is told.
            now_home(image, At::default());
        }
        Ok(is_of_disk)
    }

    /// `is_home`: the disk has all that the image lacks.
    fn use_image(&self, mut image: Image, is_home: bool) -> Result<(), VolumeError> {
        let Some(cache) = &self.cache else {
            return Ok(());
        };
        image.enter(false).map_err(|why| cache.unusable(why))?;
        let limit = (cache.len / DIRTY_SHARE).min(DIRTY_MAX);
        image.set_limit(limit, cache.disk.mapped().is_none());
        if self.access() == Access::ReadWrite {
            image.allow_drops(cache.disk.shared());
        }
        if let Some(mapped) = cache.disk.mapped() {
            image.load_from(mapped.clone());
        }
        if let Some(disks) = cache.disk.several() {
            image.load_from_legs(disks);
        }
        if let Some(units) = cache.sums.as_ref().filter(|_| is_home) {
            image.use_sums(units.clone(), self.uuid().0);
        }
        self.head.media.set_image(image)?;
        self.now_has_image();
        Ok(())
    }

    /// Whether nobody else uses the image, from now on.
    pub fn is_last_of_image(&self) -> bool {
        let image = self.head.media.image();
        image.is_some_and(|image| image.enter(true).unwrap_or(false))
    }

    /// Whether the disk has all that was stored.
    pub fn is_clean(&self) -> bool {
        self.cached().is_none_or(|(_, image)| image.is_clean())
    }

    /// Whether memory shows what the disk has: nothing was stored to the image since it was made.
    pub fn is_untouched(&self) -> bool {
        let untouched = |(_, image): (&Cache, &Image)| {
            image.is_clean() && image.word(ImageWord::Begun, 0).load(SeqCst) == 0
        };
        self.cached().is_some_and(untouched)
    }

    /// How many units programs asked for that no disk had as they were given to it, and where the
    /// last one is; `None` where nothing can tell.
    pub fn wrong_units(&self) -> Option<(u64, VolumeOffset)> {
        let (_, image) = self.cached().filter(|(_, image)| image.has_sums())?;
        let (count, DeviceOffset(at)) = image.wrong_units();
        Some((count, VolumeOffset(at.saturating_sub(DATA_START))))
    }

    /// What is known of the cache; `None` without one.
    pub fn cache_info(&self) -> Option<CacheInfo> {
        let (cache, image) = self.cached()?;
        let word = |word| image.word(word, 0).load(SeqCst);
        let traffic = image.traffic();
        Some(CacheInfo {
            commits: word(ImageWord::Commits),
            committed_bytes: word(ImageWord::Bytes),
            commit_time: Duration::from_nanos(word(ImageWord::Spent)),
            failures: word(ImageWord::Failures),
            dirty_bytes: image.dirty_bytes(),
            present_bytes: image.present_bytes(),
            room_bytes: image.room_bytes(),
            read_bytes: traffic.read * UNIT_SIZE,
            missed_bytes: traffic.missed * UNIT_SIZE,
            loaded_bytes: traffic.loaded * UNIT_SIZE,
            dropped_bytes: traffic.dropped * UNIT_SIZE,
            home_bytes: word(ImageWord::Home),
            journal_bytes: cache.len,
            wrong_units: self.wrong_units().map(|(count, _)| count),
        })
    }
}
