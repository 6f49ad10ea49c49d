//! One mapped device. Skeleton.

use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nacre_types::{DeviceOffset, StoreKind};

use crate::error::{CopyError, MediaError, MediaFailed};
use crate::kind::{DeviceKind, FlushMethod, Survives};
use crate::observer::Observer;
use crate::token::{Fenced, Unfenced};
use crate::user::{UserBytes, UserBytesMut};

/// How a device is opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// Stores are refused by an assertion.
    ReadOnly,
    /// Reads and stores.
    ReadWrite,
}

/// One mapped device, or a window of one.
pub struct Media {
    path: PathBuf,
}

impl Media {
    /// Anonymous shared memory of `len` zero bytes (rounded up to 4 KiB), which children inherit.
    pub fn memory(len: u64) -> Result<Self, MediaError> {
        unreachable!("{len}")
    }
    /// Bytes that are mapped.
    pub fn len(&self) -> u64 {
        unreachable!()
    }
    /// What the device is.
    pub fn kind(&self) -> DeviceKind {
        unreachable!()
    }
    /// How stores become durable.
    pub fn flush_method(&self) -> FlushMethod {
        unreachable!()
    }
    /// What fenced stores survive.
    pub fn survives(&self) -> Survives {
        unreachable!()
    }
    /// The device's file, for mapping its units elsewhere.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        unreachable!()
    }
    /// The path it was opened by.
    pub fn path(&self) -> &Path {
        &self.path
    }
    /// Address of the first mapped byte.
    pub fn base_addr(&self) -> usize {
        unreachable!()
    }
    /// Whether the device failed since it was opened.
    pub fn health(&self) -> Result<(), MediaFailed> {
        unreachable!()
    }
    /// Reports stores, flushes and fences to `observer` from now on; may be set once.
    pub fn set_observer(&self, device: u16, observer: Arc<dyn Observer>) {
        unreachable!("{device} {}", Arc::strong_count(&observer))
    }
    /// Loads 8 aligned bytes, little-endian.
    #[inline]
    pub fn load_u64(&self, at: DeviceOffset) -> u64 {
        unreachable!("{at}")
    }
    /// Copies bytes of the device.
    pub fn read(&self, at: DeviceOffset, to: &mut [u8]) {
        unreachable!("{at} {}", to.len())
    }
    /// Copies bytes of the device to the program.
    pub fn read_user(&self, at: DeviceOffset, to: UserBytesMut<'_>) -> Result<(), CopyError> {
        unreachable!("{at} {}", to.len())
    }
    /// Stores bytes.
    pub fn write(&self, at: DeviceOffset, bytes: &[u8], kind: StoreKind) -> Unfenced {
        unreachable!("{at} {} {kind:?}", bytes.len())
    }
    /// Stores bytes of the program.
    pub fn write_user(&self, at: DeviceOffset, bytes: UserBytes<'_>, kind: StoreKind) -> Result<Unfenced, CopyError> {
        unreachable!("{at} {} {kind:?}", bytes.len())
    }
    /// Waits until all earlier flushed stores of this thread are durable.
    pub fn fence(&self, stores: Unfenced) -> Fenced {
        stores.into_fenced()
    }
}
