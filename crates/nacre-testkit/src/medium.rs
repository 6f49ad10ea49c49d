//! A medium between two fences: what is durable, and what each line that is not may have become.

use std::collections::BTreeMap;

use crate::random::Random;
use crate::recorder::{Event, SourcePlace, What};

/// Programs that can run side by side.
pub const LANES: usize = 3;

/// More lines under way than this make the samples fewer, but no fewer than [`FEWEST`].
pub const MANY_LINES: u64 = 512;
const FEWEST: u64 = 4;

/// Bytes of a line.
pub const LINE: usize = 64;

/// Contents of one line.
pub type Line = [u8; LINE];

/// Lines, by number, in which an image differs from the floor that it stands on.
pub type Difference = BTreeMap<u64, Line>;

/// 8 bytes or less inside of one aligned word, and when they were stored.
struct Piece {
    start: u8,
    len: u8,
    bytes: [u8; 8],
    time: u32,
    place: SourcePlace,
}

#[derive(Default)]
struct Pending {
    pieces: Vec<Piece>,
    /// How many pieces each program has flushed.
    flushed: [usize; LANES],
    /// How many it would have, were nothing switched off.
    wanted: [usize; LANES],
    /// How many pieces would be durable, were nothing switched off.
    due: usize,
}

/// States that one line can have after a crash, in the order of its stores; the first is the
/// durable one.
pub struct Choices {
    /// Number of the line.
    pub line: u64,
    /// State and the time from which on it existed.
    pub states: Vec<(Line, u32)>,
    /// The first of them that would be possible, were nothing switched off.
    pub due: usize,
    /// Where the store that made each state but the first was made.
    pub places: Vec<SourcePlace>,
}

/// What is durable beyond the floor, and what is not yet.
#[derive(Default)]
pub struct Medium {
    /// Durable lines that differ from the floor.
    pub settled: Difference,
    pending: BTreeMap<u64, Pending>,
    clock: u32,
}

impl Medium {
    /// Takes an event in. `floor` gives a line that nobody has changed.
    pub fn apply(&mut self, event: &Event, floor: &dyn Fn(u64) -> Line) {
        match &event.what {
            What::Store { at, bytes, .. } => self.store(*at, bytes, event.place),
            What::Flush { at, len, .. } => self.flush(*at, *len, event),
            What::Fence => self.fence(event, floor),
            What::Done => {}
        }
    }

    fn store(&mut self, at: u64, bytes: &[u8], place: SourcePlace) {
        let mut done = 0;
        while done < bytes.len() {
            let here = at + done as u64;
            let len = (8 - here % 8).min((bytes.len() - done) as u64) as usize;
            let mut piece = Piece {
                start: (here % LINE as u64) as u8,
                len: len as u8,
                bytes: [0; 8],
                time: self.clock,
                place,
            };
            piece.bytes[..len].copy_from_slice(&bytes[done..done + len]);
            let line = self.pending.entry(here / LINE as u64).or_default();
            line.pieces.push(piece);
            self.clock += 1;
            done += len;
        }
    }

    fn flush(&mut self, at: u64, len: u64, event: &Event) {
        let last = (at + len.max(1) - 1) / LINE as u64;
        for (_, pending) in self.pending.range_mut(at / LINE as u64..=last) {
            pending.wanted[event.lane] = pending.pieces.len();
            if !event.off {
                pending.flushed[event.lane] = pending.pieces.len();
            }
        }
    }

    /// What a program flushed is durable after its own fence, whoever stored it.
    fn fence(&mut self, event: &Event, floor: &dyn Fn(u64) -> Line) {
        let settled = &mut self.settled;
        self.pending.retain(|&number, pending| {
            pending.due = pending.due.max(pending.wanted[event.lane]);
            let durable = if event.off {
                0
            } else {
                pending.flushed[event.lane]
            };
            if durable > 0 {
                let line = settled.entry(number).or_insert_with(|| floor(number));
                for piece in pending.pieces.drain(..durable) {
                    piece.apply(line);
                }
                let counts = pending.flushed.iter_mut().chain(&mut pending.wanted);
                for count in counts.chain([&mut pending.due]) {
                    *count = count.saturating_sub(durable);
                }
            }
            !pending.pieces.is_empty()
        });
    }

