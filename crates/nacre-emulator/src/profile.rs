//! Device profiles: what is known of a device, in TOML, each figure with its source.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, open};
use serde::Deserialize;

use crate::error::ProfileError;

/// The profiles that come with Nacre: name and text.
const SHIPPED: &[(&str, &str)] = &[
    ("optane-100", include_str!("../profiles/optane-100.toml")),
    (
        "optane-interleaved-6",
        include_str!("../profiles/optane-interleaved-6.toml"),
    ),
    ("pcm", include_str!("../profiles/pcm.toml")),
    ("stt-mram", include_str!("../profiles/stt-mram.toml")),
    (
        "cxl-dram-battery",
        include_str!("../profiles/cxl-dram-battery.toml"),
    ),
    ("nvdimm", include_str!("../profiles/nvdimm.toml")),
    ("fast-ssd", include_str!("../profiles/fast-ssd.toml")),
    ("dram", include_str!("../profiles/dram.toml")),
];

/// A device, as the model and the emulation need it. Times are in nanoseconds, sizes in bytes.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// What it is called.
    pub name: String,
    /// What it is, in a line.
    pub title: String,
    /// What one access costs, for the injected delay.
    pub latency: Latency,
    /// The memory cells of one module.
    pub media: Cells,
    /// The buffer of one module that combines writes into lines.
    pub buffer: Buffer,
    /// The way from the processor to a module.
    pub controller: Controller,
    /// One thread.
    pub processor: Processor,
    /// How addresses spread over modules.
    pub layout: Layout,
    /// How much writing the cells bear.
    pub endurance: Endurance,
    /// What the figures were fitted to.
    #[serde(default)]
    pub fit: Fit,
}

/// What a profile was fitted to.
#[derive(Clone, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fit {
    /// Sizes of access, of which measurements were used.
    pub sizes: Vec<u64>,
}

/// What one access costs, and what of it is injected.
#[derive(Clone, Copy, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Latency {
    /// Reading a line of DRAM.
    pub dram_read_ns: f64,
    /// Persisting a line in DRAM.
    pub dram_write_ns: f64,
    /// Reading a line of the device.
    pub read_ns: f64,
    /// Persisting a line in the device.
    pub write_ns: f64,
    /// Bytes that one such access moves: `m` of the delay's formula.
    pub unit: u64,
    /// Factor of the delay's formula: 1 where nothing overlaps.
    pub delta: f64,
    /// Whether reads are delayed too.
    pub delay_reads: bool,
}

/// The memory cells of one module.
#[derive(Clone, Copy, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cells {
    /// Bytes that the cells read and write at once.
    pub line: u64,
    /// Time between two reads of lines.
    pub read_ns: f64,
    /// Time between two writes of lines.
    pub write_ns: f64,
    /// Share of a read's time that reading a partly written line adds to writing it.
    pub merge: f64,
}

/// The buffers of one module.
#[derive(Clone, Copy, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Buffer {
    /// Lines that were written, which it holds.
    pub lines: u32,
    /// Lines that were read, which it holds besides.
    pub read_lines: u32,
    /// Lines among them that may wait for being written to the cells.
    pub writes_waiting: u32,
    /// Lines among them that may wait for being read from the cells.
    pub reads_waiting: u32,
}

/// The way from the processor to a module.
#[derive(Clone, Copy, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Controller {
    /// Stores of 64 bytes that wait in order, and are combined to lines.
    pub queue: u32,
    /// Stores of one thread that may wait at a time for the module to take them.
    pub stores_waiting: u32,
    /// While so many wait, the thread sends no store to another module.
    pub stores_ahead: u32,
    /// While so many loads of a thread wait, it sends none to another module.
    pub loads_ahead: u32,
    /// Stores that are looked at before the module waits.
    pub tries: u32,
    /// Share of the turns in which requests of a core that comes first on the way pass those of
    /// the others.
    #[serde(default)]
    pub precedence: f64,
    /// Time to move 64 bytes.
    pub transfer_ns: f64,
    /// From the acceptance of a store until the processor knows.
    pub accept_ns: f64,
    /// From finding a line in the buffer until the processor has it.
    pub answer_ns: f64,
    /// What a read takes more if the line is not in the buffer.
    pub fetch_ns: f64,
}

/// One thread.
#[derive(Clone, Copy, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Processor {
    /// Bytes of the last level of the cache, which all threads share.
    pub cache: u64,
    /// Lines of 64 bytes under way at a time.
    pub fill_buffers: u32,
    /// Factor by which prefetching adds to that once a thread loads line behind line.
    pub prefetch: f64,
    /// Time between two lines that are stored through the cache and flushed.
    pub flush_issue_ns: f64,
    /// From the flush of a line until the processor knows.
    pub flush_ns: f64,
    /// Time between two requests of 64 bytes.
    pub issue_ns: f64,
    /// Time between two loads of a thread at random places.
    pub access_ns: f64,
}

