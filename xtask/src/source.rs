//! A Rust source file cut into code, comments and test regions.
//!
//! This is a scanner, not a parser: it knows comments, literals and brackets, which is all the
//! rules need, and it never fails.

/// One file; line numbers are 0-based here and 1-based in findings.
pub struct Source {
    /// Path from the workspace root.
    pub path: String,
    /// Lines with comments and the insides of literals replaced by spaces.
    pub code: Vec<String>,
    /// Comment text of each line, empty where there is none.
    pub comments: Vec<String>,
    /// Lines that belong to tests.
    pub test: Vec<bool>,
    /// Columns of each line.
    pub widths: Vec<usize>,
}

/// A function with a body.
pub struct Function {
    pub name: String,
    pub first_line: usize,
    pub last_line: usize,
}

impl Source {
    pub fn new(path: &str, text: &str) -> Source {
        let (code, comments) = separate(text);
        let mut source = Source {
            path: path.to_string(),
            test: vec![is_test_path(path); code.len()],
            widths: text.split('\n').map(|line| line.chars().count()).collect(),
            code,
            comments,
        };
        source.mark_test_items();
        source
    }

    /// Name of the file without folder.
    pub fn file_name(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or(&self.path)
    }

    /// Lines of production code: not blank, not only a comment, not a test.
    pub fn production_lines(&self, first: usize, last: usize) -> usize {
        (first..=last.min(self.code.len().saturating_sub(1)))
            .filter(|&line| !self.test[line] && !self.code[line].trim().is_empty())
            .count()
    }

    /// Positions (line, column) of an identifier in the code.
    pub fn words<'a>(&'a self, word: &'a str) -> impl Iterator<Item = (usize, usize)> + 'a {
        self.code.iter().enumerate().flat_map(move |(line, text)| {
            text.match_indices(word)
                .filter(|(at, _)| stands_alone(text, *at, word.len()))
                .map(move |(at, _)| (line, at))
        })
    }

    /// Code from a position on, as one string with line breaks.
    pub fn code_from(&self, line: usize, column: usize) -> String {
        let mut text = self.code[line][column..].to_string();
        for next in &self.code[line + 1..] {
            text.push('\n');
            text.push_str(next);
        }
        text
    }

    /// All functions that have a body and a name.
    pub fn functions(&self) -> Vec<Function> {
        self.words("fn")
            .filter_map(|(line, column)| {
                let text = self.code_from(line, column + 2);
                let name = identifier(text.trim_start())?;
                let (end, has_body) = item_end(&text);
                has_body.then(|| Function {
                    name: name.to_string(),
                    first_line: line,
                    last_line: line + text[..end].matches('\n').count(),
                })
            })
            .collect()
    }

    fn mark_test_items(&mut self) {
        for line in 0..self.code.len() {
            let trimmed = self.code[line].trim_start();
            if !(trimmed.starts_with("#[cfg(test)]") || trimmed.starts_with("#[test]")) {
                continue;
            }
            let text = self.code_from(line, 0);
            let (end, _) = item_end(&text);
            let lines = text[..end].matches('\n').count();
            self.test[line..=line + lines].fill(true);
        }
    }
}

fn is_test_path(path: &str) -> bool {
    let mut parts = path.split('/');
    parts.any(|part| part == "tests" || part == "benches") || path.ends_with("/tests.rs")
}

/// The identifier that a text begins with.
pub fn identifier(text: &str) -> Option<&str> {
    let end = text
        .find(|c: char| !(c.is_alphanumeric() || c == '_'))
        .unwrap_or(text.len());
    (end > 0 && !text.starts_with(|c: char| c.is_ascii_digit())).then(|| &text[..end])
}

fn stands_alone(text: &str, at: usize, len: usize) -> bool {
    let part = |c: char| c.is_alphanumeric() || c == '_';
    !text[..at].ends_with(part) && !text[at + len..].starts_with(part)
}

/// Where the item ends that a text begins with, and whether it has a body in braces.
fn item_end(text: &str) -> (usize, bool) {
    let mut depth = 0usize;
    for (at, c) in text.char_indices() {
        match c {
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => {
                depth = depth.saturating_sub(1);
                if depth == 0 && c == '}' {
                    return (at, true);
                }
            }
            ';' if depth == 0 => return (at, false),
            _ => {}
        }
    }
    (text.len(), false)
}

enum Inside {
    Code,
    LineComment,
    BlockComment(usize),
    Text,
    RawText(usize),
}

/// Splits a text into lines of code and lines of comments, column by column.
fn separate(text: &str) -> (Vec<String>, Vec<String>) {
    let (mut code, mut comments) = (vec![String::new()], vec![String::new()]);
    let letters: Vec<char> = text.chars().collect();
    let (mut at, mut inside) = (0, Inside::Code);
    while at < letters.len() {
        let was_comment = matches!(inside, Inside::LineComment | Inside::BlockComment(_));
        let (taken, shown) = step(&letters, at, &mut inside);
        let is_comment =
            was_comment || matches!(inside, Inside::LineComment | Inside::BlockComment(_));
        for &letter in &letters[at..at + taken] {
            if letter == '\n' {
                code.push(String::new());
                comments.push(String::new());
            } else if let (Some(code), Some(comment)) = (code.last_mut(), comments.last_mut()) {
                code.push(if shown { letter } else { ' ' });
                if is_comment {
                    comment.push(letter);
                }
            }
        }
        at += taken;
    }
    (code, comments)
}

