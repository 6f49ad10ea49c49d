//! The names that the kernel keeps (D109).
//!
//! The kernel gives names no versions. But it holds the lock of the folder while it makes a name,
//! or looks for one that it does not know, until it has the answer; and it takes that lock to let
//! one expire. So such answers can be called back. When it asks again for a name that it knows it
//! holds no lock. It is noted when that was, and who makes it forget waits until the answer has
//! arrived.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a name is good. It is called back before that. Who walks along it asks for the
/// attributes of its folder once a second, so a dead server is noticed.
pub(crate) const NAME_KEPT: Duration = Duration::from_secs(24 * 3600);
/// How long it is good that there is no such name. The kernel does not tell when it drops one.
pub(crate) const ABSENCE_KEPT: Duration = Duration::from_secs(10);
/// Most names that are known to be missing, in each half.
const ABSENT_MOST: usize = 1 << 16;
/// So many names of one inode are looked through.
const MANY: usize = 8;
/// An answer to a question that was asked without a lock has arrived after that.
pub(crate) const ARRIVED: Duration = Duration::from_millis(200);

/// A folder, and a name in it.
pub(crate) type Name = (u64, Box<[u8]>);

/// The kernel knows a name of an inode.
#[derive(Clone, Copy)]
struct Record {
    number: u64,
    /// It may use it without asking.
    kept: bool,
    /// Which answer or change has brought it here.
    stamp: u64,
}

/// Whatever the kernel knows is here. What is here it may have dropped.
#[derive(Default)]
pub(crate) struct Names {
    present: HashMap<Arc<Name>, Record>,
    of: HashMap<u64, Vec<Arc<Name>>>,
    /// Those of now, and those of before.
    absent: [HashSet<Name>; 2],
    absent_since: Option<Instant>,
    asked_again: Option<Instant>,
    stamps: u64,
}

impl Names {
    /// The kernel gets to know a name of an inode. It holds the lock of the folder if it has `made`
    /// the name, or did not know it.
    pub(crate) fn found(&mut self, name: Name, number: u64, kept: bool, made: bool) {
        if kept && !made && self.present.contains_key(&name) {
            self.asked_again = Some(Instant::now());
        }
        self.insert(Arc::new(name), number, kept);
    }

    fn insert(&mut self, name: Arc<Name>, number: u64, kept: bool) {
        self.stamps += 1;
        let stamp = self.stamps;
        let record = Record {
            number,
            kept,
            stamp,
        };
        match self.present.get_mut(&name) {
            Some(known) if known.number == number => *known = record,
            _ => {
                self.present.remove(&name);
                self.present.insert(name.clone(), record);
                self.note(name, number);
            }
        }
    }

    /// Notes one more name of an inode. Those that it has no more go whenever they are many.
    fn note(&mut self, name: Arc<Name>, number: u64) {
        let all = self.of.entry(number).or_default();
        if all.len() >= MANY && all.len().is_power_of_two() {
            let current = |one: &Arc<Name>| {
                let known = self.present.get_key_value(one);
                known.is_some_and(|(name, _)| Arc::ptr_eq(name, one))
            };
            all.retain(current);
        }
        all.push(name);
    }

    /// The kernel may take it for granted that there is no such name. `false`: too many.
    pub(crate) fn missed(&mut self, name: Name) -> bool {
        let now = Instant::now();
        let since = *self.absent_since.get_or_insert(now);
        let [current, before] = &mut self.absent;
        if now.duration_since(since) > ABSENCE_KEPT {
            *before = std::mem::take(current);
            self.absent_since = Some(now);
        }
        if current.len() >= ABSENT_MOST {
            return current.contains(&name);
        }
        current.insert(name);
        true
    }

    /// A name has gone, as the kernel asked for it.
    pub(crate) fn removed(&mut self, name: &Name) {
        self.present.remove(name);
    }

    /// What the kernel knows by a name has another one now, as the kernel asked for it.
    pub(crate) fn moved(&mut self, from: Name, to: Name, exchanged: bool) {
        let (first, second) = (self.present.remove(&from), self.present.remove(&to));
        if let Some(second) = second.filter(|_| exchanged) {
            self.insert(Arc::new(from), second.number, second.kept);
        }
        if let Some(first) = first {
            self.insert(Arc::new(to), first.number, first.kept);
        }
    }

    /// The kernel has dropped an inode, and so all its names.
    pub(crate) fn dropped(&mut self, number: u64) {
        for name in self.of.remove(&number).unwrap_or_default() {
            let record = self.present.get(&name);
            if record.is_some_and(|record| record.number == number) {
                self.present.remove(&name);
            }
        }
    }

