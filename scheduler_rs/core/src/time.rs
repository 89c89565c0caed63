//! Time as the scheduler counts it: whole nanoseconds, so that order is total and exact.

/// Nanoseconds since the start of the iteration, or a duration.
pub type Time = i64;

/// Later than anything that can happen.
pub const NEVER: Time = Time::MAX / 4;

const NANOSECONDS_PER_SECOND: f64 = 1e9;

/// Seconds are written in decimal, so a product that misses an integer by this little (in
/// nanoseconds) is that integer.
const DECIMAL_NOISE: f64 = 1e-6;

/// Which way durations are rounded: up for plans, down for lower bounds, so that a proof holds
/// for the instance as it was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rounding {
    /// For plans.
    Up,
    /// For lower bounds.
    Down,
}

impl Rounding {
    /// Seconds to nanoseconds. `seconds` must be finite, not negative and below [`LONGEST_S`].
    #[must_use]
    pub fn nanoseconds(self, seconds: f64) -> Time {
        let exact = seconds * NANOSECONDS_PER_SECOND;
        let nearest = exact.round();
        let whole = if (exact - nearest).abs() <= DECIMAL_NOISE {
            nearest
        } else if self == Self::Up {
            exact.ceil()
        } else {
            exact.floor()
        };
        whole as Time
    }
}

/// The longest single duration that is accepted, in seconds (about a month).
pub const LONGEST_S: f64 = 3e6;

/// Nanoseconds to seconds.
#[must_use]
pub fn seconds(time: Time) -> f64 {
    time as f64 / NANOSECONDS_PER_SECOND
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decimals_are_exact_both_ways() {
        for (s, ns) in [(0.44, 440_000_000), (0.29, 290_000_000), (0.0, 0), (1e-9, 1)] {
            assert_eq!(Rounding::Up.nanoseconds(s), ns);
            assert_eq!(Rounding::Down.nanoseconds(s), ns);
        }
        assert_eq!(Rounding::Up.nanoseconds(1.5e-9), 2);
        assert_eq!(Rounding::Down.nanoseconds(1.5e-9), 1);
    }
}
