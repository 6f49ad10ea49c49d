//! What the dynamic linker mapped: code, function starts and build id of the program and of
//! libraries.

use std::cell::OnceCell;
use std::ffi::CStr;
use std::sync::OnceLock;

/// The program, or a library. Addresses called *vaddr* are relative to `base`.
pub struct Module {
    /// Load address: vaddr 0.
    pub base: usize,
    /// Executable segment: vaddr and length.
    pub text: (usize, usize),
    /// Every readable segment (vaddr, length), the executable one included.
    readable: Vec<(usize, usize)>,
    eh_frame_hdr: Option<(usize, usize)>,
    /// Checksum of where its segments lie.
    pub layout: u32,
    /// Build id; empty when there is none.
    pub build_id: Vec<u8>,
    /// What [`Module::sum`] said first.
    sum: OnceCell<Option<u32>>,
    /// Whether nothing works without it.
    pub essential: bool,
    #[cfg(test)]
    functions: Option<Vec<Function>>,
}

/// A function as vaddrs: first byte, first byte behind it.
pub type Function = (usize, usize);

/// Pairs of words relative to `at`: where a function begins, and where its unwind entry is.
struct UnwindTable<'m> {
    at: usize,
    entries: &'m [u8],
}

impl UnwindTable<'_> {
    fn len(&self) -> usize {
        self.entries.len() / 8
    }

    fn word(&self, i: usize) -> usize {
        let bytes = self.entries[4 * i..4 * i + 4].try_into();
        let relative = i32::from_le_bytes(bytes.unwrap_or_default());
        self.at.wrapping_add_signed(relative as isize)
    }

    fn start(&self, i: usize) -> usize {
        self.word(2 * i)
    }

    /// How many functions begin in front of a place.
    fn partition_point(&self, place: usize) -> usize {
        let (mut low, mut high) = (0, self.len());
        while low < high {
            let middle = low.midpoint(high);
            if self.start(middle) < place {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low
    }
}

/// File names of the libraries that make nearly all calls.
pub const ESSENTIAL: [&[u8]; 2] = [b"libc.so.6", b"ld-linux-x86-64.so.2"];
const SYSCALL: [u8; 2] = [0x0f, 0x05];

/// Whether the bytes of a `syscall` instruction are among these.
pub fn may_call(code: &[u8]) -> bool {
    // In blocks without a way out, which the compiler turns into vector instructions.
    let (first, second) = (code, code.get(1..).unwrap_or_default());
    let blocks = first.chunks(4096).zip(second.chunks(4096));
    let is_call = |(a, b): (&u8, &u8)| u8::from(*a == SYSCALL[0]) & u8::from(*b == SYSCALL[1]);
    let mut any = blocks.map(|(a, b)| a.iter().zip(b).map(is_call).fold(0, |any, one| any | one));
    any.any(|any| any != 0)
}

static OWN_ID: OnceLock<Vec<u8>> = OnceLock::new();

/// The build id of this library, once [`modules`] has been asked; empty when there is none.
pub fn own_build_id() -> &'static [u8] {
    OWN_ID.get().map_or(&[], Vec::as_slice)
}

/// The type of `dl_iterate_phdr`.
type Iterate = unsafe extern "C" fn(
    Option<
        unsafe extern "C" fn(
            *mut libc::dl_phdr_info,
            libc::size_t,
            *mut libc::c_void,
        ) -> libc::c_int,
    >,
    *mut libc::c_void,
) -> libc::c_int;

/// `dl_iterate_phdr` of who stands behind this library: one that is preloaded before it may change
/// the names that it is given (fakechroot), which nobody may store to. To open the C library here
/// would start it before it knows the program's arguments.
fn next_iterate() -> Option<Iterate> {
    // SAFETY: the name is NUL-terminated, and the symbol has the type that it says.
    unsafe {
        let found = libc::dlsym(libc::RTLD_NEXT, c"dl_iterate_phdr".as_ptr());
        (!found.is_null()).then(|| std::mem::transmute::<*mut libc::c_void, Iterate>(found))
    }
}

