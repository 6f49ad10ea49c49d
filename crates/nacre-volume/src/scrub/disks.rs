//! Comparing what disks that hold the same have at home (D78).
//!
//! A span is compared while nobody commits: nothing is written home then. Where disks differ it is
//! compared once more while nobody stores either, so that memory can be made right, too.

use nacre_cache::DiskFailed;
use nacre_media::{Copies, Evidence, Finding, Image, Make, Rules, Scrubbed};
use nacre_types::crc32c;

use crate::disk::{Leg, LegsDisk};
use crate::error::VolumeError;
use crate::volume::Volume;

/// What is known of a unit of the volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Usage {
    /// Something is there.
    Used,
    /// Nobody has taken it.
    Free,
    /// It is taken, and was never written.
    Unwritten,
}

/// Tells what is known of the unit at a place of the disks.
pub(crate) type UsageOf<'u> = dyn Fn(u64) -> Usage + 'u;

/// A span of the disks, and what is at home there.
struct Home<'h> {
    legs: &'h LegsDisk,
    image: &'h Image,
    span: u64,
    copies: Copies,
    /// All of it is at home.
    whole: bool,
    /// Units of which something is not at home differ, and what is on its way may be a part of one.
    lags: bool,
}

/// Units and what they are to be everywhere.
type Made = Vec<(u64, Vec<u8>)>;

impl<'h> Home<'h> {
    /// What the journal or memory will write passes for alike.
    fn read((legs, image): (&'h LegsDisk, &'h Image), span: u64) -> Result<Self, DiskFailed> {
        let mut copies = legs.copies(legs.spans().bytes(span))?;
        let (mut whole, mut lags) = (true, false);
        for at in copies.units().filter(|at| !image.has_home(*at)) {
            // What is new is written as a whole.
            lags |= copies.differ_in(at) && !image.means_nothing(at, false);
            copies.pass_over(at);
            whole = false;
        }
        Ok(Self {
            legs,
            image,
            span,
            copies,
            whole,
            lags,
        })
    }

    fn seal(&self) -> Option<u32> {
        self.whole.then(|| self.legs.seal_of(self.span)).flatten()
    }

    /// What all hold, if they agree and have not lost what was sealed.
    fn settled(&self) -> Option<&[u8]> {
        let bytes = &self.copies.all.first()?.bytes;
        let is_sealed = |seal| seal == crc32c(bytes);
        (self.copies.agree() && self.seal().is_none_or(is_sealed)).then_some(bytes)
    }

    /// All hold these bytes. Answers how many have a seal now.
    fn set_seal(&self, bytes: &[u8]) -> Result<u64, DiskFailed> {
        if !self.whole {
            return Ok(0);
        }
        self.legs.set_seal(self.span, crc32c(bytes))?;
        Ok(bytes.len() as u64)
    }

    /// Units of which nothing counts are to be alike.
    fn level_unused(&mut self, usage_of: &UsageOf<'_>, made: &mut Made) {
        for at in self.copies.units() {
            let is_unused = || match usage_of(at) {
                Usage::Unwritten => true,
                usage => self.image.means_nothing(at, usage == Usage::Free),
            };
            if self.copies.differ_in(at) && is_unused() {
                self.copies.pass_over(at);
                let bytes = &self.copies.all[0].bytes;
                made.push((at, self.copies.unit_of(bytes, at).to_vec()));
            }
        }
    }

    /// Whether a disk that is about to be rebuilt has what was sealed.
    fn has_it(
        &mut self,
        leg: Option<&Leg>,
        seal: u32,
        make: &mut Make<'_>,
        found: &mut Vec<Finding>,
    ) -> bool {
        let further = leg.and_then(|leg| self.legs.copy_on(leg, self.copies.range.clone()));
        let Some(further) = further else {
            return false;
        };
        self.copies.as_sealed_by(further, seal, make, found).0
    }

    /// Writes what was found to be right, and makes memory right that came from a disk that was
    /// wrong.
    fn repair(&self, made: &Made) -> Result<(), DiskFailed> {
        self.legs.repair(made)?;
        for (at, right) in made {
            let units = self.copies.all.iter();
            let wrong = units.map(|copy| self.copies.unit_of(&copy.bytes, *at));
            for wrong in wrong.filter(|unit| unit != right) {
                self.image.correct(*at, wrong, right);
            }
        }
        Ok(())
    }

    /// Disks that something told to be wrong may be wrong elsewhere.
    fn doubt(&self, found: &[Finding]) {
        let is_told = |one: &&Finding| !matches!(one.evidence, None | Some(Evidence::Asked));
        let told = found.iter().filter(is_told);
        let wrong: Vec<[u8; 16]> = told.flat_map(|one| &one.wrong).copied().collect();
        self.legs.doubt(&wrong);
    }
}

impl Drop for Home<'_> {
    fn drop(&mut self) {
        self.legs.put_back(&mut self.copies);
    }
}

/// How others are kept away.
type Guard = fn(&Image, &mut dyn FnMut());

/// Nobody else uses the pool.
fn at_once(_: &Image, work: &mut dyn FnMut()) {
    work();
}

