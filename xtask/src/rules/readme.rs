//! Each crate says on at most 20 lines what its layer is for.

use super::Finding;
use crate::tree::{Crate, Tree};

const RULE: &str = "readme";
const LINES: usize = 20;

pub fn check(tree: &Tree) -> Vec<Finding> {
    tree.crates.iter().filter_map(check_crate).collect()
}

fn check_crate(of: &Crate) -> Option<Finding> {
    let path = format!("{}/README.md", of.folder);
    let message = match &of.readme {
        None => "missing".to_string(),
        Some(text) if text.trim().is_empty() => "empty".to_string(),
        Some(text) if text.lines().count() > LINES => {
            format!("{} lines, more than {LINES}", text.lines().count())
        }
        Some(_) => return None,
    };
    Some(Finding::new(&path, 0, RULE, message))
}

#[cfg(test)]
mod tests {
    use super::check;
    use crate::rules::planted;

    fn findings(readme: Option<String>) -> usize {
        let mut tree = planted::tree("fs", "lib.rs", "");
        tree.crates[0].readme = readme;
        check(&tree).len()
    }

    #[test]
    fn canary_readme() {
        assert_eq!(findings(None), 1);
        assert_eq!(findings(Some(String::new())), 1);
        assert_eq!(findings(Some("line\n".repeat(21))), 1);
        assert_eq!(findings(Some("line\n".repeat(20))), 0);
    }
}
