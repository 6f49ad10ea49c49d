//! Damage that once got past a validation: each kind alone, wherever it can be done.

use nacre_hostile::canary::Trust;
use nacre_hostile::drive::Case;
use nacre_hostile::pool::{Contents, POOLS, Prepared};
use nacre_hostile::tally::Tally;

/// Runs some cases whose only damage is called `name`.
fn only(name: &str) {
    only_in(Contents::Files, name);
}

fn only_in(wanted: Contents, name: &str) {
    let mut done = 0;
    let pools = POOLS
        .into_iter()
        .filter(|(contents, _)| *contents == wanted);
    for (number, (contents, left)) in (0..).zip(pools) {
        let prepared = Prepared::new(contents, left).unwrap();
        for number in [number, number + 2, number + 4] {
            let mut tally = Tally::default();
            let case = Case::new(&prepared, 5, number, Trust::Nobody, &mut tally);
            done += u32::from(case.run_only(name).unwrap());
        }
    }
    assert!(done > 0, "no pool has a place for {name}");
}

#[test]
fn a_state_record_with_the_largest_number_is_damage() {
    only("sequence");
}

#[test]
fn names_with_slashes_or_zeros_are_reported_and_not_listed() {
    only("a forbidden name");
}

#[test]
fn entries_of_one_object_that_disagree_on_its_type_are_reported() {
    only("an entry of no type");
}

#[test]
fn a_directory_that_is_its_own_parent_is_left_quickly() {
    only("its own parent");
}

#[test]
fn an_impossible_inline_length_is_reported() {
    only("inline length");
}

#[test]
fn a_bad_reference_to_a_long_value_names_its_node() {
    only("where a long value lies");
}

#[test]
fn a_record_with_a_wrong_count_names_its_place() {
    only("count of changes");
}

#[test]
fn a_root_directory_without_links_is_not_removed() {
    only("no link");
}

#[test]
fn an_inner_node_whose_first_key_is_not_the_lowest_is_put_right() {
    only("prefix");
}

#[test]
fn a_block_in_two_lists_is_left_to_the_one_it_serves() {
    only("the block of another list");
}

#[test]
fn a_count_of_mapped_units_that_overflows_is_shown_as_it_fits() {
    only("count of mapped units");
}

#[test]
fn links_of_collections_that_lead_elsewhere_are_reported() {
    only_in(Contents::Objects, "a link to no object");
    only_in(Contents::Objects, "a link to another object");
    only_in(Contents::Objects, "a link to an earlier object");
    only_in(Contents::Objects, "a link to another kind");
    only_in(Contents::Objects, "a link to no kind");
}

#[test]
fn a_registry_that_is_not_there_is_reported() {
    only_in(Contents::Objects, "a registry that is not there");
}
