//! Files and folders whose contents are on all disks of a pool, where others are on one (D80).

use crate::Fs;
use crate::error::{FsError, Result};
use crate::inode::{InodeRef, is_regular};
use crate::permission::{Cred, check_thawed};
use crate::xattr::{COPIES, Namespace, XattrFlags};
use nacre_store::Attrs;
use nacre_store::layout::FLAG_KEPT;

impl Fs {
    /// Bytes of addresses that this process has mapped to use the pool.
    pub fn addresses(&self) -> u64 {
        self.store.addresses()
    }

    /// On how many disks contents can be.
    pub(crate) fn most_copies(&self) -> usize {
        let volume = self.store.volume();
        let there = |devices: usize| devices.saturating_sub(volume.holes().len()).max(2);
        volume
            .placement()
            .map_or(1, |placement| there(placement.devices()))
    }

    /// Sets on how many disks contents are to be; no value: on one. What a file has moves there.
    /// If it cannot, nothing has changed.
    #[cold]
    pub(crate) fn set_copies(
        &self,
        cred: &Cred,
        node: InodeRef,
        value: Option<&[u8]>,
        flags: XattrFlags,
    ) -> Result<()> {
        let kept = match value {
            Some(value) => self.copies_of(value)? > 1,
            None => false,
        };
        let before = self.mark_kept(node, kept, |attrs| {
            Namespace::User.check_write(self, cred, node, attrs, COPIES)?;
            match attrs.flags & FLAG_KEPT != 0 {
                true if flags.contains(XattrFlags::CREATE) => Err(FsError::Exists),
                false if flags.contains(XattrFlags::REPLACE) => Err(FsError::NoAttribute),
                _ => Ok(()),
            }
        })?;
        if !is_regular(&before) {
            return Ok(());
        }
        match self.store.move_kept(node.object(), kept) {
            Err(error) if kept => {
                let was_kept = before.flags & FLAG_KEPT != 0;
                self.mark_kept(node, was_kept, |_| Ok(()))?;
                if !was_kept {
                    // What has moved already goes back, if it can.
                    let _ = self.store.move_kept(node.object(), false);
                }
                Err(error.into())
            }
            // What cannot move keeps its copies.
            _ => Ok(()),
        }
    }

    fn copies_of(&self, value: &[u8]) -> Result<usize> {
        let number = str::from_utf8(value).ok().and_then(|it| it.parse().ok());
        let fits = |number: &usize| (1..=self.most_copies()).contains(number);
        number.filter(fits).ok_or(FsError::Invalid)
    }

    /// Sets the flag, if `allows` says so. Answers what the inode was before.
    fn mark_kept(
        &self,
        node: InodeRef,
        kept: bool,
        allows: impl FnOnce(&Attrs) -> Result<()>,
    ) -> Result<Attrs> {
        let (_guard, attrs) = self.lock(node)?;
        self.check_writable()?;
        check_thawed(&attrs)?;
        allows(&attrs)?;
        let mut tx = self.store.begin()?;
        tx.set_attrs(node.object(), |attrs| {
            attrs.flags &= !FLAG_KEPT;
            attrs.flags |= if kept { FLAG_KEPT } else { 0 };
            attrs.ctime = self.store.now().0;
        })?;
        tx.commit()?;
        Ok(attrs)
    }
}
