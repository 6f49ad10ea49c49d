//! Volumes. Skeleton.
#![forbid(unsafe_code)]
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nacre_media::{Media, Observer};
use nacre_types::{DeviceOffset, StoreKind, Uuid, VolumeOffset};

pub use nacre_media::{
    Access, CopyError, DeviceKind, Fault, Fenced, FlushMethod, MediaFailed, Survives, Unfenced, UserBytes, UserBytesMut,
};

/// A device to make a pool of or to grow a pool by.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeviceSpec {
    /// File or device.
    pub path: PathBuf,
    /// Bytes; `None`: as large as it is. A missing file is made only if a size is given.
    pub size: Option<u64>,
}

/// How to create.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CreateOptions {
    /// Overwrite a pool that the devices already belong to.
    pub force: bool,
}

/// Owner of a pool: that of its first device's file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Owner {
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
    /// Permission bits (0o777).
    pub mode: u32,
}

/// What is known of one device of an open volume.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeviceInfo {
    /// Where it was found.
    pub path: PathBuf,
    /// Its identity.
    pub uuid: Uuid,
    /// What it is.
    pub kind: DeviceKind,
    /// How stores become durable on it.
    pub flush: FlushMethod,
    /// Bytes of the whole device.
    pub size: u64,
    /// The part of the volume that it holds.
    pub range: Range<VolumeOffset>,
}

/// Why a volume cannot be created, opened, grown or deleted.
#[derive(Debug, thiserror::Error)]
pub enum VolumeError {
    /// The device cannot be used.
    #[error(transparent)]
    Media(#[from] nacre_media::MediaError),
}

/// What a device's label says, read without opening the pool.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LabelInfo {
    /// The pool.
    pub pool: Uuid,
}

/// A lock on the pool, released on drop or death. Holds off others only if they lock too.
#[derive(Debug)]
pub struct PoolLock(());

/// One or more devices as one contiguous address space.
pub struct Volume {
    media: Vec<Media>,
}

#[allow(missing_docs, unused_variables)]
impl Volume {
    pub fn create(devices: &[DeviceSpec], options: CreateOptions) -> Result<Self, VolumeError> {
        unreachable!()
    }
    /// Opens the pool that the device at `member` belongs to.
    pub fn open(member: &Path, access: Access) -> Result<Self, VolumeError> {
        unreachable!()
    }
    /// Like open; the other devices are looked for at `extra` too.
    pub fn open_with(members: &[&Path], access: Access) -> Result<Self, VolumeError> {
        unreachable!()
    }
    /// Nobody may have the pool attached.
    pub fn grow(member: &Path, device: &DeviceSpec, options: CreateOptions) -> Result<Self, VolumeError> {
        unreachable!()
    }
    pub fn inspect(path: &Path) -> Result<LabelInfo, VolumeError> {
        unreachable!()
    }
    pub fn delete(member: &Path) -> Result<(), VolumeError> {
        unreachable!()
    }
    /// Anonymous memory for tests (`len` rounded up to 4 MiB).
    pub fn memory(len: u64) -> Result<Self, VolumeError> {
        unreachable!()
    }
    pub fn len(&self) -> u64 {
        unreachable!()
    }
    pub fn units(&self) -> u64 {
        unreachable!()
    }
    /// Identity of the pool.
    pub fn uuid(&self) -> Uuid {
        unreachable!()
    }
    pub fn access(&self) -> Access {
        unreachable!()
    }
    pub fn owner(&self) -> Owner {
        unreachable!()
    }
    pub fn devices(&self) -> Vec<DeviceInfo> {
        unreachable!()
    }
    pub fn survives(&self) -> Survives {
        unreachable!()
    }
    /// Err once a device failed (SIGBUS on a truncated file, msync error). The store asks after the fence of each operation that it acknowledges.
    pub fn health(&self) -> Result<(), MediaFailed> {
        unreachable!()
    }
    /// The file and place behind volume bytes, and how many of `len` bytes lie contiguously there. `None`: anonymous memory.
    pub fn locate(&self, at: VolumeOffset, len: u64) -> (Option<BorrowedFd<'_>>, DeviceOffset, u64) {
        unreachable!()
    }
    /// Waits for the lock.
    pub fn lock_exclusive(&self) -> Result<PoolLock, VolumeError> {
        unreachable!()
    }
    pub fn lock_shared(&self) -> Result<PoolLock, VolumeError> {
        unreachable!()
    }
    pub fn try_lock_exclusive(&self) -> Result<Option<PoolLock>, VolumeError> {
        unreachable!()
    }
    /// May be set once, before sharing.
    pub fn set_observer(&self, observer: Arc<dyn Observer>) {
        unreachable!("{}", self.media.len())
    }
    #[inline]
    pub fn load_u64(&self, at: VolumeOffset) -> u64 {
        unreachable!()
    }
    #[inline]
    pub fn load_u32(&self, at: VolumeOffset) -> u32 {
        unreachable!()
    }
    #[inline]
    pub fn load_u16(&self, at: VolumeOffset) -> u16 {
        unreachable!()
    }
    #[inline]
    pub fn load_u8(&self, at: VolumeOffset) -> u8 {
        unreachable!()
    }
    pub fn read(&self, at: VolumeOffset, to: &mut [u8]) {
        unreachable!()
    }
    /// Reads N bytes by value (onodes, nodes), no zeroing first.
    pub fn read_array<const N: usize>(&self, at: VolumeOffset) -> [u8; N] {
        unreachable!()
    }
    pub fn read_user(&self, at: VolumeOffset, to: UserBytesMut<'_>) -> Result<(), CopyError> {
        unreachable!()
    }
    /// Aligned 8-byte store, atomic, release, flushed.
    pub fn store_u64(&self, at: VolumeOffset, value: u64, kind: StoreKind) -> Unfenced {
        unreachable!()
    }
    /// Same without flush.
    pub fn store_u64_lazy(&self, at: VolumeOffset, value: u64, kind: StoreKind) {
        unreachable!()
    }
    pub fn write(&self, at: VolumeOffset, bytes: &[u8], kind: StoreKind) -> Unfenced {
        unreachable!()
    }
    pub fn write_user(&self, at: VolumeOffset, bytes: UserBytes<'_>, kind: StoreKind) -> Result<Unfenced, CopyError> {
        unreachable!()
    }
    pub fn zero(&self, at: VolumeOffset, len: u64, kind: StoreKind) -> Unfenced {
        unreachable!()
    }
    pub fn flush(&self, at: VolumeOffset, len: u64) -> Unfenced {
        unreachable!()
    }
    pub fn fence(&self, stores: Unfenced) -> Fenced {
        unreachable!()
    }
}
