//! What a child works with that shares its parent's memory.

use core::ptr::{self, null_mut};
use core::sync::atomic::{
    AtomicBool, AtomicPtr, Ordering::Acquire, Ordering::Relaxed, Ordering::Release,
};
use std::sync::Mutex;

use nacre_vfs::{Vfs, VfsError};

use crate::program::image::Image;
use crate::runtime::kernel;
use crate::runtime::log;

/// Status of a program that could not be started with its mounts.
pub const CANNOT_START: i32 = 126;

/// What a child works with that shares its parent's memory, but has fds of its own.
pub struct View {
    vfs: Vfs,
    /// The state to be used instead, if not null.
    instead: AtomicPtr<Vfs>,
    /// The child has taken over.
    adopted: AtomicBool,
    /// The state of who started it, until the kernel has copied the numbers; null if that need not
    /// know.
    starter: AtomicPtr<Vfs>,
    /// What the child built for execve, freed by the parent.
    image: Mutex<Option<Image>>,
}

impl View {
    /// The view of a child with state `vfs`. `starter`: the state of who starts it, if that must
    /// know when the kernel has copied the numbers, else null.
    pub fn new(vfs: Vfs, starter: *mut Vfs) -> View {
        View {
            vfs,
            instead: AtomicPtr::new(null_mut()),
            adopted: AtomicBool::new(false),
            starter: AtomicPtr::new(starter),
            image: Mutex::new(None),
        }
    }

    /// In the child: its state.
    pub fn state(&self) -> &Vfs {
        self.adopt();
        // SAFETY: null, or leaked by `leave_pools`; dropped only by the child itself, when it uses
        // another one, and by the parent when the child is gone.
        unsafe { self.instead.load(Acquire).as_ref() }.unwrap_or(&self.vfs)
    }

    /// In the child: its state from now on, the view's own one or one that is leaked.
    pub fn use_instead(&self, state: *mut Vfs) {
        let own = ptr::from_ref(&self.vfs);
        let instead = if ptr::eq(state, own) {
            null_mut()
        } else {
            state
        };
        self.instead.store(instead, Release);
    }

    /// In the child: the parent frees this when the child is gone.
    pub fn keep(&self, image: Image) {
        if let Ok(mut kept) = self.image.lock() {
            *kept = Some(image);
        }
    }

    /// In the child: its pools are its own from its first call on.
    fn adopt(&self) {
        if self.adopted.swap(true, Relaxed) {
            return;
        }
        self.has_begun();
        if let Err(error) = self.vfs.adopt() {
            lost(&error);
        }
    }

    /// The kernel has copied the numbers of who started the child.
    fn has_begun(&self) {
        let starter = self.starter.swap(null_mut(), Relaxed);
        // SAFETY: null, or the state of the process, which is never freed, or of a child that
        // stands still until this one is gone.
        if let Some(starter) = unsafe { starter.as_ref() } {
            starter.vfork_has_begun();
        }
    }

    /// In a process that shares the child's memory, once the child is gone; None: it never called.
    pub fn take_down(self, child: Option<i32>) {
        self.has_begun();
        let instead = self.instead.swap(null_mut(), Acquire);
        if !instead.is_null() {
            // SAFETY: leaked by `leave_pools` in the child, which is gone.
            drop(unsafe { Box::from_raw(instead) });
        }
        self.vfs.vfork_done(child);
    }
}

/// A child without its pools must not run on.
pub fn lost(error: &VfsError) -> ! {
    log::tell_without_pools(&format!("the child cannot attach its pools: {error}"));
    kernel::exit(CANNOT_START)
}
