//! inotify: watches of files of pools, and reading what their instances are told (D49).

use std::sync::{Mutex, PoisonError};

use libc::{SYS_inotify_add_watch, SYS_inotify_rm_watch};
use nacre_vfs::Reply;

use crate::entry::call::{Call, Vector, Verdict, path_in};
use crate::entry::errno::Stop;
use crate::entry::table::{self, ServedCall, entry, fd_entry};
use crate::entry::user;
use crate::program::instances;
use crate::runtime::kernel::checked;

/// The calls of this family.
pub const ENTRIES: &[ServedCall] = &[
    entry(
        SYS_inotify_add_watch,
        "inotify_add_watch",
        inotify_add_watch,
    ),
    fd_entry(SYS_inotify_rm_watch, "inotify_rm_watch", inotify_rm_watch),
];

/// `struct inotify_event` without its name.
const HEAD: usize = 16;
/// The longest event.
const LONGEST: usize = HEAD + 256;
/// Kinds of events that only names in shadows have.
const MADE: u32 = libc::IN_CREATE;

/// Two threads must not watch one file twice.
static ADDING: Mutex<()> = Mutex::new(());

fn inotify_add_watch(c: &mut Call<'_>) -> Verdict {
    let (fd, mask) = (c.int(0), c.uint(2));
    let place = path_in(1).followed_if(mask & libc::IN_DONT_FOLLOW == 0);
    c.on_path(place, &|vfs, dir, path| {
        let _one = ADDING.lock().unwrap_or_else(PoisonError::into_inner);
        let number = instances::number(vfs, fd);
        let answer = vfs.add_watch((fd, number), dir, path, mask)?;
        if let Reply::Done(_) = answer {
            instances::note(fd, number);
            table::unmark(fd);
        }
        Ok(answer)
    })
}

fn inotify_rm_watch(c: &mut Call<'_>) -> Verdict {
    let (fd, wd) = (c.int(0), c.int(1));
    if !instances::has(fd) {
        c.note_kernel(fd);
        return Err(Stop::Native);
    }
    let number = instances::number(c.vfs(), fd);
    let result = c.native();
    if result == 0 {
        c.vfs().watch_removed(number, wd);
    }
    Ok(result)
}

/// Duplicates an instance by a call of the kernel's.
pub fn duplicate(c: &mut Call<'_>) -> Verdict {
    let number = instances::number(c.vfs(), c.int(0));
    let result = c.native();
    if result >= 0 {
        instances::note(result as i32, number);
        table::unmark(result as i32);
    }
    Ok(result)
}

/// A descriptor of an instance is closed.
pub fn closed(c: &Call<'_>, fd: i32) {
    if let Some(number) = instances::forget(fd) {
        c.vfs().instance_closed(number);
    }
}

/// Descriptors from one to another are closed.
pub fn closed_range(c: &Call<'_>, first: u32, last: u32) {
    let gone: Vec<i32> = instances::numbers()
        .map(|(fd, _)| fd)
        .filter(|&fd| (first..=last).contains(&(fd as u32)))
        .collect();
    for fd in gone {
        closed(c, fd);
    }
}

/// `read` and `readv` of what is the kernel's: of an instance, what it is told of pools is told
/// in the program's terms.
pub fn read(c: &mut Call<'_>, buffers: &dyn Fn(&Call<'_>) -> Result<Vec<Vector>, Stop>) -> Verdict {
    let fd = c.int(0);
    if !instances::has(fd) {
        return Err(Stop::Native);
    }
    if !instances::is_instance(fd) {
        closed(c, fd);
        return Err(Stop::Native);
    }
    c.vfs().attach_all();
    let buffers = buffers(c)?;
    let room = buffers.iter().map(|buffer| buffer.len).sum();
    loop {
        let (events, left) = take_waiting(fd, room);
        if left {
            settle(c, fd);
        }
        if let Some(events) = events {
            return deliver(&events, &buffers);
        }
        let mut read = vec![0; LONGEST.max(room)];
        let args = [fd as usize, read.as_mut_ptr() as usize, read.len(), 0, 0, 0];
        let len = c.interruptible(libc::SYS_read as usize, args);
        if len <= 0 {
            return Ok(len);
        }
        let told = translate(c, &read[..len as usize]);
        let fits = fitting(&told, room);
        if fits < told.len() {
            instances::keep(fd, &told[fits..]);
            settle(c, fd);
        }
        if fits > 0 {
            return deliver(&told[..fits], &buffers);
        }
        if !told.is_empty() {
            return Err(Stop::Errno(libc::EINVAL));
        }
    }
}

/// `FIONREAD` of an instance: the bytes that the program can read. What was told is read for that,
/// as only its translation has the length that counts.
pub fn readable(c: &Call<'_>, fd: i32) -> Result<i32, Stop> {
    if !instances::has(fd) || !instances::is_instance(fd) {
        return Err(Stop::Native);
    }
    c.vfs().attach_all();
    if instances::kept(fd) > 0 || queued(fd) {
        settle(c, fd);
    }
    Ok(i32::try_from(instances::kept(fd)).unwrap_or(i32::MAX))
}

