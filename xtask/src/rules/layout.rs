//! On-media bytes are defined only in files named layout.rs.

use super::Finding;
use crate::source::Source;
use crate::tree::Tree;

const RULE: &str = "layout";
/// Crates that reach the medium but own no other memory with a fixed layout.
const CRATES: &[&str] = &["volume", "store", "fs", "vfs", "cli"];
const DERIVES: &[&str] = &["FromBytes", "IntoBytes", "TryFromBytes", "KnownLayout"];

pub fn check(tree: &Tree) -> Vec<Finding> {
    tree.sources()
        .filter(|(name, source)| CRATES.contains(name) && source.file_name() != "layout.rs")
        .flat_map(|(_, source)| check_source(source))
        .collect()
}

fn check_source(source: &Source) -> Vec<Finding> {
    let message = "on-media structs stand in layout.rs";
    let mut found = Vec::new();
    let mut in_derive = false;
    for (line, code) in source.code.iter().enumerate() {
        in_derive |= code.contains("derive(");
        let derives = in_derive && DERIVES.iter().any(|name| code.contains(name));
        if code.contains("repr(C") || derives {
            found.push(Finding::new(&source.path, line + 1, RULE, message));
        }
        in_derive &= !code.contains(']');
    }
    found
}

#[cfg(test)]
mod tests {
    use super::check;
    use crate::rules::planted;

    #[test]
    fn canary_layout_elsewhere() {
        let plain = "#[repr(C)]\nstruct A(u64);";
        let derived = "#[derive(\n    Clone,\n    FromBytes,\n)]\nstruct A(u64);";
        for text in [plain, derived] {
            assert_eq!(check(&planted::tree("store", "onode.rs", text)).len(), 1);
            assert!(check(&planted::tree("store", "layout.rs", text)).is_empty());
            assert!(check(&planted::tree("session", "ofd.rs", text)).is_empty());
        }
        assert!(
            check(&planted::tree(
                "store",
                "onode.rs",
                "use zerocopy::FromBytes;"
            ))
            .is_empty()
        );
    }
}
