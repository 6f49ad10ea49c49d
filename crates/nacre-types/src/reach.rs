//! How a program is started that the preload library cannot serve: the one place that decides.
//!
//! Such a program sees the host's files only. It is refused if what it is told names a mount point,
//! because it would then silently read or write the host's folder below. Pure functions: whoever
//! starts programs reads the file, the arguments and the environment, and asks here.

use crate::mount_table::KernelMount;
use core::fmt;
use core::ops::Range;

/// Bytes from the start of a file that [`unserved`] wants to see.
pub const HEAD: usize = 4096;
/// The environment variable that carries the [`Policy`] to programs at any depth.
pub const VARIABLE: &str = "NACRE_UNSERVED";

/// What becomes of an unserved program that names a mount point.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// It is not started.
    #[default]
    Refuse,
    /// It is started: the user wants the host's files, or finds the pool there in another way.
    Allow,
}

impl Policy {
    /// The policy that a value of [`VARIABLE`] stands for.
    pub fn of(value: Option<&[u8]>) -> Policy {
        match value {
            Some(b"allow") => Policy::Allow,
            _ => Policy::Refuse,
        }
    }
}

/// Why a program cannot be served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unserved {
    /// No dynamic linker loads libraries into it.
    Static,
    /// Its run-time system makes its own system calls.
    Go,
    /// It makes its own system calls, and nothing tells what else leads to them.
    OwnCalls,
    /// Its dynamic linker is not glibc's.
    Libc(String),
    /// It is not for 64-bit x86.
    Machine,
    /// It gains rights at its start.
    Privileged,
}

impl Unserved {
    /// Whether the program starts if it is told to load the library: it then hands that on to
    /// programs that are served. Linkers of other C libraries end where they cannot load one.
    pub fn may_load(&self) -> bool {
        !matches!(self, Unserved::Libc(_))
    }
}

impl fmt::Display for Unserved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unserved::Static => f.write_str("is statically linked"),
            Unserved::Go => f.write_str("is a Go program, which makes its own system calls"),
            Unserved::OwnCalls => f.write_str(
                "makes its own system calls, and has no unwind information to intercept them by",
            ),
            Unserved::Libc(linker) => write!(f, "uses another C library than glibc ({linker})"),
            Unserved::Machine => f.write_str("is not a program for 64-bit x86"),
            Unserved::Privileged => f.write_str("gains rights at its start (setuid or the like)"),
        }
    }
}

/// Tells by the first [`HEAD`] bytes of a program why it cannot be served. Returns `None` if it can
/// be, or if the bytes do not tell.
pub fn unserved(head: &[u8]) -> Option<Unserved> {
    const X86_64: u64 = 62;
    let number = |at, len| number(head, at, len);
    head.strip_prefix(b"\x7fELF")?;
    if !head.starts_with(b"\x7fELF\x02\x01") || number(18, 2)? != X86_64 {
        return Some(Unserved::Machine);
    }
    let segments = segments(head)?;
    let bytes = |segment: &Segment| head.get(segment.range.clone());
    let interpreter = segments.iter().rfind(|segment| segment.kind == PT_INTERP);
    let notes = segments.iter().filter(|segment| segment.kind == PT_NOTE);
    let go = notes.filter_map(bytes).any(names_go);
    match interpreter.map(bytes) {
        _ if go => Some(Unserved::Go),
        None => Some(Unserved::Static),
        Some(path) => path.and_then(foreign),
    }
}

const PT_LOAD: u64 = 1;
const PT_INTERP: u64 = 3;
const PT_NOTE: u64 = 4;
const PT_GNU_EH_FRAME: u64 = 0x6474_e550;
const PF_X: u64 = 1;

/// What a program header says.
struct Segment {
    kind: u64,
    flags: u64,
    /// Where it lies in the file.
    range: Range<usize>,
}

