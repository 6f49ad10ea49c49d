//! What may be seen after a crash.

use std::fmt::Write;

use nacre_fs::{FileType, Fs};
use nacre_store::check::check;

use crate::action::{Action, Torn};
use crate::visible::{Seen, Visible, look, part};

/// What one program may find: its operation that a crash cuts short, and where it works.
#[derive(Clone)]
pub struct Contract<'v> {
    /// The directory; empty for the root.
    pub home: &'static str,
    /// What was seen before it.
    pub before: &'v Visible,
    /// What was seen after it.
    pub after: &'v Visible,
    /// What it may leave half done.
    pub torn: Option<Torn>,
    /// The operation that has just returned, and nothing since.
    pub returned: Option<Action>,
    /// What was seen before that one.
    pub older: Option<&'v Visible>,
}

/// Checks a pool and looks at it.
pub fn examine(fs: &Fs) -> Result<Visible, String> {
    let store = fs.store();
    if store.report().problems > 0 {
        return Err(format!("the scan met {} problems", store.report().problems));
    }
    let report = check(store, &mut |_| {});
    if let Some(problem) = report.problems.first() {
        return Err(format!("check: {problem}"));
    }
    let counts = report.counts;
    if counts.leaked_units + counts.beyond_eof + counts.unlinked > 0 {
        return Err(format!("recovery left something over: {counts:?}"));
    }
    look(fs)
}

impl Contract<'_> {
    /// Whether a crash may leave this.
    pub fn judge(&self, seen: &Visible) -> Result<(), String> {
        match self.home {
            "" => self.judge_part(seen),
            home => self.judge_part(&part(seen, home)),
        }
    }

    fn judge_part(&self, seen: &Visible) -> Result<(), String> {
        if seen == self.before {
            return self.judge_promises(seen);
        }
        if seen == self.after {
            return Ok(());
        }
        if let Some(torn) = self.torn
            && self.is_mixture(seen, torn)
        {
            return Ok(());
        }
        let mut text = String::from("what is seen is not allowed");
        for (name, allowed) in [("before", self.before), ("after", self.after)] {
            // Writing to a string cannot fail.
            let _ = write!(text, "; against {name}: {}", difference(seen, allowed));
        }
        Err(text)
    }

    /// What some operations promise besides: space is reserved, times are durable.
    fn judge_promises(&self, seen: &Visible) -> Result<(), String> {
        let Some(action) = self.returned else {
            return Ok(());
        };
        self.judge_directory_times(seen)?;
        let path = action.path().as_bytes();
        if let Some((now, older)) = seen
            .get(path)
            .zip(self.older.and_then(|seen| seen.get(path)))
        {
            judge_gap(action, older, now)?;
        }
        let Some((now, then)) = seen.get(path).zip(self.before.get(path)) else {
            return Ok(());
        };
        let (now, then) = (now.lazy, then.lazy);
        match action {
            Action::Allocate(..) if now.blocks != then.blocks => {
                Err(format!("{} blocks instead of {}", now.blocks, then.blocks))
            }
            Action::Fsync(_) | Action::Store(..) | Action::Utimens(_)
                if now.times != then.times =>
            {
                Err(format!("times {:?} instead of {:?}", now.times, then.times))
            }
            _ => Ok(()),
        }
    }

    /// Times of directories lag by less than a second.
    fn judge_directory_times(&self, seen: &Visible) -> Result<(), String> {
        const SECOND: i64 = 1_000_000_000;
        let of_directory =
            |seen: &&Seen| FileType::from_mode(seen.attributes[1]) == Some(FileType::Directory);
        let directories = self.before.iter().filter(|(_, then)| of_directory(then));
        for (path, then) in directories {
            let Some(now) = seen.get(path) else { continue };
            let (now, then) = (now.lazy.times, then.lazy.times);
            if (0..2).any(|time| now[time].0 / SECOND != then[time].0 / SECOND) {
                return Err(format!(
                    "times of {:?} lag: {now:?} instead of {then:?}",
                    String::from_utf8_lossy(path)
                ));
            }
        }
        Ok(())
    }

    fn is_mixture(&self, seen: &Visible, torn: Torn) -> bool {
        let same_names = seen.len() == self.before.len() && seen.len() == self.after.len();
        same_names
            && seen.iter().all(|(path, now)| {
                let pair = self.before.get(path).zip(self.after.get(path));
                pair.is_some_and(|(old, new)| {
                    now == old || now == new || (now.ino == torn.ino && mixed(now, old, new, torn))
                })
            })
    }
}

/// What an end has moved over reads as zeros. What is seen after an operation is no yardstick for
/// that: it comes from the same store.
fn judge_gap(action: Action, older: &Seen, now: &Seen) -> Result<(), String> {
    let (Action::Truncate(..) | Action::Mapped(_, &Action::Truncate(..))) = action else {
        return Ok(());
    };
    let gap = now.bytes.get(older.bytes.len()..).unwrap_or_default();
    match gap.iter().position(|&byte| byte != 0) {
        Some(at) => Err(format!(
            "byte {} behind the old end is not zero",
            older.bytes.len() + at
        )),
        None => Ok(()),
    }
}

fn mixed(now: &Seen, old: &Seen, new: &Seen, torn: Torn) -> bool {
    let sizes = old.size.min(new.size)..=old.size.max(new.size);
    let same = now.attributes == old.attributes && now.xattrs == old.xattrs;
    let byte = |seen: &Seen, at: usize| seen.bytes.get(at).copied().unwrap_or(0);
    same && sizes.contains(&now.size)
        && now.bytes.len() as u64 == now.size
        && (0..now.bytes.len()).all(|at| {
            let (is, was, becomes) = (byte(now, at), byte(old, at), byte(new, at));
            let inside = (torn.start..torn.end).contains(&(at as u64));
            is == was || (inside && (is == becomes || (torn.zeros && is == 0)))
        })
}

/// The first difference, in words.
fn difference(seen: &Visible, allowed: &Visible) -> String {
    let name = |path: &[u8]| format!("/{}", String::from_utf8_lossy(&path[..path.len().min(40)]));
    for (path, now) in seen {
        let Some(then) = allowed.get(path) else {
            return format!("{} should not be there", name(path));
        };
        if now != then {
            return format!("{} {}", name(path), inode_difference(now, then));
        }
    }
    match allowed.keys().find(|path| !seen.contains_key(*path)) {
        Some(path) => format!("{} is missing", name(path)),
        None => "none".into(),
    }
}

fn inode_difference(now: &Seen, then: &Seen) -> String {
    if now.ino != then.ino {
        return format!("is inode {}, not {}", now.ino, then.ino);
    }
    if now.attributes != then.attributes || now.size != then.size {
        let (a, b) = (now.attributes, then.attributes);
        return format!("has {a:?} size {}, not {b:?} size {}", now.size, then.size);
    }
    if now.xattrs != then.xattrs {
        return "has other attributes".into();
    }
    let at = now.bytes.iter().zip(&then.bytes).position(|(a, b)| a != b);
    let at = at.unwrap_or(now.bytes.len().min(then.bytes.len()));
    let byte = |seen: &Seen| seen.bytes.get(at).copied();
    format!("has byte {at} {:?}, not {:?}", byte(now), byte(then))
}