/// The program and its libraries, but for this one.
pub fn modules() -> Vec<Module> {
    let mut found: Vec<Module> = Vec::new();
    let iterate = next_iterate().unwrap_or(libc::dl_iterate_phdr);
    // SAFETY: the callback gets the pointer to `found` passed here, which outlives the call.
    unsafe { iterate(Some(visit), (&raw mut found).cast()) };
    found
}

// SAFETY: only dl_iterate_phdr calls it, with a valid info and the vector that `modules` passed.
unsafe extern "C" fn visit(
    info: *mut libc::dl_phdr_info,
    _size: libc::size_t,
    found: *mut libc::c_void,
) -> libc::c_int {
    // SAFETY: the dynamic linker passes a valid info; `found` is the vector of `modules`.
    let (info, found) = unsafe { (&*info, &mut *found.cast::<Vec<Module>>()) };
    if info.dlpi_name.is_null() {
        return 0;
    }
    // SAFETY: dlpi_name is a NUL-terminated string owned by the link map.
    let name = unsafe { CStr::from_ptr(info.dlpi_name) }.to_bytes();
    let file = name.rsplit(|&b| b == b'/').next().unwrap_or(name);
    // The vDSO has a name without a path, the program none.
    if !name.is_empty() && !name.contains(&b'/') {
        return 0;
    }
    // SAFETY: dlpi_phdr points to dlpi_phnum program headers of the loaded object.
    let headers =
        unsafe { std::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) };
    // Ours makes calls that must not come back, whatever its file is called.
    let own = modules as *const () as usize;
    if !name.is_empty() && holds(headers, info.dlpi_addr as usize, own) {
        let module = Module::from_headers(info.dlpi_addr as usize, headers);
        let note = ranges(headers, libc::PT_NOTE).next();
        let id = module
            .zip(note)
            .and_then(|(module, (at, len))| build_id(module.bytes(at, len)?));
        let _ = OWN_ID.set(id.unwrap_or_default());
        return 0;
    }
    let module = Module::from_headers(info.dlpi_addr as usize, headers);
    found.extend(module.map(|mut module| {
        module.essential = ESSENTIAL.contains(&file);
        for (at, len) in ranges(headers, libc::PT_NOTE) {
            let id = module.bytes(at, len).and_then(build_id);
            module.build_id = id.unwrap_or(module.build_id);
        }
        module
    }));
    0
}

/// Whether an address lies in an object that is loaded at `base`.
fn holds(headers: &[libc::Elf64_Phdr], base: usize, address: usize) -> bool {
    let mut loaded = headers
        .iter()
        .filter(|header| header.p_type == libc::PT_LOAD);
    loaded.any(|header| {
        let start = base.wrapping_add(header.p_vaddr as usize);
        address.wrapping_sub(start) < header.p_memsz as usize
    })
}

/// Where the segments of a type are in memory: vaddr and length.
fn ranges(headers: &[libc::Elf64_Phdr], kind: u32) -> impl Iterator<Item = (usize, usize)> {
    let those = headers.iter().filter(move |header| header.p_type == kind);
    those.map(|header| (header.p_vaddr as usize, header.p_filesz as usize))
}

/// The segment of the code. None if there are several, or if it is not laid out as in the file.
pub fn text_of(headers: &[libc::Elf64_Phdr]) -> Option<&libc::Elf64_Phdr> {
    let is_code = |h: &&libc::Elf64_Phdr| h.p_type == libc::PT_LOAD && h.p_flags & libc::PF_X != 0;
    let mut code = headers.iter().filter(is_code);
    let text = code.next().filter(|_| code.next().is_none())?;
    let congruent = (text.p_vaddr ^ text.p_offset).is_multiple_of(4096);
    (text.p_flags == libc::PF_R | libc::PF_X && congruent).then_some(text)
}

