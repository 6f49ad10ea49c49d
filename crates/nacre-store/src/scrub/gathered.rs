//! Damages that lie side by side are told as one.

use nacre_types::UNIT_SIZE;

use super::{Damage, Owner};

/// Joins neighbours that are alike: contents of a file that go on, or what is nobody's.
pub(super) fn gathered(damages: impl Iterator<Item = Damage>) -> Vec<Damage> {
    let mut gathered: Vec<Damage> = Vec::new();
    for damage in damages {
        match gathered.last_mut() {
            Some(last) if goes_on(last, &damage) => {
                last.difference.range.end = damage.difference.range.end;
            }
            _ => gathered.push(damage),
        }
    }
    gathered
}

fn goes_on(last: &Damage, next: &Damage) -> bool {
    let (was, is) = (&last.difference, &next.difference);
    let units = (was.range.end.0 - was.range.start.0) / UNIT_SIZE;
    let mut owners = last.owners.iter().zip(&next.owners);
    was.range.end == is.range.start
        && (was.evidence, &was.wrong) == (is.evidence, &is.wrong)
        && last.owners.len() == next.owners.len()
        && owners.all(|(was, is)| was.0 == is.0 && follows(was.1, is.1, units))
}

fn follows(was: Owner, is: Owner, units: u64) -> bool {
    match (was, is) {
        (Owner::Data(was), Owner::Data(is)) | (Owner::Unwritten(was), Owner::Unwritten(is)) => {
            is == was + units
        }
        (Owner::Tree, Owner::Tree) => true,
        (Owner::Value(was), Owner::Value(is)) => was == is,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use nacre_types::{ObjectId, UNIT_SIZE, VolumeOffset};
    use nacre_volume::{Difference, Evidence};

    use super::{Damage, Owner, gathered};

    fn damage(unit: u64, evidence: Option<Evidence>, owners: &[Owner]) -> Damage {
        let at = |unit: u64| VolumeOffset(unit * UNIT_SIZE);
        Damage {
            difference: Difference {
                range: at(unit)..at(unit + 1),
                evidence,
                wrong: vec!["b".into()],
            },
            owners: owners.iter().map(|&it| (ObjectId(7), it)).collect(),
        }
    }

    fn ranges(damages: Vec<Damage>) -> Vec<(u64, u64)> {
        let units = |at: VolumeOffset| at.0 / UNIT_SIZE;
        gathered(damages.into_iter())
            .into_iter()
            .map(|one| one.difference.range)
            .map(|range| (units(range.start), units(range.end)))
            .collect()
    }

    #[test]
    fn contents_that_go_on_are_one_place() {
        let seal = Some(Evidence::Seal);
        let pages = [(5, 10), (6, 11), (7, 12), (8, 14), (10, 15)];
        let damages = pages.map(|(unit, page)| damage(unit, seal, &[Owner::Data(page)]));
        assert_eq!(ranges(damages.into()), [(5, 8), (8, 9), (10, 11)]);
    }

    #[test]
    fn what_is_nobodys_is_one_place_as_far_as_the_same_tells() {
        let seal = Some(Evidence::Seal);
        let told = [seal, seal, None, None, seal];
        let damages = (3..).zip(told).map(|(unit, told)| damage(unit, told, &[]));
        assert_eq!(ranges(damages.collect()), [(3, 5), (5, 7), (7, 8)]);
    }

    #[test]
    fn who_shares_it_must_be_the_same() {
        let both = [Owner::Data(1), Owner::Data(9)];
        let next = [Owner::Data(2), Owner::Data(10)];
        let other = [Owner::Data(3)];
        let told = [&both[..], &next, &other];
        let damages = (3..)
            .zip(told)
            .map(|(unit, owners)| damage(unit, None, owners));
        assert_eq!(ranges(damages.collect()), [(3, 5), (5, 6)]);
    }
}
