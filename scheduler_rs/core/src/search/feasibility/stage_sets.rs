//! How the visits can be shared out where `max_stage_jump` limits what a route may leave out.
//!
//! Without that rule any quotas can be met (see [`super::prove_possible`]). With it, some cannot: with
//! jumps of at most 1 and routes of two stages nobody ever reaches stage 2. A route's stage set decides, since
//! a swap of neighbours never reaches further than the sorted order does.

use rustc_hash::FxHashSet;

use crate::problem::Instance;
use crate::quotas::{Quotas, source_visits};
use crate::route::{Lengths, StageSet, stage_bit};

/// Whether stage sets exist that meet lengths, CC3 and `max_stage_jump`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StageSets {
    /// They do: one set for each route.
    Found(Vec<StageSet>),
    /// Proved: they do not.
    Impossible,
    /// Too many to look through.
    Unknown,
}

/// Search steps before the answer is [`StageSets::Unknown`].
const MOST_STEPS: usize = 100_000;
const MOST_SETS: usize = 2_000;
/// The search goes one level deeper for each route.
const MOST_ROUTES: usize = 300;

/// Looks for stage sets of all routes.
#[must_use]
pub fn find_stage_sets(instance: &Instance, lengths: &Lengths) -> StageSets {
    if lengths.routes > MOST_ROUTES {
        return StageSets::Unknown;
    }
    let long_length = if lengths.long_routes() > 0 { lengths.short() + 1 } else { lengths.short() };
    let (Some(short), Some(long)) = (legal_sets(instance, lengths.short()), legal_sets(instance, long_length)) else {
        return StageSets::Unknown;
    };
    let mut steps = MOST_STEPS;
    for of_source in source_visits(instance, lengths) {
        let quotas = Quotas::of(instance, lengths, of_source);
        // Every stage may take the most, but so many visits are not made.
        let Some(spare) = quotas.most.iter().sum::<usize>().checked_sub(lengths.total) else { continue };
        let slack = quotas.most.iter().zip(&quotas.least).map(|(most, least)| most - least).collect();
        let mut search = StageSetSearch {
            short: &short,
            long: &long,
            left: quotas.most,
            slack,
            spare,
            seen: FxHashSet::default(),
            steps,
            sets: Vec::new(),
        };
        if search.assign(lengths.routes - lengths.long_routes(), lengths.long_routes()) {
            return StageSets::Found(search.sets);
        }
        steps = search.steps;
        if steps == 0 {
            return StageSets::Unknown;
        }
    }
    StageSets::Impossible
}

/// All stage sets of `length` that keep CC1 and the jumps; none where they are too many.
fn legal_sets(instance: &Instance, length: usize) -> Option<Vec<StageSet>> {
    let mut sets = Vec::new();
    let rules = &instance.rules;
    let jump = rules.max_stage_jump.map_or(usize::MAX, |jump| jump as usize);
    // Set, size, furthest stage, next index in `present`.
    let mut stack: Vec<(StageSet, usize, usize, usize)> = vec![(0, 0, 0, 0)];
    let mut steps = 0;
    while let Some((set, size, furthest, from)) = stack.pop() {
        steps += 1;
        if steps > MOST_STEPS || sets.len() > MOST_SETS {
            return None;
        }
        if size == length {
            sets.push(set);
            continue;
        }
        for (index, stage) in instance.present.iter().enumerate().skip(from) {
            let too_few = instance.present.len() - index < length - size;
            if too_few || stage - furthest > jump || (rules.cc1 && size == 0 && *stage != 0) {
                break;
            }
            stack.push((set | stage_bit(*stage), size + 1, *stage, index + 1));
        }
    }
    Some(sets)
}

struct StageSetSearch<'s> {
    short: &'s [StageSet],
    long: &'s [StageSet],
    /// Visits that each stage may still get.
    left: Vec<usize>,
    /// How many of them it need not get.
    slack: Vec<usize>,
    /// How many are left in the end.
    spare: usize,
    /// States that lead nowhere.
    seen: FxHashSet<(usize, usize, Vec<usize>)>,
    steps: usize,
    sets: Vec<StageSet>,
}

impl StageSetSearch<'_> {
    fn assign(&mut self, short: usize, long: usize) -> bool {
        if short + long == 0 {
            return self.left.iter().sum::<usize>() == self.spare
                && self.left.iter().zip(&self.slack).all(|(left, slack)| left <= slack);
        }
        if self.left.iter().zip(&self.slack).any(|(left, slack)| *left > short + long + slack) || self.steps == 0 {
            return false;
        }
        self.steps -= 1;
        if self.seen.contains(&(short, long, self.left.clone())) {
            return false;
        }
        let choices = if long > 0 { self.long } else { self.short };
        let next = if long > 0 { (short, long - 1) } else { (short - 1, 0) };
        for set in choices {
            let stages: Vec<usize> = (0..self.left.len()).filter(|s| set & stage_bit(*s) != 0).collect();
            if stages.iter().any(|s| self.left[*s] == 0) {
                continue;
            }
            for stage in &stages {
                self.left[*stage] -= 1;
            }
            self.sets.push(*set);
            if self.assign(next.0, next.1) {
                return true;
            }
            self.sets.pop();
            for stage in &stages {
                self.left[*stage] += 1;
            }
        }
        self.seen.insert((short, long, self.left.clone()));
        false
    }
}
