//! Which units lie on which device, for who chooses where data goes.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use nacre_types::{UNIT_SHIFT, UnitNo};

use crate::layout::{STRIPE_MAX, STRIPE_MIN};

/// How much of a file lies on one device before the next device's turn.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Stripe {
    /// All that fits: a device is filled before the next.
    #[default]
    None,
    /// So many bytes: a power of two from 4 KiB to 2 MiB.
    Bytes(u64),
}

impl Stripe {
    /// What suits several devices of which nothing else is known: as much as the largest page.
    pub const USUAL: Stripe = Stripe::Bytes(STRIPE_MAX);

    /// As a label has it; `None` if no label can.
    pub(crate) fn of_label(bytes: u64) -> Option<Stripe> {
        match bytes {
            0 => Some(Stripe::None),
            _ => Stripe::of_bytes(bytes),
        }
    }

    fn of_bytes(bytes: u64) -> Option<Stripe> {
        let fits = bytes.is_power_of_two() && (STRIPE_MIN..=STRIPE_MAX).contains(&bytes);
        fits.then_some(Stripe::Bytes(bytes))
    }

    pub(crate) const fn bytes(self) -> u64 {
        match self {
            Stripe::None => 0,
            Stripe::Bytes(bytes) => bytes,
        }
    }
}

impl fmt::Display for Stripe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Stripe::None => f.write_str("none"),
            Stripe::Bytes(bytes) if bytes % (1 << 20) == 0 => write!(f, "{}M", bytes >> 20),
            Stripe::Bytes(bytes) => write!(f, "{}K", bytes >> 10),
        }
    }
}

/// What each of several devices is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Arrangement {
    /// How data is spread over those in front.
    pub stripe: Stripe,
    /// How many, the last ones, stand behind the others and hold what is cold.
    pub behind: usize,
}

/// What is wrong with the text of a [`Stripe`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("none, or a power of two from 4K to 2M")]
pub struct ParseStripeError;

impl FromStr for Stripe {
    type Err = ParseStripeError;

    fn from_str(text: &str) -> Result<Self, ParseStripeError> {
        if text == "none" {
            return Ok(Stripe::None);
        }
        let (digits, shift) = match text.as_bytes().last() {
            Some(b'k' | b'K') => (&text[..text.len() - 1], 10),
            Some(b'm' | b'M') => (&text[..text.len() - 1], 20),
            _ => (text, 0),
        };
        let number: u64 = digits.parse().map_err(|_| ParseStripeError)?;
        let bytes = number.checked_mul(1 << shift);
        bytes.and_then(Stripe::of_bytes).ok_or(ParseStripeError)
    }
}

/// The devices of a volume over which data is spread, as ranges of units.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Placement {
    stripe: u64,
    /// The units before the first device's, which all devices hold (D80).
    common: u64,
    /// The unit behind each device's last one; rising.
    ends: Vec<u64>,
    /// How fast each is, compared with the others; none: they count alike.
    weights: Vec<u64>,
}

/// What the fastest device counts.
const FASTEST: u64 = 1024;

/// What devices of so many MB a second count; `None` is one that is gone. Nothing, unless all were
/// measured.
fn weights_of(speeds: &[Option<u32>]) -> Vec<u64> {
    let fastest = u64::from(speeds.iter().copied().flatten().max().unwrap_or(0));
    let weight = |speed| (u64::from(speed) * FASTEST / fastest).max(1);
    match speeds.contains(&Some(0)) {
        true => Vec::new(),
        false => speeds.iter().map(|it| it.map_or(1, weight)).collect(),
    }
}

impl Placement {
    /// `None` if data is not spread. `ends` are the volume offsets behind each device's data.
    pub(crate) fn of(
        stripe: Stripe,
        ends: impl ExactSizeIterator<Item = u64>,
    ) -> Option<Placement> {
        let units = stripe.bytes() >> UNIT_SHIFT;
        (units > 0 && ends.len() > 1).then(|| Placement {
            stripe: units,
            common: 0,
            ends: ends.map(|end| end >> UNIT_SHIFT).collect(),
            weights: Vec::new(),
        })
    }

    /// As this, on devices of so many MB a second each; 0 for not known, `None` for one that is
    /// gone.
    pub(crate) fn with_speeds(self, speeds: &[Option<u32>]) -> Placement {
        Placement {
            weights: weights_of(speeds),
            ..self
        }
    }

