//! Sets and maps of a transaction: small as a rule, and perhaps very large.

use std::collections::BTreeSet;

use smallvec::SmallVec;

/// Sets up to this size are searched one by one.
const FEW: usize = 8;

/// A set.
#[derive(Default)]
pub(super) struct Few<T> {
    few: SmallVec<[T; FEW]>,
    more: BTreeSet<T>,
}

impl<T: Ord> Few<T> {
    pub(super) fn contains(&self, item: &T) -> bool {
        self.few.contains(item) || !self.more.is_empty() && self.more.contains(item)
    }

    /// True: it was not there.
    pub(super) fn insert(&mut self, item: T) -> bool {
        if self.few.contains(&item) {
            return false;
        }
        if self.few.len() < FEW {
            self.few.push(item);
            return true;
        }
        self.more.insert(item)
    }
}

impl<T: Ord> FromIterator<T> for Few<T> {
    fn from_iter<I: IntoIterator<Item = T>>(items: I) -> Self {
        let mut set = Few {
            few: SmallVec::new(),
            more: BTreeSet::new(),
        };
        for item in items {
            set.insert(item);
        }
        set
    }
}

/// What names stand for, by name in the order of their bytes.
pub(super) struct ByName<'t, T>(SmallVec<[(&'t [u8], T); 2]>);

impl<T> Default for ByName<'_, T> {
    fn default() -> Self {
        ByName(SmallVec::new())
    }
}

impl<'t, T: Copy> ByName<'t, T> {
    pub(super) fn get(&self, name: &[u8]) -> Option<T> {
        self.place(name).ok().map(|place| self.0[place].1)
    }

    /// What the name stood for before.
    pub(super) fn insert(&mut self, name: &'t [u8], thing: T) -> Option<T> {
        match self.place(name) {
            Ok(place) => Some(std::mem::replace(&mut self.0[place].1, thing)),
            Err(place) => {
                self.0.insert(place, (name, thing));
                None
            }
        }
    }

    pub(super) fn remove(&mut self, name: &[u8]) {
        if let Ok(place) = self.place(name) {
            self.0.remove(place);
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&'t [u8], T)> {
        self.0.iter().copied()
    }

    fn place(&self, name: &[u8]) -> Result<usize, usize> {
        self.0.binary_search_by(|(known, _)| (*known).cmp(name))
    }
}

#[cfg(test)]
mod tests {
    use super::{ByName, Few};

    #[test]
    fn sets_of_any_size_hold_each_item_once() {
        let mut set: Few<u64> = [3, 1, 3].into_iter().collect();
        assert!(set.contains(&3) && !set.contains(&2) && !set.insert(1));
        assert!((10..100).all(|item| set.insert(item)));
        assert!((10..100).all(|item| set.contains(&item) && !set.insert(item)));
    }

    #[test]
    fn names_are_found_and_come_in_order() {
        let mut map = ByName::default();
        for name in [&b"b"[..], b"a", b"c"] {
            assert_eq!(map.insert(name, name.len()), None);
        }
        assert_eq!(map.insert(b"b", 7), Some(1));
        map.remove(b"a");
        let all: Vec<_> = map.iter().collect();
        assert_eq!(all, [(&b"b"[..], 7), (b"c", 1)]);
        assert_eq!((map.get(b"a"), map.get(b"c")), (None, Some(1)));
    }
}
