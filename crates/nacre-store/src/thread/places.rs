//! Finding things in the lists of a transaction, which are short as a rule and may be very long.

use std::collections::HashMap;
use std::hash::Hash;

/// Lists up to this length are searched one by one.
const SHORT: usize = 16;

/// Where the things of a long list lie, by their keys.
pub(crate) struct Places<K>(HashMap<K, usize>);

impl<K> Default for Places<K> {
    fn default() -> Self {
        Places(HashMap::new())
    }
}

impl<K: Copy + Eq + Hash> Places<K> {
    /// The last one with this key. `list` is what [`Places::pushed`] was told of.
    #[inline]
    pub(crate) fn find<T>(&self, list: &[T], wanted: K, key: impl Fn(&T) -> K) -> Option<usize> {
        match list.len() <= SHORT {
            true => list.iter().rposition(|thing| key(thing) == wanted),
            false => self.0.get(&wanted).copied(),
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
            self.0.insert(key(thing), place);
        }
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
        self.0.remove(&gone);
        if let Some(moved) = list.get(place) {
            self.0.insert(key(moved), place);
        }
    }

    /// The thing at `place` has another key than before. The old one may still be found.
    pub(crate) fn moved<T>(&mut self, list: &[T], place: usize, key: impl Fn(&T) -> K) {
        if list.len() > SHORT {
            self.0.insert(key(&list[place]), place);
        }
    }

    /// The list is empty.
    #[inline]
    pub(crate) fn clear(&mut self) {
        if self.0.capacity() > 0 {
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
