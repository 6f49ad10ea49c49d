//! Names that others have put into folders that all may write.

use crate::world::{AT_FDCWD, Harness, O_CREAT, O_RDWR, value};
use nacre_vfs::ErrorKind;
use std::sync::atomic::Ordering;

struct Shared(Harness);

impl Shared {
    /// A folder with a file, links and a secret of user 7.
    fn new(mode: u32) -> Shared {
        let harness = Harness::new();
        let shared = Shared(harness);
        shared.0.mkdir("/nacre/t").unwrap();
        shared.chmod("/nacre/t", 0o777);
        shared.become_user(7);
        let vfs = &shared.0.vfs;
        for name in ["f", "s", "out"] {
            let path = format!("/nacre/t/{name}");
            vfs.close(shared.0.open(&path, O_RDWR | O_CREAT).unwrap())
                .unwrap();
        }
        value(vfs.symlinkat(b"f", AT_FDCWD, b"/nacre/t/l")).unwrap();
        value(vfs.symlinkat(b".", AT_FDCWD, b"/nacre/t/d")).unwrap();
        shared.chmod("/nacre/t/f", 0o666);
        shared.become_user(0);
        shared.chmod("/nacre/t", mode);
        shared
    }

    fn chmod(&self, path: &str, mode: u32) {
        value(self.0.vfs.fchmodat(AT_FDCWD, path.as_bytes(), mode, 0)).unwrap();
    }

    fn become_user(&self, uid: u32) {
        self.0.kernel.set_user(uid);
        self.0.vfs.credentials_changed();
    }

    fn protect(&self, how: u32) {
        self.0.kernel.protection.store(how, Ordering::Relaxed);
    }

    fn open(&self, path: &str, flags: i32) -> Result<(), ErrorKind> {
        let fd = self.0.open(path, flags)?;
        self.0.vfs.close(fd).unwrap();
        Ok(())
    }

    fn link(&self, from: &str, to: &str) -> Result<(), ErrorKind> {
        let (from, to) = (from.as_bytes(), to.as_bytes());
        let vfs = &self.0.vfs;
        value(vfs.linkat(AT_FDCWD, from, AT_FDCWD, to, 0)).map(drop)
    }
}

#[test]
fn links_of_others_are_not_followed_in_sticky_folders() {
    let shared = Shared::new(0o1777);
    for uid in [0, 8] {
        shared.become_user(uid);
        shared.protect(0);
        assert_eq!(shared.open("/nacre/t/l", O_RDWR), Ok(()));
        shared.protect(1);
        assert_eq!(shared.open("/nacre/t/l", O_RDWR), Err(ErrorKind::Denied));
        assert_eq!(shared.0.stat("/nacre/t/d/").err(), Some(ErrorKind::Denied));
        // One on the way is.
        assert_eq!(shared.open("/nacre/t/d/f", O_RDWR), Ok(()));
    }
    shared.become_user(7);
    assert_eq!(shared.open("/nacre/t/l", O_RDWR), Ok(()));
    let shared = Shared::new(0o777);
    shared.protect(2);
    assert_eq!(shared.open("/nacre/t/l", O_RDWR), Ok(()));
}

#[test]
fn files_of_others_are_not_taken_for_new_ones() {
    for (mode, least) in [(0o1777, 1), (0o1770, 2), (0o1755, 3), (0o777, 3)] {
        let shared = Shared::new(mode);
        for how in 0..3 {
            shared.protect(how);
            let refused = how >= least;
            let wanted = if refused {
                Err(ErrorKind::Denied)
            } else {
                Ok(())
            };
            assert_eq!(shared.open("/nacre/t/f", O_RDWR | O_CREAT), wanted);
            assert_eq!(shared.open("/nacre/t/f", O_RDWR), Ok(()));
            assert_eq!(
                shared.open(&format!("/nacre/t/{how}"), O_RDWR | O_CREAT),
                Ok(())
            );
        }
    }
    let shared = Shared::new(0o1777);
    shared.protect(2);
    shared.become_user(7);
    assert_eq!(shared.open("/nacre/t/f", O_RDWR | O_CREAT), Ok(()));
}

#[test]
fn files_of_others_get_no_more_names() {
    let shared = Shared::new(0o777);
    shared.chmod("/nacre/t/s", 0o4666);
    shared.become_user(8);
    shared.protect(1);
    // It may be read and written, and gives no rights.
    assert_eq!(shared.link("/nacre/t/f", "/nacre/t/f1"), Ok(()));
    for name in ["s", "out", "l"] {
        let from = format!("/nacre/t/{name}");
        shared.protect(1);
        let refused = shared.link(&from, "/nacre/t/new");
        assert_eq!(refused, Err(ErrorKind::NotPermitted), "{name}");
        shared.protect(0);
        assert_eq!(shared.link(&from, &format!("{from}2")), Ok(()), "{name}");
    }
    shared.protect(1);
    for uid in [0, 7] {
        shared.become_user(uid);
        assert_eq!(
            shared.link("/nacre/t/out", &format!("/nacre/t/{uid}")),
            Ok(())
        );
    }
}
