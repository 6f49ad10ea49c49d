//! Executing programs: those of pools from a sealed copy in memory, `#!` lines read by us, and in
//! every new program this library and its settings again.

use std::sync::OnceLock;

use nacre_vfs::{ExecImage, Reply};

use crate::call::{Call, HERE, PathAt, Verdict, sink, terminated};
use crate::environment::{self, Environment};
use crate::errno::Stop;
use crate::kernel::{call, checked};
use crate::tls::{IN_NACRE, thread};
use crate::user::{self, StringBuffer};
use crate::{process, signals};

/// Most entries of argv or envp.
const ENTRIES_MAX: usize = 1 << 20;
/// Scripts that are interpreted by scripts, at most.
const SCRIPT_DEPTH: usize = 5;
/// Bytes of a file in which its `#!` line must end.
const HEAD: usize = 256;

/// Path of the pool's program that this process executes, if it does.
static EXECUTABLE: OnceLock<Vec<u8>> = OnceLock::new();

/// The process executes a program of a pool.
pub fn executes(path: Vec<u8>) {
    let _ = EXECUTABLE.set(path);
}

/// What is handed to execve. Everything that the pointers lead to lives here or in the program.
#[derive(Default)]
pub struct Image {
    arguments: Vec<usize>,
    environment: Vec<usize>,
    strings: Vec<Vec<u8>>,
}

impl Image {
    /// Keeps a string and gives its address.
    fn keep(&mut self, string: &[u8]) -> usize {
        self.strings.push(terminated(string.to_vec()));
        self.strings.last().map_or(0, |kept| kept.as_ptr() as usize)
    }
}

/// What the kernel is asked to execute: a path relative to a directory fd, or an fd itself.
struct Target {
    dir: i32,
    path: Vec<u8>,
    flags: i32,
}

/// execve and execveat: `vectors` are the arguments that hold argv and envp.
pub fn execve(c: &mut Call<'_>, place: PathAt, vectors: [usize; 2], flags: i32) -> Verdict {
    let mut buffer = StringBuffer::new();
    let path = c.string(place.path, &mut buffer)?.to_vec();
    let mut image = Image {
        arguments: pointers(c.arg(vectors[0]))?,
        ..Image::default()
    };
    let environment = pointers(c.arg(vectors[1]))?;
    let dir = place.dir.map_or(HERE, |i| c.int(i));
    let target = Target { dir, path, flags };
    let (target, executable) = resolve(c, target, &mut image, SCRIPT_DEPTH)?;
    fill_environment(&mut image, &environment, executable)?;
    c.vfs().before_exec()?;
    run(&target, image)
}

/// The pointers of a NULL-terminated array of the program, without the NULL.
fn pointers(at: usize) -> Result<Vec<usize>, Stop> {
    let mut all = Vec::new();
    while at != 0 && all.len() < ENTRIES_MAX {
        match user::read(at + all.len() * size_of::<usize>())? {
            0 => return Ok(all),
            one => all.push(one),
        }
    }
    if at == 0 {
        Ok(all)
    } else {
        Err(Stop::Errno(libc::E2BIG))
    }
}

/// Finds what the kernel can execute; the path of the pool's program if it is one.
fn resolve(
    c: &mut Call<'_>,
    target: Target,
    image: &mut Image,
    depth: usize,
) -> Result<(Target, Option<Vec<u8>>), Stop> {
    match c.vfs().exec_image(target.dir, &target.path, target.flags)? {
        Reply::Done(found) if found.head.starts_with(b"#!") => {
            let by_path = target.dir == HERE && !target.path.is_empty();
            let shown = if by_path {
                target.path
            } else {
                absolute(c, &target)
            };
            script(c, &found.head, &shown, image, depth)
        }
        Reply::Done(found) => {
            let path = absolute(c, &target);
            Ok((memory_copy(c, &found, &path)?, Some(path)))
        }
        Reply::KernelPath(path) => Ok((
            Target {
                dir: HERE,
                path,
                ..target
            },
            None,
        )),
        _ => host_program(c, target, image, depth),
    }
}

/// Absolute path of a target.
fn absolute(c: &Call<'_>, target: &Target) -> Vec<u8> {
    if target.path.starts_with(b"/") {
        return target.path.clone();
    }
    let mut room = vec![0u8; user::PATH_MAX];
    let found = sink(room.as_mut_ptr() as usize, room.len())
        .ok()
        .and_then(|buffer| {
            if target.dir == HERE {
                return c.vfs().getcwd(buffer).ok();
            }
            let link = format!("/proc/self/fd/{}", target.dir);
            c.vfs().readlinkat(HERE, link.as_bytes(), buffer).ok()
        });
    let len = if let Some(Reply::Done(len)) = found {
        len as usize
    } else {
        0
    };
    room.truncate(len);
    if room.last() == Some(&0) {
        room.pop();
    }
    if !target.path.is_empty() {
        room.extend([b"/", target.path.as_slice()].concat());
    }
    room
}

