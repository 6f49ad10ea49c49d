//! `nacre.h` is what cbindgen makes of the source.

use std::path::Path;

/// Names of functions in a text, in order.
fn functions(text: &str, before: &str, behind: &str) -> Vec<String> {
    let words = text.split(before).skip(1);
    let names = words.filter_map(|word| Some(format!("nacre_{}", word.split_once(behind)?.0)));
    let is_name = |name: &String| name.bytes().all(|b| b == b'_' || b.is_ascii_alphanumeric());
    names.filter(is_name).collect()
}

fn file(name: &str) -> String {
    let crate_dir = Path::new(env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(crate_dir.join(name)).unwrap()
}

fn declared() -> Vec<String> {
    let header = file("include/nacre.h");
    let lines = header.lines().filter(|line| !line.starts_with(['/', ' ']));
    let text: String = lines.flat_map(|line| [line, "\n"]).collect();
    let helpers = ["nacre_str", "nacre_bytes"];
    let mut names = functions(&text, "nacre_", "(");
    names.retain(|name| !helpers.contains(&name.as_str()));
    names
}

#[test]
fn no_function_is_declared_twice() {
    let mut names = declared();
    assert!(names.len() > 40, "{names:?}");
    names.sort();
    let all = names.len();
    names.dedup();
    assert_eq!(names.len(), all);
}

#[test]
fn the_version_script_and_the_manual_page_name_every_function() {
    let mut names = declared();
    names.sort();
    let mut exported = functions(&file("nacre.map"), "    nacre_", ";");
    exported.sort();
    assert_eq!(exported, names);
    let page = file("nacre.3");
    for name in names {
        assert!(page.contains(&format!("{name}(")), "nacre.3 lacks {name}");
    }
}

/// What the header says of each function, without marks and line ends.
fn told() -> Vec<String> {
    let header = file("include/nacre.h");
    let comments = header
        .split("\n\n")
        .filter(|part| part.contains("// # Safety"));
    let text = |part: &str| {
        let lines = part.lines().map_while(|line| line.strip_prefix("// "));
        let lines: Vec<&str> = lines.take_while(|line| *line != "# Safety").collect();
        lines
            .join(" ")
            .trim_end_matches(" //")
            .replace(['`', '\n'], "")
    };
    comments.map(text).collect()
}

#[test]
fn the_manual_page_says_what_the_header_says() {
    let marks = ["\\fI", "\\fP", "\\"];
    let page = marks
        .iter()
        .fold(file("nacre.3"), |page, mark| page.replace(mark, ""));
    let told = told();
    assert!(told.len() > 40, "{told:?}");
    for text in told {
        assert!(page.contains(&text), "nacre.3 lacks: {text}");
    }
}

#[test]
fn the_header_is_current() {
    let crate_dir = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = cbindgen::Config::from_file(crate_dir.join("cbindgen.toml")).unwrap();
    let made = cbindgen::Builder::new()
        .with_config(config)
        .with_src(crate_dir.join("src/lib.rs"))
        .generate()
        .unwrap();
    let mut text = Vec::new();
    made.write(&mut text);
    let text = String::from_utf8(text).unwrap();
    let path = crate_dir.join("include/nacre.h");
    if std::env::var_os("NACRE_UPDATE").is_some() {
        std::fs::write(&path, &text).unwrap();
    }
    let there = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        there == text,
        "include/nacre.h is not current: NACRE_UPDATE=1 cargo test -p nacre-capi --test header"
    );
}
