use crate::pools::{dir, file, fs, root};
use nacre_fs::{FileType, Fs, InodeRef};
use std::collections::BTreeSet;

/// Lists in pieces of `piece` entries, each resumed from the cookie of the one before.
fn list_in_pieces(fs: &Fs, dir: InodeRef, piece: usize) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    let mut cookie = 0;
    loop {
        let before = all.len();
        fs.readdir(dir, cookie, &mut |group| {
            if all.len() - before >= piece {
                return false;
            }
            for entry in group {
                all.push(entry.name.to_vec());
                cookie = entry.next_cookie;
            }
            true
        })
        .expect("readdir");
        if all.len() == before {
            return all;
        }
    }
}

#[test]
fn the_dots_come_first() {
    let fs = fs();
    let a = dir(&fs, fs.root(), "a");
    let mut seen = Vec::new();
    fs.readdir(a, 0, &mut |group| {
        seen.extend(
            group
                .iter()
                .map(|e| (e.name.to_vec(), e.ino, e.file_type, e.next_cookie)),
        );
        true
    })
    .expect("readdir");
    let dot = (b".".to_vec(), a.ino, FileType::Directory, 1);
    let dot_dot = (b"..".to_vec(), fs.root().ino, FileType::Directory, 2);
    assert_eq!(seen, [dot, dot_dot]);
}

#[test]
fn pieces_of_any_size_give_every_name_once() {
    let fs = fs();
    let mut expected: BTreeSet<Vec<u8>> =
        (0..500).map(|i| format!("name{i}").into_bytes()).collect();
    for name in &expected {
        file(&fs, fs.root(), std::str::from_utf8(name).expect("utf-8"));
    }
    expected.extend([b".".to_vec(), b"..".to_vec()]);
    for piece in [1, 2, 3, 100, 1000] {
        let listed = list_in_pieces(&fs, fs.root(), piece);
        assert_eq!(listed.len(), expected.len());
        assert_eq!(listed.into_iter().collect::<BTreeSet<_>>(), expected);
    }
}

#[test]
fn cookies_survive_removal_while_listing() {
    let fs = fs();
    for i in 0..200 {
        file(&fs, fs.root(), &format!("f{i}"));
    }
    let mut removed = 0;
    let mut cookie = 2;
    loop {
        let mut found = None;
        fs.readdir(fs.root(), cookie, &mut |group| {
            if found.is_some() {
                return false;
            }
            found = Some((group[0].name.to_vec(), group[0].next_cookie));
            true
        })
        .expect("readdir");
        let Some((name, next)) = found else { break };
        fs.unlink(&root(), fs.root(), &name).expect("unlink");
        removed += 1;
        cookie = next;
    }
    assert_eq!(removed, 200);
}
