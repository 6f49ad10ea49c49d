//! A medium that can lose what was not fenced: records stores, flushes and fences and makes crash
//! images of them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use nacre_types::{DeviceOffset, StoreKind};
use nacre_volume::Observer;

const LINE: u64 = 64;

enum Event {
    /// 8 bytes or less inside of one aligned word.
    Store {
        at: u64,
        bytes: Vec<u8>,
    },
    Flush {
        first_line: u64,
        last_line: u64,
    },
    Fence,
}

#[derive(Default)]
pub struct Recorder {
    events: Mutex<Option<Vec<Event>>>,
}

impl Recorder {
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    pub fn start(&self) {
        *self.events.lock().unwrap() = Some(Vec::new());
    }

    /// Ends the recording.
    pub fn stop(&self) -> Recording {
        Recording {
            events: self.events.lock().unwrap().take().unwrap(),
        }
    }

    fn note(&self, event: Event) {
        if let Some(events) = self.events.lock().unwrap().as_mut() {
            events.push(event);
        }
    }
}

impl Observer for Recorder {
    fn store(&self, _: u16, at: DeviceOffset, bytes: &[u8], _: StoreKind, _atomic: bool) {
        let mut done = 0;
        while done < bytes.len() {
            let start = at.0 + done as u64;
            let len = (8 - start % 8).min((bytes.len() - done) as u64) as usize;
            self.note(Event::Store {
                at: start,
                bytes: bytes[done..done + len].to_vec(),
            });
            done += len;
        }
    }

    fn flush(&self, _: u16, at: DeviceOffset, len: u64) {
        let (first_line, last_line) = (at.0 / LINE, (at.0 + len.max(1) - 1) / LINE);
        self.note(Event::Flush {
            first_line,
            last_line,
        });
    }

    fn fence(&self, _: u16) {
        self.note(Event::Fence);
    }
}

pub struct Recording {
    events: Vec<Event>,
}

/// Stores to one line that are not yet durable, in order; the first `flushed` of them were flushed.
#[derive(Default)]
struct Line {
    stores: Vec<(u64, Vec<u8>)>,
    flushed: usize,
}

impl Recording {
    /// A planted bug.
    pub fn forget_flushes(&mut self) {
        self.events
            .retain(|event| !matches!(event, Event::Flush { .. }));
    }

    /// Calls `visit` with images that a crash could leave: for each fence (and the end) `samples`
    /// states of the lines that were not yet fenced just before it. Each line keeps a prefix of its
    /// stores, chosen by `random`.
    pub fn images(
        &self,
        start: &[u8],
        samples: usize,
        random: &mut dyn FnMut() -> u64,
        visit: &mut dyn FnMut(&[u8]),
    ) {
        let mut durable = start.to_vec();
        let mut lines: BTreeMap<u64, Line> = BTreeMap::new();
        for event in self.events.iter().chain([&Event::Fence]) {
            match event {
                Event::Store { at, bytes } => {
                    lines
                        .entry(at / LINE)
                        .or_default()
                        .stores
                        .push((*at, bytes.clone()));
                }
                Event::Flush {
                    first_line,
                    last_line,
                } => {
                    for (_, line) in lines.range_mut(first_line..=last_line) {
                        line.flushed = line.stores.len();
                    }
                }
                Event::Fence => {
                    crash(&durable, &lines, samples, random, visit);
                    settle(&mut durable, &mut lines);
                }
            }
        }
    }
}

fn crash(
    durable: &[u8],
    lines: &BTreeMap<u64, Line>,
    samples: usize,
    random: &mut dyn FnMut() -> u64,
    visit: &mut dyn FnMut(&[u8]),
) {
    for sample in 0..samples {
        let mut image = durable.to_vec();
        for line in lines.values() {
            let count = line.stores.len() as u64;
            // Nothing, everything, whole lines at random, then arbitrary prefixes.
            let keep = match sample {
                0 => 0,
                1 => count,
                2..=4 => count * (random() % 2),
                _ => random() % (count + 1),
            };
            line.stores[..keep as usize]
                .iter()
                .for_each(|(at, bytes)| put(&mut image, *at, bytes));
        }
        visit(&image);
    }
}

fn settle(durable: &mut [u8], lines: &mut BTreeMap<u64, Line>) {
    lines.retain(|_, line| {
        for (at, bytes) in line.stores.drain(..line.flushed) {
            put(durable, at, &bytes);
        }
        line.flushed = 0;
        !line.stores.is_empty()
    });
}

fn put(image: &mut [u8], at: u64, bytes: &[u8]) {
    image[at as usize..at as usize + bytes.len()].copy_from_slice(bytes);
}