impl Module {
    /// What lies at `base`, without its build id. None if it is not one segment of code, and
    /// others, within 4 GiB.
    pub fn from_headers(base: usize, headers: &[libc::Elf64_Phdr]) -> Option<Module> {
        let text = text_of(headers)?;
        let end = text.p_vaddr.checked_add(text.p_filesz)?;
        (end <= u64::from(u32::MAX)).then_some(())?;
        let loads = headers.iter().filter(|h| h.p_type == libc::PT_LOAD);
        let readable = loads.filter(|h| h.p_flags & libc::PF_R != 0);
        let words = headers
            .iter()
            .flat_map(|h| [h.p_offset, h.p_vaddr, h.p_filesz]);
        Some(Module {
            base,
            text: (text.p_vaddr as usize, text.p_filesz as usize),
            readable: readable
                .map(|h| (h.p_vaddr as usize, h.p_filesz as usize))
                .collect(),
            eh_frame_hdr: ranges(headers, libc::PT_GNU_EH_FRAME).next(),
            layout: nacre_types::crc32c(&words.flat_map(u64::to_le_bytes).collect::<Vec<u8>>()),
            build_id: Vec::new(),
            sum: OnceCell::new(),
            essential: false,
            #[cfg(test)]
            functions: None,
        })
    }

    /// Checksum of the table that says where each function begins, or without one of the code as
    /// it is when this is asked first: before anything is patched.
    pub fn sum(&self) -> Option<u32> {
        let (at, len) = self.eh_frame_hdr.unwrap_or(self.text);
        let of_bytes = || self.bytes(at, len).map(nacre_types::crc32c);
        *self.sum.get_or_init(of_bytes)
    }

    /// Whoever knows the file says what [`Module::sum`] is.
    pub fn know_sum(&self, sum: Option<u32>) {
        // Whoever has asked already has the same answer.
        let _ = self.sum.set(sum);
    }

    /// Whether the code has bytes of a `syscall` instruction.
    pub fn may_call(&self) -> bool {
        let (at, len) = self.text;
        self.bytes(at, len).is_some_and(may_call)
    }

    /// The mapped bytes at a vaddr, if a segment holds all of them.
    pub fn bytes(&self, vaddr: usize, len: usize) -> Option<&[u8]> {
        let end = vaddr.checked_add(len)?;
        let inside = |&(at, size): &(usize, usize)| vaddr >= at && end <= at + size;
        self.readable.iter().any(inside).then(|| {
            // SAFETY: the range lies in a readable segment that stays mapped as long as the module
            // is looked at: at start nothing is unloaded, and who loads something later unloads it
            // when that call is over. Text is only changed by the patcher, which holds no such
            // slice meanwhile.
            unsafe { std::slice::from_raw_parts((self.base + vaddr) as *const u8, len) }
        })
    }

    /// A little-endian 32-bit value at a vaddr.
    pub fn i32_at(&self, vaddr: usize) -> Option<i32> {
        Some(i32::from_le_bytes(self.bytes(vaddr, 4)?.try_into().ok()?))
    }

    /// All functions of the code that the unwind table knows, in ascending order.
    pub fn functions(&self) -> Vec<Function> {
        #[cfg(test)]
        if let Some(functions) = &self.functions {
            return functions.clone();
        }
        let Some(table) = self.unwind_table() else {
            return Vec::new();
        };
        let listed = (0..table.len()).filter_map(|i| self.listed(&table, i));
        let mut functions: Vec<Function> = listed.collect();
        functions.sort_unstable();
        functions
    }

    /// The functions around these places, in ascending order: those that hold them, and all that
    /// begin near.
    pub fn functions_near(&self, places: impl Iterator<Item = usize>) -> Vec<Function> {
        const NEAR: usize = 256;
        #[cfg(test)]
        if let Some(functions) = &self.functions {
            return functions.clone();
        }
        let Some(table) = self.unwind_table() else {
            return Vec::new();
        };
        let mut found = Vec::new();
        for place in places {
            let first = table.partition_point(place.saturating_sub(NEAR));
            let behind = table.partition_point(place.saturating_add(NEAR));
            let wanted = first.saturating_sub(2)..table.len().min(behind + 2);
            found.extend(wanted.filter_map(|i| self.listed(&table, i)));
        }
        found.sort_unstable();
        found.dedup();
        found
    }

