//! What a route may look like: how many stages it visits, in which order, how the visits are shared out.

use crate::problem::Instance;
use crate::rules::{Constraints, class_sets};
pub use crate::rules::{StageSet, stage_bit};

/// One route to be found: `waves` microbatches of one source go over it, one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RouteTask {
    /// Node of stage 0.
    pub source: usize,
    /// Class of its microbatches: an index into [`Instance::classes`].
    pub class: usize,
    /// Microbatches on this route.
    pub waves: usize,
    /// Id of the first of them; the others follow.
    pub first_microbatch: usize,
}

/// All routes of an instance: each source's microbatches in lots of `rules.waves`, the last lot smaller
/// where the count does not divide.
#[must_use]
pub fn route_tasks(instance: &Instance) -> Vec<RouteTask> {
    let lot = instance.rules.waves as usize;
    let mut tasks = Vec::new();
    let mut first_microbatch = 0;
    for source in &instance.sources {
        let mut left = source.microbatches;
        while left > 0 {
            let waves = left.min(lot);
            tasks.push(RouteTask { source: source.node, class: source.class, waves, first_microbatch });
            first_microbatch += waves;
            left -= waves;
        }
    }
    tasks
}

/// How many stage visits the routes make: `total` in all, each route `total / routes` rounded down or up, or as many as
/// its class says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lengths {
    /// Number of routes.
    pub routes: usize,
    /// Stage visits of all routes, stage 0 counted.
    pub total: usize,
    short: usize,
    long: usize,
}

impl Lengths {
    /// For `routes` routes over `present` stages with the share `skip_ratio` left out.
    #[must_use]
    pub fn new(routes: usize, present: usize, skip_ratio: f64) -> Self {
        let exact = (routes * present) as f64 * (1.0 - skip_ratio);
        let total = (exact + 0.5 + 1e-6).floor() as usize;
        Self { routes, total, short: total / routes, long: total.div_ceil(routes) }
    }

    /// For `routes` routes of an instance.
    #[must_use]
    pub fn of(instance: &Instance, routes: usize) -> Self {
        let Some(sets) = class_sets(&instance.rules) else {
            return Self::new(routes, instance.present.len(), instance.skip_ratio);
        };
        let lengths = || sets.iter().map(|set| set.count_ones() as usize);
        let (short, long) = (lengths().min().unwrap_or(0), lengths().max().unwrap_or(0));
        Self { routes, total: lengths().sum(), short, long }
    }

    /// Visits of the shortest routes.
    #[must_use]
    pub fn short(&self) -> usize {
        self.short
    }

    /// Visits of the longest routes.
    #[must_use]
    pub fn long(&self) -> usize {
        self.long
    }

    /// Without classes, the number of routes with one visit more than [`Lengths::short`].
    #[must_use]
    pub fn long_routes(&self) -> usize {
        self.total % self.routes
    }
}

/// What a swap of neighbours may still do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Turn {
    /// Nothing is open: the next stage is a higher one.
    Ahead,
    /// The stage just below the last one was left out and may follow as the second half of a swap.
    MaySwap,
}

/// State of a growing stage sequence under CC1, CC2 and `max_stage_jump`: what may follow depends on
/// nothing else, so the search may treat sequences of equal state as one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StageOrder {
    /// Furthest stage so far plus 1; 0 at the start.
    reached: u8,
    turn: Turn,
    swaps_left: u8,
    /// Without CC2 any order is allowed, so the set itself is the state. Empty with CC2.
    visited: StageSet,
}

impl StageOrder {
    /// Before the first stage.
    #[must_use]
    pub fn start(rules: &Constraints) -> Self {
        Self { reached: 0, turn: Turn::Ahead, swaps_left: rules.max_swaps.min(u32::from(u8::MAX)) as u8, visited: 0 }
    }

    /// After `stage` as the next one, or none where the rules forbid it. `max_swaps` and jumps as in `rules`.
    #[must_use]
    pub fn step(self, stage: usize, rules: &Constraints) -> Option<Self> {
        if rules.cc1 && (self.reached == 0) != (stage == 0) {
            return None;
        }
        let furthest = usize::from(self.reached.max(1)) - 1;
        if rules.max_stage_jump.is_some_and(|jump| stage > furthest + jump as usize) {
            return None;
        }
        if !rules.cc2 {
            if self.visited & stage_bit(stage) != 0 {
                return None;
            }
            let reached = self.reached.max(stage as u8 + 1);
            return Some(Self { reached, visited: self.visited | stage_bit(stage), ..self });
        }
        let next = stage as u8 + 1;
        if next > self.reached {
            // A stage directly above the furthest leaves nothing between them to come back for.
            let turn = if next > self.reached + 1 { Turn::MaySwap } else { Turn::Ahead };
            return Some(Self { reached: next, turn, ..self });
        }
        if self.turn == Turn::MaySwap && next + 1 == self.reached && self.swaps_left > 0 {
            return Some(Self { turn: Turn::Ahead, swaps_left: self.swaps_left - 1, ..self });
        }
        None
    }