/// All segments of a program. Returns `None` if their headers are not all within `head`.
fn segments(head: &[u8]) -> Option<Vec<Segment>> {
    let number = |at, len| number(head, at, len);
    let (start, size, count) = (number(32, 8)?, number(54, 2)?, number(56, 2)?);
    let segment = |index| {
        let at = usize::try_from(start.checked_add(index * size)?).ok()?;
        let (offset, len) = (number(at.checked_add(8)?, 8)?, number(at + 32, 8)?);
        let end = usize::try_from(offset.checked_add(len)?).ok()?;
        Some(Segment {
            kind: number(at, 4)?,
            flags: number(at + 4, 4)?,
            range: usize::try_from(offset).ok()?..end,
        })
    };
    (0..count).map(segment).collect()
}

/// Whether a program has system calls and no unwind information, without which none is intercepted.
/// `read`: reads its file from an offset on, and returns how many bytes it has read.
fn makes_own_calls(head: &[u8], mut read: impl FnMut(usize, &mut [u8]) -> usize) -> bool {
    let segments = segments(head).unwrap_or_default();
    if segments
        .iter()
        .any(|segment| segment.kind == PT_GNU_EH_FRAME)
    {
        return false;
    }
    let mut room = vec![0; 64 << 10];
    let mut code = |segment: &Segment| {
        let Range { mut start, end } = segment.range;
        while start < end {
            let wanted = room.len().min(end - start);
            let got = read(start, &mut room[..wanted]).min(wanted);
            if has_call(&room[..got]) {
                return true;
            }
            // Of an instruction that goes on behind this part the first byte is read again.
            match got {
                0 | 1 => break,
                _ if got == end - start => break,
                _ => start += got - 1,
            }
        }
        false
    };
    let loaded = |segment: &&Segment| segment.kind == PT_LOAD && segment.flags & PF_X != 0;
    segments.iter().filter(loaded).any(&mut code)
}

/// Whether code may have a system call: the bytes of the instruction.
pub fn has_call(code: &[u8]) -> bool {
    code.windows(2).any(|bytes| bytes == [0x0f, 0x05])
}

/// A little-endian number of up to eight bytes.
fn number(bytes: &[u8], at: usize, len: usize) -> Option<u64> {
    let value = bytes.get(at..at.checked_add(len)?)?.iter().rev();
    Some(value.fold(0, |value, &byte| value << 8 | u64::from(byte)))
}

/// Whether one of the notes of a `PT_NOTE` segment is Go's. Where the system's linker has made the
/// program, others stand before it.
pub fn names_go(mut notes: &[u8]) -> bool {
    loop {
        match next_note(notes) {
            Some((b"Go\0\0", _)) => return true,
            Some((_, rest)) => notes = rest,
            None => return false,
        }
    }
}

/// The name of the first note, with the zeros behind it, and the notes that follow.
fn next_note(notes: &[u8]) -> Option<(&[u8], &[u8])> {
    const HEADER: usize = 12;
    let len = |at| usize::try_from(number(notes, at, 4)?).ok();
    let (name, description) = (len(0)?, len(4)?);
    let used = HEADER + name.next_multiple_of(4) + description.next_multiple_of(4);
    let rest = notes.get(used..).unwrap_or(&[]);
    Some((notes.get(HEADER..HEADER + name)?, rest))
}

/// A dynamic linker that is not glibc's.
fn foreign(linker: &[u8]) -> Option<Unserved> {
    let path = linker.strip_suffix(b"\0").unwrap_or(linker);
    let name = path.rsplit(|&byte| byte == b'/').next()?;
    let ours = name.starts_with(b"ld-linux") || name.starts_with(b"ld-2.") || name == b"ld.so";
    (!ours).then(|| Unserved::Libc(String::from_utf8_lossy(path).into_owned()))
}

/// Whether a program is glibc's dynamic linker itself. It opens the program that it is told to
/// start, and that one's libraries, before it loads a library that serves them.
pub fn is_linker(path: &[u8], head: &[u8]) -> bool {
    unserved(head) == Some(Unserved::Static) && foreign(path).is_none()
}

