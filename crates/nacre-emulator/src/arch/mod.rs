//! What depends on the processor: its steady clock.

#[cfg(target_arch = "x86_64")]
mod x86_64;
#[cfg(target_arch = "x86_64")]
pub(crate) use x86_64::{is_steady, pause, ticks};

#[cfg(not(target_arch = "x86_64"))]
compile_error!("nacre-emulator knows x86_64 only: add a folder under arch/ for this processor");