    /// The lines that can have more than one state now.
    pub fn choices(&self, floor: &dyn Fn(u64) -> Line) -> Vec<Choices> {
        let mut all = Vec::new();
        for (&line, pending) in &self.pending {
            let durable = self.settled.get(&line).copied();
            let mut state = durable.unwrap_or_else(|| floor(line));
            let (mut states, mut places) = (vec![(state, 0)], Vec::new());
            let mut due = 0;
            for (number, piece) in (1..).zip(&pending.pieces) {
                let before = state;
                piece.apply(&mut state);
                if state != before {
                    states.push((state, piece.time + 1));
                    places.push(piece.place);
                }
                if number == pending.due {
                    due = states.len() - 1;
                }
            }
            if states.len() > 1 {
                all.push(Choices {
                    line,
                    states,
                    due,
                    places,
                });
            }
        }
        all
    }

    /// The image in which all that was stored is there.
    pub fn stored(&self, floor: &dyn Fn(u64) -> Line) -> Difference {
        let choices = self.choices(floor);
        let last: Vec<usize> = choices.iter().map(|c| c.states.len() - 1).collect();
        image(&self.settled, &choices, &last)
    }

    /// Visits the images of a crash now, `choices` being those of [`Medium::choices`]; an error
    /// ends it.
    pub fn images<E>(
        &self,
        choices: &[Choices],
        depth: Depth,
        random: &mut Random,
        mut visit: impl FnMut(&Difference) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut found = Ok(());
        combinations(choices, self.clock, depth, random, &mut |picked| {
            found = visit(&image(&self.settled, choices, picked));
            found.is_ok()
        });
        found
    }
}

impl Piece {
    fn apply(&self, line: &mut Line) {
        let (start, len) = (usize::from(self.start), usize::from(self.len));
        line[start..start + len].copy_from_slice(&self.bytes[..len]);
    }
}

/// How many images to make of one crash point.
#[derive(Clone, Copy, Debug)]
pub struct Depth {
    /// All of them, if there are no more than this.
    pub all_up_to: u64,
    /// Else so many samples.
    pub samples: u64,
    /// Only those that would not be possible, were nothing switched off.
    pub aimed: bool,
}

/// Visits combinations of states: `visit` gets an index into each line's states; false ends it.
///
/// Samples begin with nothing, everything, prefixes in the order of the program's stores, and each
/// line alone missing or alone present; the rest is random.
fn combinations(
    choices: &[Choices],
    since: u32,
    depth: Depth,
    random: &mut Random,
    visit: &mut dyn FnMut(&[usize]) -> bool,
) {
    let owed: Vec<usize> = (0..choices.len())
        .filter(|&index| choices[index].due > 0)
        .collect();
    if depth.aimed && owed.is_empty() {
        return;
    }
    let product = choices.iter().fold(1u64, |product, choice| {
        product.saturating_mul(choice.states.len() as u64)
    });
    if product <= depth.all_up_to {
        every(choices, &mut |picked| {
            let aimed = owed.iter().any(|&index| picked[index] < choices[index].due);
            (depth.aimed && !aimed) || visit(picked)
        });
        return;
    }
    // Where thousands of lines are under way (contents that move), an image costs as much as
    // hundreds of others.
    let samples = depth.samples * MANY_LINES / (choices.len() as u64).max(MANY_LINES);
    for number in 0..samples.max(FEWEST) {
        let picked = match depth.aimed {
            true => aimed_sample(choices, &owed, since, number, random),
            false => sample(choices, since, number, random),
        };
        if !visit(&picked) {
            return;
        }
    }
}

fn every(choices: &[Choices], visit: &mut dyn FnMut(&[usize]) -> bool) {
    let mut picked = vec![0; choices.len()];
    loop {
        if !visit(&picked) {
            return;
        }
        let Some(digit) = (0..picked.len()).find(|&d| picked[d] + 1 < choices[d].states.len())
        else {
            return;
        };
        picked[..digit].fill(0);
        picked[digit] += 1;
    }
}