    /// Whether `stage`, just visited, was the second half of a swap.
    #[must_use]
    pub fn is_swapped(self, stage: usize) -> bool {
        self.visited == 0 && stage + 1 < usize::from(self.reached)
    }

    /// Whether the stage just below the last one may follow, as the second half of a swap.
    #[must_use]
    pub fn may_swap(self) -> bool {
        self.turn == Turn::MaySwap && self.swaps_left > 0
    }

    /// Stages that may still follow at any later point; those in `required` must then be among them.
    #[must_use]
    pub fn reachable(self, rules: &Constraints) -> StageSet {
        if !rules.cc2 {
            return !self.visited;
        }
        let ahead = StageSet::MAX.checked_shl(u32::from(self.reached)).unwrap_or(0);
        if self.turn == Turn::MaySwap && self.swaps_left > 0 && self.reached >= 2 {
            let below = stage_bit(usize::from(self.reached) - 2);
            if rules.cc1 && below == 1 { ahead } else { ahead | below }
        } else {
            ahead
        }
    }
}

/// What one route must and may visit, given what the others have left to it.
#[derive(Clone, Copy, Debug)]
pub struct Visits {
    /// Stages that this route has to visit.
    pub required: StageSet,
    /// Stages that it may visit (holds `required`).
    pub allowed: StageSet,
    /// Number of visits, stage 0 counted.
    pub length: usize,
}

impl Visits {
    /// Whether a route at `order` after `hops` visits can still be completed, as far as counting tells.
    #[must_use]
    pub fn can_finish(&self, order: StageOrder, visited: StageSet, hops: usize, rules: &Constraints) -> bool {
        let left = self.length - hops;
        let open = order.reachable(rules) & !visited;
        let required = self.required & !visited;
        required & !open == 0
            && required.count_ones() as usize <= left
            && (self.allowed & open).count_ones() as usize >= left
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Written from the rule, not from the automaton: sort by at most `max_swaps` disjoint swaps of
    /// neighbours that differ by one.
    fn legal(sequence: &[usize], rules: &Constraints) -> bool {
        let distinct: std::collections::BTreeSet<_> = sequence.iter().collect();
        if distinct.len() != sequence.len() || (rules.cc1 && sequence[0] != 0) {
            return false;
        }
        let mut furthest = 0;
        for s in sequence {
            if rules.max_stage_jump.is_some_and(|j| *s > furthest + j as usize) {
                return false;
            }
            furthest = furthest.max(*s);
        }
        if !rules.cc2 {
            return true;
        }
        (0..1_u32 << (sequence.len() - 1)).any(|mask| {
            let mut s = sequence.to_vec();
            for i in 0..sequence.len() - 1 {
                if mask >> i & 1 == 1 {
                    if mask >> i & 2 == 2 || s[i] != s[i + 1] + 1 {
                        return false;
                    }
                    s.swap(i, i + 1);
                }
            }
            mask.count_ones() <= rules.max_swaps && s.windows(2).all(|w| w[0] < w[1])
        })
    }

    fn sequences(stages: usize, length: usize) -> Vec<Vec<usize>> {
        if length == 0 {
            return vec![vec![]];
        }
        sequences(stages, length - 1)
            .into_iter()
            .flat_map(|s| (0..stages).map(move |x| [s.clone(), vec![x]].concat()))
            .collect()
    }

    #[test]
    fn automaton_accepts_exactly_the_legal_sequences() {
        let base = Constraints::default();
        for cc1 in [true, false] {
            for cc2 in [true, false] {
                for max_swaps in 0..3 {
                    for max_stage_jump in [None, Some(1), Some(2), Some(4)] {
                        let rules = Constraints { cc1, cc2, max_swaps, max_stage_jump, ..base.clone() };
                        for length in 1..=5 {
                            for s in sequences(5, length) {
                                let end = s.iter().try_fold(StageOrder::start(&rules), |o, x| o.step(*x, &rules));
                                assert_eq!(end.is_some(), legal(&s, &rules), "{s:?} under {rules:?}");
                            }
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn lengths_round_as_defined() {
        let third = Lengths::new(15, 6, 1.0 / 3.0);
        assert_eq!((third.total, third.short(), third.long_routes()), (60, 4, 0));
        let quarter = Lengths::new(8, 3, 0.25);
        assert_eq!((quarter.total, quarter.short(), quarter.long_routes()), (18, 2, 2));
    }
}
