//! The medium: mapped devices, and the only place that stores to, flushes or fences them.
mod error;
pub mod fault;
mod kind;
mod media;
mod observer;
mod token;
mod user;

pub use error::{CopyError, Fault, MediaError, MediaFailed};
pub use kind::{DeviceKind, FlushMethod, Survives};
pub use media::{Access, Media};
pub use observer::Observer;
pub use token::{Fenced, Unfenced};
pub use user::{UserBytes, UserBytesMut};
