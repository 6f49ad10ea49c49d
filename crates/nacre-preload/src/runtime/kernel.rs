//! Raw system calls. They never pass through the patched text of libc, so they
//! reach the kernel from everywhere, even while the table is being built.

use core::arch::asm;

use rustix::thread::nanosleep;
use rustix::time::Timespec;

/// Number of a system call.
pub type Nr = usize;

/// Result of a system call as the kernel returns it: negative errno or a value.
pub type Raw = isize;

/// Executes system call `nr`.
///
/// # Safety
/// The caller must know what the call does to memory, as with any system call.
#[inline]
pub unsafe fn syscall(nr: Nr, args: [usize; 6]) -> Raw {
    let result: Raw;
    // SAFETY: the instruction itself clobbers only rax, rcx and r11; what the call does is the
    // caller's promise.
    unsafe {
        asm!("syscall",
            inlateout("rax") nr => result,
            in("rdi") args[0], in("rsi") args[1], in("rdx") args[2],
            in("r10") args[3], in("r8") args[4], in("r9") args[5],
            lateout("rcx") _, lateout("r11") _,
            options(nostack));
    }
    result
}

/// A system call that cannot break memory safety: it takes plain numbers, or buffers
/// that outlive the call and are borrowed by it.
#[inline]
pub fn call(nr: libc::c_long, args: &[usize]) -> Raw {
    let mut all = [0; 6];
    all[..args.len()].copy_from_slice(args);
    // SAFETY: every caller in this crate passes numbers or live borrowed buffers of the right size.
    unsafe { syscall(nr as Nr, all) }
}

/// As [`call`], with an errno on the error side.
#[inline]
pub fn checked(nr: libc::c_long, args: &[usize]) -> Result<usize, i32> {
    let raw = call(nr, args);
    if (-4095..0).contains(&raw) {
        Err(-raw as i32)
    } else {
        Ok(raw as usize)
    }
}

/// A result as the C library's functions return it, with an error's number in `errno`.
#[inline]
pub fn to_c(result: Raw) -> isize {
    if !(-4095..0).contains(&result) {
        return result;
    }
    // SAFETY: leads to the calling thread's own number.
    unsafe { *libc::__errno_location() = -result as i32 };
    -1
}

/// Writes all of `bytes` to `fd`, as far as the kernel takes it.
pub fn write_all(fd: i32, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        match checked(
            libc::SYS_write,
            &[fd as usize, bytes.as_ptr() as usize, bytes.len()],
        ) {
            Ok(0) | Err(libc::EAGAIN) => return,
            Ok(n) => bytes = &bytes[n..],
            Err(libc::EINTR) => {}
            Err(_) => return,
        }
    }
}

/// Sleeps for a millisecond, for who looks again.
pub fn nap() {
    const MILLISECOND: Timespec = Timespec {
        tv_sec: 0,
        tv_nsec: 1_000_000,
    };
    // Woken early, it only looks earlier.
    let _ = nanosleep(&MILLISECOND);
}

/// Ends the process at once.
pub fn exit(status: i32) -> ! {
    loop {
        call(libc::SYS_exit_group, &[status as usize]);
    }
}

/// Process id, straight from the kernel (never cached: vfork children ask too).
pub fn getpid() -> i32 {
    call(libc::SYS_getpid, &[]) as i32
}

/// Parent's process id, straight from the kernel.
pub fn getppid() -> i32 {
    call(libc::SYS_getppid, &[]) as i32
}

/// Thread id, straight from the kernel.
pub fn gettid() -> i32 {
    call(libc::SYS_gettid, &[]) as i32
}

/// Soft limit of a resource.
pub fn limit(resource: usize) -> u64 {
    let [soft, _] = limits(resource);
    soft
}

/// Soft and hard limit of a resource.
pub fn limits(resource: usize) -> [u64; 2] {
    let mut pair = [u64::MAX; 2];
    call(
        libc::SYS_prlimit64,
        &[0, resource, 0, pair.as_mut_ptr() as usize],
    );
    pair
}
