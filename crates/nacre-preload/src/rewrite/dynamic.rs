//! What the dynamic section of an ELF file says about the libraries that it needs.

/// The dynamic section of a 64-bit ELF file. All offsets were checked against the file.
pub struct Dynamic {
    /// The needed libraries.
    pub needed: Vec<Needed>,
    strings: (usize, usize),
    rpath: Option<usize>,
    runpath: Option<usize>,
}

/// One needed library.
#[derive(Clone, Copy)]
pub struct Needed {
    /// File offset of the word that holds the offset of the name among the strings.
    word: usize,
    strings: (usize, usize),
}

const DT_NEEDED: u64 = 1;
const DT_STRTAB: u64 = 5;
const DT_STRSZ: u64 = 10;
const DT_RPATH: u64 = 15;
const DT_RUNPATH: u64 = 29;
const HEADER: usize = 56;

fn number(image: &[u8], at: usize, len: usize) -> Option<u64> {
    let mut bytes = [0; 8];
    bytes[..len].copy_from_slice(image.get(at..at.checked_add(len)?)?);
    Some(u64::from_le_bytes(bytes))
}

fn word(image: &[u8], at: usize) -> Option<usize> {
    usize::try_from(number(image, at, 8)?).ok()
}

/// The string at an offset of the string table.
fn string(image: &[u8], (start, len): (usize, usize), offset: usize) -> &[u8] {
    let table = image
        .get(start..start.saturating_add(len))
        .unwrap_or_default();
    let text = table.get(offset..).unwrap_or_default();
    text.split(|&b| b == 0).next().unwrap_or_default()
}

impl Dynamic {
    /// None if the file is not a dynamically linked 64-bit ELF file.
    pub fn parse(image: &[u8]) -> Option<Dynamic> {
        const MAGIC: [u8; 6] = [0x7f, b'E', b'L', b'F', 2, 1];
        image.starts_with(&MAGIC).then_some(())?;
        let (table, count) = (word(image, 32)?, number(image, 56, 2)? as usize);
        let headers: Vec<usize> = (0..count)
            .map(|i| table.saturating_add(i * HEADER))
            .collect();
        let of_kind = |kind: u32| {
            let is = move |&&at: &&usize| number(image, at, 4) == Some(u64::from(kind));
            headers.iter().filter(is)
        };
        let section = *of_kind(libc::PT_DYNAMIC).next()?;
        let (at, len) = (word(image, section + 8)?, word(image, section + 32)?);
        let entries = image.get(at..at.checked_add(len)?)?.len() / 16;
        let tags =
            || (0..entries).map_while(|i| Some((number(image, at + 16 * i, 8)?, at + 16 * i + 8)));
        let tags = || tags().take_while(|&(tag, _)| tag != 0);
        let value = |wanted| {
            tags()
                .find(|&(tag, _)| tag == wanted)
                .and_then(|(_, at)| word(image, at))
        };
        let address = value(DT_STRTAB)?;
        let start = of_kind(libc::PT_LOAD).find_map(|&header| {
            let offset = address.checked_sub(word(image, header + 16)?)?;
            (offset < word(image, header + 32)?).then_some(word(image, header + 8)? + offset)
        })?;
        let strings = (start, value(DT_STRSZ)?);
        let needed = tags().filter(|&(tag, _)| tag == DT_NEEDED);
        Some(Dynamic {
            needed: needed.map(|(_, word)| Needed { word, strings }).collect(),
            strings,
            rpath: value(DT_RPATH),
            runpath: value(DT_RUNPATH),
        })
    }

    /// The search path that holds for everything loaded by this file.
    pub fn rpath<'i>(&self, image: &'i [u8]) -> Option<&'i [u8]> {
        Some(string(image, self.strings, self.rpath?))
    }

    /// The search path that holds for this file only.
    pub fn runpath<'i>(&self, image: &'i [u8]) -> Option<&'i [u8]> {
        Some(string(image, self.strings, self.runpath?))
    }
}

impl Needed {
    /// The name as it stands in the file.
    pub fn name<'i>(&self, image: &'i [u8]) -> &'i [u8] {
        string(
            image,
            self.strings,
            word(image, self.word).unwrap_or(usize::MAX),
        )
    }

    /// Makes the name end in the same file name, but without folders.
    pub fn strip_folder(&self, image: &mut [u8]) {
        let name = self.name(image);
        let folders = name
            .iter()
            .rposition(|&b| b == b'/')
            .map_or(0, |slash| slash + 1);
        let offset = word(image, self.word).unwrap_or(0) + folders;
        if let Some(place) = image.get_mut(self.word..self.word + 8) {
            place.copy_from_slice(&(offset as u64).to_le_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Dynamic;

    #[test]
    fn this_test_needs_libc() {
        let mut image = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let dynamic = Dynamic::parse(&image).unwrap();
        let needed = dynamic
            .needed
            .iter()
            .find(|one| one.name(&image) == b"libc.so.6")
            .unwrap();
        needed.strip_folder(&mut image);
        assert_eq!(needed.name(&image), b"libc.so.6");
    }

    #[test]
    fn damaged_files_are_refused() {
        let image = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        assert!(Dynamic::parse(b"#!/bin/sh").is_none());
        assert!(Dynamic::parse(&image[..64]).is_none());
        for at in (0..2048).step_by(3) {
            let mut bad = image[..1 << 16].to_vec();
            bad[at..at + 8].fill(0xff);
            if let Some(dynamic) = Dynamic::parse(&bad) {
                dynamic
                    .needed
                    .iter()
                    .for_each(|one| assert!(one.name(&bad).len() < bad.len()));
            }
        }
    }
}
