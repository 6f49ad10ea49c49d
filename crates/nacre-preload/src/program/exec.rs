//! Executing programs: those of pools from a sealed copy in memory, or by the kernel's mount if
//! this library does not serve them, `#!` lines read by us, and in every new program this library
//! and its settings again.

use core::mem;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, IntoRawFd, OwnedFd};
use std::sync::OnceLock;

use nacre_media::UserBytesMut;
use nacre_types::reach::{self, Unserved};
use nacre_vfs::{ExecImage, Reply, Vfs};
use rustix::fs::{Stat, fstat};

use crate::entry::call::{Call, HERE, PathAt, Verdict, terminated};
use crate::entry::errno::Stop;
use crate::entry::user::{self, StringBuffer};
use crate::program::by_kernel::{self, HandOver};
use crate::program::image::Image;
use crate::program::memory_copy::MemoryCopy;
use crate::program::process::{self, Left};
use crate::program::unserved;
use crate::rewrite::libraries::{self, Libraries, Search};
use crate::runtime::environment;
use crate::runtime::kernel::{self, call, checked};
use crate::runtime::log;
use crate::runtime::robust::Pending;
use crate::runtime::signals;

/// Most entries of argv or envp.
const ENTRIES_MAX: usize = 1 << 20;
/// Scripts that are interpreted by scripts, at most.
const SCRIPT_DEPTH: usize = 5;
/// Bytes of a file in which its `#!` line must end.
const LINE: usize = 256;

const PRELOAD: &[u8] = b"LD_PRELOAD=";
const LIBRARY_PATH: &[u8] = b"LD_LIBRARY_PATH=";

/// Path of the pool's program that this process executes, if it does.
static EXECUTABLE: OnceLock<Vec<u8>> = OnceLock::new();

/// The process executes a program of a pool.
pub fn executes(path: Vec<u8>) {
    let _ = EXECUTABLE.set(path);
}

/// What is to be executed: a path relative to a directory fd, or an fd itself.
struct Target {
    dir: i32,
    path: Vec<u8>,
    flags: i32,
    /// The name that a script sees, if not the path.
    shown: Option<Vec<u8>>,
    /// `dir` is memory of ours.
    memory: bool,
}

impl Target {
    fn of(dir: i32, path: &[u8], flags: i32) -> Self {
        Target {
            dir,
            path: path.to_vec(),
            flags,
            shown: None,
            memory: false,
        }
    }

    /// Number and arguments of the kernel's call; `execve` where that does, for tracers and filters
    /// that know no other one (PRoot).
    fn call(&self, path: usize, vectors: [usize; 2]) -> (libc::c_long, [usize; 6]) {
        let [arguments, environment] = vectors;
        if self.dir == libc::AT_FDCWD && self.flags == 0 {
            return (libc::SYS_execve, [path, arguments, environment, 0, 0, 0]);
        }
        let (dir, flags) = (self.dir as usize, self.flags as usize);
        (
            libc::SYS_execveat,
            [dir, path, arguments, environment, flags, 0],
        )
    }

    /// Lets go of memory of ours.
    fn close(&self) {
        if self.memory {
            call(libc::SYS_close, &[self.dir as usize]);
        }
    }
}

/// What the kernel can execute, and what the new program must be told.
struct Program {
    target: Target,
    /// The pool's program, if it is one.
    executable: Option<Executable>,
    libraries: Libraries,
    access: Access,
}

/// How a program that is to start gets at the pools.
#[derive(Default)]
struct Access {
    /// Why it will not see them, if so.
    unserved: Option<Unserved>,
    /// It is the dynamic linker: what it is to load it opens itself, by the kernel.
    linker: bool,
}

/// A program of a pool.
struct Executable {
    path: Vec<u8>,
    inode: u64,
}

impl Program {
    /// What is not served is executed where the kernel shows it: it may look for what lies beside
    /// it.
    fn go_where_it_is_shown(&mut self) {
        let own = self
            .executable
            .as_ref()
            .filter(|_| self.access.unserved.is_some());
        let shown = own.filter(|own| by_kernel::shows_program(&own.path, own.inode));
        if let Some(own) = shown {
            let copy = mem::replace(&mut self.target, Target::of(HERE, &own.path, 0));
            copy.close();
        }
    }
}