/// As [`unserved`], of a program with this path: a dynamic linker, which needs none itself, is
/// known by its name. `read`: reads the program's file from an offset on, and returns how many
/// bytes it has read.
pub fn unserved_at(
    path: &[u8],
    head: &[u8],
    read: impl FnMut(usize, &mut [u8]) -> usize,
) -> Option<Unserved> {
    let name = path.rsplit(|&byte| byte == b'/').next().unwrap_or(path);
    match unserved(head) {
        Some(Unserved::Static) if name.starts_with(b"ld-musl") || foreign(path).is_none() => {
            foreign(path)
        }
        None => makes_own_calls(head, read).then_some(Unserved::OwnCalls),
        why => why,
    }
}

/// What begins the name by which a program that is not served opens a description of a preloaded
/// one, in the root of a mount.
pub const DESCRIPTION: &str = ".nacre-description-";

/// The name of a description.
pub fn description_name(identity: u64) -> Vec<u8> {
    format!("{DESCRIPTION}{identity:x}").into_bytes()
}

/// Whether a program that cannot be served, for whatever reason, finds a pool by the kernel.
pub fn finds(why: Option<&Unserved>, mount: &KernelMount) -> bool {
    mount.for_all || why != Some(&Unserved::Privileged)
}

/// The user who starts a program, and the owner of its file.
#[derive(Clone, Copy, Debug)]
pub struct Rights {
    /// Mode of the file.
    pub mode: u32,
    /// Owner and group of the file.
    pub owner: (u32, u32),
    /// Effective user and group of the caller.
    pub caller: (u32, u32),
}

impl Rights {
    /// Whether set-id bits change user or group.
    pub fn gained(&self) -> bool {
        let user = self.mode & 0o4000 != 0 && self.owner.0 != self.caller.0;
        let group = self.mode & 0o2010 == 0o2010 && self.owner.1 != self.caller.1;
        user || group
    }
}

/// All that a program is told at its start.
#[derive(Clone, Copy, Debug)]
pub struct Start<'a> {
    /// Absolute folders of the pools, without trailing slash.
    pub mounts: &'a [&'a [u8]],
    /// Current directory.
    pub folder: &'a [u8],
    /// Arguments behind the program's own name.
    pub arguments: &'a [Vec<u8>],
    /// `NAME=value` texts.
    pub environment: &'a [Vec<u8>],
}

/// What names a mount point.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    /// The mount point.
    pub mount: Vec<u8>,
    /// The place, ready for a sentence.
    pub by: String,
}

/// The variable that names the sockets at which mounts of the pools are asked for, with `;` between
/// them. Each hangs up when all that can be mounted is.
pub const BY_KERNEL: &str = "NACRE_KERNEL_MOUNTS";

/// Variables that do not count. They tell where somebody was, or list places of which missing ones
/// are skipped, or are for the dynamic linker, the shell, make or Nacre.
const NOT_COUNTED: [&[u8]; 13] = [
    b"PWD",
    b"OLDPWD",
    b"_",
    b"PATH",
    b"MANPATH",
    b"INFOPATH",
    b"CDPATH",
    b"MAKEFLAGS",
    b"MFLAGS",
    b"HISTFILE",
    b"PS1",
    b"LS_COLORS",
    b"SUDO_COMMAND",
];

impl Named {
    /// What a program without the pool sees at the mount point. `taken`: what the kernel shows
    /// there instead of it.
    pub fn seen_instead(&self, taken: Option<&KernelMount>) -> String {
        let mount = String::from_utf8_lossy(&self.mount);
        match taken {
            Some(KernelMount { source, user, .. }) => format!(
                "{}, which user {user} has mounted at {mount}",
                String::from_utf8_lossy(source)
            ),
            None => format!("the host's files at {mount}"),
        }
    }
}

