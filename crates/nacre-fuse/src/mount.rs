//! Mounting a pool, serving it, and giving it back.

use crate::nodes::Nodes;
use crate::operations::Pool;
use crate::server::Server;
use fuser::{Config, MountOption, Session, SessionACL};
use nacre_fs::Fs;
use std::io;
use std::num::NonZero;
use std::path::Path;
use std::sync::Arc;
use std::thread::available_parallelism;

const THREADS_LEAST: usize = 2;
const THREADS_MOST: usize = 8;

/// How a pool is mounted.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// What stands in lists of mounts: the pool.
    pub source: String,
    /// No program may change anything.
    pub read_only: bool,
    /// Other users may use the mount, too, as far as permissions let them.
    pub allow_other: bool,
}

impl Options {
    fn config(&self) -> Config {
        // A comma would begin another option for the program that mounts for ordinary users.
        let source = self.source.replace([',', '\\'], "_");
        let mut config = Config::default();
        config.mount_options = vec![
            MountOption::FSName(source),
            // MountOption::Subtype is dropped where no helper mounts.
            MountOption::CUSTOM("subtype=nacre".to_string()),
            MountOption::DefaultPermissions,
            MountOption::NoDev,
            MountOption::NoSuid,
        ];
        if self.read_only {
            config.mount_options.push(MountOption::RO);
        }
        if self.allow_other {
            config.acl = SessionACL::All;
        }
        let cores = available_parallelism().map_or(1, NonZero::get);
        config.n_threads = Some(cores.clamp(THREADS_LEAST, THREADS_MOST));
        config.clone_fd = true;
        config
    }
}

/// A pool that can be mounted.
pub struct FrontEnd(Arc<Pool>);

impl FrontEnd {
    /// Serves this file system.
    pub fn new(fs: Fs) -> FrontEnd {
        FrontEnd(Arc::new(Pool {
            fs,
            nodes: Nodes::default(),
        }))
    }

    /// Mounts the pool. Who looks at it waits until it is served.
    pub fn mount(&self, folder: &Path, options: &Options) -> io::Result<Mounted> {
        let server = Server(Arc::clone(&self.0));
        Session::new(server, folder, &options.config()).map(Mounted)
    }

    /// The file system.
    pub fn fs(&self) -> &Fs {
        &self.0.fs
    }

    /// Gives the file system back; `None` while it is still mounted.
    pub fn into_fs(self) -> Option<Fs> {
        let pool = Arc::into_inner(self.0)?;
        // What cannot be let go of now goes with the session.
        let _later = pool.nodes.forget_all(&pool.fs);
        Some(pool.fs)
    }
}

/// A mounted pool.
pub struct Mounted(Session<Server>);

impl Mounted {
    /// Serves until the pool is unmounted.
    pub fn serve(self) -> io::Result<()> {
        self.0.run()
    }
}