/// The program's vectors, as they become.
struct ExecPlan {
    image: Image,
    environment: Vec<usize>,
    /// `LD_LIBRARY_PATH` in the new environment.
    library_path: Vec<u8>,
    /// `LD_PRELOAD` as the dynamic linker is to see it, if the program sees another.
    preloads: Option<Vec<u8>>,
}

/// execve and execveat: `vectors` are the arguments that hold argv and envp.
pub fn execve(c: &mut Call<'_>, place: PathAt, vectors: [usize; 2], flags: i32) -> Verdict {
    let mut buffer = StringBuffer::new();
    let path = c.string(place.path, &mut buffer)?;
    let dir = place.dir.map_or(HERE, |i| c.int(i));
    let target = Target::of(dir, path, flags);
    let environment = pointers(c.arg(vectors[1]))?;
    let mut plan = ExecPlan {
        library_path: variable(&environment, LIBRARY_PATH),
        preloads: None,
        image: Image::of(pointers(c.arg(vectors[0]))?),
        environment,
    };
    let mut program = resolve(c, target, &mut plan, SCRIPT_DEPTH)?;
    if let Some(why) = &program.access.unserved {
        refuse_if_it_names_a_mount(c, path, why, &plan)?;
        program.go_where_it_is_shown();
    } else {
        let list = variable(&plan.environment, PRELOAD);
        plan.preloads = program.libraries.preload(&plan.search(c.vfs()), &list);
    }
    let loads_from_pool = program.access.linker && plan.names_a_pool(c);
    if loads_from_pool {
        by_kernel::show();
    }
    let folder = if program.libraries.is_empty() {
        None
    } else {
        Some(program.libraries.write().map_err(Stop::Errno)?)
    };
    let threads = process::has_threads();
    let word = c.vfs().before_exec(threads)?;
    let left = (!threads).then(|| process::leave_pools(c.vfs())).flatten();
    let executable = program.executable.map(|own| own.path);
    let loads_us = program
        .access
        .unserved
        .as_ref()
        .is_none_or(Unserved::may_load);
    plan.fill_environment(executable, folder.as_deref(), left.is_some(), loads_us);
    let _pending = word.and_then(Pending::start);
    let served = program.access.unserved.is_none() && environment::get().is_within_reach();
    let by_kernel = !served && left.is_none();
    // In a sandbox it may turn out not to be served.
    let may_move = by_kernel || loads_from_pool || nacre_session::has_moved();
    let prepared = Prepared {
        moved: may_move && by_kernel::go_where_the_program_is(c),
        handed_over: by_kernel.then(|| HandOver::make(c)),
        left,
        libraries: folder,
    };
    let verdict = run(c, &program.target, plan.image);
    prepared.undo(c);
    verdict
}

/// What was done for a program that the kernel did not execute.
struct Prepared {
    /// The working directory is where the kernel shows the pool.
    moved: bool,
    handed_over: Option<HandOver>,
    left: Option<Left>,
    /// The folder of copies of its libraries.
    libraries: Option<Vec<u8>>,
}

impl Prepared {
    fn undo(self, c: &Call<'_>) {
        if let Some(handed_over) = self.handed_over {
            handed_over.undo();
        }
        if self.moved {
            // Where it cannot, the kernel shows the same folder.
            let _harmless = c.vfs().go_back_out();
        }
        c.vfs().after_failed_exec();
        self.left.into_iter().for_each(Left::join_again);
        if let Some(folder) = &self.libraries {
            libraries::remove(folder);
        }
    }
}

/// A program that would look for the pool's files among the host's is not started.
fn refuse_if_it_names_a_mount(
    c: &Call<'_>,
    path: &[u8],
    why: &Unserved,
    plan: &ExecPlan,
) -> Result<(), Stop> {
    let Some(named) = unserved::refused(c, why, &plan.image.arguments, &plan.environment) else {
        return Ok(());
    };
    let taken = by_kernel::taken(&named.mount);
    let text = reach::refusal(&String::from_utf8_lossy(path), why, &named, taken.as_ref());
    log::tell(&text);
    Err(Stop::Errno(libc::EPERM))
}