    /// All that the kernel may use without asking, each with a stamp for [`Names::called_back`].
    /// Those that are missing are given out once.
    pub(crate) fn kept(&mut self) -> Vec<(Arc<Name>, u64)> {
        let kept = self.present.iter().filter(|(_, record)| record.kept);
        let present = kept.map(|(name, record)| (name.clone(), record.stamp));
        let absent = self.absent.iter_mut().flat_map(HashSet::drain);
        let absent = absent.map(|name| (Arc::new(name), 0));
        present.chain(absent).collect()
    }

    /// The kernel was told to ask for a name again; not for one that has come there meanwhile.
    pub(crate) fn called_back(&mut self, name: &Arc<Name>, stamp: u64) {
        let record = self.present.get_mut(name);
        if let Some(record) = record.filter(|record| record.stamp == stamp) {
            record.kept = false;
        }
    }

    /// Whether an answer to what was asked without a lock may still be on its way.
    pub(crate) fn may_be_on_the_way(&self) -> bool {
        self.asked_again
            .is_some_and(|asked| asked.elapsed() < ARRIVED)
    }
}

#[cfg(test)]
mod tests {
    use super::{ABSENT_MOST, MANY, Name, Names};

    fn name(folder: u64, name: &[u8]) -> Name {
        (folder, name.into())
    }

    fn kept(names: &mut Names) -> Vec<Name> {
        let kept = names.kept();
        let mut all: Vec<Name> = kept.iter().map(|(name, _)| (**name).clone()).collect();
        all.sort();
        all
    }

    #[test]
    fn what_the_kernel_may_use_is_called_back() {
        let mut names = Names::default();
        names.found(name(1, b"a"), 5, true, false);
        names.found(name(1, b"b"), 6, false, false);
        assert!(names.missed(name(1, b"c")));
        assert!(!names.may_be_on_the_way());
        let all = names.kept();
        assert_eq!(all.len(), 2, "b is asked for each time");
        for (name, stamp) in &all {
            names.called_back(name, *stamp);
        }
        assert!(kept(&mut names).is_empty());
        names.found(name(1, b"a"), 5, true, true);
        assert!(
            !names.may_be_on_the_way(),
            "made under the lock of its folder"
        );
        names.found(name(1, b"b"), 6, true, false);
        assert!(names.may_be_on_the_way(), "the kernel knew it already");
    }

    #[test]
    fn a_name_that_comes_meanwhile_is_called_back_by_itself() {
        let mut names = Names::default();
        names.found(name(1, b"a"), 5, true, false);
        names.found(name(1, b"b"), 6, true, false);
        let all = names.kept();
        names.moved(name(1, b"a"), name(1, b"b"), false);
        for (name, stamp) in &all {
            names.called_back(name, *stamp);
        }
        assert_eq!(kept(&mut names), [name(1, b"b")]);
        names.moved(name(1, b"b"), name(2, b"d"), true);
        assert_eq!(kept(&mut names), [name(2, b"d")]);
        names.dropped(5);
        assert!(kept(&mut names).is_empty());
    }

    #[test]
    fn names_follow_exchanges_and_removals() {
        let mut names = Names::default();
        names.found(name(1, b"a"), 5, true, false);
        names.found(name(2, b"b"), 6, false, false);
        names.moved(name(1, b"a"), name(2, b"b"), true);
        assert_eq!(kept(&mut names), [name(2, b"b")]);
        names.dropped(6);
        names.removed(&name(2, b"b"));
        assert!(kept(&mut names).is_empty());
    }

    #[test]
    fn who_is_renamed_often_has_few_names() {
        let mut names = Names::default();
        names.found(name(1, b"a"), 5, true, true);
        for _ in 0..1000 {
            names.moved(name(1, b"a"), name(1, b"b"), false);
            names.moved(name(1, b"b"), name(1, b"a"), false);
            names.found(name(1, b"c"), 5, true, true);
            names.removed(&name(1, b"c"));
        }
        assert!(names.of[&5].len() <= 2 * MANY, "{}", names.of[&5].len());
        names.dropped(5);
        assert!(kept(&mut names).is_empty());
    }

    #[test]
    fn so_many_are_known_to_be_missing() {
        let mut names = Names::default();
        for number in 0..ABSENT_MOST as u64 {
            assert!(names.missed((number, [].into())));
        }
        assert!(!names.missed(name(0, b"one more")));
        assert!(names.missed((0, [].into())), "it is there already");
        assert_eq!(kept(&mut names).len(), ABSENT_MOST);
        assert!(names.missed(name(0, b"one more")));
    }
}
