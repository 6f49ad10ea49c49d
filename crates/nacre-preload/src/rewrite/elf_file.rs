//! A file that the program maps to execute it: of a pool, or of the host.

use libc::Elf64_Phdr;
use nacre_vfs::{Reply, Vfs};

use crate::entry::call::sink;
use crate::rewrite::elf::{self, Module};
use crate::runtime::PAGE;
use crate::runtime::kernel::checked;

const MAGIC: [u8; 6] = [0x7f, b'E', b'L', b'F', 2, 1];
const HEADER: usize = 56;
/// Where program headers end at the latest: linkers put them in front of all else.
const HEADERS_MAX: usize = 4096;
/// The longest image that is made.
const IMAGE_MAX: usize = 1 << 30;
const DT_STRTAB: u64 = 5;
const DT_SONAME: u64 = 14;
const DT_TEXTREL: u64 = 22;
const DT_FLAGS: u64 = 30;
const DF_TEXTREL: u64 = 4;

/// An ELF file of 64 bits.
pub struct ElfFile<'a> {
    vfs: &'a Vfs,
    fd: i32,
    headers: Vec<Elf64_Phdr>,
}

impl<'a> ElfFile<'a> {
    /// None if it is something else.
    pub fn open(vfs: &'a Vfs, fd: i32) -> Option<Self> {
        let mut file = ElfFile {
            vfs,
            fd,
            headers: Vec::new(),
        };
        let mut start = [0; HEADERS_MAX];
        let len = file.read(0, &mut start)?;
        file.headers = headers(&start[..len])?;
        Some(file)
    }

    /// The module whose code begins in a mapping at `address` of `len` bytes from byte `offset` of
    /// the file on. None if not all of the code is in there.
    pub fn module_at(&self, address: usize, len: usize, offset: usize) -> Option<Module> {
        let text = elf::text_of(&self.headers)?;
        let start = text.p_offset as usize & !(PAGE - 1);
        let end = text.p_offset.checked_add(text.p_filesz)?;
        if start != offset || end > offset.checked_add(len)? as u64 || !self.reaches(end) {
            return None;
        }
        let base = address.checked_sub(text.p_vaddr as usize & !(PAGE - 1))?;
        let mut module = Module::from_headers(base, &self.headers)?;
        for note in self.headers.iter().filter(|h| h.p_type == libc::PT_NOTE) {
            let mut bytes = vec![0; (note.p_filesz as usize).min(PAGE)];
            let len = self.read(note.p_offset, &mut bytes)?;
            module.build_id = elf::build_id(&bytes[..len]).unwrap_or(module.build_id);
        }
        if let Some(table) = self.table().filter(|_| module.build_id.is_empty()) {
            // The segment that it is in may not be mapped yet.
            module.know_sum(self.sum(table));
        }
        let dynamic = self.dynamic()?;
        module.essential = self
            .name(&dynamic)
            .is_some_and(|name| elf::ESSENTIAL.contains(&name.as_slice()));
        (!relocates_text(&dynamic)).then_some(module)
    }

    /// The table of functions.
    fn table(&self) -> Option<&Elf64_Phdr> {
        let mut tables = self.headers.iter();
        tables.find(|h| h.p_type == libc::PT_GNU_EH_FRAME)
    }

    /// As [`Module::sum`], from the file.
    fn sum(&self, table: &Elf64_Phdr) -> Option<u32> {
        let len = usize::try_from(table.p_filesz).ok()?;
        (len <= IMAGE_MAX).then_some(())?;
        let mut bytes = vec![0; len];
        let read = self.read(table.p_offset, &mut bytes)?;
        (read == len).then(|| nacre_types::crc32c(&bytes))
    }

    /// The dynamic section: tags and values.
    fn dynamic(&self) -> Option<Vec<(u64, u64)>> {
        const ENTRIES_MAX: usize = 4096;
        let Some(dynamic) = self.headers.iter().find(|h| h.p_type == libc::PT_DYNAMIC) else {
            return Some(Vec::new());
        };
        let mut bytes = vec![0; (dynamic.p_filesz as usize).min(16 * ENTRIES_MAX)];
        let len = self.read(dynamic.p_offset, &mut bytes)?;
        let entries = bytes[..len].chunks_exact(16);
        entries
            .map(|entry| Some((word(entry, 0)?, word(entry, 8)?)))
            .collect()
    }

    /// What the library calls itself, if it is short.
    fn name(&self, dynamic: &[(u64, u64)]) -> Option<Vec<u8>> {
        let value = |tag| {
            dynamic
                .iter()
                .find(|entry| entry.0 == tag)
                .map(|entry| entry.1)
        };
        let at = value(DT_STRTAB)?.checked_add(value(DT_SONAME)?)?;
        let mut loads = self.headers.iter().filter(|h| h.p_type == libc::PT_LOAD);
        let offset = loads.find_map(|load| {
            let inside = at
                .checked_sub(load.p_vaddr)
                .filter(|&inside| inside < load.p_filesz);
            load.p_offset.checked_add(inside?)
        })?;
        let mut bytes = [0; 32];
        let len = self.read(offset, &mut bytes)?;
        let end = bytes[..len].iter().position(|&byte| byte == 0)?;
        Some(bytes[..end].to_vec())
    }

