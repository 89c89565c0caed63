//! What one node is reserved for: the tasks that it runs and the microbatches that it holds. Where nodes share a
//! processor, the tasks of all of them stand in the timeline of one.

use crate::time::{NEVER, Time};

/// Reserved time of one task. Reservations of a node never overlap and stand in the order in which it runs them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reservation {
    /// Start.
    pub start: Time,
    /// End, not included.
    pub end: Time,
    /// Route that the task belongs to.
    pub route: u32,
    /// Number of the task, unique in the schedule.
    pub task: u32,
}

/// Reservations of one node.
#[derive(Clone, Debug, Default)]
pub struct Timeline {
    reservations: Vec<Reservation>,
    /// Start and end of each holding, by route; kept only where memory is held.
    holds: Vec<(Time, Time, u32)>,
    /// Maximal times in which one more microbatch may be held, ascending.
    windows: Vec<(Time, Time)>,
}

impl Timeline {
    /// An idle node.
    #[must_use]
    pub fn new() -> Self {
        Self { reservations: Vec::new(), holds: Vec::new(), windows: vec![(0, NEVER)] }
    }

    /// The reserved tasks, in order.
    #[must_use]
    pub fn reservations(&self) -> &[Reservation] {
        &self.reservations
    }

    /// Times in which one more microbatch may be held: `(from, to)`, a holding from `s` to `e` fits where
    /// `from <= s` and `e <= to`.
    #[must_use]
    pub fn windows(&self) -> &[(Time, Time)] {
        &self.windows
    }

    /// The earliest start at `from` or later of a task of `length`.
    #[must_use]
    pub fn earliest(&self, from: Time, length: Time) -> Time {
        let mut start = from;
        for reservation in &self.reservations[self.reservations.partition_point(|s| s.end <= from)..] {
            if start + length <= reservation.start {
                break;
            }
            start = start.max(reservation.end);
        }
        start
    }

    /// Intervals `(first, last)` of possible starts of a task of `length`, from `from` on, ascending.
    pub fn gaps(&self, from: Time, length: Time) -> impl Iterator<Item = (Time, Time)> + '_ {
        let begin = self.reservations.partition_point(|s| s.end <= from);
        let ends = self.reservations[begin..].iter().map(|s| s.start).chain([NEVER]);
        let starts = [from].into_iter().chain(self.reservations[begin..].iter().map(|s| s.end));
        starts.zip(ends).map(move |(a, b)| (a.max(from), b - length)).filter(|(a, b)| a <= b)
    }

    /// Reserves a task after everything that ends by its start.
    pub fn reserve(&mut self, reservation: Reservation) {
        let index = self.reservations.partition_point(|s| s.end <= reservation.start);
        debug_assert!(
            self.reservations.get(index).is_none_or(|next| reservation.end <= next.start),
            "{reservation:?} overlaps {:?}",
            self.reservations[index]
        );
        self.reservations.insert(index, reservation);
    }

    /// Reserves memory for a microbatch of `route`; [`Timeline::find_windows`] is to follow.
    pub fn hold(&mut self, start: Time, end: Time, route: u32) {
        self.holds.push((start, end, route));
    }

    /// Frees everything that `route` has reserved.
    pub fn remove(&mut self, route: u32, memory: u32) {
        self.reservations.retain(|s| s.route != route);
        let before = self.holds.len();
        self.holds.retain(|h| h.2 != route);
        if self.holds.len() != before {
            self.find_windows(memory);
        }
    }

    /// Frees everything.
    pub fn clear(&mut self) {
        self.reservations.clear();
        self.holds.clear();
        self.windows.clear();
        self.windows.push((0, NEVER));
    }

    /// A reservation at the end, for rebuilding a schedule in order.
    pub fn push(&mut self, reservation: Reservation) {
        self.reservations.push(reservation);
    }

    /// Finds the windows anew after holdings were added.
    pub fn find_windows(&mut self, memory: u32) {
        let mut events: Vec<(Time, i64)> = self.holds.iter().flat_map(|h| [(h.0, 1), (h.1, -1)]).collect();
        events.sort_unstable(); // an end comes before a start at the same time: holdings are half-open
        self.windows.clear();
        let (mut held, mut from) = (0, Some(0));
        for (time, change) in events {
            held += change;
            let full = held >= i64::from(memory);
            match from {
                Some(start) if full => {
                    self.windows.push((start, time));
                    from = None;
                }
                None if !full => from = Some(time),
                _ => {}
            }
        }
        if let Some(start) = from {
            self.windows.push((start, NEVER));
        }
        self.windows.retain(|(a, b)| a < b);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reservation(start: Time, end: Time) -> Reservation {
        Reservation { start, end, route: 0, task: 0 }
    }

    #[test]
    fn earliest_is_the_first_gap() {
        let mut line = Timeline::new();
        for (a, b) in [(2, 4), (5, 9), (9, 10)] {
            line.reserve(reservation(a, b));
        }
        for from in 0..12 {
            for length in 0..4 {
                let fits = |t: Time| line.reservations().iter().all(|s| t + length <= s.start || t >= s.end);
                let expected = (from..).find(|t| fits(*t)).unwrap();
                assert_eq!(line.earliest(from, length), expected, "from {from} length {length}");
                assert_eq!(line.gaps(from, length).next().unwrap().0, expected);
            }
        }
    }

    #[test]
    fn windows_are_where_memory_is_left() {
        let mut line = Timeline::new();
        for (route, (start, end)) in [(1, 6), (3, 8), (8, 9)].into_iter().enumerate() {
            line.hold(start, end, route as u32);
        }
        line.find_windows(2);
        assert_eq!(line.windows(), [(0, 3), (6, NEVER)]);
        line.remove(0, 2);
        assert_eq!(line.windows(), [(0, NEVER)]);
    }
}
