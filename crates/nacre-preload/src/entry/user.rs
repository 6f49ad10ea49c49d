//! Access to the program's memory at addresses that may be wrong: a bad address is an error,
//! not a crash. The fault handler finds the way out of the copy routines by their addresses.

use core::arch::{asm, global_asm};
use core::mem::{MaybeUninit, offset_of};

use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::arch::x86_64::{entry, path_filter};

/// Longest path that the kernel takes, with its NUL.
pub const PATH_MAX: usize = 4096;

unsafe extern "C" {
    /// Copies `len` bytes; 0, or 1 after a fault.
    fn nacre_user_copy(to: *mut u8, from: *const u8, len: usize) -> usize;
    /// Copies up to the NUL, at most `max` bytes (a multiple of 16, `to` has 16 more).
    /// Length without NUL, `max` if there is none, or -1 after a fault.
    fn nacre_user_string(to: *mut u8, from: *const u8, max: usize) -> isize;
    /// In rdi: a string's address. Out in rax: its first byte, and the second in the next eight
    /// bits if the first is not NUL; or -1 after a fault. Changes r9.
    fn nacre_user_peek();
    fn nacre_user_copy_end();
    fn nacre_user_string_end();
    fn nacre_user_copy_fault();
    fn nacre_user_string_fault();
}

global_asm!(
    ".text",
    ".globl nacre_user_copy, nacre_user_copy_end, nacre_user_copy_fault",
    ".globl nacre_user_string, nacre_user_string_end, nacre_user_string_fault, nacre_user_peek",
    ".hidden nacre_user_copy, nacre_user_copy_end, nacre_user_copy_fault",
    ".hidden nacre_user_string, nacre_user_string_end, nacre_user_string_fault, nacre_user_peek",
    "nacre_user_copy:",
    // Structures of some dozen bytes by vectors, as string instructions take long to start: the
    // last bytes are loaded first and stored last, and overlap.
    "lea rcx, [rdx - 16]",
    "cmp rcx, 496",
    "ja 3f",
    "movdqu xmm1, [rsi + rdx - 16]",
    "xor eax, eax",
    "2:",
    "cmp rax, rcx",
    "jae 4f",
    "movdqu xmm0, [rsi + rax]",
    "movdqu [rdi + rax], xmm0",
    "add rax, 16",
    "jmp 2b",
    "4:",
    "movdqu [rdi + rcx], xmm1",
    "jmp nacre_user_copy_end",
    "3:",
    "mov rcx, rdx",
    "rep movsb",
    "nacre_user_copy_end:",
    "xor eax, eax",
    "ret",
    "nacre_user_copy_fault:",
    "mov eax, 1",
    "ret",
    "nacre_user_peek:",
    "movzx eax, byte ptr [rdi]",
    "test eax, eax",
    "je nacre_user_string_end",
    "movzx r9d, byte ptr [rdi + 1]",
    "shl r9d, 8",
    "or eax, r9d",
    "ret",
    "nacre_user_string:",
    "xor eax, eax",
    "pxor xmm1, xmm1",
    "2:",
    "cmp rax, rdx",
    "jae nacre_user_string_end",
    // Sixteen bytes at once where they do not cross into the next page.
    "lea rcx, [rsi + rax]",
    "and ecx, 4095",
    "cmp ecx, 4080",
    "ja 4f",
    "movdqu xmm0, [rsi + rax]",
    "movdqu [rdi + rax], xmm0",
    "pcmpeqb xmm0, xmm1",
    "pmovmskb ecx, xmm0",
    "test ecx, ecx",
    "jne 3f",
    "add rax, 16",
    "jmp 2b",
    "3:",
    "bsf ecx, ecx",
    "add rax, rcx",
    "cmp rax, rdx",
    "cmova rax, rdx",
    "jmp nacre_user_string_end",
    "4:",
    "mov cl, [rsi + rax]",
    "mov [rdi + rax], cl",
    "test cl, cl",
    "je nacre_user_string_end",
    "inc rax",
    "jmp 2b",
    "nacre_user_string_end:",
    "ret",
    "nacre_user_string_fault:",
    "mov rax, -1",
    "ret",
);

/// The program gave an address that it cannot access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadAddress;

/// Why a path could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadString {
    /// It lies outside of the program's memory.
    Address,
    /// It has no NUL within the allowed length.
    TooLong,
}

