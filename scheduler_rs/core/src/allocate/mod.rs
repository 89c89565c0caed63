//! Node allocation by the surrogate: which node serves which stage.
//!
//! A genetic algorithm over partitions of the nodes (`genetic`, refined by annealing, `refine`), complete enumeration
//! where there are few partitions, and a Lagrangian lower bound (`bound`).

mod bound;
mod costs;
mod exhaustive;
mod genetic;
mod greedy;
pub mod joint;
pub mod matching;
mod matching_cache;
mod partition;
mod problem;
mod refine;
mod score;
pub mod tour;

pub use costs::Costs;
pub use greedy::greedy;
pub use partition::{Partition, ScoreTerms};
pub use score::{Scored, score};

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::budget::Budget;
use crate::cluster::Cluster;
use crate::error::{Error, Result, invalid};
use crate::part::Part;
use bound::ScoreBound;
use genetic::Genetic;
use problem::AllocationProblem;

/// Without a time or work limit, the search ends after so many generations without improvement.
const MAX_STALLED: u64 = 200;
/// Changes tried by the genetic algorithm per step of the bound.
const CHANGES_PER_BOUND_STEP: u64 = 8;
/// Why no partition satisfies `max_replica_transfer_s`.
const NO_CLOSE_NODES: &str = "some stage cannot be made up of nodes close enough to each other";
/// A score within this factor of the bound counts as optimal.
const TIGHT: f64 = 1.0 + 1e-9;

/// What to allocate.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// Nodes of each stage, stage 0 first.
    pub sizes: Vec<usize>,
    /// The nodes of stage 0; none where the search chooses them.
    pub sources: Option<Vec<usize>>,
    /// Upper bound on the transfer time of a message between two nodes of a stage, in seconds.
    pub max_replica_transfer_s: Option<f64>,
}

/// How to search.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// With the same seed and work limit the allocation is the same for any number of threads.
    pub seed: u64,
    /// At least 1.
    pub threads: usize,
    /// A part that is left out, for a study of what it is worth.
    pub without: Option<Part>,
}

/// The best allocation by the surrogate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Allocated {
    /// The best one found.
    #[serde(flatten)]
    pub best: Scored,
    /// The best one that differs in more than the order of stages and the exchange of identical nodes.
    pub runner_up: Option<Scored>,
    /// Lower bound on the score of all allowed allocations, in seconds.
    pub lower_bound_s: f64,
    /// Proved optimal.
    pub optimal: bool,
    /// Counters of the search, by name.
    #[serde(default)]
    pub statistics: BTreeMap<String, u64>,
}

/// Searches for the best allocation of the cluster's nodes to stages of the requested sizes within `budget`. The stages
/// after stage 0 are in the order of the tour.
///
/// # Errors
/// [`Error::Invalid`] for sizes and sources that do not fit the cluster, [`Error::Impossible`] where no partition
/// satisfies `max_replica_transfer_s`, [`Error::NotFound`] where none was found that does, [`Error::Cancelled`].
pub fn allocate(cluster: &Cluster, request: &Request, options: Options, budget: &Budget) -> Result<Allocated> {
    let sources = checked(cluster, request)?;
    let costs = Costs::new(cluster);
    let limit_s = request.max_replica_transfer_s.unwrap_or(f64::INFINITY);
    let problem = AllocationProblem { costs: &costs, sizes: &request.sizes, sources: sources.as_deref(), limit_s };
    let pool = rayon::ThreadPoolBuilder::new()
        .num_threads(options.threads)
        .build()
        .map_err(|error| Error::NotFound(format!("threads could not be started: {error}")))?;
    pool.install(|| search(&problem, options, budget))
}

/// Rejects sizes, sources and limits that do not fit the cluster.
///
/// # Errors
/// [`Error::Invalid`] naming the key.
pub fn check(cluster: &Cluster, request: &Request) -> Result<()> {
    checked(cluster, request).map(drop)
}

/// The sources in ascending order.
fn checked(cluster: &Cluster, request: &Request) -> Result<Option<Vec<usize>>> {
    greedy::check_sizes(cluster, &request.sizes)?;
    if let Some(limit) = request.max_replica_transfer_s
        && (limit.is_nan() || limit < 0.0)
    {
        return invalid("max_replica_transfer_s", limit, "a number of seconds of at least 0, or none");
    }
    let Some(sources) = &request.sources else { return Ok(None) };
    let wanted = request.sizes[0];
    if sources.len() != wanted {
        let expected = format!("the {wanted} nodes of stage 0, as many as sizes[0]");
        return invalid("sources", format!("a list of {}", sources.len()), expected);
    }
    let nodes = cluster.nodes().len();
    if let Some((i, node)) = sources.iter().enumerate().find(|(_, node)| **node >= nodes) {
        return invalid(format!("sources[{i}]"), node, format!("a node in 0..{}", nodes - 1));
    }
    let mut sorted = sources.clone();
    sorted.sort_unstable();
    match sorted.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => invalid("sources", format!("node {} twice", pair[0]), "every node once"),
        None => Ok(Some(sorted)),
    }
}