impl Volume {
    /// As [`Volume::scrub_span`], of disks.
    pub(crate) fn scrub_disks(
        &self,
        legs: &LegsDisk,
        span: u64,
        rules: (&mut Rules<'_>, &UsageOf<'_>),
    ) -> Result<Scrubbed, VolumeError> {
        let guards: [Guard; 2] = [Image::while_nobody_commits, Image::while_nobody_stores];
        self.scrub_guarded((legs, span), rules, guards)
    }

    /// As `scrub_disks`, of a pool that nobody else uses.
    pub(crate) fn scrub_disks_alone(
        &self,
        legs: &LegsDisk,
        span: u64,
        rules: (&mut Rules<'_>, &UsageOf<'_>),
    ) -> Result<Scrubbed, VolumeError> {
        self.scrub_guarded((legs, span), rules, [at_once; 2])
    }

    fn scrub_guarded(
        &self,
        (legs, span): (&LegsDisk, u64),
        (rules, usage_of): (&mut Rules<'_>, &UsageOf<'_>),
        [no_commits, no_stores]: [Guard; 2],
    ) -> Result<Scrubbed, VolumeError> {
        let image = self.image_of_disks()?;
        let (both, mut scrubbed) = ((legs, image), Scrubbed::default());
        let seal = || {
            let agreed = seal_what_agrees(both, span, &mut scrubbed);
            agreed.map_err(|why| self.disk_failed(why))
        };
        if self.done_by(seal, no_commits)? {
            return Ok(scrubbed);
        }
        let compare = || {
            let lags = Home::read(both, span).map(|home| home.lags);
            if lags.map_err(|why| self.disk_failed(why))? {
                self.bring_all_home()?;
            }
            let settled = settle(both, span, (rules, usage_of), &mut scrubbed);
            settled.map_err(|why| self.disk_failed(why))
        };
        self.done_by(compare, no_stores)?;
        Ok(scrubbed)
    }

    /// As [`Volume::verify_span`], of disks. Where no disk that is current has what was sealed, a
    /// `further` one may: one that is about to be rebuilt.
    pub(crate) fn verify_disks(
        &self,
        legs: &LegsDisk,
        span: u64,
        further: Option<&Leg>,
    ) -> Result<Scrubbed, VolumeError> {
        let image = self.image_of_disks()?;
        let mut verified = Scrubbed::default();
        self.while_nobody_stores(|| {
            let done = verify((legs, image), span, further, &mut verified);
            done.map_err(|why| self.disk_failed(why))
        })?;
        Ok(verified)
    }

    /// What programs store to again and again would never be compared. Nobody stores, and nobody
    /// else makes a version.
    fn bring_all_home(&self) -> Result<(), VolumeError> {
        if let Some(version) = self.take_version() {
            self.write_version(version)?;
        }
        self.checkpoint()
    }

    fn image_of_disks(&self) -> Result<&Image, VolumeError> {
        let image = self.head.media.image();
        image.ok_or_else(|| self.refused("is not in use by this process"))
    }
}

/// `false`: copies differ, or have lost what was sealed; nothing was done.
fn seal_what_agrees(
    disks: (&LegsDisk, &Image),
    span: u64,
    scrubbed: &mut Scrubbed,
) -> Result<bool, DiskFailed> {
    let home = Home::read(disks, span)?;
    let Some(bytes) = home.settled().filter(|_| !home.lags) else {
        return Ok(false);
    };
    scrubbed.sealed += home.set_seal(bytes)?;
    Ok(true)
}

fn settle(
    disks: (&LegsDisk, &Image),
    span: u64,
    (rules, usage_of): (&mut Rules<'_>, &UsageOf<'_>),
    scrubbed: &mut Scrubbed,
) -> Result<(), DiskFailed> {
    let mut home = Home::read(disks, span)?;
    let (seal, mut made) = (home.seal(), Made::new());
    let by_seal = seal.and_then(|seal| {
        let mut make = |at, right: &[u8]| made.push((at, right.to_vec()));
        home.copies.as_sealed(seal, &mut make, &mut scrubbed.found)
    });
    let settled = match by_seal {
        Some(bytes) => Some(bytes),
        None => {
            home.level_unused(usage_of, &mut made);
            let mut make = |at, right: &[u8]| made.push((at, right.to_vec()));
            home.copies.settled(seal, rules, &mut make, scrubbed)
        }
    };
    home.repair(&made)?;
    home.doubt(&scrubbed.found);
    if let Some(bytes) = settled {
        scrubbed.sealed += home.set_seal(&bytes)?;
    }
    Ok(())
}

fn verify(
    disks: (&LegsDisk, &Image),
    span: u64,
    further: Option<&Leg>,
    verified: &mut Scrubbed,
) -> Result<(), DiskFailed> {
    let mut home = Home::read(disks, span)?;
    let Some(seal) = home.seal() else {
        return Ok(());
    };
    let (mut made, found) = (Made::new(), &mut verified.found);
    let mut make = |at, right: &[u8]| made.push((at, right.to_vec()));
    let known = home.copies.as_sealed(seal, &mut make, found).is_some();
    if known || home.has_it(further, seal, &mut make, found) {
        let bytes = &home.copies.range;
        verified.sealed = bytes.end - bytes.start;
    } else {
        verified.found.push(home.copies.lost(None));
    }
    home.repair(&made)?;
    home.doubt(&verified.found);
    Ok(())
}
