//! What all attempts of one search share, and what a search ends with.

use rand::SeedableRng;
use rand_pcg::Pcg64;

use super::instance_view::InstanceView;
use super::methods::prioritised::partial_schedule::Targets;
use super::methods::sampling;
use crate::bound::lookahead::Lookahead;
use crate::budget::Budget;
use crate::problem::Instance;
use crate::report::SearchReport;
use crate::route::{RouteTask, StageSet};
use crate::simulate::{MicrobatchRoute, TaskId};
use crate::time::Time;

/// What attempts are compared by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Objective {
    /// The simulated iteration.
    Simulated,
    /// The longest travel (no TC2).
    Travel,
}

/// What all attempts of one search share.
#[derive(Clone, Copy)]
pub struct Context<'a> {
    pub instance: &'a Instance,
    pub tasks: &'a [RouteTask],
    pub lookahead: &'a Lookahead,
    pub budget: &'a Budget,
    pub objective: Objective,
    pub seed: u64,
    /// Stage sets that meet all quotas, where `max_stage_jump` makes that a question.
    pub sets: Option<&'a [StageSet]>,
}

impl<'a> Context<'a> {
    pub fn view(&self) -> InstanceView<'a> {
        InstanceView { instance: self.instance, tasks: self.tasks }
    }

    /// Quotas and lengths of one attempt.
    pub fn targets(&self, rng: &mut Pcg64) -> Targets {
        match self.sets {
            Some(sets) if rand::RngExt::random_bool(rng, 0.5) => sampling::targets_from_sets(self.instance, sets, rng),
            _ => sampling::targets(self.instance, self.tasks, rng),
        }
    }

    /// The random numbers of one attempt.
    pub fn rng(&self, stream: u64) -> Pcg64 {
        stream_of(self.seed, stream)
    }
}

/// One of many independent streams of random numbers for a seed.
pub fn stream_of(seed: u64, stream: u64) -> Pcg64 {
    Pcg64::seed_from_u64(seed ^ stream.wrapping_mul(0x9E37_79B9_7F4A_7C15))
}

/// The end of a search: an execution and what is known of it.
pub struct Solution {
    pub microbatches: Vec<MicrobatchRoute>,
    pub order: Vec<Vec<TaskId>>,
    /// Lower bound in nanoseconds, on durations rounded down.
    pub bound: Time,
    /// Work, events and counts.
    pub report: SearchReport,
}
