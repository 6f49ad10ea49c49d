use crate::pools::{assert_sound, dir, file, fs, root, user};
use nacre_fs::{Cred, Fs, FsError, InodeRef, XattrFlags};

fn set(fs: &Fs, node: InodeRef, name: &str, value: &[u8]) -> Result<(), FsError> {
    fs.set_xattr(&root(), node, name.as_bytes(), value, XattrFlags::empty())
}

fn get(fs: &Fs, node: InodeRef, name: &str) -> Result<Vec<u8>, FsError> {
    let mut value = vec![0; 65536];
    let len = fs.get_xattr(&root(), node, name.as_bytes(), &mut value)?;
    value.truncate(len);
    Ok(value)
}

#[test]
fn values_of_all_sizes_come_back() {
    let fs = fs();
    let node = file(&fs, fs.root(), "a");
    for len in [0, 1, 500, 1500, 5000, 65536] {
        let name = format!("user.v{len}");
        let value: Vec<u8> = (0..len).map(|i| i as u8).collect();
        set(&fs, node, &name, &value).expect("set");
        assert_eq!(get(&fs, node, &name), Ok(value));
        assert_eq!(
            fs.get_xattr(&root(), node, name.as_bytes(), &mut []),
            Ok(len)
        );
    }
    assert_eq!(
        set(&fs, node, "user.big", &vec![0; 65537]),
        Err(FsError::AttributeTooBig)
    );
    assert_sound(&fs);
    fs.unlink(&root(), fs.root(), b"a").expect("unlink");
    assert_sound(&fs);
}

#[test]
fn replaced_and_removed_values() {
    let fs = fs();
    let node = file(&fs, fs.root(), "a");
    let with = |name: &[u8], flags| fs.set_xattr(&root(), node, name, b"x", flags);
    assert_eq!(
        with(b"user.a", XattrFlags::REPLACE),
        Err(FsError::NoAttribute)
    );
    with(b"user.a", XattrFlags::CREATE).expect("create");
    assert_eq!(with(b"user.a", XattrFlags::CREATE), Err(FsError::Exists));
    set(&fs, node, "user.a", b"longer").expect("replace");
    assert_eq!(get(&fs, node, "user.a"), Ok(b"longer".to_vec()));
    // Both can never be, whatever is there.
    assert_eq!(with(b"user.a", XattrFlags::all()), Err(FsError::Exists));
    let both = with(b"user.b", XattrFlags::all());
    assert_eq!(both, Err(FsError::NoAttribute));
    fs.remove_xattr(&root(), node, b"user.a").expect("remove");
    assert_eq!(get(&fs, node, "user.a"), Err(FsError::NoAttribute));
    assert_eq!(
        fs.remove_xattr(&root(), node, b"user.a"),
        Err(FsError::NoAttribute)
    );
}

#[test]
fn a_refused_flag_changes_nothing() {
    let fs = fs();
    let node = file(&fs, fs.root(), "a");
    set(&fs, node, "user.a", b"old").expect("set");
    let refused = fs.set_xattr(&root(), node, b"user.a", b"new", XattrFlags::CREATE);
    assert_eq!(refused, Err(FsError::Exists));
    assert_eq!(get(&fs, node, "user.a"), Ok(b"old".to_vec()));
}

#[test]
fn names_are_checked() {
    let fs = fs();
    let node = file(&fs, fs.root(), "a");
    let long = format!("user.{}", "n".repeat(251));
    assert_eq!(set(&fs, node, &long, b""), Err(FsError::RangeTooSmall));
    assert_eq!(set(&fs, node, "", b""), Err(FsError::RangeTooSmall));
    assert_eq!(set(&fs, node, "user.", b""), Err(FsError::Invalid));
    for name in ["other.a", "nodot", "system.nfs4_acl"] {
        assert_eq!(
            set(&fs, node, name, b""),
            Err(FsError::Unsupported),
            "{name}"
        );
        assert_eq!(get(&fs, node, name), Err(FsError::Unsupported), "{name}");
    }
}

#[test]
fn the_list_fits_or_says_so() {
    let fs = fs();
    let node = file(&fs, fs.root(), "a");
    assert_eq!(fs.list_xattr(&root(), node, &mut []), Ok(0));
    set(&fs, node, "user.one", b"1").expect("set");
    set(&fs, node, "trusted.two", b"2").expect("set");
    let mut list = [0; 64];
    let len = fs.list_xattr(&root(), node, &mut list).expect("list");
    let mut names: Vec<&[u8]> = list[..len]
        .split(|&b| b == 0)
        .filter(|n| !n.is_empty())
        .collect();
    names.sort();
    assert_eq!(names, [&b"trusted.two"[..], b"user.one"]);
    assert_eq!(
        fs.list_xattr(&root(), node, &mut [0; 3]),
        Err(FsError::RangeTooSmall)
    );
    assert_eq!(fs.list_xattr(&user(5), node, &mut []), Ok(9));
    assert_eq!(fs.get_xattr(&root(), node, b"user.one", &mut [0; 0]), Ok(1));
}

#[test]
fn each_namespace_has_its_rules() {
    let fs = fs();
    let node = file(&fs, fs.root(), "a");
    let set_as = |cred: &Cred, node, name: &str| {
        fs.set_xattr(cred, node, name.as_bytes(), b"v", XattrFlags::empty())
    };
    let stranger = user(5);
    assert_eq!(
        set_as(&stranger, node, "user.a"),
        Err(FsError::PermissionDenied)
    );
    assert_eq!(
        set_as(&stranger, node, "trusted.a"),
        Err(FsError::NotPermitted)
    );
    assert_eq!(
        set_as(&stranger, node, "security.a"),
        Err(FsError::NotPermitted)
    );
    set(&fs, node, "trusted.a", b"v").expect("set");
    assert_eq!(
        fs.get_xattr(&stranger, node, b"trusted.a", &mut []),
        Err(FsError::NoAttribute)
    );
    set(&fs, node, "security.a", b"v").expect("set");
    assert_eq!(fs.get_xattr(&stranger, node, b"security.a", &mut []), Ok(1));
    let link = fs.symlink(&root(), fs.root(), b"l", b"t").expect("symlink");
    assert_eq!(set_as(&root(), link, "user.a"), Err(FsError::NotPermitted));
    assert_eq!(
        fs.get_xattr(&root(), link, b"user.a", &mut []),
        Err(FsError::NoAttribute)
    );
    let sticky = dir(&fs, fs.root(), "sticky");
    fs.chmod(&root(), sticky, 0o1777).expect("chmod");
    assert_eq!(
        set_as(&stranger, sticky, "user.a"),
        Err(FsError::NotPermitted)
    );
    set_as(&root(), sticky, "user.a").expect("set");
}
