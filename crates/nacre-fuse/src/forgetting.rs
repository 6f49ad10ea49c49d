//! The thread that lets the kernel keep things, and makes it forget them when somebody attaches. It
//! also lets go of files that others have removed.

use crate::device::Device;
use crate::keeping::{KEPT, OPENED_MOST};
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

impl Pool {
    /// Lets the kernel keep things while nobody else uses the pool. In a thread of its own.
    pub(crate) fn keep(&self, device: &Device) {
        let keeping = &self.keeping;
        let mut to_look_at = Vec::new();
        while !keeping.ends.load(SeqCst) {
            let alone = self.descriptions.is_empty() && self.fs.begin_kernel_cache();
            // While it is alone nobody else removes anything.
            self.let_go_of_removed(
                &mut to_look_at,
                if alone { usize::MAX } else { LOOKED_AT_MOST },
            );
            if !alone {
                thread::park_timeout(ROUND);
                continue;
            }
            keeping.may.store(true, SeqCst);
            let waits = || !keeping.ends.load(SeqCst) && !self.fs.wait_for_kernel_cache_end(ROUND);
            while waits() {
                // It slept.
            }
            keeping.may.store(false, SeqCst);
            // Of a mount that is gone nothing is known.
            if !keeping.ends.load(SeqCst) {
                self.make_forget(device);
                // What came with new files has no version: an answer may have passed by.
                thread::sleep(OPENED_MOST);
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

    fn make_forget(&self, device: &Device) {
        let mut left = self.nodes.numbers();
        left.push(self.fs.root().ino.0);
        let begin = Instant::now();
        loop {
            left.retain(|&number| {
                !device.notify(invalidation(number).message(0, -NOTIFY_INVALIDATE_INODE))
            });
            // Those that the kernel has dropped meanwhile are no longer known.
            left.retain(|&number| self.node(number).is_ok());
            let is_gone = || self.keeping.ends.load(SeqCst);
            if left.is_empty() || begin.elapsed() > KEPT || is_gone() {
                return;
            }
            thread::sleep(AGAIN);
        }
    }
}

/// The attributes of an inode, and not its contents, are to be asked for.
fn invalidation(number: u64) -> Output {
    let mut all = Output::new();
    all.u64(number).u64(u64::MAX).u64(0);
    all
}
