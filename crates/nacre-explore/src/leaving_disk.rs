//! One of two disks that hold each a part leaves the pool (D85): the power goes at each of their
//! writes, and at each of their labels. All that was there is there, whether the disk is gone or
//! not, and it goes when it is asked again.

use std::sync::Arc;

use nacre_store::{Store, WriteMode, runtime};
use nacre_testkit::pool::PRIVATE;
use nacre_testkit::random::Random;
use nacre_types::{BLOCK_SIZE, DeviceOffset, StoreKind};
use nacre_volume::tap::{self, DiskEvent, OnDisk};
use nacre_volume::{Access, Observer, Volume};

use super::{Disks, Images, Kind, SAMPLES, Sectors, images_of, plant, text, with};
use crate::action::Action;
use crate::bench::Bench;
use crate::ground::Ground;
use crate::judge::examine;
use crate::sabotage::Sabotage;
use crate::visible::Visible;

/// Bytes of each disk: sixteen blocks, and of the first one the journal.
pub(super) const SIZE: u64 = (2 << 20) + 19 * BLOCK_SIZE + 4096;
const LABEL: u64 = 4096;
/// What is in front of the data: a label, and the number of the use.
const FRONT: u64 = 2 * LABEL;

/// Tells of stores to labels, and of numbers behind them, as of writes.
struct Labels;

impl Observer for Labels {
    fn store(&self, device: u16, at: DeviceOffset, bytes: &[u8], _: StoreKind, _: bool) {
        let write = || DiskEvent::Write(at.get(), bytes.to_vec());
        tap::disk(device.into(), write);
    }

    fn flush(&self, _: u16, _: DeviceOffset, _: u64) {}

    fn fence(&self, device: u16) {
        let labels = || DiskEvent::Settle(vec![0..FRONT, SIZE - LABEL..SIZE]);
        tap::disk(device.into(), labels);
    }
}

/// A pool of which a disk is to leave, and what is to be seen of it.
struct Leaving {
    disks: Disks,
    leaves: usize,
    before: Visible,
}

pub(super) fn run(sabotage: Sabotage, seed: u64, images: &mut u64) -> Result<(), String> {
    tap::write_by_calls(true);
    for leaves in [1, 0] {
        let leaving = Leaving::new(leaves)?;
        sabotage.switch();
        let played = leaving.play();
        Sabotage::Nothing.switch();
        let mut events = played?;
        plant(sabotage, &mut events);
        let judged = leaving.crash(&events, seed, images);
        judged.map_err(|why| format!("while disk {leaves} leaves: {why}"))?;
    }
    Ok(())
}

impl Leaving {
    fn new(leaves: usize) -> Result<Self, String> {
        let mut disks = Disks::new(Kind::Leaving);
        disks.prepare()?;
        let pool = Bench::attach_clean(disks.open(None)?, WriteMode::Cached)?;
        let before = examine(&pool)?;
        drop(pool.into_store().abandon());
        Volume::begin_leaving(&disks.path(0), &disks.path(leaves)).map_err(text)?;
        disks.bases = disks.read()?;
        Ok(Self {
            disks,
            leaves,
            before,
        })
    }

    fn open(&self) -> Result<Volume, String> {
        let stays = self.disks.path(1 - self.leaves);
        Volume::open(&stays, Access::ReadWrite).map_err(text)
    }

    fn remove(&self, store: Store) -> Result<(), String> {
        let removed = store.remove_device(&self.disks.path(1 - self.leaves));
        match removed.map_err(text)? {
            (_, left) if left.is_nothing() => Ok(()),
            (_, left) => Err(format!("something is left: {left:?}")),
        }
    }

    /// Lets the disk go; answers how.
    fn play(&self) -> Result<Vec<OnDisk>, String> {
        self.lay_out(&self.disks.untouched())?;
        tap::record_disk(true);
        let paths = vec![self.disks.path(0), self.disks.path(1)];
        tap::set(Some((Arc::new(Labels), paths)));
        let removed = self.attach_and_remove();
        tap::set(None);
        let events = tap::record_disk(false);
        removed.map(|()| events)
    }

    fn attach_and_remove(&self) -> Result<(), String> {
        let store = Store::attach(self.open()?, &PRIVATE).map_err(text)?;
        self.remove(store)
    }

    fn crash(&self, events: &[OnDisk], seed: u64, images: &mut u64) -> Result<(), String> {
        let mut random = Random::new(seed, self.leaves as u64);
        let mut models = self.disks.models(self.disks.untouched());
        for (place, (disk, event)) in events.iter().enumerate() {
            let under_way = with(&models, (*disk, event));
            for choice in 0..SAMPLES + 2 {
                *images += 1;
                let image = images_of(&under_way, choice, &mut random);
                let judged = self.judge(&image, false);
                judged.map_err(|why| format!("at write {place}: {why}"))?;
            }
            models[*disk].apply(event);
        }
        let image = images_of(&models, 0, &mut random);
        self.judge(&image, true)
    }

    fn judge(&self, image: &Images, done: bool) -> Result<(), String> {
        self.lay_out(image)?;
        let volume = self.open()?;
        let is_gone = volume.devices().len() == 1;
        if done && !is_gone {
            return Err("the disk is still there".into());
        }
        let pool = Bench::attach_clean(volume, WriteMode::Cached)?;
        if examine(&pool)? != self.before {
            return Err(format!("the pool holds something else; gone: {is_gone}"));
        }
        match is_gone {
            true => drop(pool.into_store().abandon()),
            false => self.remove(pool.into_store())?,
        }
        self.goes_on()
    }

    /// What is committed without the disk is there after a power cut.
    fn goes_on(&self) -> Result<(), String> {
        let pool = Bench::attach_clean(self.open()?, WriteMode::Cached)?;
        if examine(&pool)? != self.before {
            return Err("once it is gone the pool holds something else".into());
        }
        let actions = [Action::Create("later"), Action::Write("later", 0, 3000)];
        for (salt, action) in (1..).zip(actions) {
            action.run(Ground::of(&pool), salt).map_err(text)?;
        }
        pool.commit().map_err(text)?;
        let seen = examine(&pool)?;
        drop(pool.into_store().abandon());
        self.forget()?;
        let pool = Bench::attach_clean(self.open()?, WriteMode::Cached)?;
        let found = examine(&pool)?;
        drop(pool.into_store().abandon());
        match found == seen {
            true => Ok(()),
            false => Err("what is committed later is not there".into()),
        }
    }

    fn lay_out(&self, images: &[Sectors]) -> Result<(), String> {
        for (disk, (base, image)) in self.disks.bases.iter().zip(images).enumerate() {
            self.disks.fill(disk, base, image).map_err(text)?;
        }
        self.forget()
    }

    fn forget(&self) -> Result<(), String> {
        if let Some(folder) = runtime::folder(&self.open()?).map_err(text)? {
            folder.clear();
            folder.leave();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::run;
    use crate::sabotage::Sabotage;

    #[test]
    fn a_disk_that_leaves_is_gone_or_not_and_nothing_is_lost() {
        let mut images = 0;
        run(Sabotage::Nothing, 1, &mut images).unwrap();
        assert!(images > 200, "{images}");
    }

    #[test]
    fn syncs_that_are_left_out_while_a_disk_leaves_are_found() {
        for of in 0..3 {
            assert!(run(Sabotage::Fences(of), 1, &mut 0).is_err(), "{of}");
        }
    }
}