/// How addresses spread over modules.
#[derive(Clone, Copy, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Layout {
    /// Modules.
    pub modules: u32,
    /// Bytes on one module before the next follows.
    pub interleave: u64,
}

/// How much writing the cells bear.
#[derive(Clone, Copy, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Endurance {
    /// Writes of one cell; 0 stands for no limit.
    pub writes: f64,
}

/// The text of a file, which a pool's label may have named: one that does not end, or makes who
/// opens it wait, is none.
fn text_of(path: &str) -> io::Result<String> {
    const MOST: u64 = 1 << 20;
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = File::from(open(path, flags, Mode::empty())?);
    if !file.metadata()?.is_file() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut text = String::new();
    file.take(MOST).read_to_string(&mut text)?;
    Ok(text)
}

impl Profile {
    /// Names of the profiles that come with Nacre.
    pub fn shipped() -> impl Iterator<Item = &'static str> {
        SHIPPED.iter().map(|(name, _)| *name)
    }

    /// The text of a shipped profile, with the sources of its figures.
    pub fn text(name: &str) -> Option<&'static str> {
        let found = SHIPPED.iter().find(|(known, _)| *known == name)?;
        Some(found.1)
    }

    /// A shipped profile by its name, or one of the user's by its path (with a `/` or ending in
    /// `.toml`).
    pub fn load(name: &str) -> Result<Self, ProfileError> {
        if let Some(text) = Self::text(name) {
            return Self::parse(name, text);
        }
        if !name.contains('/') && !name.ends_with(".toml") {
            return Err(ProfileError::Unknown {
                name: name.to_owned(),
                known: Self::shipped().collect::<Vec<_>>().join(", "),
            });
        }
        let text = text_of(name).map_err(|error| ProfileError::Unreadable {
            path: PathBuf::from(name),
            error,
        })?;
        Self::parse(name, &text)
    }

    /// Memory that is as fast as it is: the shipped profile `dram`.
    pub fn plain() -> Self {
        Self::load("dram")
            .unwrap_or_else(|error| unreachable!("a test loads every shipped profile: {error}"))
    }

    /// Reads a profile's text; `origin` names it in errors.
    pub fn parse(origin: impl AsRef<Path>, text: &str) -> Result<Self, ProfileError> {
        let origin = origin.as_ref();
        let profile: Self = toml::from_str(text).map_err(|error| ProfileError::Malformed {
            origin: origin.to_owned(),
            error: error.to_string().trim_end().to_owned(),
        })?;
        profile.check(origin)?;
        Ok(profile)
    }

    fn check(&self, origin: &Path) -> Result<(), ProfileError> {
        let wrong = |field: &'static str, value: String, remedy: &'static str| {
            Err(ProfileError::Nonsense {
                origin: origin.to_owned(),
                field,
                value,
                remedy,
            })
        };
        for (field, value) in self.times() {
            if !(0.0..=1e9).contains(&value) {
                return wrong(field, value.to_string(), "give a number from 0 to 1e9");
            }
        }
        if !(0.0..=0.9).contains(&self.controller.precedence) {
            let value = self.controller.precedence.to_string();
            return wrong("controller.precedence", value, "give a share from 0 to 0.9");
        }
        for (field, value, least, most) in self.counts() {
            if !(least..=most).contains(&value) {
                return wrong(
                    field,
                    value.to_string(),
                    "see `nacre model --show optane-100` for values that make sense",
                );
            }
        }
        for (field, value) in [
            ("media.line", self.media.line),
            ("latency.unit", self.latency.unit),
            ("layout.interleave", self.layout.interleave),
        ] {
            if !value.is_power_of_two() || !(64..=1 << 30).contains(&value) {
                return wrong(field, value.to_string(), "give a power of two from 64 on");
            }
        }
        if !(1 << 16..=1 << 40).contains(&self.processor.cache) {
            let value = self.processor.cache.to_string();
            return wrong(
                "processor.cache",
                value,
                "give the bytes of the last level, 65536 or more",
            );
        }
        if self.media.line > 4096 || self.layout.interleave < self.media.line {
            let remedy = "a line has at most 4096 bytes, and interleaving does not cut it";
            return wrong("media.line", self.media.line.to_string(), remedy);
        }
        if self.media.write_ns == 0.0 || self.media.read_ns == 0.0 {
            return wrong(
                "media.write_ns",
                "0".to_owned(),
                "lines take time: give more than 0",
            );
        }
        if !(self.endurance.writes >= 0.0 && self.endurance.writes.is_finite()) {
            let value = self.endurance.writes.to_string();
            return wrong(
                "endurance.writes",
                value,
                "give the writes of a cell, or 0 for no limit",
            );
        }
        Ok(())
    }

    fn times(&self) -> [(&'static str, f64); 17] {
        [
            ("latency.dram_read_ns", self.latency.dram_read_ns),
            ("latency.dram_write_ns", self.latency.dram_write_ns),
            ("latency.read_ns", self.latency.read_ns),
            ("latency.write_ns", self.latency.write_ns),
            ("latency.delta", self.latency.delta),
            ("media.read_ns", self.media.read_ns),
            ("media.write_ns", self.media.write_ns),
            ("media.merge", self.media.merge),
            ("controller.transfer_ns", self.controller.transfer_ns),
            ("controller.accept_ns", self.controller.accept_ns),
            ("controller.answer_ns", self.controller.answer_ns),
            ("controller.fetch_ns", self.controller.fetch_ns),
            ("processor.prefetch", self.processor.prefetch),
            ("processor.flush_ns", self.processor.flush_ns),
            ("processor.flush_issue_ns", self.processor.flush_issue_ns),
            ("processor.issue_ns", self.processor.issue_ns),
            ("processor.access_ns", self.processor.access_ns),
        ]
    }

    /// Field, value, least, most.
    fn counts(&self) -> [(&'static str, u32, u32, u32); 11] {
        let (most, most_read) = (self.buffer.lines, self.buffer.read_lines);
        [
            ("buffer.read_lines", most_read, 1, 1 << 16),
            ("buffer.lines", self.buffer.lines, 1, 1 << 16),
            ("buffer.writes_waiting", self.buffer.writes_waiting, 1, most),
            (
                "buffer.reads_waiting",
                self.buffer.reads_waiting,
                1,
                most_read,
            ),
            ("controller.queue", self.controller.queue, 1, 1 << 16),
            (
                "controller.stores_waiting",
                self.controller.stores_waiting,
                1,
                1 << 16,
            ),
            (
                "controller.stores_ahead",
                self.controller.stores_ahead,
                1,
                1 << 16,
            ),
            (
                "controller.loads_ahead",
                self.controller.loads_ahead,
                1,
                1 << 16,
            ),
            ("controller.tries", self.controller.tries, 1, 64),
            (
                "processor.fill_buffers",
                self.processor.fill_buffers,
                1,
                1024,
            ),
            ("layout.modules", self.layout.modules, 1, 64),
        ]
    }

    /// What persisting a unit of [`Latency::unit`] bytes takes longer than in DRAM, with `delta`
    /// applied.
    pub fn write_delay_ns(&self) -> f64 {
        let more = self.latency.write_ns - self.latency.dram_write_ns;
        (self.latency.delta * more).max(0.0)
    }

    /// As [`Profile::write_delay_ns`], of a read; 0 where the profile does not delay reads.
    pub fn read_delay_ns(&self) -> f64 {
        let more = self.latency.read_ns - self.latency.dram_read_ns;
        if self.latency.delay_reads {
            (self.latency.delta * more).max(0.0)
        } else {
            0.0
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Profile;

    #[test]
    fn shipped_profiles_are_sound_and_named_after_themselves() {
        for name in Profile::shipped() {
            assert_eq!(Profile::load(name).unwrap().name, name);
        }
    }

    #[test]
    fn nonsense_is_refused_by_field_and_remedy() {
        let text = Profile::text("optane-100").unwrap();
        let refused = |from: &str, to: &str| {
            assert!(text.contains(from), "{from}");
            let error = Profile::parse("my.toml", &text.replace(from, to)).unwrap_err();
            error.to_string()
        };
        let message = refused("\nline = 256", "\nline = 250");
        assert!(message.contains("my.toml: media.line is 250"), "{message}");
        assert!(message.contains("power of two"), "{message}");
        assert!(refused("\nmodules = 1", "\nmodules = 0").contains("layout.modules is 0"));
        assert!(refused("\nunit = 64", "\nunits = 64").contains("units"));
        assert!(refused("precedence = 0.4", "precedence = 1.0").contains("precedence is 1"));
        assert!(refused("\ncache = 37486592", "\ncache = 7").contains("processor.cache is 7"));
        assert!(refused("write_ns = 90.4", "write_ns = -1").contains("latency.write_ns is -1"));
        assert!(refused("write_ns = 90.4", "write_ns = \"x\"").contains("write_ns"));
    }

    #[test]
    fn unknown_names_list_the_known_ones() {
        let message = Profile::load("optan").unwrap_err().to_string();
        assert!(
            message.contains("optane-100, optane-interleaved-6"),
            "{message}"
        );
        let message = Profile::load("./none.toml").unwrap_err().to_string();
        assert!(message.starts_with("./none.toml"), "{message}");
    }
}