/// Where to continue if an instruction of the copy routines at `rip` faults.
pub fn fault_landing(rip: usize) -> Option<usize> {
    let address = |f: unsafe extern "C" fn()| f as *const () as usize;
    let copy = nacre_user_copy as *const () as usize..address(nacre_user_copy_end);
    let string = nacre_user_peek as *const () as usize..address(nacre_user_string_end);
    if copy.contains(&rip) {
        Some(address(nacre_user_copy_fault))
    } else if string.contains(&rip) {
        Some(address(nacre_user_string_fault))
    } else {
        entry::fault_landing(rip).or_else(|| path_filter::fault_landing(rip))
    }
}

/// Whether a range can belong to a program at all.
#[inline]
pub fn plausible(address: usize, len: usize) -> bool {
    const TOP: usize = 1 << 47;
    address.checked_add(len).is_some_and(|end| end <= TOP)
}

fn copy(to: *mut u8, from: *const u8, len: usize) -> Result<(), BadAddress> {
    // SAFETY: one side is a live object of `len` bytes of the caller, the other side is memory of
    // the program, where a fault ends the copy with 1.
    if unsafe { nacre_user_copy(to, from, len) } == 0 {
        Ok(())
    } else {
        Err(BadAddress)
    }
}

/// Reads a value.
pub fn read<T: FromBytes>(address: usize) -> Result<T, BadAddress> {
    if !plausible(address, size_of::<T>()) {
        return Err(BadAddress);
    }
    let mut value = MaybeUninit::<T>::uninit();
    copy(
        value.as_mut_ptr().cast(),
        address as *const u8,
        size_of::<T>(),
    )?;
    // SAFETY: all bytes were copied, and any bytes are a valid T (FromBytes).
    Ok(unsafe { value.assume_init() })
}

/// The device number in a `struct statx`.
pub fn device_of_statx(address: usize) -> Option<u64> {
    let [major, minor]: [u32; 2] = read(address + offset_of!(libc::statx, stx_dev_major)).ok()?;
    Some(libc::makedev(major, minor))
}

/// Writes a value.
pub fn write<T: IntoBytes + Immutable>(address: usize, value: &T) -> Result<(), BadAddress> {
    write_bytes(address, value.as_bytes())
}

/// Writes bytes.
pub fn write_bytes(address: usize, bytes: &[u8]) -> Result<(), BadAddress> {
    if !plausible(address, bytes.len()) {
        return Err(BadAddress);
    }
    copy(address as *mut u8, bytes.as_ptr(), bytes.len())
}

/// Reads bytes.
pub fn read_bytes(address: usize, bytes: &mut [u8]) -> Result<(), BadAddress> {
    if !plausible(address, bytes.len()) {
        return Err(BadAddress);
    }
    copy(bytes.as_mut_ptr(), address as *const u8, bytes.len())
}

/// Copies from one place of the program's memory to another.
pub fn copy_within(to: usize, from: usize, len: usize) -> Result<(), BadAddress> {
    if !plausible(to, len) || !plausible(from, len) {
        return Err(BadAddress);
    }
    copy(to as *mut u8, from as *const u8, len)
}

/// Longest string that is read without an allocation.
const SHORT: usize = 240;

/// Room for a short string of the program.
pub type ShortString = MaybeUninit<[u8; SHORT + 16]>;

/// The first two bytes of the string at an address; None if there is none.
#[inline(always)]
pub fn peek(address: usize) -> Option<[u8; 2]> {
    let bytes: isize;
    // SAFETY: a fault ends with -1. Called like this it leaves the caller's registers alone.
    unsafe {
        asm!(
            "call {peek}",
            peek = sym nacre_user_peek,
            in("rdi") address,
            out("rax") bytes,
            out("r9") _,
        );
    }
    (bytes != -1).then_some((bytes as u16).to_le_bytes())
}

/// Reads a string that is short, without its NUL.
#[inline]
pub fn short_string(address: usize, room: &mut ShortString) -> Option<&[u8]> {
    short_or_long(address, room).unwrap_or_default()
}