impl Start<'_> {
    /// The first place that names a mount point.
    pub fn named(&self) -> Option<Named> {
        let found = |mount: &[u8], by: String| Named {
            mount: mount.to_vec(),
            by,
        };
        if let Some(mount) = self.names(self.folder) {
            return Some(found(mount, "its working directory".to_string()));
        }
        let argument = self.arguments.iter().find_map(|text| {
            let mount = self.names(text)?;
            Some(found(mount, format!("its argument{}", quoted(text))))
        });
        argument.or_else(|| {
            self.environment.iter().find_map(|text| {
                let mount = self.names(value(text)?)?;
                Some(found(mount, format!("its variable{}", quoted(text))))
            })
        })
    }

    /// The mount point that a text names.
    fn names(&self, text: &[u8]) -> Option<&[u8]> {
        let mut mounts = self.mounts.iter();
        mounts
            .find(|mount| names(mount, self.folder, text))
            .copied()
    }
}

/// The value of a variable that counts.
fn value(text: &[u8]) -> Option<&[u8]> {
    let equals = text.iter().position(|&byte| byte == b'=')?;
    let (name, value) = (&text[..equals], &text[equals + 1..]);
    let internal = name.starts_with(b"NACRE_") || name.starts_with(b"LD_");
    (!internal && !NOT_COUNTED.contains(&name)).then_some(value)
}

fn quoted(text: &[u8]) -> String {
    let text = String::from_utf8_lossy(text);
    if text.chars().count() > 100 || text.contains(char::is_control) {
        return String::new();
    }
    format!(" `{text}`")
}

/// Whether a text holds a path to `mount` or below it: `/nacre/x`, `if=/nacre/x`, `-I/nacre`,
/// `a:/nacre`, `../nacre`.
fn names(mount: &[u8], folder: &[u8], text: &[u8]) -> bool {
    let last = mount.rsplit(|&byte| byte == b'/').next().unwrap_or(mount);
    if last.is_empty() || !text.windows(last.len()).any(|part| part == last) {
        return false;
    }
    let mut starts = (0..text.len()).filter(|&at| at == 0 || separates(text[at - 1]));
    starts.any(|at| {
        let rest = &text[at..];
        let end = rest.iter().position(|byte| b" \t\n\0".contains(byte));
        // A mount point may hold such a byte itself, and a name may.
        let whole = leads_to(mount, folder, rest);
        whole || end.is_some_and(|end| leads_to(mount, folder, &rest[..end]))
    })
}

/// Whether a path may begin behind this byte.
fn separates(byte: u8) -> bool {
    b" \t\n\0=:,;@'\"`()[]{}<>|&$".contains(&byte)
}

/// Whether the text begins with a path to `mount`, as it stands or behind an option's letters.
fn leads_to(mount: &[u8], folder: &[u8], text: &[u8]) -> bool {
    if text.first() == Some(&b'-') {
        let slash = text.iter().position(|&byte| byte == b'/');
        return slash.is_some_and(|at| is_below(mount, &text[at..], &[]));
    }
    let base = if text.first() == Some(&b'/') {
        &[]
    } else {
        folder
    };
    is_below(mount, text, base)
}

