//! Files and functions stay short. What is longer stands in budget.txt with its exact length.

use super::Finding;
use crate::tree::Tree;
use std::collections::BTreeMap;

const RULE: &str = "budget";
const BUDGET: &str = "xtask/budget.txt";
const FILE_LINES: usize = 800;
const FUNCTION_LINES: usize = 70;

pub fn check(tree: &Tree) -> Vec<Finding> {
    let mut known = match parse(&tree.budget) {
        Ok(known) => known,
        Err(finding) => return vec![finding],
    };
    let mut found = Vec::new();
    for (path, line, key, lines, limit) in measure(tree) {
        let allowed = known.remove(&key);
        if lines == allowed.unwrap_or(lines) && (lines <= limit || allowed.is_some()) {
            continue;
        }
        let message = match allowed {
            Some(allowed) if lines < allowed => {
                format!("{key} has {lines} lines now: write {lines} into {BUDGET}")
            }
            Some(allowed) => {
                format!("{key} grew from {allowed} to {lines} lines; budgets only shrink")
            }
            None => format!("{key} has {lines} lines of code, more than {limit}"),
        };
        found.push(Finding::new(&path, line, RULE, message));
    }
    for (key, _) in known {
        found.push(Finding::new(
            BUDGET,
            0,
            RULE,
            format!("{key} is within its limit: remove the entry"),
        ));
    }
    found
}

/// Path, line, key, length, limit.
type Measure = (String, usize, String, usize, usize);

/// Everything that is over its limit or listed in the budget.
fn measure(tree: &Tree) -> Vec<Measure> {
    let mut all = Vec::new();
    for (_, source) in tree.sources() {
        let path = &source.path;
        let lines = source.production_lines(0, source.code.len());
        all.push((path.clone(), 0, format!("file {path}"), lines, FILE_LINES));
        for function in source.functions() {
            let lines = source.production_lines(function.first_line, function.last_line);
            let key = format!("function {path}::{}", function.name);
            all.push((
                path.clone(),
                function.first_line + 1,
                key,
                lines,
                FUNCTION_LINES,
            ));
        }
    }
    all.retain(|(_, _, _, lines, limit)| lines > limit);
    all
}

fn parse(budget: &str) -> Result<BTreeMap<String, usize>, Finding> {
    let mut known = BTreeMap::new();
    for (index, line) in budget.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let entry = line
            .rsplit_once(' ')
            .and_then(|(key, lines)| Some((key, lines.parse().ok()?)));
        let Some((key, lines)) = entry else {
            let message = "expected `file PATH LINES` or `function PATH::NAME LINES`";
            return Err(Finding::new(BUDGET, index + 1, RULE, message));
        };
        known.insert(key.to_string(), lines);
    }
    Ok(known)
}

#[cfg(test)]
mod tests {
    use super::check;
    use crate::rules::planted;
    use crate::tree::Tree;

    fn function_of(lines: usize) -> Tree {
        let body = "    x();\n".repeat(lines - 2);
        planted::tree("fs", "a.rs", &format!("fn long() {{\n// why\n\n{body}}}\n"))
    }

    #[test]
    fn canary_long_function() {
        assert!(check(&function_of(70)).is_empty());
        assert_eq!(check(&function_of(71)).len(), 1);
    }

    #[test]
    fn canary_long_file() {
        let lines = |n: usize| planted::tree("fs", "a.rs", &"const A: u8 = 1;\n".repeat(n));
        assert!(check(&lines(800)).is_empty());
        assert_eq!(check(&lines(801)).len(), 1);
    }

    #[test]
    fn tests_and_comments_cost_nothing() {
        let body = "    x();\n".repeat(900);
        let text = format!("#[cfg(test)]\nmod tests {{\nfn long() {{\n{body}}}\n}}\n");
        assert!(check(&planted::tree("fs", "a.rs", &text)).is_empty());
    }

    #[test]
    fn canary_ratchet() {
        let with = |lines: usize, budget: &str| {
            let mut tree = function_of(lines);
            tree.budget = format!("# why\nfunction crates/nacre-fs/src/a.rs::long {budget}\n");
            check(&tree).len()
        };
        assert_eq!(with(80, "80"), 0);
        assert_eq!(with(81, "80"), 1);
        assert_eq!(with(79, "80"), 1);
        assert_eq!(with(70, "80"), 1);
        assert_eq!(with(80, "many"), 1);
    }
}