    /// `.eh_frame_hdr`: a sorted table of (start, unwind entry), relative to its own address.
    fn unwind_table(&self) -> Option<UnwindTable<'_>> {
        const VERSION_AND_ENCODINGS: [u8; 4] = [1, 0x1b, 0x03, 0x3b];
        let (at, len) = self.eh_frame_hdr?;
        if self.bytes(at, 4)? != VERSION_AND_ENCODINGS {
            return None;
        }
        let count = usize::try_from(self.i32_at(at + 8)?).ok()?;
        let entries = self.bytes(at + 12, count.checked_mul(8)?)?;
        (12 + entries.len() <= len).then_some(())?;
        Some(UnwindTable { at, entries })
    }

    /// Function `i` of the table.
    fn listed(&self, table: &UnwindTable<'_>, i: usize) -> Option<Function> {
        let (start, end) = self.function(table.start(i), table.word(2 * i + 1))?;
        let (begin, len) = self.text;
        let inside = begin <= start && end <= begin + len;
        // Its `clone` ends for the unwinder in front of the call.
        let next = || {
            (i + 1..table.len())
                .map(|i| table.start(i))
                .find(|&at| at > start)
        };
        let until = || next().unwrap_or(begin + len);
        inside.then(|| (start, if self.essential { until() } else { end }))
    }

    /// The function that begins at `start` by its unwind entry, which says the same, and where it
    /// ends.
    fn function(&self, start: usize, unwind: usize) -> Option<Function> {
        let begins = (unwind + 8).wrapping_add_signed(self.i32_at(unwind + 8)? as isize);
        let len = self.i32_at(unwind + 12)? as u32 as usize;
        (begins == start && len > 0).then_some((start, start.checked_add(len)?))
    }
}

#[cfg(test)]
impl Module {
    /// A module that is nothing but this code, in pages of its own.
    pub fn of_code(code: &[u8]) -> Module {
        Module::of_code_and_data(code, &[])
    }

    /// As [`Module::of_code`], with these functions in it.
    pub fn of_functions(code: &[u8], functions: &[Function]) -> Module {
        let mut module = Module::of_code(code);
        module.functions = Some(functions.to_vec());
        module
    }

    /// As [`Module::of_code`], with data behind it.
    pub fn of_code_and_data(code: &[u8], data: &[u8]) -> Module {
        use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let len = (code.len() + data.len()).next_multiple_of(4096);
        // SAFETY: a fresh mapping, which is never unmapped, of at least the length of both.
        let base = unsafe {
            let base = mmap_anonymous(core::ptr::null_mut(), len, protection, MapFlags::PRIVATE);
            let base = base.expect("memory for a test").cast::<u8>();
            base.copy_from(code.as_ptr(), code.len());
            base.add(code.len()).copy_from(data.as_ptr(), data.len());
            base as usize
        };
        let text = (0, code.len());
        Module {
            base,
            text,
            readable: vec![text, (code.len(), data.len())],
            eh_frame_hdr: None,
            layout: 0,
            build_id: vec![1, 2, 3],
            sum: OnceCell::new(),
            essential: false,
            functions: Some(vec![text]),
        }
    }
}

/// The GNU build id in a note segment.
pub fn build_id(mut notes: &[u8]) -> Option<Vec<u8>> {
    const NT_GNU_BUILD_ID: u32 = 3;
    while notes.len() >= 12 {
        let word =
            |i: usize| u32::from_le_bytes([notes[i], notes[i + 1], notes[i + 2], notes[i + 3]]);
        let (name_len, desc_len, kind) = (word(0) as usize, word(4) as usize, word(8));
        let desc = 12 + name_len.next_multiple_of(4);
        if kind == NT_GNU_BUILD_ID && notes.get(12..16) == Some(b"GNU\0") {
            return notes.get(desc..desc + desc_len).map(<[u8]>::to_vec);
        }
        notes = notes.get(desc + desc_len.next_multiple_of(4)..)?;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::may_call;

    #[test]
    fn calls_are_found_wherever_blocks_end() {
        for at in [0, 1, 4094, 4095, 4096, 8190] {
            let mut code = vec![0x0f; 8192];
            assert!(!may_call(&code));
            code[at + 1] = 0x05;
            assert!(may_call(&code), "at {at}");
            assert!(!may_call(&code[at + 1..]), "behind {at}");
        }
        assert!(!may_call(&[]) && !may_call(&[0x0f]));
    }
}