    /// Looks at the whole file as it would lie in memory, without what is zero at first. None if
    /// some of it is missing.
    pub fn with_image<T>(&self, look: impl FnOnce(&Module) -> T) -> Option<T> {
        let loads = || self.headers.iter().filter(|h| h.p_type == libc::PT_LOAD);
        let ends = loads().map(|h| h.p_vaddr.saturating_add(h.p_filesz));
        let len = usize::try_from(ends.max()?).ok()?;
        let mut image = Vec::new();
        let room = image
            .try_reserve_exact(len)
            .ok()
            .filter(|()| len <= IMAGE_MAX);
        room?;
        image.resize(len, 0);
        for load in loads() {
            let start = load.p_vaddr as usize;
            let part = image.get_mut(start..start.checked_add(load.p_filesz as usize)?)?;
            let len = part.len();
            (self.read(load.p_offset, part)? == len).then_some(())?;
        }
        let module = Module::from_headers(image.as_ptr() as usize, &self.headers)?;
        Some(look(&module))
    }

    fn reaches(&self, end: u64) -> bool {
        end > 0 && self.read(end - 1, &mut [0]) == Some(1)
    }

    /// Reads from byte `offset` on; less than `into` holds only at the end of the file.
    fn read(&self, offset: u64, into: &mut [u8]) -> Option<usize> {
        let mut done = 0;
        while done < into.len() {
            let (at, rest) = (into.as_mut_ptr() as usize + done, into.len() - done);
            let offset = i64::try_from(offset).ok()?.checked_add(done as i64)?;
            let read = match self.vfs.pread(self.fd, sink(at, rest).ok()?, offset) {
                Ok(Reply::Done(read)) => read as usize,
                Ok(_) => {
                    let args = [self.fd as usize, at, rest, offset as usize];
                    checked(libc::SYS_pread64, &args).ok()?
                }
                Err(_) => return None,
            };
            if read == 0 {
                break;
            }
            done += read;
        }
        Some(done)
    }
}

/// Whether the dynamic linker will write into the code.
fn relocates_text(dynamic: &[(u64, u64)]) -> bool {
    dynamic.iter().any(|&(tag, value)| match tag {
        DT_TEXTREL => true,
        DT_FLAGS => value & DF_TEXTREL != 0,
        _ => false,
    })
}

/// The program headers of a file that begins so.
fn headers(start: &[u8]) -> Option<Vec<Elf64_Phdr>> {
    start.starts_with(&MAGIC).then_some(())?;
    let table = usize::try_from(word(start, 32)?).ok()?;
    let count = usize::from(u16::from_le_bytes([*start.get(56)?, *start.get(57)?]));
    let table = start.get(table..table.checked_add(count * HEADER)?)?;
    table.chunks_exact(HEADER).map(header).collect()
}

fn header(bytes: &[u8]) -> Option<Elf64_Phdr> {
    let kind_and_flags = word(bytes, 0)?;
    Some(Elf64_Phdr {
        p_type: kind_and_flags as u32,
        p_flags: (kind_and_flags >> 32) as u32,
        p_offset: word(bytes, 8)?,
        p_vaddr: word(bytes, 16)?,
        p_paddr: word(bytes, 24)?,
        p_filesz: word(bytes, 32)?,
        p_memsz: word(bytes, 40)?,
        p_align: word(bytes, 48)?,
    })
}

fn word(bytes: &[u8], at: usize) -> Option<u64> {
    let word = bytes.get(at..at + 8)?;
    Some(u64::from_le_bytes(word.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::{headers, relocates_text};
    use crate::rewrite::elf::text_of;

    #[test]
    fn headers_are_those_of_this_program() {
        let program = std::fs::read("/proc/self/exe").unwrap();
        let found = headers(&program[..4096]).unwrap();
        let text = found.iter().find(|h| h.p_flags & libc::PF_X != 0).unwrap();
        let here = headers as *const () as usize;
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let offset = maps.lines().find_map(|line| {
            let (range, rest) = line.split_once(' ')?;
            let (start, end) = range.split_once('-')?;
            let [start, end] = [start, end].map(|text| usize::from_str_radix(text, 16).unwrap());
            (start..end).contains(&here).then(|| {
                let offset = rest.split_whitespace().nth(1).unwrap();
                here - start + usize::from_str_radix(offset, 16).unwrap()
            })
        });
        let offset = offset.unwrap() as u64;
        assert!((text.p_offset..text.p_offset + text.p_filesz).contains(&offset));
    }

    #[test]
    fn only_one_segment_of_code_as_in_the_file_is_taken() {
        let program = std::fs::read("/proc/self/exe").unwrap();
        let good = headers(&program[..4096]).unwrap();
        let text = good
            .iter()
            .position(|h| h.p_flags & libc::PF_X != 0)
            .unwrap();
        let taken = |change: &dyn Fn(&mut Vec<libc::Elf64_Phdr>)| {
            let mut changed = good.clone();
            change(&mut changed);
            text_of(&changed).is_some()
        };
        assert!(taken(&|_| {}));
        assert!(!taken(&|all| all.push(good[text])));
        assert!(!taken(&|all| all[text].p_flags |= libc::PF_W));
        assert!(!taken(&|all| all[text].p_flags &= !libc::PF_R));
        assert!(!taken(&|all| all[text].p_vaddr += 16));
        assert!(!taken(&|all| all[text].p_flags = libc::PF_R));
    }

    #[test]
    fn relocated_text_is_told_by_tag_or_flag() {
        assert!(relocates_text(&[(1, 4), (22, 0)]) && relocates_text(&[(30, 12)]));
        assert!(!relocates_text(&[(30, 8), (6, 4)]) && !relocates_text(&[]));
    }

    #[test]
    fn damaged_headers_are_none() {
        let program = std::fs::read("/proc/self/exe").unwrap();
        for len in 0..120 {
            assert!(headers(&program[..len]).is_none(), "{len} bytes");
        }
        let mut start = program[..4096].to_vec();
        start[32..40].fill(0xff);
        assert!(headers(&start).is_none());
        assert!(headers(b"#!/bin/sh\n").is_none());
    }
}