/// A program of the host: only a script whose interpreter lies in a pool is not the kernel's.
fn host_program(
    c: &mut Call<'_>,
    target: Target,
    image: &mut Image,
    depth: usize,
) -> Result<(Target, Option<Vec<u8>>), Stop> {
    if missing_here(&target) {
        let retried = c.vfs().retry_after_enoent(target.dir, &target.path, true);
        let (Some(path), Some(depth)) = (retried, depth.checked_sub(1)) else {
            return Err(Stop::Errno(libc::ENOENT));
        };
        return resolve(
            c,
            Target {
                dir: HERE,
                path,
                flags: 0,
            },
            image,
            depth,
        );
    }
    let Some(head) = host_head(&target) else {
        return Ok((target, None));
    };
    let pooled = interpreter(&head).is_some_and(|(program, _)| {
        matches!(c.vfs().exec_image(HERE, program, 0), Ok(Reply::Done(_)))
    });
    if pooled {
        return script(c, &head, &target.path.clone(), image, depth);
    }
    Ok((target, None))
}

fn missing_here(target: &Target) -> bool {
    let path = terminated(target.path.clone());
    let args = [target.dir as usize, path.as_ptr() as usize, 0];
    checked(libc::SYS_faccessat, &args) == Err(libc::ENOENT) && !target.path.is_empty()
}

/// The first bytes of a script of the host.
fn host_head(target: &Target) -> Option<Vec<u8>> {
    let path = terminated(target.path.clone());
    let flags = (libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NONBLOCK) as usize;
    let args = [target.dir as usize, path.as_ptr() as usize, flags];
    let fd = checked(libc::SYS_openat, &args).ok()?;
    let mut head = vec![0; HEAD];
    let read = checked(
        libc::SYS_read,
        &[fd, head.as_mut_ptr() as usize, head.len()],
    );
    call(libc::SYS_close, &[fd]);
    head.truncate(read.ok()?);
    head.starts_with(b"#!").then_some(head)
}

/// Program and optional argument of a `#!` line.
fn interpreter(head: &[u8]) -> Option<(&[u8], Option<&[u8]>)> {
    let line = head.strip_prefix(b"#!")?;
    let line = line.split(|&b| b == b'\n').next()?.trim_ascii();
    let end = line
        .iter()
        .position(|b| b" \t".contains(b))
        .unwrap_or(line.len());
    let (program, argument) = (&line[..end], line[end..].trim_ascii());
    let argument = (!argument.is_empty()).then_some(argument);
    (!program.is_empty() && !program.contains(&0)).then_some((program, argument))
}

/// Puts the interpreter in front of the arguments and looks for it.
fn script(
    c: &mut Call<'_>,
    head: &[u8],
    path: &[u8],
    image: &mut Image,
    depth: usize,
) -> Result<(Target, Option<Vec<u8>>), Stop> {
    let Some(depth) = depth.checked_sub(1).filter(|&depth| depth > 0) else {
        return Err(Stop::Errno(libc::ELOOP));
    };
    let Some((program, argument)) = interpreter(head) else {
        return Err(Stop::Errno(libc::ENOEXEC));
    };
    let mut arguments = vec![image.keep(program)];
    arguments.extend(argument.map(|argument| image.keep(argument)));
    arguments.push(image.keep(path));
    arguments.extend(image.arguments.iter().skip(1));
    image.arguments = arguments;
    resolve(
        c,
        Target {
            dir: HERE,
            path: program.to_vec(),
            flags: 0,
        },
        image,
        depth,
    )
}

/// Copies a program of a pool into sealed memory.
fn memory_copy(c: &Call<'_>, program: &ExecImage, path: &[u8]) -> Result<Target, Stop> {
    const SEALS: i32 =
        libc::F_SEAL_SEAL | libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_WRITE;
    let name = path.rsplit(|&b| b == b'/').next().unwrap_or(b"program");
    let name = terminated(name[..name.len().min(200)].to_vec());
    let flags = (libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) as usize;
    let fd = checked(libc::SYS_memfd_create, &[name.as_ptr() as usize, flags]);
    let fd = fd.map_err(Stop::Errno)?;
    let copied = copy_program(c, program, fd);
    let sealed = copied.and_then(|()| {
        let seal = [fd, libc::F_ADD_SEALS as usize, SEALS as usize];
        checked(libc::SYS_fcntl, &seal).map_err(Stop::Errno)
    });
    if let Err(stop) = sealed {
        call(libc::SYS_close, &[fd]);
        return Err(stop);
    }
    Ok(Target {
        dir: fd as i32,
        path: Vec::new(),
        flags: libc::AT_EMPTY_PATH,
    })
}

fn copy_program(c: &Call<'_>, program: &ExecImage, fd: usize) -> Result<(), Stop> {
    let mut chunk = vec![0u8; 256 << 10];
    let mut done = 0;
    while done < program.size {
        let part = sink(chunk.as_mut_ptr() as usize, chunk.len())?;
        let read = c.vfs().read_image(program, done, part)?;
        if read == 0 {
            break;
        }
        let args = [fd, chunk.as_ptr() as usize, read, done as usize];
        let written = checked(libc::SYS_pwrite64, &args).map_err(Stop::Errno)?;
        done += written as u64;
    }
    Ok(())
}

