//! Who stands above fs asks fs: not the store below it, nor the session.

use super::Finding;
use crate::source::Source;
use crate::tree::Tree;

const RULE: &str = "reach";
const ABOVE_FS: &[&str] = &["vfs", "fuse"];
const BELOW_FS: &[&str] = &[".store()", ".session()", ".volume()", "nacre_store::"];

pub fn check(tree: &Tree) -> Vec<Finding> {
    let above = tree.sources().filter(|(name, _)| ABOVE_FS.contains(name));
    above.flat_map(|(_, source)| reaches(source)).collect()
}

fn reaches(source: &Source) -> Vec<Finding> {
    let lines = (0..source.code.len()).filter(|&line| !source.test[line]);
    lines
        .filter_map(|line| {
            let code = &source.code[line];
            let what = BELOW_FS.iter().find(|what| code.contains(**what))?;
            let message = format!("`{what}` reaches past fs: fs offers what is needed");
            Some(Finding::new(&source.path, line + 1, RULE, message))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::check;
    use crate::rules::planted::tree;

    #[test]
    fn canary_a_reach_past_fs() {
        for line in [
            "let slot = mount.fs.store().slot();",
            "mount.session().hold(ofd, slot);",
            "use nacre_store::Store;",
        ] {
            assert_eq!(check(&tree("vfs", "fork_exec.rs", line)).len(), 1, "{line}");
            assert!(
                check(&tree("cli", "fork_exec.rs", line)).is_empty(),
                "{line}"
            );
        }
        assert!(check(&tree("vfs", "fork_exec.rs", "mount.fs.slot();")).is_empty());
    }
}
