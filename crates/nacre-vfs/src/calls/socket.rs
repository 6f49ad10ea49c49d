//! Unix sockets whose names lie in pools, and the calls that are refused on files of pools.
//!
//! The kernel knows such a socket by a node in the pool's folder of shadow nodes; the pool holds a
//! node of type socket that gives it its name and permissions.

use crate::abi::{AT_FDCWD, S_IFSOCK};
use crate::error::{ErrorKind, VfsError};
use crate::kernel::{shadow_name, shadowed_node};
use crate::reply::{Answer, KernelNode, Reply, done};
use crate::resolve::walk::Lookup;
use crate::state::{Bound, Vfs};
use nacre_fs::{Access, FileType, InodeRef};

const SOCKET_MODE: u32 = 0o777;

/// The name of a socket about to be bound.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SocketNode {
    /// Where the kernel is to bind the socket.
    pub shadow: Vec<u8>,
    pool: usize,
    dir: InodeRef,
    name: Vec<u8>,
    node: InodeRef,
}

impl Vfs {
    /// `bind`: makes the socket's node in the pool. The kernel is then to bind to the shadow; if
    /// that fails, `socket_bind_failed` follows. `mode` is that of the socket itself (usually
    /// 0777).
    pub fn socket_bind(&self, path: &[u8], mode: u32) -> Answer<SocketNode> {
        let mode = self.masked(S_IFSOCK | mode & SOCKET_MODE);
        self.at_target(AT_FDCWD, path, Lookup::ENTRY, |target| {
            let name = match target.new_name(false) {
                Err(VfsError::Refused(ErrorKind::Exists)) => {
                    return Err(ErrorKind::AddressInUse.into());
                }
                other => other?.to_vec(),
            };
            let (pool, dir) = (target.mount.index, target.dir);
            let node = target.mount.fs.mknod(self.cred(), dir, &name, mode, 0)?;
            let shadow = self.kernel().shadow_path(pool, &shadow_name(node));
            self.kernel().note_shadow(pool, &shadow_name(node), path);
            self.close_gate().push(Bound {
                shadow: shadow.clone(),
                path: path.to_vec(),
            });
            done(SocketNode {
                shadow,
                pool,
                dir,
                name,
                node,
            })
        })
    }

    /// The kernel did not bind: removes the node again.
    pub fn socket_bind_failed(&self, socket: SocketNode) {
        self.close_gate()
            .retain(|bound| bound.shadow != socket.shadow);
        self.kernel()
            .remove_shadow(socket.pool, &shadow_name(socket.node));
        let fs = &self.mount(socket.pool).fs;
        if fs
            .lookup(self.cred(), socket.dir, &socket.name)
            .is_ok_and(|found| found.node == socket.node)
        {
            // The program is told about the failed bind; a node left behind is only a name.
            let _ = fs.unlink(self.cred(), socket.dir, &socket.name);
        }
    }

    /// `connect`, `sendto`, `sendmsg`: what the kernel knows the socket by.
    pub fn socket_connect(&self, path: &[u8]) -> Answer {
        self.at_target(AT_FDCWD, path, Lookup::FOLLOW, |target| {
            let found = target.existing()?;
            if found.file_type != FileType::Socket {
                return Err(ErrorKind::ConnectionRefused.into());
            }
            target
                .mount
                .fs
                .access(self.cred(), found.node, Access::WRITE)?;
            let stat = target.mount.fs.getattr(found.node)?;
            Ok(Reply::KernelNode(KernelNode {
                pool: target.mount.index,
                name: shadow_name(found.node),
                mode: stat.mode,
                uid: stat.uid,
                rdev: 0,
                flags: 0,
            }))
        })
    }

    /// The path that a program gave to `bind`, for `getsockname`, `recvfrom` and the like. The
    /// process that bound knows it as long as it lives, others as long as the socket has its name.
    pub fn socket_name(&self, shadow: &[u8]) -> Option<Vec<u8>> {
        let name = self.kernel().shadow_in(shadow)?;
        self.bound_here(shadow).or_else(|| self.noted(name))
    }

    fn bound_here(&self, shadow: &[u8]) -> Option<Vec<u8>> {
        let bound = self.close_gate();
        let found = bound.iter().find(|bound| bound.shadow == shadow);
        found.map(|bound| bound.path.clone())
    }

    /// Pools of one process may each have a shadow of this name: then nobody knows whose it is.
    fn noted(&self, name: &[u8]) -> Option<Vec<u8>> {
        shadowed_node(name)?;
        self.attach_all();
        let pools = self.attached().map(|mount| mount.index);
        let mut noted = pools.filter_map(|pool| self.kernel().noted_path(pool, name));
        let path = noted.next()?;
        noted.next().is_none().then_some(path)
    }

    /// `chroot`: the kernel cannot begin paths in a pool.
    pub fn chroot(&self, path: &[u8]) -> Answer {
        self.on_path(AT_FDCWD, path, true, 0, |subject| {
            if subject.mount.fs.getattr(subject.node)?.file_type() != Some(FileType::Directory) {
                return Err(ErrorKind::NotDirectory.into());
            }
            let fs = &subject.mount.fs;
            fs.access(self.cred(), subject.node, Access::EXEC)?;
            Err(ErrorKind::Unsupported.into())
        })
    }
}
