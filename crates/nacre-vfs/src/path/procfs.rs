//! Names under /proc and /dev that stand for the process's own fds and current directory.

/// A link of the calling process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Link {
    /// An open file.
    Fd(i32),
    /// The current directory.
    Cwd,
}

/// Recognises such a name at the front of an absolute path; with it comes the rest of the path.
pub(crate) fn parse(path: &[u8], own_pid: impl FnOnce() -> i32) -> Option<(Link, &[u8])> {
    if let Some(rest) = path.strip_prefix(b"/dev/") {
        return parse_dev(rest);
    }
    let (who, rest) = split(path.strip_prefix(b"/proc/")?);
    let rest = rest.strip_prefix(b"/")?;
    let (kind, after) = split(rest);
    if kind != b"fd" && kind != b"cwd" {
        return None;
    }
    if who != b"self" && who != b"thread-self" && number(who)? != own_pid() {
        return None;
    }
    if kind == b"cwd" {
        return Some((Link::Cwd, after));
    }
    parse_fd(after)
}

fn parse_dev(rest: &[u8]) -> Option<(Link, &[u8])> {
    let (name, after) = split(rest);
    match name {
        b"fd" => parse_fd(after),
        b"stdin" => Some((Link::Fd(0), after)),
        b"stdout" => Some((Link::Fd(1), after)),
        b"stderr" => Some((Link::Fd(2), after)),
        _ => None,
    }
}

fn parse_fd(rest: &[u8]) -> Option<(Link, &[u8])> {
    let (digits, after) = split(rest.strip_prefix(b"/")?);
    Some((Link::Fd(number(digits)?), after))
}

fn split(path: &[u8]) -> (&[u8], &[u8]) {
    path.split_at(
        path.iter()
            .position(|&byte| byte == b'/')
            .unwrap_or(path.len()),
    )
}

fn number(digits: &[u8]) -> Option<i32> {
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(digits).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::{Link, parse};

    #[test]
    fn own_links_are_recognised() {
        type Case = (&'static [u8], Option<(Link, &'static [u8])>);
        let cases: [Case; 12] = [
            (b"/proc/self/fd/17", Some((Link::Fd(17), b""))),
            (b"/proc/42/fd/3/a", Some((Link::Fd(3), b"/a"))),
            (b"/proc/43/fd/3", None),
            (b"/proc/thread-self/cwd", Some((Link::Cwd, b""))),
            (b"/proc/self/cwd/x", Some((Link::Cwd, b"/x"))),
            (b"/dev/fd/0", Some((Link::Fd(0), b""))),
            (b"/dev/stderr", Some((Link::Fd(2), b""))),
            (b"/dev/fd", None),
            (b"/dev/null", None),
            (b"/proc/self/fd/-1", None),
            (b"/proc/self/fd/99999999999", None),
            (b"/proc/self/fdinfo/1", None),
        ];
        for (path, expected) in cases {
            assert_eq!(
                parse(path, || 42),
                expected,
                "{}",
                String::from_utf8_lossy(path)
            );
        }
    }
}
