//! What an allocation is worth to a strategy: the iteration of a plan that the strategy makes for it quickly.

use crate::bound::lookahead::Lookahead;
use crate::budget::Budget;
use crate::problem::{Instance, Problem};
use crate::request::Options;
use crate::route::{Lengths, RouteTask, StageSet, route_tasks};
use crate::rules::Strategy;
use crate::search::allocation::local_search::candidate::Candidate;
use crate::search::context::{Context, Objective, stream_of};
use crate::search::methods::prioritised::construct::{construct, priority};
use crate::search::methods::prioritised::router::Router;
use crate::search::methods::sampling::random_routes;
use crate::search::methods::straight_pipelines;
use crate::simulate::{MicrobatchRoute, Outcome, Simulator};
use crate::time::{NEVER, Rounding, Time};

/// What allocations are compared by: the iteration; then the mean return of a microbatch and the all-reduce of all
/// stages, which guide the search where the iteration does not change.
pub type Key = (Time, Time);

/// No plan came of it.
const NOTHING: Key = (NEVER, NEVER);
/// Random routes are judged by the median of so many draws in the local search, and of so many where the best of its
/// allocations are held against each other. A figure that is reported is the median of other draws.
const DRAWS: u64 = 20;
const VALIDATION_DRAWS: u64 = 40;
/// Streams of these draws; plans use those from 0 on.
const FIRST_STREAM: u64 = 1 << 40;
const FIRST_VALIDATION_STREAM: u64 = 1 << 41;
/// Times that routes are drawn until some keep the rules and do not deadlock.
const TRIES: u64 = 16;
/// Steps that the search for one route may take before any good one will do.
const PATIENCE: u64 = 40_000;

/// How a strategy makes a plan of an allocation.
#[derive(Clone, Copy)]
pub struct Construction<'a> {
    strategy: Strategy,
    seed: u64,
    /// Stage sets that meet all quotas, where `max_stage_jump` makes that a question.
    sets: Option<&'a [StageSet]>,
}

/// An allocation as it was judged.
pub struct Judged {
    /// Lower is better.
    pub key: Key,
    /// Search steps.
    pub work: u64,
}

impl<'a> Construction<'a> {
    /// That of `options.strategy`.
    pub fn new(options: Options, sets: Option<&'a [StageSet]>) -> Self {
        Self { strategy: options.strategy, seed: options.seed, sets }
    }

    /// What the strategy makes of a candidate; random routes are those of `sample`.
    pub fn judge(self, candidate: &Candidate, sample: u64, budget: &Budget) -> Judged {
        let instance = candidate.instance();
        let tasks = route_tasks(instance);
        match self.strategy {
            Strategy::Full => self.straight(instance),
            Strategy::RandomSkip => self.drawn(instance, &tasks, FIRST_STREAM + sample * DRAWS * TRIES, DRAWS),
            Strategy::FullRouted | Strategy::SkippipeNoTc2 | Strategy::Skippipe => {
                self.fastest(instance, &tasks, budget)
            }
        }
    }

    /// What counts for an allocation that the strategy has planned, and the work of finding that out: the iteration of
    /// the plan, or where routes are random the median over draws that the local search has not seen.
    pub fn validate(self, problem: &Problem, iteration: Time) -> (Time, u64) {
        if !self.strategy.is_random() {
            return (iteration, 0);
        }
        let instance = Instance::new(problem, Rounding::Up);
        let judged = self.drawn(&instance, &route_tasks(&instance), FIRST_VALIDATION_STREAM, VALIDATION_DRAWS);
        (judged.key.0, judged.work)
    }

    /// The first straight pipelines that the strategy would draw.
    fn straight(self, instance: &Instance) -> Judged {
        let microbatches = straight_pipelines::pipelines(instance, &mut stream_of(self.seed, 0));
        let mut simulator = Simulator::new(instance);
        simulator.load(&microbatches);
        let key = simulator.run_dispatch().map_or(NOTHING, |outcome| key_of(instance, &outcome, microbatches.len()));
        Judged { key, work: simulator.task_count() as u64 }
    }

    /// The median over random routes.
    fn drawn(self, instance: &Instance, tasks: &[RouteTask], first: u64, draws: u64) -> Judged {
        let mut simulator = Simulator::new(instance);
        let mut work = 0;
        let mut keys = Vec::new();
        for draw in 0..draws {
            let key = (0..TRIES).find_map(|attempt| {
                // Guided only where free drawing does not get there, as in a plan.
                let guide = self.sets.filter(|_| attempt >= TRIES / 2);
                let mut rng = stream_of(self.seed, first + draw * TRIES + attempt);
                let microbatches: Vec<MicrobatchRoute> = random_routes(instance, tasks, guide, &mut rng)?;
                simulator.load(&microbatches);
                work += simulator.task_count() as u64;
                simulator.run_dispatch().ok().map(|outcome| key_of(instance, &outcome, microbatches.len()))
            });
            keys.push(key.unwrap_or(NOTHING));
        }
        keys.sort_unstable();
        Judged { key: keys[keys.len() / 2], work }
    }

    /// Routes by travel time, placed one after the other.
    fn fastest(self, instance: &Instance, tasks: &[RouteTask], budget: &Budget) -> Judged {
        let lengths = Lengths::of(instance, tasks.len());
        let lookahead = Lookahead::blank(instance, lengths.long());
        let (seed, sets) = (self.seed, self.sets);
        let context =
            Context { instance, tasks, lookahead: &lookahead, budget, objective: Objective::Travel, seed, sets };
        let mut router = Router::new(instance, &lookahead, PATIENCE);
        let mut rng = context.rng(0);
        let targets = context.targets(&mut rng);
        let order = priority(&context, &targets, &mut rng, 0.0);
        let microbatches = tasks.iter().map(|task| task.waves).sum();
        let key = construct(&context, &mut router, &order, &targets)
            .map_or(NOTHING, |plan| key_of(instance, &plan.outcome, microbatches));
        Judged { key, work: router.work }
    }
}

fn key_of(instance: &Instance, outcome: &Outcome, microbatches: usize) -> Key {
    let mean = outcome.finish_sum / microbatches.max(1) as Time;
    (outcome.iteration, mean.saturating_add(instance.allreduce.iter().sum()))
}
