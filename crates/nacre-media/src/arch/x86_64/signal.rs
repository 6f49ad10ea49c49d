//! The instruction address in a signal frame.

use libc::{REG_RIP, ucontext_t};

/// Address of the instruction that a signal interrupted.
pub(crate) fn resume_address(frame: &ucontext_t) -> usize {
    frame.uc_mcontext.gregs[REG_RIP as usize] as usize
}

/// Makes the interrupted thread continue at `address`.
pub(crate) fn set_resume_address(frame: &mut ucontext_t, address: usize) {
    frame.uc_mcontext.gregs[REG_RIP as usize] = address as libc::greg_t;
}
