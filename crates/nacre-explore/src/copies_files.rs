//! The devices of the scene of copies, as files in shared memory.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use nacre_store::WriteMode;
use nacre_types::BLOCK_SIZE;
use nacre_volume::{Access, Caching, ScrubRules, Usage, Volume};

use crate::action::Action;
use crate::bench::Bench;
use crate::copies_story::Story;
use crate::ground::Ground;
use crate::judge::examine;
use crate::kept_file;
use crate::visible::Visible;
use crate::workload::{self, PREPARED};
use nacre_testkit::medium::{Difference, LINE, Line};
use nacre_testkit::pool::{PoolChoice, PoolFiles};
use nacre_testkit::recorder::DEVICE;

const NAMES: [&str; 3] = ["a", "b", "c"];
/// What lies in front of the data of a device.
const FRONT: u64 = 2 << 20;
const LABEL: u64 = 4096;
const SIZE: u64 = FRONT + 8 * BLOCK_SIZE + LABEL;
/// Bytes of the device that replaces one.
const THIRD: u64 = 6 << 20;

/// Files of devices, and what they hold before anything is played.
pub(crate) struct Files {
    pool: PoolFiles,
    base: [Option<Vec<u8>>; 3],
    /// What is seen in the pool then.
    pub seen: Visible,
    /// Number of the label of each device; 0: none.
    pub labels: [u64; 3],
}

impl Files {
    /// A pool of two devices with something in it, as a story begins.
    pub fn prepare(story: Story) -> Result<Files, String> {
        let pool = PoolFiles::make(&PoolChoice {
            devices: &NAMES[..2],
            bytes: SIZE,
            caching: Caching::Never,
            copies: 2,
            ..PoolChoice::default()
        });
        let mut files = Files {
            pool,
            base: [None, None, None],
            seen: Visible::new(),
            labels: [0; 3],
        };
        files.fill()?;
        match story {
            Story::Back => {
                // Seals that are not true any more when it is back.
                scrub(&files, 0)?;
                files.use_alone(true)?;
            }
            Story::Replaced => {
                files.use_alone(false)?;
                files.make_third()?;
            }
            Story::Exchanged(_) | Story::WrittenOver => files.make_third()?,
            _ => {}
        }
        for index in 0..NAMES.len() {
            files.base[index] = fs::read(files.path(index)).ok();
            let label = Volume::inspect(&files.path(index));
            files.labels[index] = label.map_or(0, |label| label.sequence);
        }
        Ok(files)
    }

    fn make_third(&self) -> Result<(), String> {
        let third = File::create(self.path(2)).map_err(text)?;
        third.set_len(THIRD).map_err(text)
    }

    fn fill(&mut self) -> Result<(), String> {
        let volume = Volume::open(&self.path(0), Access::ReadWrite).map_err(text)?;
        let pool = Bench::attach_clean(volume, WriteMode::Direct)?;
        for (salt, action) in (1000..).zip(PREPARED) {
            action.run(Ground::of(&pool), salt).map_err(text)?;
        }
        workload::spoil_free_units(&pool);
        self.seen = examine(&pool)?;
        pool.into_store().close().map_err(text)?;
        Ok(())
    }

    /// The pool is used while the second device is away, which comes back or not.
    fn use_alone(&mut self, comes_back: bool) -> Result<(), String> {
        let second = fs::read(self.path(1)).map_err(text)?;
        fs::remove_file(self.path(1)).map_err(text)?;
        let volume = Volume::open(&self.path(0), Access::ReadWrite).map_err(text)?;
        let pool = Bench::attach_clean(volume, WriteMode::Direct)?;
        for action in [Action::Create("q"), Action::Write("q", 0, 9000)] {
            action.run(Ground::of(&pool), 77).map_err(text)?;
        }
        self.seen = examine(&pool)?;
        pool.into_store().close().map_err(text)?;
        match comes_back {
            true => fs::write(self.path(1), second).map_err(text),
            false => Ok(()),
        }
    }

    /// Something else comes over a device, as far as the second copy of its label.
    pub fn write_over(&self, index: usize) -> Result<(), String> {
        let file = File::options().write(true).open(self.path(index));
        let other = vec![0xee; (SIZE - LABEL) as usize];
        file.and_then(|file| file.write_all_at(&other, 0))
            .map_err(text)
    }

    /// Where a device is.
    pub fn path(&self, index: usize) -> PathBuf {
        self.pool.file(NAMES[index])
    }

    /// Where all are.
    pub fn paths(&self) -> Vec<PathBuf> {
        (0..NAMES.len()).map(|index| self.path(index)).collect()
    }

    /// The devices that are there.
    pub fn all(&self) -> Vec<usize> {
        let is_there = |&index: &usize| self.base[index].is_some();
        (0..NAMES.len()).filter(is_there).collect()
    }

    /// A line before anything is played.
    pub fn line(&self, number: u64) -> Line {
        let per_device = DEVICE / LINE as u64;
        let start = (number % per_device) as usize * LINE;
        let base = self.base[(number / per_device) as usize].as_deref();
        let bytes = base.and_then(|base| base.get(start..start + LINE));
        bytes
            .and_then(|bytes| bytes.try_into().ok())
            .unwrap_or([0; LINE])
    }

    /// Gives some devices what they hold in an image; the others are not there.
    pub fn lay_out(&self, image: &Difference, devices: &[usize]) -> Result<(), String> {
        for index in 0..NAMES.len() {
            match devices.contains(&index) {
                true => self.lay_out_one(image, index)?,
                false => {
                    // It may be away already.
                    let _away = kept_file::take_away(&self.path(index));
                }
            }
        }
        Ok(())
    }

    /// Gives one device what it holds in an image.
    pub fn lay_out_one(&self, image: &Difference, index: usize) -> Result<(), String> {
        let Some(base) = self.base[index].as_deref() else {
            return Ok(());
        };
        kept_file::fill_device(&self.path(index), base, image, index).map_err(text)
    }

    /// Copies hold the same data.
    pub fn are_alike(&self, copies: &[PathBuf]) -> Result<(), String> {
        let data = |path: &PathBuf| -> Result<Vec<u8>, String> {
            let mut bytes = fs::read(path).map_err(text)?;
            bytes.truncate((SIZE - LABEL) as usize);
            Ok(bytes.split_off(FRONT as usize))
        };
        let all: Vec<_> = copies.iter().map(data).collect::<Result<_, _>>()?;
        for pair in all.windows(2) {
            if let Some(at) = pair[0].iter().zip(&pair[1]).position(|(a, b)| a != b) {
                return Err(format!("the copies differ at byte {at:#x} of their data"));
            }
        }
        Ok(())
    }
}

/// Scrubs a pool that nobody uses, by one of its devices. Nothing may be found.
pub(crate) fn scrub(files: &Files, by: usize) -> Result<(), String> {
    let volume = Volume::open(&files.path(by), Access::ReadWrite).map_err(text)?;
    let shared = File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .open(files.pool.file("shared"))
        .map_err(text)?;
    volume.make_shared(shared.into()).map_err(text)?;
    volume.recover_copies(&mut |_, _| None);
    for span in volume.spans() {
        let mut rules = ScrubRules {
            judge: &mut |_, _| None,
            usage: &|_| Usage::Used,
            knows_written: true,
            trusted: None,
        };
        let scrubbed = volume.scrub_span(span, &mut rules);
        if let Some(found) = scrubbed.map_err(text)?.found.first() {
            return Err(format!("a scrub finds {found:?}"));
        }
    }
    volume.close_copies().map(drop).map_err(text)
}

pub(crate) fn text(error: impl ToString) -> String {
    error.to_string()
}
