//! The identities that the process has had. Each distinct one is kept, so that calls in flight can
//! go on with a plain reference while another thread changes identity.

use crate::kernel::Credentials;
use nacre_fs::{Caps, Cred};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

struct Node {
    identity: Identity,
    next: OnceLock<Box<Node>>,
}

/// One state of the process's credentials.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Identity {
    /// For everything but `access`.
    pub(crate) effective: Cred,
    /// What `access` without `AT_EACCESS` goes by.
    pub(crate) real: Cred,
}

/// All identities so far, and which one counts now.
pub(crate) struct Identities {
    first: Node,
    current: AtomicUsize,
}

impl Identities {
    pub(crate) fn new(now: Credentials) -> Identities {
        let first = Node {
            identity: identity(now),
            next: OnceLock::new(),
        };
        Identities {
            first,
            current: AtomicUsize::new(0),
        }
    }

    /// A list of its own that begins with the current identity.
    pub(crate) fn fork(&self) -> Identities {
        let first = Node {
            identity: self.current().clone(),
            next: OnceLock::new(),
        };
        Identities {
            first,
            current: AtomicUsize::new(0),
        }
    }

    #[inline]
    pub(crate) fn current(&self) -> &Identity {
        let mut node = &self.first;
        for _ in 0..self.current.load(Ordering::Acquire) {
            match node.next.get() {
                Some(next) => node = next,
                None => break,
            }
        }
        &node.identity
    }

    /// Makes `now` the current identity. One caller at a time.
    pub(crate) fn change(&self, now: Credentials) {
        let wanted = identity(now);
        let mut node = &self.first;
        let mut index = 0;
        while node.identity != wanted {
            index += 1;
            match node.next.get() {
                Some(next) => node = next,
                None => {
                    node.next.get_or_init(|| {
                        Box::new(Node {
                            identity: wanted,
                            next: OnceLock::new(),
                        })
                    });
                    break;
                }
            }
        }
        self.current.store(index, Ordering::Release);
    }
}

fn identity(now: Credentials) -> Identity {
    let caps = Caps::from_kernel(now.cap_effective);
    // `access` asks for the real user: root with all of root's rights, anybody else with none.
    let real_caps = if now.ruid == 0 {
        caps_of_root(now.euid, caps)
    } else {
        Caps::empty()
    };
    Identity {
        real: Cred {
            uid: now.ruid,
            gid: now.rgid,
            groups: now.groups.clone(),
            caps: real_caps,
        },
        effective: Cred {
            uid: now.euid,
            gid: now.egid,
            groups: now.groups,
            caps,
        },
    }
}

fn caps_of_root(euid: u32, effective: Caps) -> Caps {
    if euid == 0 { effective } else { Caps::all() }
}

#[cfg(test)]
mod tests {
    use super::Identities;
    use crate::kernel::Credentials;

    fn user(euid: u32) -> Credentials {
        Credentials {
            ruid: 7,
            rgid: 7,
            euid,
            egid: 7,
            groups: vec![8],
            cap_effective: 0,
        }
    }

    #[test]
    fn identities_change_and_come_back() {
        let all = Identities::new(user(1));
        assert_eq!(all.current().effective.uid, 1);
        for uid in [2, 3, 1, 3] {
            all.change(user(uid));
            assert_eq!(all.current().effective.uid, uid);
            assert_eq!(all.current().real.uid, 7);
        }
        assert!(
            all.first
                .next
                .get()
                .and_then(|second| second.next.get())
                .is_some_and(|third| third.next.get().is_none())
        );
    }
}