fn search(problem: &AllocationProblem<'_>, options: Options, budget: &Budget) -> Result<Allocated> {
    let mut bound = ScoreBound::new(problem);
    let mut state = Progress { bound_s: bound.score_s(), bound_steps: 0, enumeration_steps: 0, stalled: 0 };
    if state.bound_s.is_infinite() {
        return nothing_fits(problem, NO_CLOSE_NODES);
    }
    let mut genetic = Genetic::new(*problem, options);
    let mut is_first = true;
    loop {
        let before = best_s(&genetic);
        genetic.advance(budget);
        budget.check_cancelled()?;
        state.stalled = if best_s(&genetic) < before || before.is_none() { 0 } else { state.stalled + 1 };
        let is_enumerated = exhaustive::is_small(problem) && options.without != Some(Part::Enumeration);
        if std::mem::take(&mut is_first) && is_enumerated {
            state.enumerate(problem, &mut genetic, budget)?;
        }
        state.raise_bound(&mut bound, &genetic, budget);
        let best = best_s(&genetic);
        if state.bound_s.is_infinite() && best.is_none() {
            return nothing_fits(problem, NO_CLOSE_NODES);
        }
        budget.report(best.unwrap_or(f64::INFINITY), state.bound_s);
        if state.is_over(&genetic, budget) {
            break;
        }
    }
    state.into_allocated(problem, genetic)
}

fn best_s(genetic: &Genetic<'_>) -> Option<f64> {
    genetic.best().map(|best| best.score_s)
}

/// What a search knows and has spent besides its population.
struct Progress {
    /// Lower bound on the score.
    bound_s: f64,
    bound_steps: u64,
    enumeration_steps: u64,
    /// Generations since the best score improved.
    stalled: u64,
}

impl Progress {
    /// Looks through all partitions; a complete enumeration proves the best score.
    fn enumerate(&mut self, problem: &AllocationProblem<'_>, genetic: &mut Genetic<'_>, budget: &Budget) -> Result<()> {
        let enumerated = exhaustive::enumerate(problem, best_s(genetic).unwrap_or(f64::INFINITY), budget);
        self.enumeration_steps = enumerated.steps;
        if let Some(better) = enumerated.best {
            genetic.inject(&better);
        }
        if enumerated.is_complete {
            let Some(best) = best_s(genetic) else {
                return nothing_fits(problem, "all have been enumerated");
            };
            self.bound_s = self.bound_s.max(best);
        }
        Ok(())
    }

    /// Spends the bound's share of the work.
    fn raise_bound(&mut self, bound: &mut ScoreBound, genetic: &Genetic<'_>, budget: &Budget) {
        while self.bound_steps * CHANGES_PER_BOUND_STEP < genetic.steps() && !budget.is_over() {
            let steps = bound.advance();
            self.bound_steps += steps;
            if steps == 0 {
                break;
            }
        }
        self.bound_s = self.bound_s.max(bound.score_s());
    }

    fn work(&self, genetic: &Genetic<'_>) -> u64 {
        genetic.steps() + self.enumeration_steps + self.bound_steps
    }

    fn is_over(&self, genetic: &Genetic<'_>, budget: &Budget) -> bool {
        let is_proved = best_s(genetic).is_some_and(|best| best <= self.bound_s * TIGHT);
        let is_spent = budget.work_limit.is_some_and(|limit| self.work(genetic) >= limit);
        let is_unlimited = budget.time_limit().is_none() && budget.work_limit.is_none();
        is_proved || is_spent || (is_unlimited && self.stalled >= MAX_STALLED) || budget.is_over()
    }

    fn into_allocated(self, problem: &AllocationProblem<'_>, genetic: Genetic<'_>) -> Result<Allocated> {
        let (steps, generations) = (genetic.steps(), genetic.generations());
        let statistics = BTreeMap::from([
            ("work", self.work(&genetic)),
            ("changes", steps),
            ("generations", generations),
            ("enumerated", self.enumeration_steps),
        ]);
        let mut found = genetic.into_best().into_iter();
        let Some(best) = found.next() else {
            let why = format!(
                "none of {generations} generations has a partition with max_replica_transfer_s = {}",
                problem.limit_s
            );
            return Err(Error::NotFound(why));
        };
        let optimal = best.score_s <= self.bound_s * TIGHT;
        let lower_bound_s = self.bound_s.min(best.score_s);
        let statistics = statistics.into_iter().map(|(name, count)| (name.to_owned(), count)).collect();
        Ok(Allocated { best, runner_up: found.next(), lower_bound_s, optimal, statistics })
    }
}

fn nothing_fits<T>(problem: &AllocationProblem<'_>, why: &str) -> Result<T> {
    Err(Error::Impossible {
        rule: "max_replica_transfer_s",
        reason: format!(
            "every partition into stages of {:?} nodes has a transfer above {} s within a stage ({why})",
            problem.sizes, problem.limit_s
        ),
    })
}
