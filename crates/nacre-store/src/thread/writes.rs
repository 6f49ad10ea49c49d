//! Bytes that a transaction's record brings to units that are in use.

use std::collections::BTreeMap;

use nacre_types::{StoreKind, UNIT_SIZE, VolumeOffset};

/// Lists up to this length are searched one by one.
const SHORT: usize = 32;

/// Where bytes go, the bytes, and what they are.
type Write = (VolumeOffset, Vec<u8>, StoreKind);

/// Writes in their order, found by the unit in which they begin.
#[derive(Default)]
pub(crate) struct Writes {
    /// Those that are forgotten have no bytes.
    list: Vec<Write>,
    /// Of a long list: places in it.
    of_units: BTreeMap<u64, Vec<usize>>,
}

fn unit_of(at: VolumeOffset) -> u64 {
    at.0 / UNIT_SIZE
}

impl Writes {
    pub(crate) fn push(&mut self, at: VolumeOffset, bytes: &[u8], kind: StoreKind) {
        self.list.push((at, bytes.to_vec(), kind));
        let first = match self.list.len() {
            0..=SHORT => return,
            _ if self.of_units.is_empty() => 0,
            len => len - 1,
        };
        for (place, write) in self.list.iter().enumerate().skip(first) {
            let places = self.of_units.entry(unit_of(write.0)).or_default();
            places.push(place);
        }
    }

    /// All that were not forgotten.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Write> {
        self.list.iter().filter(|write| !write.1.is_empty())
    }

    /// Those that begin in the unit at `start`.
    pub(crate) fn of_unit(&self, start: VolumeOffset) -> impl Iterator<Item = &Write> {
        let unit = unit_of(start);
        let known = self.of_units.get(&unit).map(Vec::as_slice);
        let short = match self.of_units.is_empty() {
            true => &self.list[..],
            false => &[],
        };
        let found = known.unwrap_or_default().iter();
        let all = found.map(|&place| &self.list[place]).chain(short);
        all.filter(move |write| !write.1.is_empty() && unit_of(write.0) == unit)
    }

    /// Nobody needs those that begin in the unit at `start`.
    pub(crate) fn forget_unit(&mut self, start: VolumeOffset) {
        let unit = unit_of(start);
        if self.of_units.is_empty() {
            self.list.retain(|write| unit_of(write.0) != unit);
            return;
        }
        // The unit keeps its row, so that the index of a long list is never empty.
        let places = self.of_units.get_mut(&unit).map(std::mem::take);
        for place in places.unwrap_or_default() {
            self.list[place].1 = Vec::new();
        }
    }

    pub(crate) fn clear(&mut self) {
        self.list.clear();
        self.of_units.clear();
    }
}

#[cfg(test)]
mod tests {
    use nacre_types::{StoreKind, UNIT_SIZE, VolumeOffset};

    use super::{SHORT, Writes};

    #[test]
    fn writes_of_any_number_are_found_and_forgotten_by_unit() {
        let mut dice = 1_u64;
        let (mut writes, mut model) = (Writes::default(), Vec::new());
        for round in 0..20 * SHORT {
            dice = dice.wrapping_mul(6364136223846793005).wrapping_add(1);
            let unit = (dice >> 33) % 40;
            let start = VolumeOffset(unit * UNIT_SIZE);
            match round % 5 {
                4 => {
                    writes.forget_unit(start);
                    model.retain(|&(at, _)| at / UNIT_SIZE != unit);
                }
                _ => {
                    let (at, byte) = (start.0 + (dice >> 20) % UNIT_SIZE, round as u8);
                    writes.push(VolumeOffset(at), &[byte], StoreKind::Data);
                    model.push((at, byte));
                }
            }
            let of_unit = model.iter().filter(|write| write.0 / UNIT_SIZE == unit);
            let found = writes.of_unit(start).map(|write| (write.0.0, write.1[0]));
            assert!(found.eq(of_unit.copied()), "round {round}");
            let all = writes.iter().map(|write| (write.0.0, write.1[0]));
            assert!(all.eq(model.iter().copied()), "round {round}");
        }
        writes.clear();
        assert_eq!(
            writes.iter().count() + writes.of_unit(VolumeOffset(0)).count(),
            0
        );
    }
}
