//! Shadows of watches, in a folder where all users of the pool may make names.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use nacre_session::{Message, Session};
use tempfile::TempDir;

use crate::files::made;

const NODES: &str = "session.nodes";

/// A session with a watch, and a private folder of its user.
fn watched() -> (TempDir, Session, u64, PathBuf) {
    let (folder, _, session) = made(1);
    let watch = session.new_watch_id();
    session.make_shadow(watch).unwrap();
    let home = folder.path().join("home");
    fs::create_dir(&home).unwrap();
    fs::set_permissions(&home, fs::Permissions::from_mode(0o700)).unwrap();
    fs::write(home.join("diary"), "dear").unwrap();
    (folder, session, watch, home)
}

fn tell(session: &Session, watch: u64) {
    for name in [&b"short"[..], &[b'n'; 250]] {
        session.ring(&Message {
            watch,
            events: 256,
            cookie: 0,
            name,
            linked: false,
        });
    }
}

fn names(folder: &Path) -> usize {
    fs::read_dir(folder).unwrap().count()
}

/// Whatever is made in the folder, or taken from it, shows in its time of change.
fn assert_untouched(folder: &Path, act: impl FnOnce()) {
    let look = || {
        let found = fs::metadata(folder).unwrap();
        (found.modified().unwrap(), found.mode(), names(folder))
    };
    let before = look();
    act();
    assert_eq!(look(), before);
}

#[test]
fn a_link_in_a_shadows_place_leads_nowhere() {
    let (folder, session, watch, home) = watched();
    let shadow = folder.path().join(NODES).join(Session::shadow_name(watch));
    tell(&session, watch);
    assert_eq!(names(&shadow), 1, "the long name stands in a link");
    session.remove_shadow(watch);
    assert!(!shadow.exists());
    symlink(&home, &shadow).unwrap();
    assert_untouched(&home, || {
        tell(&session, watch);
        assert_eq!(session.linked_name(watch, b"diary"), None);
        session.remove_shadow(watch);
        assert!(session.make_shadow(watch).is_err());
    });
}

#[test]
fn a_link_in_the_place_of_the_folder_of_nodes_leads_nowhere() {
    let (folder, session, watch, _) = watched();
    let nodes = folder.path().join(NODES);
    session.remove_shadow(watch);
    fs::remove_dir(&nodes).unwrap();
    let trap = folder.path().join("trap");
    let shadow = trap.join(Session::shadow_name(watch));
    fs::create_dir_all(&shadow).unwrap();
    symlink(&trap, &nodes).unwrap();
    assert_untouched(&shadow, || {
        tell(&session, watch);
        session.remove_shadow(watch);
    });
    assert_untouched(&trap, || assert!(session.make_shadow(watch + 1).is_err()));
}

#[test]
fn what_is_left_in_a_shadow_goes_with_it() {
    let (folder, session, watch, _) = watched();
    let shadow = folder.path().join(NODES).join(Session::shadow_name(watch));
    assert_eq!(fs::metadata(&shadow).unwrap().mode() & 0o777, 0o777);
    fs::write(shadow.join("left"), "").unwrap();
    session.remove_shadow(watch);
    assert!(!shadow.exists());
}