/// Lines that would be durable by now are lost: all of them or one, behind which the others got
/// far, or not.
fn aimed_sample(
    choices: &[Choices],
    owed: &[usize],
    clock: u32,
    number: u64,
    random: &mut Random,
) -> Vec<usize> {
    let last = |choice: &Choices| choice.states.len() - 1;
    let mut picked = match number % 6 {
        0 | 2 => choices.iter().map(last).collect(),
        1 | 3 => choices.iter().map(|choice| choice.due).collect(),
        4 => sample(choices, clock, 2, random),
        _ => sample(choices, clock, 5, random),
    };
    let one = owed[random.below(owed.len() as u64) as usize];
    for &index in owed {
        picked[index] = match number {
            0 | 1 => 0,
            _ if index == one => random.below(choices[index].due as u64) as usize,
            _ if number.is_multiple_of(2) => picked[index],
            _ => last(&choices[index]),
        };
    }
    picked
}

fn sample(choices: &[Choices], clock: u32, number: u64, random: &mut Random) -> Vec<usize> {
    let last = |choice: &Choices| choice.states.len() - 1;
    let one = random.below(choices.len() as u64) as usize;
    let style = if number < 2 { number } else { 2 + number % 6 };
    let time = random.below(u64::from(clock) + 1) as u32;
    let recent = time.max(clock - clock.min(random.below(64) as u32));
    (0..)
        .zip(choices)
        .map(|(index, choice)| match style {
            0 => 0,
            1 => last(choice),
            2 => choice.states.iter().filter(|s| s.1 <= recent).count() - 1,
            3 if index == one => random.below(last(choice) as u64) as usize,
            3 => last(choice),
            4 if index == one => 1 + random.below(last(choice) as u64) as usize,
            4 => 0,
            5 => last(choice) * random.below(2) as usize,
            _ => random.below(choice.states.len() as u64) as usize,
        })
        .collect()
}

/// The image that a combination stands for.
fn image(settled: &Difference, choices: &[Choices], picked: &[usize]) -> Difference {
    let mut image = settled.clone();
    for (choice, &state) in choices.iter().zip(picked) {
        if state > 0 {
            image.insert(choice.line, choice.states[state].0);
        }
    }
    image
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use nacre_types::StoreKind;

    use super::{Depth, Difference, LINE, Medium};
    use crate::random::Random;
    use crate::recorder::{Event, What};

    fn event(what: What, off: bool) -> Event {
        Event {
            what,
            lane: 0,
            place: None,
            off,
        }
    }

    fn store(at: u64, byte: u8) -> [Event; 2] {
        let what = What::Store {
            at,
            bytes: [byte; 8].into(),
            kind: StoreKind::Data,
        };
        let flush = What::Flush {
            at,
            len: 8,
            kind: None,
        };
        [event(what, false), event(flush, false)]
    }

    fn images(events: &[Event], aimed: bool) -> BTreeSet<Difference> {
        let (mut medium, floor) = (Medium::default(), |_| [0; LINE]);
        events.iter().for_each(|event| medium.apply(event, &floor));
        let mut images = BTreeSet::new();
        let depth = Depth {
            all_up_to: 1000,
            samples: 0,
            aimed,
        };
        let choices = medium.choices(&floor);
        let Ok(()) = medium.images(&choices, depth, &mut Random::new(1, 1), |image| {
            let changed = image.iter().filter(|(_, line)| **line != [0; LINE]);
            images.insert(changed.map(|(&number, line)| (number, *line)).collect());
            Ok::<_, std::convert::Infallible>(())
        });
        images
    }

    #[test]
    fn aimed_images_are_those_that_only_the_missing_event_makes_possible() {
        let fence = [event(What::Fence, false)];
        let mut events = [
            &store(0, 1)[..],
            &store(64, 2),
            &fence,
            &store(0, 3),
            &store(128, 4),
        ]
        .concat();
        let sound = images(&events, false);
        assert!(images(&events, true).is_empty());
        for missing in [1, 3, 4] {
            events[missing].off = true;
            let mut left_out = events.clone();
            left_out.remove(missing);
            let possible = images(&left_out, false);
            assert_eq!(images(&events, false), possible);
            let aimed = images(&events, true);
            assert!(!aimed.is_empty());
            assert_eq!(aimed, &possible - &sound);
            events[missing].off = false;
        }
    }
}