/// How many letters belong together here, and whether they are code.
fn step(letters: &[char], at: usize, inside: &mut Inside) -> (usize, bool) {
    let next = letters.get(at + 1).copied();
    let left = letters.len() - at;
    match (&mut *inside, letters[at]) {
        (Inside::Code, '/') if next == Some('/') => enter(inside, Inside::LineComment, 2),
        (Inside::Code, '/') if next == Some('*') => enter(inside, Inside::BlockComment(1), 2),
        (Inside::Code, '"') => {
            *inside = Inside::Text;
            (1, true)
        }
        (Inside::Code, 'r') => raw_text(letters, at, inside),
        (Inside::Code, '\'') => character(letters, at),
        (Inside::Code, _) => (1, true),
        (Inside::LineComment, '\n') => enter(inside, Inside::Code, 1),
        (Inside::BlockComment(depth), '/') if next == Some('*') => {
            *depth += 1;
            (2, false)
        }
        (Inside::BlockComment(depth), '*') if next == Some('/') => {
            *depth -= 1;
            if *depth == 0 {
                *inside = Inside::Code;
            }
            (2, false)
        }
        (Inside::Text, '\\') => (2.min(left), false),
        (Inside::Text, '"') => {
            *inside = Inside::Code;
            (1, true)
        }
        (Inside::RawText(hashes), '"') => {
            let hashes = *hashes;
            let closes = letters[at + 1..].iter().take_while(|&&c| c == '#').count() >= hashes;
            if closes {
                *inside = Inside::Code;
                return (1 + hashes, true);
            }
            (1, false)
        }
        _ => (1, false),
    }
}

fn enter(inside: &mut Inside, new: Inside, taken: usize) -> (usize, bool) {
    *inside = new;
    (taken, false)
}

fn raw_text(letters: &[char], at: usize, inside: &mut Inside) -> (usize, bool) {
    let part = |c: &char| c.is_alphanumeric() || *c == '_';
    let before = at.checked_sub(1).and_then(|i| letters.get(i));
    let byte_prefix = before == Some(&'b')
        && !at
            .checked_sub(2)
            .and_then(|i| letters.get(i))
            .is_some_and(part);
    let hashes = letters[at + 1..].iter().take_while(|&&c| c == '#').count();
    if letters.get(at + 1 + hashes) == Some(&'"') && (byte_prefix || !before.is_some_and(part)) {
        *inside = Inside::RawText(hashes);
        return (2 + hashes, true);
    }
    (1, true)
}

/// Letters of a character literal, hidden because it may be a bracket; or the tick of a lifetime.
fn character(letters: &[char], at: usize) -> (usize, bool) {
    let escaped = letters.get(at + 1) == Some(&'\\');
    let end = if escaped {
        let rest = letters.get(at + 3..).unwrap_or_default();
        rest.iter().position(|&c| c == '\'').map(|end| end + 4)
    } else {
        (letters.get(at + 2) == Some(&'\'')).then_some(3)
    };
    end.map_or((1, true), |taken| (taken, false))
}

#[cfg(test)]
mod tests {
    use super::{Source, identifier};

    #[test]
    fn literals_and_comments_are_not_code() {
        let text = "let a = \"} unsafe\"; // unsafe\nlet b = r#\"\"unsafe\"#; let c = '{'; /* { /* } */ */ x()";
        let source = Source::new("a.rs", text);
        assert_eq!(source.words("unsafe").count(), 0);
        assert!(!source.code.concat().contains(['{', '}']));
        assert!(source.code[1].ends_with("x()"));
        assert!(source.comments[0].contains("unsafe"));
    }

    #[test]
    fn functions_end_at_their_brace() {
        let text = "fn a<'l>(x: &'l [u8; 4]) -> [u8; 4] {\n  if x { y }\n}\ntrait T { fn b(); }\nfn c() {}";
        let found = Source::new("a.rs", text).functions();
        let shape: Vec<_> = found
            .iter()
            .map(|f| (f.name.as_str(), f.first_line, f.last_line))
            .collect();
        assert_eq!(shape, [("a", 0, 2), ("c", 4, 4)]);
    }

    #[test]
    fn tests_are_marked_and_nothing_after_them() {
        let text = "fn a() {}\n#[cfg(test)]\nmod tests;\nfn b() {}\n#[cfg(test)]\nmod more {\n fn c() {}\n}\nfn d() {}";
        let source = Source::new("crates/x/src/a.rs", text);
        assert_eq!(
            source.test,
            [false, true, true, false, true, true, true, true, false]
        );
        assert_eq!(source.production_lines(0, 8), 3);
        assert!(Source::new("crates/x/tests/a.rs", "fn a() {}").test[0]);
    }

    #[test]
    fn identifiers_stop_at_punctuation() {
        assert_eq!(identifier("name_2(x)"), Some("name_2"));
        assert_eq!(identifier("(x)"), None);
        assert_eq!(identifier("2x"), None);
    }
}
