//! Finding things in the lists of a transaction, which are short as a rule and may be very long.

use std::cell::Cell;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hash, Hasher};

/// Lists up to this length are searched one by one.
const SHORT: usize = 16;

/// Where the things of a long list lie, by their keys.
pub(crate) struct Places<K> {
    known: HashMap<K, usize, BuildHasherDefault<NumberHasher>>,
    /// What was looked for or came last: several steps in a row are about the same thing. There is
    /// no later one with its key.
    last: Cell<usize>,
}

/// Hashes numbers of objects and units, which come in rows: a multiplication parts them.
#[derive(Default)]
struct NumberHasher(u64);

impl Hasher for NumberHasher {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_u64(byte.into()));
    }

    #[inline]
    fn write_u64(&mut self, number: u64) {
        self.0 = (self.0 ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    #[inline]
    fn finish(&self) -> u64 {
        self.0.rotate_left(32)
    }
}

impl<K> Default for Places<K> {
    fn default() -> Self {
        Places {
            known: HashMap::default(),
            last: Cell::default(),
        }
    }
}

impl<K: Copy + Eq + Hash> Places<K> {
    /// The last one with this key. `list` is what [`Places::pushed`] was told of.
    #[inline]
    pub(crate) fn find<T>(&self, list: &[T], wanted: K, key: impl Fn(&T) -> K) -> Option<usize> {
        match list.len() <= SHORT {
            true => list.iter().rposition(|thing| key(thing) == wanted),
            false => self.find_in_long(list, wanted, key),
        }
    }

    #[inline]
    fn find_in_long<T>(&self, list: &[T], wanted: K, key: impl Fn(&T) -> K) -> Option<usize> {
        let last = self.last.get();
        if list.get(last).is_some_and(|thing| key(thing) == wanted) {
            return Some(last);
        }
        let place = self.known.get(&wanted).copied()?;
        self.last.set(place);
        Some(place)
    }

    /// The list will become that long.
    pub(crate) fn expect(&mut self, len: usize) {
        if len > SHORT {
            self.known.reserve(len);
        }
    }

    /// The list has become longer by one.
    #[inline]
    pub(crate) fn pushed<T>(&mut self, list: &[T], key: impl Fn(&T) -> K) {
        if list.len() > SHORT {
            self.push_slow(list, key);
        }
    }

    #[cold]
    fn push_slow<T>(&mut self, list: &[T], key: impl Fn(&T) -> K) {
        let known = match list.len() == SHORT + 1 {
            true => 0,
            false => list.len() - 1,
        };
        for (place, thing) in list.iter().enumerate().skip(known) {
            self.known.insert(key(thing), place);
        }
        self.last.set(list.len() - 1);
    }

    /// `swap_remove` has taken a thing of key `gone` from `place` of the list.
    pub(crate) fn swap_removed<T>(
        &mut self,
        list: &[T],
        place: usize,
        gone: K,
        key: impl Fn(&T) -> K,
    ) {
        if list.len() <= SHORT {
            // A list that grows again is told of as a whole.
            return self.clear();
        }
        self.known.remove(&gone);
        if let Some(moved) = list.get(place) {
            self.known.insert(key(moved), place);
        }
    }

    /// The thing at `place` has another key than before. The old one may still be found.
    pub(crate) fn moved<T>(&mut self, list: &[T], place: usize, key: impl Fn(&T) -> K) {
        if list.len() > SHORT {
            self.known.insert(key(&list[place]), place);
            self.last.set(place);
        }
    }

    /// The list is empty.
    #[inline]
    pub(crate) fn clear(&mut self) {
        if self.known.capacity() > 0 {
            *self = Places::default();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Places;

    /// As a list that is searched one by one.
    #[test]
    fn places_are_those_of_the_list() {
        let mut places = Places::default();
        let mut list: Vec<u64> = Vec::new();
        let key = |thing: &u64| *thing;
        for round in 0..2000_u64 {
            let number = round.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 58;
            match list.iter().position(|&known| known == number) {
                Some(place) if round % 3 > 0 => {
                    list.swap_remove(place);
                    places.swap_removed(&list, place, number, key);
                }
                Some(_) => {}
                None => {
                    list.push(number);
                    places.pushed(&list, key);
                }
            }
            for wanted in 0..64 {
                let place = list.iter().position(|&known| known == wanted);
                assert_eq!(places.find(&list, wanted, key), place, "round {round}");
            }
        }
        places.clear();
        assert_eq!(places.find(&[], 1, key), None);
    }
}
