//! What a transaction makes of the pages of an object: of few as a rule, or of many in a row.

use std::collections::BTreeMap;

use smallvec::SmallVec;

/// Pages that come in between go into a list up to this length.
const SHORT: usize = 32;

/// What becomes of pages, by their numbers, in order. One of both holds all.
pub(crate) struct Pages<T> {
    row: SmallVec<[(u64, T); 2]>,
    tree: BTreeMap<u64, T>,
}

impl<T> Default for Pages<T> {
    fn default() -> Self {
        Pages {
            row: SmallVec::new(),
            tree: BTreeMap::new(),
        }
    }
}

impl<T: Copy> Pages<T> {
    pub(crate) fn get(&self, page: u64) -> Option<T> {
        match self.tree.is_empty() {
            true => self.place(page).ok().map(|place| self.row[place].1),
            false => self.tree.get(&page).copied(),
        }
    }

    /// What the page was before.
    pub(crate) fn insert(&mut self, page: u64, state: T) -> Option<T> {
        if !self.tree.is_empty() {
            return self.tree.insert(page, state);
        }
        match self.place(page) {
            Ok(place) => Some(std::mem::replace(&mut self.row[place].1, state)),
            Err(place) if place == self.row.len() || self.row.len() < SHORT => {
                self.row.insert(place, (page, state));
                None
            }
            Err(_) => {
                self.tree.extend(self.row.drain(..));
                self.tree.insert(page, state)
            }
        }
    }

    /// The first page that is not before `page`.
    pub(crate) fn next_from(&self, page: u64) -> Option<u64> {
        match self.tree.is_empty() {
            true => {
                let (Ok(place) | Err(place)) = self.place(page);
                self.row.get(place).map(|entry| entry.0)
            }
            false => self.tree.range(page..).next().map(|entry| *entry.0),
        }
    }

    /// Takes the pages from `first` on away.
    pub(crate) fn split_off(&mut self, first: u64) -> Vec<T> {
        let (Ok(place) | Err(place)) = self.place(first);
        let beyond = self.row.drain(place..).map(|(_, state)| state);
        let beyond: Vec<T> = beyond.collect();
        match self.tree.is_empty() {
            true => beyond,
            false => self.tree.split_off(&first).into_values().collect(),
        }
    }

    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = (u64, T)> {
        let tree = self.tree.iter().map(|(&page, &state)| (page, state));
        self.row.iter().copied().chain(tree)
    }

    /// The place of a page in the row, or where it would come.
    fn place(&self, page: u64) -> Result<usize, usize> {
        match self.row.last() {
            Some(&(last, _)) if page <= last => self.row.binary_search_by_key(&page, |p| p.0),
            _ => Err(self.row.len()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::{Pages, SHORT};

    #[test]
    fn pages_in_any_order_are_those_of_a_map() {
        let mut dice = 1_u64;
        for spread in [4, 3 * SHORT as u64, 10_000] {
            let (mut pages, mut model) = (Pages::default(), BTreeMap::new());
            for round in 0..400 {
                dice = dice.wrapping_mul(6364136223846793005).wrapping_add(1);
                let page = match round % 3 {
                    0 => dice >> 33,
                    _ => round,
                } % spread;
                assert_eq!(pages.get(page), model.get(&page).copied());
                assert_eq!(pages.insert(page, round), model.insert(page, round));
                let next = model.range(round..).next().map(|(&page, _)| page);
                assert_eq!(pages.next_from(round), next);
                if round % 97 == 96 {
                    let cut: Vec<u64> = model.split_off(&(spread / 2)).into_values().collect();
                    assert_eq!(pages.split_off(spread / 2), cut);
                }
                assert!(pages.iter().eq(model.iter().map(|(&p, &s)| (p, s))));
            }
        }
    }
}