/// The program's environment with what every process under Nacre needs.
fn fill_environment(
    image: &mut Image,
    given: &[usize],
    executable: Option<Vec<u8>>,
) -> Result<(), Stop> {
    let ours = environment::get();
    let mut missing: Vec<&[u8]> = ours.settings.iter().map(Vec::as_slice).collect();
    let mut buffer = StringBuffer::new();
    let mut preloaded = false;
    for &entry in given {
        let text = buffer.read(entry).unwrap_or_default();
        if text.starts_with(Environment::EXECUTABLE) {
            continue;
        }
        missing.retain(|setting| !same_name(setting, text));
        match text.strip_prefix(b"LD_PRELOAD=") {
            Some(list) if !ours.is_in(list) => {
                let both = [b"LD_PRELOAD=", ours.library.as_slice(), b":", list].concat();
                let both = image.keep(&both);
                image.environment.push(both);
            }
            _ => image.environment.push(entry),
        }
        preloaded |= text.starts_with(b"LD_PRELOAD=");
    }
    for setting in missing {
        let kept = image.keep(setting);
        image.environment.push(kept);
    }
    if !preloaded {
        let kept = image.keep(&[b"LD_PRELOAD=", ours.library.as_slice()].concat());
        image.environment.push(kept);
    }
    if let Some(path) = executable {
        let kept = image.keep(&[Environment::EXECUTABLE, path.as_slice()].concat());
        image.environment.push(kept);
    }
    Ok(())
}

/// Whether two `NAME=value` texts have the same name.
fn same_name(one: &[u8], other: &[u8]) -> bool {
    let name = |text: &[u8]| text.iter().position(|&b| b == b'=').map(|end| end + 1);
    name(one).is_some_and(|end| other.starts_with(&one[..end]))
}

/// Asks the kernel. Returns only if the program could not be executed.
fn run(target: &Target, mut image: Image) -> Verdict {
    image.arguments.push(0);
    image.environment.push(0);
    let path = image.keep(&target.path);
    let (arguments, environment) = (image.arguments.as_ptr(), image.environment.as_ptr());
    let args = [
        target.dir as usize,
        path,
        arguments as usize,
        environment as usize,
        target.flags as usize,
    ];
    // Moving the image moves none of its heap blocks.
    let kept = process::keep_for_parent(image);
    signals::before_exec();
    let thread = thread();
    // A parent whose memory we share goes on with this thread state.
    thread
        .flags
        .fetch_and(!IN_NACRE, core::sync::atomic::Ordering::Relaxed);
    signals::deliver_now();
    let result = call(libc::SYS_execveat, &args);
    thread
        .flags
        .fetch_or(IN_NACRE, core::sync::atomic::Ordering::Relaxed);
    signals::after_failed_exec();
    if target.flags & libc::AT_EMPTY_PATH != 0 && target.path.is_empty() {
        call(libc::SYS_close, &[target.dir as usize]);
    }
    drop(kept);
    Ok(result)
}

/// readlink of the process's own executable, if that is a program of a pool.
pub fn readlink(c: &Call<'_>, place: PathAt, buffer: usize) -> Option<Verdict> {
    let executable = EXECUTABLE.get()?;
    let mut path = StringBuffer::new();
    let path = c.string(place.path, &mut path).ok()?;
    let own = format!("/proc/{}/exe", crate::kernel::getpid());
    if path != b"/proc/self/exe" && path != own.as_bytes() {
        return None;
    }
    let len = executable.len().min(c.arg(buffer + 1));
    let written = user::write_bytes(c.arg(buffer), &executable[..len]);
    Some(written.map(|()| len as isize).map_err(Stop::from))
}

#[cfg(test)]
mod tests {
    use super::{interpreter, same_name};

    #[test]
    fn script_lines() {
        let of = |head: &'static [u8]| interpreter(head);
        assert_eq!(of(b"#!/bin/sh\nx"), Some((&b"/bin/sh"[..], None)));
        assert_eq!(
            of(b"#! /bin/sh  -e x \nx"),
            Some((&b"/bin/sh"[..], Some(&b"-e x"[..])))
        );
        assert_eq!(of(b"#!/bin/sh"), Some((&b"/bin/sh"[..], None)));
        assert_eq!(of(b"#!   \n/bin/sh"), None);
        assert_eq!(of(b"/bin/sh"), None);
    }

    #[test]
    fn names_of_settings() {
        assert!(same_name(b"NACRE_LOG=1", b"NACRE_LOG=/tmp/x"));
        assert!(!same_name(b"NACRE_LOG=1", b"NACRE_LOGS=1"));
        assert!(!same_name(b"NACRE", b"NACRE"));
    }
}
