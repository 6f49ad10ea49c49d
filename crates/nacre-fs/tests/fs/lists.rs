//! Access control lists: what is remembered of names and what hostile pools hold does not let
//! anybody in. All that Linux decides is compared with tmpfs by tests/programs/around/acl.sh.

use crate::pools::{dir, file, fs, root, user};
use nacre_fs::{Access, Cred, Fs, FsError, InodeRef, XattrFlags};
use nacre_store::{Tree, layout::FLAG_ACL};

const ACCESS: &[u8] = b"system.posix_acl_access";
const DEFAULT: &[u8] = b"system.posix_acl_default";
const NOBODY: u32 = u32::MAX;

fn list(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let mut value = 2u32.to_le_bytes().to_vec();
    for (tag, allowed, id) in entries {
        value.extend_from_slice(&tag.to_le_bytes());
        value.extend_from_slice(&allowed.to_le_bytes());
        value.extend_from_slice(&id.to_le_bytes());
    }
    value
}

/// Owner and user 7 as told, everybody else `others`.
fn for_seven(seven: u16, others: u16) -> Vec<u8> {
    list(&[
        (1, 7, NOBODY),
        (2, seven, 7),
        (4, others, NOBODY),
        (16, 7, NOBODY),
        (32, others, NOBODY),
    ])
}

fn set(fs: &Fs, node: InodeRef, name: &[u8], value: &[u8]) {
    fs.set_xattr(&root(), node, name, value, XattrFlags::empty())
        .expect("set");
}

#[test]
fn a_name_that_was_looked_up_before_is_not_found_against_a_newer_list() {
    let fs = &fs();
    let dir = dir(fs, fs.root(), "d");
    file(fs, dir, "inside");
    let (seven, eight) = (user(7), user(8));
    let looks = |cred: &Cred| fs.lookup(cred, dir, b"inside").map(|_| ());
    assert_eq!((looks(&seven), looks(&eight)), (Ok(()), Ok(())));
    assert!(fs.known(&eight, dir, b"inside").is_some());
    // The mode stays 0775, so that only the list tells that 7 is out.
    fs.chmod(&root(), dir, 0o775).expect("chmod");
    assert_eq!((looks(&seven), looks(&eight)), (Ok(()), Ok(())));
    set(fs, dir, ACCESS, &for_seven(0, 5));
    assert_eq!(fs.getattr(dir).expect("stat").mode & 0o777, 0o775);
    let denied = Err(FsError::PermissionDenied);
    assert_eq!((looks(&seven), looks(&eight)), (denied.clone(), Ok(())));
    assert!(fs.known(&eight, dir, b"inside").is_none());
    fs.mkdir(&root(), dir, b"later", 0o755).expect("mkdir");
    assert!(fs.known(&root(), dir, b"later").is_none());
    set(fs, dir, ACCESS, &for_seven(1, 0));
    assert_eq!((looks(&seven), looks(&eight)), (Ok(()), denied.clone()));
    fs.remove_xattr(&root(), dir, ACCESS).expect("remove");
    assert_eq!((looks(&seven), looks(&eight)), (denied.clone(), denied));
    fs.chmod(&root(), dir, 0o755).expect("chmod");
    assert_eq!((looks(&seven), looks(&eight)), (Ok(()), Ok(())));
}

#[test]
fn what_is_made_inherits_in_one_transaction_and_the_umask_counts_only_without() {
    let fs = &fs();
    let masked = |bits| nacre_fs::NewMode::masked(bits, 0o077);
    let plain = fs.create(&root(), fs.root(), b"f", masked(0o666));
    let mode = |node| fs.getattr(node).expect("stat").mode & 0o7777;
    assert_eq!(mode(plain.expect("create")), 0o600);
    let dir = dir(fs, fs.root(), "d");
    set(fs, dir, DEFAULT, &for_seven(6, 4));
    let file = fs
        .create(&root(), dir, b"f", masked(0o666))
        .expect("create");
    assert_eq!(mode(file), 0o664);
    fs.access(&user(7), file, Access::WRITE).expect("listed");
    let other = fs.access(&user(8), file, Access::WRITE);
    assert_eq!(other, Err(FsError::PermissionDenied));
    let below = fs.mkdir(&root(), dir, b"d", masked(0o777)).expect("mkdir");
    let mut value = [0; 64];
    let len = fs
        .get_xattr(&root(), below, DEFAULT, &mut value)
        .expect("get");
    assert_eq!(value[..len], for_seven(6, 4));
}

#[test]
fn a_list_that_is_damaged_or_lost_lets_nobody_in_but_the_owner() {
    let fs = &fs();
    let file = file(fs, fs.root(), "f");
    fs.chmod(&root(), file, 0o777).expect("chmod");
    fs.chown(&root(), file, Some(5), Some(5)).expect("chown");
    let store = fs.store();
    let object = nacre_types::ObjectId(file.ino.0);
    let mark = |value: Option<&[u8]>| {
        let _guard = store.lock(object).expect("lock");
        let mut tx = store.begin().expect("begin");
        match value {
            Some(value) => tx.tree_insert(object, Tree::Xattrs, ACCESS, value),
            None => tx.tree_remove(object, Tree::Xattrs, ACCESS),
        }
        .expect("tree");
        tx.set_attrs(object, |attrs| attrs.flags |= FLAG_ACL)
            .expect("flags");
        tx.commit().expect("commit");
    };
    let reads = |cred: &Cred| fs.access(cred, file, Access::READ);
    for value in [&b"\x02"[..], &list(&[(1, 7, NOBODY)]), &[7; 60000]] {
        mark(Some(value));
        assert!(matches!(reads(&user(9)), Err(FsError::Corrupt(_))));
        assert_eq!(reads(&user(5)), Ok(()));
    }
    mark(None);
    assert_eq!(reads(&user(9)), Err(FsError::PermissionDenied));
    assert_eq!((reads(&user(5)), reads(&root())), (Ok(()), Ok(())));
}

#[test]
fn a_name_is_made_where_one_entry_allows_writing_and_searching_together() {
    let fs = &fs();
    let dir = dir(fs, fs.root(), "d");
    let two_groups = |first, second| {
        list(&[
            (1, 7, NOBODY),
            (4, 0, NOBODY),
            (8, first, 20),
            (8, second, 21),
            (16, 7, NOBODY),
            (32, 0, NOBODY),
        ])
    };
    let both = Cred::user(7, 20, vec![21]);
    let makes = || fs.mkdir(&both, dir, b"new", 0o755).map(|_| ());
    set(fs, dir, ACCESS, &two_groups(2, 1));
    assert_eq!(makes(), Err(FsError::PermissionDenied));
    set(fs, dir, ACCESS, &two_groups(0, 3));
    assert_eq!(makes(), Ok(()));
}