    /// As [`Placement::of`], behind so many bytes that all devices hold.
    pub(crate) fn behind(
        common: u64,
        stripe: Stripe,
        ends: impl ExactSizeIterator<Item = u64>,
    ) -> Option<Placement> {
        Some(Placement {
            common: common >> UNIT_SHIFT,
            ..Self::of(stripe, ends)?
        })
    }

    /// Units that all devices hold, the first ones; 0: none.
    #[inline]
    pub fn common(&self) -> u64 {
        self.common
    }

    /// How many units lie side by side on a device; a power of two up to 512. Stripes begin at
    /// multiples of it.
    #[inline]
    pub fn stripe(&self) -> u64 {
        self.stripe
    }

    /// How many devices there are, at least 2.
    #[inline]
    pub fn devices(&self) -> usize {
        self.ends.len()
    }

    /// How fast a device is, compared with the others: from 1 to 1024. All count alike where not
    /// all were measured.
    #[inline]
    pub fn weight(&self, device: usize) -> u64 {
        self.weights.get(device).copied().unwrap_or(1)
    }

    /// The units of a device.
    #[inline]
    pub fn units(&self, device: usize) -> Range<u64> {
        let start = device
            .checked_sub(1)
            .map_or(self.common, |before| self.ends[before]);
        start..self.ends[device]
    }

    /// The device of a unit; of one behind the end: the last.
    #[inline]
    pub fn device(&self, unit: UnitNo) -> usize {
        let last = self.ends.len() - 1;
        self.ends[..last]
            .iter()
            .position(|&end| unit.0 < end)
            .unwrap_or(last)
    }
}

#[cfg(test)]
mod tests {
    use nacre_types::UnitNo;

    use super::{Placement, Stripe};

    #[test]
    fn stripes_are_powers_of_two_that_a_group_holds() {
        for (text, bytes) in [
            ("4K", 4096),
            ("64k", 65536),
            ("2M", 2 << 20),
            ("8192", 8192),
        ] {
            assert_eq!(text.parse(), Ok(Stripe::Bytes(bytes)));
        }
        assert_eq!("none".parse(), Ok(Stripe::None));
        for text in [
            "",
            "K",
            "0",
            "2K",
            "5K",
            "12K",
            "4M",
            "-4K",
            "4KK",
            "99999999999999M",
        ] {
            assert!(text.parse::<Stripe>().is_err(), "{text}");
        }
        assert_eq!(Stripe::USUAL.to_string(), "2M");
        assert_eq!(Stripe::Bytes(4096).to_string(), "4K");
    }

    #[test]
    fn each_unit_has_the_device_whose_range_holds_it() {
        let placement = Placement {
            stripe: 512,
            common: 0,
            ends: vec![1024, 4096, 5120],
            weights: Vec::new(),
        };
        assert_eq!(placement.units(0), 0..1024);
        assert_eq!(placement.units(2), 4096..5120);
        let devices = [0, 1023, 1024, 4095, 4096, 9999].map(|unit| placement.device(UnitNo(unit)));
        assert_eq!(devices, [0, 0, 1, 1, 2, 2]);
    }

    #[test]
    fn devices_count_by_their_speed_if_all_were_measured() {
        let weights = |speeds: &[Option<u32>]| {
            let ends = speeds.iter().scan(0, |end, _| {
                *end += 1 << 30;
                Some(*end)
            });
            let ends: Vec<u64> = ends.collect();
            let all = Placement::of(Stripe::USUAL, ends.into_iter());
            let all = all.unwrap().with_speeds(speeds);
            (0..speeds.len())
                .map(|it| all.weight(it))
                .collect::<Vec<_>>()
        };
        let known = |speeds: &[u32]| weights(&speeds.iter().copied().map(Some).collect::<Vec<_>>());
        assert_eq!(known(&[4000, 2000, 1]), [1024, 512, 1]);
        assert_eq!(known(&[4000, 0]), [1, 1]);
        assert_eq!(known(&[u32::MAX, u32::MAX]), [1024, 1024]);
        assert_eq!(weights(&[Some(4000), None, Some(2000)]), [1024, 1, 512]);
    }
}