/// As [`short_string`]; `None` for one that is longer.
#[inline]
fn short_or_long(address: usize, room: &mut ShortString) -> Result<Option<&[u8]>, BadString> {
    if !plausible(address, 1) {
        return Err(BadString::Address);
    }
    let to: *mut u8 = room.as_mut_ptr().cast();
    // SAFETY: `to` has SHORT + 16 bytes; a fault on the program's side ends with -1.
    match unsafe { nacre_user_string(to, address as *const u8, SHORT) } {
        -1 => Err(BadString::Address),
        len if len as usize >= SHORT => Ok(None),
        // SAFETY: the routine has written `len` bytes.
        len => Ok(Some(unsafe {
            core::slice::from_raw_parts(to, len as usize)
        })),
    }
}

/// Room for a NUL-terminated string of the program, at most `PATH_MAX - 1` bytes long. It lies on
/// stacks that may be small, so only a short string lies in it.
pub struct StringBuffer {
    short: ShortString,
    long: Vec<u8>,
}

impl StringBuffer {
    /// An empty buffer; costs nothing.
    pub const fn new() -> Self {
        StringBuffer {
            short: MaybeUninit::uninit(),
            long: Vec::new(),
        }
    }

    /// Reads the string at an address, without its NUL.
    pub fn read(&mut self, address: usize) -> Result<&[u8], BadString> {
        match short_or_long(address, &mut self.short)? {
            Some(text) => Ok(text),
            None => read_long(address, &mut self.long),
        }
    }
}

#[cold]
fn read_long(address: usize, room: &mut Vec<u8>) -> Result<&[u8], BadString> {
    room.resize(PATH_MAX + 16, 0);
    let to = room.as_mut_ptr();
    // SAFETY: `to` has PATH_MAX + 16 bytes; a fault on the program's side ends with -1.
    match unsafe { nacre_user_string(to, address as *const u8, PATH_MAX) } {
        -1 => Err(BadString::Address),
        len if len as usize >= PATH_MAX => Err(BadString::TooLong),
        len => Ok(&room[..len as usize]),
    }
}

#[cfg(test)]
mod tests {
    use super::{BadAddress, BadString, PATH_MAX, StringBuffer, read, write, write_bytes};

    #[test]
    fn strings_of_any_length_and_alignment() {
        let text: Vec<u8> = (0..600).map(|i| b'a' + (i % 26) as u8).collect();
        for start in 0..20 {
            for len in [0, 1, 15, 16, 17, 100, 500] {
                let mut copy = text.clone();
                copy[start + len] = 0;
                let mut buffer = StringBuffer::new();
                let at = copy.as_ptr() as usize + start;
                assert_eq!(buffer.read(at), Ok(&text[start..start + len]));
            }
        }
    }

    #[test]
    fn copies_of_any_length_are_exact() {
        let from: Vec<u8> = (0..700).map(|i| (i * 7 % 251) as u8 + 1).collect();
        for len in (0..300).chain([495, 496, 511, 512, 513, 600]) {
            let mut to = vec![0; len + 16];
            write_bytes(to.as_mut_ptr() as usize + 8, &from[..len]).unwrap();
            assert_eq!(&to[8..len + 8], &from[..len]);
            assert_eq!((&to[..8], &to[len + 8..]), (&[0; 8][..], &[0; 8][..]));
        }
    }

    #[test]
    fn a_string_without_end_is_too_long() {
        let text = vec![b'x'; 2 * PATH_MAX];
        let mut buffer = StringBuffer::new();
        assert_eq!(buffer.read(text.as_ptr() as usize), Err(BadString::TooLong));
        let mut fits = vec![b'x'; PATH_MAX];
        fits[PATH_MAX - 1] = 0;
        assert_eq!(
            buffer.read(fits.as_ptr() as usize).map(<[u8]>::len),
            Ok(PATH_MAX - 1)
        );
    }

    #[test]
    fn addresses_of_the_kernel_are_refused() {
        assert_eq!(read::<u64>(usize::MAX - 3), Err(BadAddress));
        assert_eq!(write(1 << 47, &1u64), Err(BadAddress));
        assert_eq!(
            StringBuffer::new().read(usize::MAX),
            Err(BadString::Address)
        );
    }

    #[test]
    fn values_are_copied() {
        let mut place = 0u64;
        write(&raw mut place as usize, &0x1234_5678_9abc_def0u64).unwrap();
        assert_eq!(read::<u64>(&raw const place as usize), Ok(place));
        assert_eq!(place, 0x1234_5678_9abc_def0);
    }
}