/// What waits and fits, and whether anything waited. An error if the first does not fit.
fn take_waiting(fd: i32, room: usize) -> (Option<Vec<u8>>, bool) {
    let mut waiting = instances::waiting();
    let Some(at) = waiting.iter().position(|(one, _)| *one == fd) else {
        return (None, false);
    };
    let mut events = waiting.remove(at).1;
    let rest = events.split_off(fitting(&events, room));
    if !rest.is_empty() {
        waiting.insert(at, (fd, rest));
    }
    (Some(events), true)
}

/// The instance is readable exactly as long as something waits: a message that says nothing is in
/// its queue then.
fn settle(c: &Call<'_>, fd: i32) {
    while queued(fd) {
        let mut read = vec![0; 16 * LONGEST];
        let args = [fd as usize, read.as_mut_ptr() as usize, read.len()];
        let Ok(len) = checked(libc::SYS_read, &args) else {
            break;
        };
        let told = translate(c, &read[..len]);
        instances::keep(fd, &told);
    }
    if instances::kept(fd) > 0 {
        c.vfs().remind(instances::number(c.vfs(), fd));
    }
}

fn queued(fd: i32) -> bool {
    let mut bytes = 0i32;
    let args = [
        fd as usize,
        libc::FIONREAD as usize,
        (&raw mut bytes) as usize,
    ];
    checked(libc::SYS_ioctl, &args).is_ok() && bytes > 0
}

/// Copies events to the program's buffers.
fn deliver(events: &[u8], buffers: &[Vector]) -> Verdict {
    let mut rest = events;
    for buffer in buffers {
        let (now, later) = rest.split_at(buffer.len.min(rest.len()));
        user::write_bytes(buffer.start, now)?;
        rest = later;
    }
    match events.is_empty() {
        true => Err(Stop::Errno(libc::EINVAL)),
        false => Ok(events.len() as isize),
    }
}

/// One event, with what follows.
fn next(events: &[u8]) -> Option<(&[u8], &[u8])> {
    let head = events.get(..HEAD)?;
    let len = u32::from_ne_bytes(head[12..].try_into().ok()?) as usize;
    events.split_at_checked(HEAD + len)
}

/// Bytes of the first events that fit.
fn fitting(events: &[u8], room: usize) -> usize {
    let mut rest = events;
    while let Some((event, after)) = next(rest) {
        if events.len() - after.len() > room {
            break;
        }
        debug_assert!(!event.is_empty());
        rest = after;
    }
    events.len() - rest.len()
}

/// Events as the program is to see them.
fn translate(c: &Call<'_>, mut events: &[u8]) -> Vec<u8> {
    let mut told = Vec::with_capacity(events.len());
    while let Some((event, after)) = next(events) {
        events = after;
        let mask = u32::from_ne_bytes([event[4], event[5], event[6], event[7]]);
        let name = event[HEAD..].split(|&byte| byte == 0).next().unwrap_or(&[]);
        let message = (mask == MADE && !name.is_empty()).then(|| c.vfs().told_by(name));
        match message.flatten() {
            None => told.extend_from_slice(event),
            Some(said) if said.events == 0 => {}
            Some(said) => {
                told.extend_from_slice(&event[..4]);
                put(&mut told, said.events, said.cookie, &said.name);
            }
        }
    }
    told
}

/// The rest of an event behind its descriptor.
fn put(told: &mut Vec<u8>, events: u32, cookie: u32, name: &[u8]) {
    let len = match name.len() {
        0 => 0,
        len => (len + 1).next_multiple_of(HEAD),
    };
    told.extend(events.to_ne_bytes());
    told.extend(cookie.to_ne_bytes());
    told.extend((len as u32).to_ne_bytes());
    told.extend(name);
    told.resize(told.len() + len - name.len(), 0);
}

#[cfg(test)]
mod tests {
    use super::{fitting, next, put};

    fn event(name: &[u8]) -> Vec<u8> {
        let mut event = 7i32.to_ne_bytes().to_vec();
        put(&mut event, 2, 9, name);
        event
    }

    #[test]
    fn events_are_laid_out_as_the_kernel_does() {
        assert_eq!(event(b"").len(), 16);
        assert_eq!(event(b"file").len(), 32);
        assert_eq!(event(&[b'n'; 15]).len(), 32);
        assert_eq!(event(&[b'n'; 16]).len(), 48);
        let two = [event(b"file"), event(b"")].concat();
        let (first, rest) = next(&two).unwrap();
        assert_eq!((first.len(), rest.len()), (32, 16));
    }

    #[test]
    fn whole_events_fit() {
        let two = [event(b"file"), event(b"")].concat();
        assert_eq!(
            [15, 32, 47, 48, 99].map(|room| fitting(&two, room)),
            [0, 32, 32, 48, 48]
        );
    }
}
