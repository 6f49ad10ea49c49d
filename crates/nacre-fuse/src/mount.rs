//! Mounting a pool, serving it, and giving it back.

use crate::descriptions::Descriptions;
use crate::device::{Device, Options};
use crate::keeping::Keeping;
use crate::locks::Locks;
use crate::nodes::Nodes;
use crate::operations::Pool;
use crate::session;
use nacre_fs::Fs;
use std::io;
use std::num::NonZero;
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::available_parallelism;

const THREADS_LEAST: usize = 2;
const THREADS_MOST: usize = 8;

/// A pool that can be mounted.
pub struct FrontEnd(Pool);

impl FrontEnd {
    /// Serves this file system.
    pub fn new(fs: Fs) -> FrontEnd {
        FrontEnd(Pool {
            fs,
            nodes: Nodes::default(),
            descriptions: Descriptions::default(),
            locks: Locks::default(),
            keeping: Keeping::default(),
            long_setxattr: AtomicBool::new(false),
            handles: AtomicU64::new(1),
            no_atime: AtomicBool::new(false),
            identity: OnceLock::new(),
            user: rustix::process::geteuid().as_raw(),
        })
    }

    /// Mounts the pool. Whoever looks at it waits until it is served.
    pub fn mount(&self, folder: &Path, options: &Options) -> io::Result<Mounted<'_>> {
        let device = Device::mount(folder, options)?;
        let pool = &self.0;
        pool.no_atime.store(options.no_atime, Ordering::Relaxed);
        pool.identity.get_or_init(|| options.identity.clone());
        Ok(Mounted { pool, device })
    }

    /// The file system.
    pub fn fs(&self) -> &Fs {
        &self.0.fs
    }

    /// Gives the file system back.
    pub fn into_fs(self) -> Fs {
        let pool = self.0;
        // What cannot be let go of now goes with the session.
        let _later = pool.nodes.forget_all(&pool.fs);
        let _later = pool.descriptions.forget_all(&pool.fs);
        pool.fs
    }
}

/// A mounted pool.
pub struct Mounted<'a> {
    pool: &'a Pool,
    device: Device,
}

impl Mounted<'_> {
    /// Serves until the pool is unmounted; `started` is called as soon as it is served for sure.
    pub fn serve(&self, started: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        let cores = available_parallelism().map_or(1, NonZero::get);
        let threads = cores.clamp(THREADS_LEAST, THREADS_MOST);
        session::serve(self.pool, &self.device, threads, started)
    }

    /// Whether nobody has the mount any more, nor a copy of it.
    pub fn is_gone(&self) -> bool {
        self.device.is_gone()
    }
}