/// Value of a variable of an environment; empty if it is not set.
fn variable(environment: &[usize], name: &[u8]) -> Vec<u8> {
    let mut buffer = StringBuffer::new();
    for &entry in environment {
        if let Some(value) = buffer
            .read(entry)
            .ok()
            .and_then(|text| text.strip_prefix(name))
        {
            return value.to_vec();
        }
    }
    Vec::new()
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

/// Finds what the kernel can execute.
fn resolve(
    c: &mut Call<'_>,
    target: Target,
    plan: &mut ExecPlan,
    depth: usize,
) -> Result<Program, Stop> {
    match c.vfs().exec_image(target.dir, &target.path, target.flags)? {
        Reply::Done(found) if found.head.starts_with(b"#!") => {
            let by_path = target.dir == HERE && !target.path.is_empty();
            let shown = match (target.shown.clone(), by_path) {
                (Some(shown), _) => shown,
                (None, true) => target.path,
                (None, false) => absolute(c, &target),
            };
            script(c, &found.head, &shown, plan, depth)
        }
        Reply::Done(found) => pool_program(c, &found, absolute(c, &target), plan),
        Reply::KernelPath(path) => {
            let target = Target {
                dir: HERE,
                path,
                ..target
            };
            let access = HostFile::access_to(&target);
            Ok(on_host(c, target, plan, access))
        }
        _ => host_program(c, target, plan, depth),
    }
}

/// A program of a pool: executed from a sealed copy, with its libraries from copies.
fn pool_program(
    c: &Call<'_>,
    found: &ExecImage,
    path: Vec<u8>,
    plan: &ExecPlan,
) -> Result<Program, Stop> {
    let (mut copy, libraries) = copied(c, found, &path, plan)?;
    let bytes = copy.bytes();
    let read = |offset, room: &mut [u8]| {
        let rest = bytes.get(offset..).unwrap_or(&[]);
        let len = rest.len().min(room.len());
        room[..len].copy_from_slice(&rest[..len]);
        len
    };
    let head = &bytes[..bytes.len().min(reach::HEAD)];
    let access = Access {
        linker: reach::is_linker(&path, head),
        unserved: reach::unserved_at(&path, head, read),
    };
    Ok(Program {
        target: Target {
            memory: true,
            ..Target::of(copy.sealed()?.into_raw_fd(), &[], libc::AT_EMPTY_PATH)
        },
        access,
        executable: Some(Executable {
            path,
            inode: found.inode,
        }),
        libraries,
    })
}

/// The copy that is executed, with the libraries that it needs from pools. It is one that another
/// process executes already, unless it must have other names for its libraries.
fn copied(
    c: &Call<'_>,
    found: &ExecImage,
    path: &[u8],
    plan: &ExecPlan,
) -> Result<(MemoryCopy, Libraries), Stop> {
    let search = plan.search(c.vfs());
    let mut libraries = Libraries::default();
    if let Some(mut copy) = MemoryCopy::of_another(c, found, path)
        && !libraries.collect(&search, copy.bytes(), path)
    {
        return Ok((copy, libraries));
    }
    let (mut copy, mut libraries) = (MemoryCopy::of(c, found, path)?, Libraries::default());
    libraries.collect(&search, copy.bytes(), path);
    Ok((copy, libraries))
}

/// A program of the host. Only a library path into a pool makes us look at it.
fn on_host(c: &Call<'_>, target: Target, plan: &ExecPlan, access: Access) -> Program {
    let mut libraries = Libraries::default();
    let search = plan.search(c.vfs());
    if search.leads_into_pool() {
        let whole = HostFile::open(&target).and_then(|file| file.bytes(usize::MAX));
        let mut bytes = whole.unwrap_or_default();
        libraries.collect(&search, &mut bytes, &target.path);
    }
    Program {
        target,
        executable: None,
        libraries,
        access,
    }
}

/// Absolute path of a program of a pool, without links, as `/proc/self/exe` shows it.
fn absolute(c: &Call<'_>, target: &Target) -> Vec<u8> {
    let vfs = c.vfs();
    let by_fd = target.path.is_empty();
    let opened = match by_fd {
        true => Ok(Reply::Done(i64::from(target.dir))),
        false => vfs.openat(target.dir, &target.path, libc::O_PATH | libc::O_CLOEXEC, 0),
    };
    let Ok(Reply::Done(fd)) = opened else {
        return target.path.clone();
    };
    let link = format!("/proc/self/fd/{fd}");
    let mut room = vec![0u8; user::PATH_MAX];
    let buffer = UserBytesMut::from(room.as_mut_slice());
    let found = vfs.readlinkat(HERE, link.as_bytes(), buffer);
    if !by_fd {
        let _ = vfs.close(fd as i32);
    }
    match found {
        Ok(Reply::Done(len)) => room.truncate(len as usize),
        _ => return target.path.clone(),
    }
    room
}

/// A script of the host is not the kernel's if its interpreter lies in a pool.
fn host_program(
    c: &mut Call<'_>,
    target: Target,
    plan: &mut ExecPlan,
    depth: usize,
) -> Result<Program, Stop> {
    if missing_here(&target) {
        let retried = c.vfs().retry_after_enoent(target.dir, &target.path, true);
        let (Some(path), Some(depth)) = (retried, depth.checked_sub(1)) else {
            return Err(Stop::Errno(libc::ENOENT));
        };
        let again = Target {
            shown: Some(target.path),
            ..Target::of(HERE, &path, 0)
        };
        return resolve(c, again, plan, depth);
    }
    let Some(file) = HostFile::open(&target) else {
        return Ok(on_host(c, target, plan, Access::default()));
    };
    let head = file.head.as_slice();
    let Some((program, _)) = interpreter(head) else {
        let access = file.access(&target);
        return Ok(on_host(c, target, plan, access));
    };
    if matches!(c.vfs().exec_image(HERE, program, 0), Ok(Reply::Done(_))) {
        return script(c, head, &target.path, plan, depth);
    }
    let program = Target::of(HERE, program, 0);
    Ok(on_host(c, target, plan, HostFile::access_to(&program)))
}

fn missing_here(target: &Target) -> bool {
    let path = terminated(target.path.clone());
    let args = [target.dir as usize, path.as_ptr() as usize, 0];
    checked(libc::SYS_faccessat, &args) == Err(libc::ENOENT) && !target.path.is_empty()
}

/// A program of the host that can be read.
struct HostFile {
    file: OwnedFd,
    meta: Stat,
    head: Vec<u8>,
}

impl HostFile {
    fn open(target: &Target) -> Option<HostFile> {
        let path = match target.path.is_empty() {
            true => format!("/proc/self/fd/{}", target.dir).into_bytes(),
            false => target.path.clone(),
        };
        let path = terminated(path);
        let flags = (libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NONBLOCK) as usize;
        let args = [target.dir as usize, path.as_ptr() as usize, flags];
        let fd = checked(libc::SYS_openat, &args).ok()?;
        // SAFETY: the kernel has just made it, and nobody else knows it.
        let file = unsafe { OwnedFd::from_raw_fd(fd as i32) };
        let meta = fstat(&file).ok()?;
        let mut found = HostFile {
            file,
            meta,
            head: Vec::new(),
        };
        found.head = found.bytes(reach::HEAD)?;
        Some(found)
    }

    /// Its first bytes, at most `max`.
    fn bytes(&self, max: usize) -> Option<Vec<u8>> {
        let mut bytes = vec![0; (self.meta.st_size as usize).min(max)];
        let fd = self.file.as_raw_fd() as usize;
        let args = [fd, bytes.as_mut_ptr() as usize, bytes.len(), 0];
        let read = checked(libc::SYS_pread64, &args).ok()?;
        bytes.truncate(read);
        Some(bytes)
    }

    /// How the program at `target` gets at the pools.
    fn access_to(target: &Target) -> Access {
        let file = HostFile::open(target);
        file.map(|file| file.access(target)).unwrap_or_default()
    }

    fn access(&self, target: &Target) -> Access {
        let HostFile { file, meta, head } = self;
        Access {
            unserved: unserved::of_host(&target.path, head, meta, file.as_fd()),
            linker: reach::is_linker(&target.path, head),
        }
    }
}

/// Program and optional argument of a `#!` line.
fn interpreter(head: &[u8]) -> Option<(&[u8], Option<&[u8]>)> {
    let line = head[..head.len().min(LINE)].strip_prefix(b"#!")?;
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
    plan: &mut ExecPlan,
    depth: usize,
) -> Result<Program, Stop> {
    let Some(depth) = depth.checked_sub(1).filter(|&depth| depth > 0) else {
        return Err(Stop::Errno(libc::ELOOP));
    };
    let Some((program, argument)) = interpreter(head) else {
        return Err(Stop::Errno(libc::ENOEXEC));
    };
    let image = &mut plan.image;
    let mut arguments = vec![image.keep(program)];
    arguments.extend(argument.map(|argument| image.keep(argument)));
    arguments.push(image.keep(path));
    arguments.extend(image.arguments.iter().skip(1));
    image.arguments = arguments;
    resolve(c, Target::of(HERE, program, 0), plan, depth)
}

impl ExecPlan {
    /// How the new program's libraries are looked for.
    fn search<'a>(&'a self, vfs: &'a Vfs) -> Search<'a> {
        let path = &self.library_path;
        Search { vfs, path }
    }

    /// Whether the program would look for something in a pool.
    fn names_a_pool(&self, c: &Call<'_>) -> bool {
        self.search(c.vfs()).leads_into_pool()
            || unserved::names_a_pool(c, &self.image.arguments, &self.environment)
    }

    /// The program's environment with what every process under Nacre needs.
    fn fill_environment(
        &mut self,
        executable: Option<Vec<u8>>,
        libraries: Option<&[u8]>,
        empty_handed: bool,
        loads_us: bool,
    ) {
        let ours = environment::get();
        let mut missing: Vec<&[u8]> = ours.settings.iter().map(Vec::as_slice).collect();
        let mut buffer = StringBuffer::new();
        let list_of = |list: &[u8]| match loads_us {
            true => ours.preloads(list),
            false => ours.others(list),
        };
        let mut preloads = list_of(b"");
        for &entry in &self.environment {
            let text = buffer.read(entry).unwrap_or_default();
            missing.retain(|setting| !same_name(setting, text));
            if let Some(list) = text.strip_prefix(PRELOAD) {
                preloads = list_of(list);
            } else if !environment::is_internal(text)
                && (libraries.is_none() || !text.starts_with(LIBRARY_PATH))
            {
                self.image.environment.push(entry);
            }
        }
        missing.into_iter().for_each(|setting| self.add(setting));
        if let Some(list) = self.preloads.take() {
            self.add(&[environment::PRELOADS, &preloads].concat());
            preloads = list_of(&list);
        }
        if !preloads.is_empty() {
            self.add(&[PRELOAD, &preloads].concat());
        }
        if empty_handed {
            let pid = kernel::getpid().to_string();
            self.add(&[environment::EMPTY_HANDED, pid.as_bytes()].concat());
        }
        if let Some(path) = executable {
            self.add(&[environment::EXECUTABLE, path.as_slice()].concat());
        }
        if let Some(folder) = libraries {
            let rest: &[u8] = if self.library_path.is_empty() {
                b""
            } else {
                b":"
            };
            self.add(&[LIBRARY_PATH, folder, rest, &self.library_path].concat());
            self.add(&[environment::LIBRARIES, folder].concat());
        }
    }

    fn add(&mut self, text: &[u8]) {
        let kept = self.image.keep(text);
        self.image.environment.push(kept);
    }
}

/// Whether two `NAME=value` texts have the same name.
fn same_name(one: &[u8], other: &[u8]) -> bool {
    let name = |text: &[u8]| text.iter().position(|&b| b == b'=').map(|end| end + 1);
    name(one).is_some_and(|end| other.starts_with(&one[..end]))
}

/// Asks the kernel. Returns only if the program could not be executed.
fn run(c: &mut Call<'_>, target: &Target, mut image: Image) -> Verdict {
    image.arguments.push(0);
    image.environment.push(0);
    let path = image.keep(&target.path);
    let (arguments, environment) = (image.arguments.as_ptr(), image.environment.as_ptr());
    let (number, args) = target.call(path, [arguments as usize, environment as usize]);
    // Moving the image moves none of its heap blocks.
    let kept = process::keep_for_parent(image);
    let alternate = signals::before_exec();
    // A parent whose memory we share goes on with this thread state, and finds itself outside.
    let result = c.outside(number as usize, args);
    signals::after_failed_exec(alternate);
    target.close();
    drop(kept);
    Ok(result)
}

/// readlink of the process's own executable, if that is a program of a pool.
pub fn readlink(c: &Call<'_>, place: PathAt, buffer: usize) -> Option<Verdict> {
    let executable = EXECUTABLE.get()?;
    let mut path = StringBuffer::new();
    let path = c.string(place.path, &mut path).ok()?;
    let own = format!("/proc/{}/exe", kernel::getpid());
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
