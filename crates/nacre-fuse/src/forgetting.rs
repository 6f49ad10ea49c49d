//! The thread that lets the kernel keep things, and makes it forget them when somebody attaches. It
//! also lets go of files that others have removed.

use crate::contents::Contents;
use crate::device::Device;
use crate::keeping::KEPT;
use crate::names::{ARRIVED, Name, Names};
use crate::operations::Pool;
use crate::wire::Output;
use std::sync::atomic::Ordering::SeqCst;
use std::thread;
use std::time::{Duration, Instant};

/// How often it is looked whether the others have gone, and which files they have removed.
const ROUND: Duration = Duration::from_secs(1);
/// At so many inodes it is looked in one round: a few milliseconds.
const LOOKED_AT_MOST: usize = 16384;
/// A new inode's answer may be with the kernel, but not yet in its table.
const AGAIN: Duration = Duration::from_millis(1);
const NOTIFY_INVALIDATE_INODE: i32 = 2;
const NOTIFY_INVALIDATE_NAME: i32 = 3;
/// The kernel asks for the name again, and leaves it where it is: something may be mounted there.
const EXPIRE_ONLY: u32 = 1;
/// Instead of an offset: the contents stay.
const ATTRIBUTES_ALONE: u64 = u64::MAX;

impl Pool {
    /// Lets the kernel keep things while nobody else uses the pool. In a thread of its own.
    pub(crate) fn keep(&self, device: &Device) {
        let keeping = &self.keeping;
        let mut to_look_at = Vec::new();
        while !keeping.ends.load(SeqCst) {
            let alone = self.descriptions.is_empty() && self.fs.begin_kernel_cache();
            // While it is alone nobody else removes anything.
            let most = if alone { usize::MAX } else { LOOKED_AT_MOST };
            self.let_go_of_removed(&mut to_look_at, most);
            if !alone {
                thread::park_timeout(ROUND);
                continue;
            }
            self.begin(device);
            let waits = || !keeping.ends.load(SeqCst) && !self.fs.wait_for_kernel_cache_end(ROUND);
            while waits() {
                // It slept.
            }
            keeping.may.store(false, SeqCst);
            // Of a mount that is gone nothing is known.
            if !keeping.ends.load(SeqCst) {
                self.make_forget(device);
            }
            self.fs.end_kernel_cache();
            // Who attaches stays for a while.
            thread::park_timeout(ROUND);
        }
    }

    /// Looks at the next ones of the inodes that the kernel knows.
    fn let_go_of_removed(&self, to_look_at: &mut Vec<u64>, most: usize) {
        if to_look_at.is_empty() || most == usize::MAX {
            *to_look_at = self.nodes.numbers();
        }
        let rest = to_look_at.len().saturating_sub(most);
        for number in to_look_at.drain(rest..) {
            // What cannot be let go of now goes with the session.
            let _later = self.nodes.let_go_if_removed(&self.fs, number);
        }
    }

    /// Whether files that others have removed held room, which is free from now on. While it is
    /// alone nobody else removes anything.
    pub(crate) fn has_room_of_removed(&self) -> bool {
        let numbers = match self.keeping.alone() {
            Some(_) => Vec::new(),
            None => self.nodes.numbers(),
        };
        let let_go = |number: &u64| self.nodes.let_go_if_removed(&self.fs, *number);
        let gone = numbers.iter().filter(|number| let_go(number) == Ok(true));
        gone.count() > 0
    }

    /// What files that were opened before hold may be old.
    fn begin(&self, device: &Device) {
        self.keeping.times.fetch_add(1, SeqCst);
        for number in self.nodes.numbers() {
            if self.nodes.contents(number, Contents::is_cached) {
                self.drop_contents(device, number);
            }
        }
        self.keeping.may.store(true, SeqCst);
    }

    fn make_forget(&self, device: &Device) {
        self.forget_inodes(device);
        drop(self.keeping.looking.write());
        // What came with new files has no version: an answer may have passed by.
        thread::sleep(self.keeping.still_good_to_open());
        if self.nodes.names(|names| names.may_be_on_the_way()) {
            thread::sleep(ARRIVED);
        }
        while self.forget_names(device) {
            // Some have moved meanwhile.
        }
    }

    fn forget_inodes(&self, device: &Device) {
        let mut left = self.nodes.numbers();
        left.push(self.fs.root().ino.0);
        let begin = Instant::now();
        loop {
            left.retain(|&number| !self.forget_inode(device, number));
            // Those that the kernel has dropped meanwhile are no longer known.
            left.retain(|&number| self.node(number).is_ok());
            if left.is_empty() || begin.elapsed() > KEPT || self.keeping.ends.load(SeqCst) {
                return;
            }
            thread::sleep(AGAIN);
        }
    }

    /// `false`: the kernel does not know it.
    fn forget_inode(&self, device: &Device, number: u64) -> bool {
        self.fs.show_kernel_cache_end();
        let now = self.keeping.times.load(SeqCst);
        match self.nodes.contents(number, |kept| kept.are_kept(now)) {
            true => self.drop_contents(device, number),
            false => notify_inode(device, number, ATTRIBUTES_ALONE),
        }
    }

    /// The kernel is to read a file's contents again. `false`: it does not know it.
    pub(crate) fn drop_contents(&self, device: &Device, number: u64) -> bool {
        notify_inode(device, number, 0)
    }

    /// `true`: there were some.
    fn forget_names(&self, device: &Device) -> bool {
        let all = self.nodes.names(Names::kept);
        for (name, stamp) in &all {
            self.fs.show_kernel_cache_end();
            notify_name(device, name);
            self.nodes.names(|names| names.called_back(name, *stamp));
        }
        !all.is_empty() && !self.keeping.ends.load(SeqCst)
    }
}

/// From an offset on, a file is to be read again; its attributes are to be asked for.
fn notify_inode(device: &Device, number: u64, from: u64) -> bool {
    let mut all = Output::new();
    all.u64(number).u64(from).u64(0);
    device.notify(all.message(0, -NOTIFY_INVALIDATE_INODE))
}

/// A name is to be looked up again. The kernel may not know it.
fn notify_name(device: &Device, (folder, name): &Name) {
    let mut all = Output::new();
    all.u64(*folder).u32(name.len() as u32).u32(EXPIRE_ONLY);
    all.bytes(name).zeros(1);
    device.notify(all.message(0, -NOTIFY_INVALIDATE_NAME));
}
