//! Where values stand on an axis, and which of them are written at it.

/// How values spread over an axis.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scale {
    /// Equal differences are equal lengths.
    Even,
    /// Each step doubles.
    Doubling,
    /// Each step is ten times the one before.
    Tens,
}

/// An axis over values.
pub struct Axis {
    scale: Scale,
    values: Vec<f64>,
    /// Its ends, as the scale spreads them.
    low: f64,
    high: f64,
    /// Where it begins, and how far it goes.
    from: f64,
    length: f64,
}

/// Steps of a value axis, about.
const STEPS: f64 = 5.0;
/// Powers of ten on an axis at most: what is less stands at its end.
const DECADES: f64 = 4.0;

/// Of more values than these, powers of two are written instead.
const MANY: usize = 32;

impl Axis {
    /// From the least of the values to the largest.
    pub fn across(scale: Scale, values: &[f64], from: f64, length: f64) -> Self {
        let mut axis = Self::with(scale, values, from, length);
        axis.low = axis.spread(axis.values.first().copied().unwrap_or(0.0));
        axis.high = axis.spread(axis.values.last().copied().unwrap_or(1.0));
        axis
    }

    /// From 0, or the power of ten below the least, to a round value above the largest; upwards.
    pub fn upwards(scale: Scale, values: &[f64], from: f64, length: f64) -> Self {
        let mut axis = Self::with(scale, values, from, -length);
        let most = axis.values.last().copied().unwrap_or(1.0).max(1e-9);
        if scale == Scale::Tens {
            let least = axis.values.iter().find(|&&value| value > 0.0);
            axis.high = most.log10().ceil();
            let low = least.map_or(0.0, |least| least.log10().floor());
            axis.low = low.clamp(axis.high - DECADES, axis.high - 1.0);
        } else {
            axis.high = (most / step(most)).ceil() * step(most);
        }
        axis
    }

    fn with(scale: Scale, values: &[f64], from: f64, length: f64) -> Self {
        let mut values = values.to_vec();
        values.sort_by(f64::total_cmp);
        values.dedup();
        Self {
            scale,
            values,
            low: 0.0,
            high: 0.0,
            from,
            length,
        }
    }

    fn spread(&self, value: f64) -> f64 {
        match self.scale {
            Scale::Even => value,
            Scale::Doubling => value.max(1.0).log2(),
            Scale::Tens => value.max(1e-9).log10(),
        }
    }

    /// Where a value stands.
    pub fn place(&self, value: f64) -> f64 {
        let over = (self.spread(value) - self.low).max(0.0);
        self.from + over / (self.high - self.low).max(1e-9) * self.length
    }

    /// Values to write under the axis so that they have room beside each other: all that there
    /// are, or else every so many of them, or round ones.
    pub fn labels_beside(&self) -> Vec<f64> {
        if self.scale == Scale::Tens {
            return self.powers();
        }
        if self.fit(&self.values) {
            return self.values.clone();
        }
        if self.scale == Scale::Even {
            return self.round();
        }
        let doubles = |value: &f64| Some(value * 2.0).filter(|next| next.log2() <= self.high);
        let all = match self.values.len() {
            ..=MANY => self.values.clone(),
            _ => std::iter::successors(Some(self.low.ceil().exp2()), doubles).collect(),
        };
        let every = |step| all.iter().copied().step_by(step).collect();
        let thinned = (1..).map(every).find(|values: &Vec<f64>| self.fit(values));
        thinned.unwrap_or_default()
    }

    /// Values to write beside the axis.
    pub fn labels_above(&self) -> Vec<f64> {
        match self.scale {
            Scale::Tens => self.powers(),
            _ => self.round(),
        }
    }

    fn powers(&self) -> Vec<f64> {
        let (low, high) = (self.low.ceil() as i32, self.high.floor() as i32);
        (low..=high).map(|power| 10f64.powi(power)).collect()
    }

    fn round(&self) -> Vec<f64> {
        let step = step(self.high - self.low);
        let (first, last) = (self.low / step, self.high / step + 1e-9);
        let steps = first.ceil() as i64..=last.floor() as i64;
        steps.map(|count| count as f64 * step).collect()
    }

    fn fit(&self, values: &[f64]) -> bool {
        let half = |value: f64| 3.5 * short(value).len() as f64;
        values.windows(2).all(|two| {
            self.place(two[1]) - self.place(two[0]) >= half(two[0]) + half(two[1]) + 10.0
        })
    }
}

/// 1, 2 or 5 times a power of ten, so that about five of it make the whole.
fn step(whole: f64) -> f64 {
    let wished = (whole / STEPS).max(1e-9);
    let ten = 10f64.powf(wished.log10().floor());
    let factors = [1.0, 2.0, 5.0];
    let fine = factors
        .into_iter()
        .find(|factor| factor * ten >= wished * 0.999);
    fine.unwrap_or(10.0) * ten
}

/// A value in few characters: whole KiB and MiB as such.
pub fn short(value: f64) -> String {
    const KIB: f64 = 1024.0;
    if value >= KIB * KIB && value % (KIB * KIB) == 0.0 {
        return format!("{} MiB", value / KIB / KIB);
    }
    if value >= KIB && value % KIB == 0.0 {
        return format!("{} KiB", value / KIB);
    }
    ((value * 1e6).round() / 1e6).to_string()
}

#[cfg(test)]
mod tests {
    use super::{Axis, Scale};

    fn across(scale: Scale, values: &[f64]) -> Vec<f64> {
        Axis::across(scale, values, 0.0, 410.0).labels_beside()
    }

    #[test]
    fn values_ends_are_round_and_near() {
        let labels = |most: f64| Axis::upwards(Scale::Even, &[most], 0.0, 1.0).labels_above();
        assert_eq!(labels(2.26), [0.0, 0.5, 1.0, 1.5, 2.0, 2.5]);
        assert_eq!(labels(13.0), [0.0, 5.0, 10.0, 15.0]);
        assert_eq!(labels(2.0), [0.0, 0.5, 1.0, 1.5, 2.0]);
    }

    #[test]
    fn powers_of_ten_hold_what_is_zero_at_their_end() {
        let axis = Axis::upwards(Scale::Tens, &[0.0, 0.03, 410.0], 100.0, 100.0);
        assert_eq!(axis.labels_above(), [0.1, 1.0, 10.0, 100.0, 1000.0]);
        assert_eq!((axis.place(0.0), axis.place(1000.0)), (100.0, 0.0));
    }

    #[test]
    fn what_has_no_room_is_thinned_evenly() {
        let threads: Vec<f64> = (1..=24).map(f64::from).collect();
        assert_eq!(across(Scale::Even, &threads), [5.0, 10.0, 15.0, 20.0]);
        assert_eq!(across(Scale::Even, &[1.0, 4.0, 8.0]), [1.0, 4.0, 8.0]);
        let sizes: Vec<f64> = (6..27).map(|power| f64::from(1u32 << power)).collect();
        let shown = across(Scale::Doubling, &sizes);
        let apart: Vec<f64> = shown.windows(2).map(|two| two[1] / two[0]).collect();
        assert!(apart.iter().all(|&ratio| ratio == apart[0]), "{shown:?}");
        assert_eq!(across(Scale::Tens, &[1.0, 2.0, 300.0]), [1.0, 10.0, 100.0]);
    }
}