/// Whether `base`/`path`, without `.` and `..`, is `mount` or lies below it.
fn is_below(mount: &[u8], path: &[u8], base: &[u8]) -> bool {
    let mut parts: Vec<&[u8]> = Vec::new();
    let slash = |&byte: &u8| byte == b'/';
    for part in base.split(slash).chain(path.split(slash)) {
        match part {
            b"" | b"." => {}
            b".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    let wanted: Vec<&[u8]> = mount.split(slash).filter(|part| !part.is_empty()).collect();
    let Some((last, above)) = wanted.split_last() else {
        return false;
    };
    let Some(found) = parts.get(above.len()) else {
        return false;
    };
    let rest = found.strip_prefix(*last);
    parts.starts_with(above) && rest.is_some_and(|rest| rest.first().is_none_or(|&b| separates(b)))
}

/// Why the program is not started, and what to do. `taken`: what the kernel shows at the mount
/// point instead of the pool.
pub fn refusal(
    program: &str,
    why: &Unserved,
    named: &Named,
    taken: Option<&KernelMount>,
) -> String {
    let (mount, by) = (String::from_utf8_lossy(&named.mount), &named.by);
    let allowed = match why {
        Unserved::Privileged => ", with `--allow-other`",
        _ => "",
    };
    let instead = named.seen_instead(taken);
    let remedy = match taken {
        Some(_) => format!(
            "Only one pool can be mounted there at a time: use another `--mount DIR`{allowed}, or end what uses that one"
        ),
        None => format!(
            "Where {mount} can be made or is an empty folder (as another `--mount DIR` may be) and /dev/fuse can be used, it \
             sees the pool through the kernel{allowed}"
        ),
    };
    format!(
        "{program} {why}: it would see {instead}, not the pool, and {by} names {mount}. {remedy}. Else use a dynamically \
         linked program, or copy with `nacre cp`. With `nacre run --allow-unserved` it runs on what is there"
    )
}

#[cfg(test)]
mod tests {
    use super::{
        HEAD, KernelMount, Named, Policy, Rights, Start, Unserved, is_linker, names, refusal,
        unserved, unserved_at,
    };

    const MOUNT: &[u8] = b"/mnt/hd";

    fn hit(text: &str) -> bool {
        names(MOUNT, b"/mnt/other", text.as_bytes())
    }

    #[test]
    fn paths_to_a_mount_point_are_found_wherever_they_stand() {
        for text in [
            "/mnt/hd",
            "/mnt/hd/",
            "/mnt/hd/a b",
            "//mnt//hd/x",
            "/mnt/./x/../hd/f",
            "if=/mnt/hd/f",
            "--file=/mnt/hd",
            "-I/mnt/hd/include",
            "a:/mnt/hd:/b",
            "file:///mnt/hd/x",
            "@/mnt/hd/x",
            "../hd/f",
            "./../hd",
            "cat </mnt/hd/f >x",
            "echo '/mnt/hd/f'",
            "/mnt/hd:/target",
            "echo hi;cd /mnt/hd&&ls",
        ] {
            assert!(hit(text), "{text}");
        }
    }

    #[test]
    fn other_paths_are_not() {
        for text in [
            "",
            "/",
            "/mnt",
            "/mnt/hdd",
            "/mnt/hd2/x",
            "/home/mnt/hd",
            "hd",
            "mnt/hd",
            "/mnt/x/hd",
            "a/../hd",
            "/mnt/hd/../x",
            "-hd",
            "http://host/mnt/hd",
            "../other/hd",
            "hd/../../mnt/hdx",
        ] {
            assert!(!hit(text), "{text}");
        }
        assert!(names(b"/my pool", b"/", b"/my pool/x") && names(b"/nacre", b"/", b"nacre/x"));
    }

    fn start<'a>(
        folder: &'a str,
        arguments: &'a [Vec<u8>],
        environment: &'a [Vec<u8>],
    ) -> Start<'a> {
        Start {
            mounts: &[MOUNT],
            folder: folder.as_bytes(),
            arguments,
            environment,
        }
    }

    #[test]
    fn the_first_place_that_names_one_is_told() {
        let of = |texts: &[&str]| {
            texts
                .iter()
                .map(|t| t.as_bytes().to_vec())
                .collect::<Vec<_>>()
        };
        let by = |folder: &str, arguments: &[&str], environment: &[&str]| {
            let (arguments, environment) = (of(arguments), of(environment));
            start(folder, &arguments, &environment)
                .named()
                .map(|named| named.by)
        };
        assert_eq!(
            by("/mnt/hd/sub", &[], &[]).as_deref(),
            Some("its working directory")
        );
        assert_eq!(
            by("/", &["x", "/mnt/hd/f"], &[]).as_deref(),
            Some("its argument `/mnt/hd/f`")
        );
        assert_eq!(
            by("/", &[], &["TMPDIR=/mnt/hd"]).as_deref(),
            Some("its variable `TMPDIR=/mnt/hd`")
        );
        let long = format!("/mnt/hd {}", "x".repeat(200));
        assert_eq!(by("/", &[&long], &[]).as_deref(), Some("its argument"));
    }

    #[test]
    fn variables_that_only_tell_where_somebody_was_do_not_count() {
        for text in [
            "PWD=/mnt/hd",
            "OLDPWD=/mnt/hd",
            "_=/mnt/hd/x",
            "PATH=/bin:/mnt/hd/bin",
            "NACRE_MOUNTS=/mnt/hd=p",
            "LD_PRELOAD=/mnt/hd/x.so",
            "/mnt/hd",
        ] {
            assert_eq!(
                start("/", &[], &[text.as_bytes().to_vec()]).named(),
                None,
                "{text}"
            );
        }
    }

    /// A program with these (type, contents) segments.
    fn program(segments: &[(u32, &[u8])]) -> Vec<u8> {
        let mut bytes = vec![0; HEAD];
        bytes[..6].copy_from_slice(b"\x7fELF\x02\x01");
        (bytes[18], bytes[32], bytes[54], bytes[56]) = (62, 64, 56, segments.len() as u8);
        for (index, (kind, contents)) in segments.iter().enumerate() {
            let (at, place) = (64 + 56 * index, 1024 + 256 * index);
            bytes[at..at + 4].copy_from_slice(&kind.to_le_bytes());
            bytes[at + 4..at + 8].copy_from_slice(&5u32.to_le_bytes());
            bytes[at + 8..at + 16].copy_from_slice(&(place as u64).to_le_bytes());
            bytes[at + 32..at + 40].copy_from_slice(&(contents.len() as u64).to_le_bytes());
            bytes[place..place + contents.len()].copy_from_slice(contents);
        }
        bytes
    }

    #[test]
    fn kinds_of_programs() {
        let glibc: (u32, &[u8]) = (3, b"/lib64/ld-linux-x86-64.so.2\0");
        let go: (u32, &[u8]) = (4, b"\x04\0\0\0\x10\0\0\0\x04\0\0\0Go\0\0abc");
        let build: &[u8] = b"\x04\0\0\0\x03\0\0\0\x03\0\0\0GNU\0xyz\0";
        let second: (u32, &[u8]) = (4, &[build, go.1].concat());
        assert_eq!(unserved(&program(&[glibc])), None);
        assert_eq!(unserved(&program(&[(1, b"code")])), Some(Unserved::Static));
        assert_eq!(unserved(&program(&[go])), Some(Unserved::Go));
        assert_eq!(unserved(&program(&[glibc, go])), Some(Unserved::Go));
        assert_eq!(unserved(&program(&[glibc, second])), Some(Unserved::Go));
        assert_eq!(unserved(&program(&[glibc, (4, build)])), None);
        let (linker, ordinary) = (
            program(&[]),
            program(&[(3, b"/lib64/ld-linux-x86-64.so.2\0")]),
        );
        assert!(is_linker(b"/lib64/ld-linux-x86-64.so.2", &linker));
        assert!(!is_linker(b"/lib/ld-musl-x86_64.so.1", &linker));
        assert!(!is_linker(b"/bin/static", &linker));
        assert!(!is_linker(b"/bin/ld-linux-like", &ordinary));
        let musl = Some(Unserved::Libc("/lib/ld-musl-x86_64.so.1".into()));
        assert_eq!(at_path(b"/lib/ld-musl-x86_64.so.1", &program(&[])), musl);
        assert_eq!(at_path(b"/lib64/ld-linux-x86-64.so.2", &program(&[])), None);
        assert_eq!(at_path(b"/bin/true", &program(&[])), Some(Unserved::Static));
        assert_eq!(
            unserved(&program(&[(3, b"/lib/ld-musl-x86_64.so.1\0")])),
            musl
        );
        assert_eq!(unserved(b"#!/bin/sh\n"), None);
        assert_eq!(unserved(b"\x7fELF\x01\x01"), Some(Unserved::Machine));
        let load = |why: Option<Unserved>| why.is_some_and(|why| why.may_load());
        assert!(!load(musl) && load(Some(Unserved::Static)) && load(Some(Unserved::Machine)));
        let own = std::fs::read("/proc/self/exe").expect("a program");
        assert_eq!(at_path(b"/a/program", &own), None);
    }

    #[test]
    fn own_calls_without_unwind_information() {
        let glibc: (u32, &[u8]) = (3, b"/lib64/ld-linux-x86-64.so.2\0");
        let call: (u32, &[u8]) = (1, b"\x31\xc0\x0f\x05\xc3");
        let unwind: (u32, &[u8]) = (0x6474_e550, b"table");
        let why = |segments: &[(u32, &[u8])]| at_path(b"/a/program", &program(segments));
        assert_eq!(why(&[glibc, call]), Some(Unserved::OwnCalls));
        assert_eq!(why(&[glibc, (1, &call.1[..3])]), None);
        assert_eq!(why(&[glibc, call, unwind]), None);
        assert_eq!(why(&[call]), Some(Unserved::Static));
        let mut data = program(&[glibc, call]);
        data[64 + 56 + 4] = 6;
        assert_eq!(at_path(b"/a/program", &data), None, "what cannot be run");
    }

    #[test]
    fn a_call_is_found_wherever_it_lies_in_the_file() {
        let head = program(&[(3, b"/lib64/ld-linux-x86-64.so.2\0"), (1, b"code")]);
        for at in [0, 4095, 65534, 65535, 65536, 131_070, 199_998, 199_999] {
            let mut whole = head.clone();
            whole.resize(300_000, 0x90);
            whole[64 + 56 + 32..][..8].copy_from_slice(&200_000u64.to_le_bytes());
            let at = 1280 + at;
            whole[at..at + 2].copy_from_slice(&[0x0f, 0x05]);
            let inside = at + 2 <= 1280 + 200_000;
            let why = at_path(b"/a/program", &whole);
            assert_eq!(why, inside.then_some(Unserved::OwnCalls), "{at}");
            at_path(b"/a/program", &whole[..70_000]);
        }
    }

    #[test]
    fn what_gains_rights_is_told_to_allow_others() {
        let named = Named {
            mount: b"/mnt/hd".to_vec(),
            by: "its argument `/mnt/hd/f`".into(),
        };
        let told = |why| {
            let text = refusal("agent", &why, &named, None);
            text.contains("kernel, with `--allow-other`.")
        };
        assert!(told(Unserved::Privileged));
        assert!(!told(Unserved::Static));
        let other = KernelMount {
            source: b"/p/other".to_vec(),
            user: 7,
            for_all: false,
        };
        let text = refusal("agent", &Unserved::Static, &named, Some(&other));
        assert!(text.contains("see /p/other, which user 7 has mounted at /mnt/hd, not the pool"));
        assert!(
            text.contains("another `--mount DIR`") && !text.contains("host's"),
            "{text}"
        );
    }

    fn at_path(path: &[u8], file: &[u8]) -> Option<Unserved> {
        unserved_at(path, &file[..file.len().min(HEAD)], |offset, room| {
            let rest = file.get(offset..).unwrap_or(&[]);
            let len = rest.len().min(room.len());
            room[..len].copy_from_slice(&rest[..len]);
            len
        })
    }

    #[test]
    fn no_head_of_a_program_is_too_strange() {
        let whole = program(&[(3, b"/lib64/ld-linux-x86-64.so.2\0"), (4, b"note")]);
        for at in 0..512 {
            for byte in [0, 0x7f, 0xff] {
                let mut strange = whole.clone();
                strange[at] = byte;
                unserved(&strange);
                unserved(&strange[..at]);
            }
        }
    }

    #[test]
    fn rights_are_gained_by_changing_bits_only() {
        let gained = |mode, owner, caller| {
            Rights {
                mode,
                owner,
                caller,
            }
            .gained()
        };
        assert!(gained(0o4755, (0, 0), (1000, 1000)) && gained(0o2755, (0, 5), (0, 0)));
        assert!(!gained(0o4755, (0, 0), (0, 0)) && !gained(0o755, (0, 0), (1000, 1000)));
        assert!(!gained(0o2745, (0, 5), (0, 0)));
    }

    #[test]
    fn only_one_word_allows() {
        assert_eq!(Policy::of(Some(b"allow")), Policy::Allow);
        assert_eq!(
            (Policy::of(None), Policy::of(Some(b"1"))),
            (Policy::Refuse, Policy::Refuse)
        );
    }
}
