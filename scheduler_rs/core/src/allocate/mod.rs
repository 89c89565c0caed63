//! Which node serves which stage.

mod bound;
mod costs;
mod draft;
mod exhaustive;
mod genetic;
mod greedy;
pub mod joint;
pub mod matching;
mod memo;
mod refine;
mod score;
pub mod tour;

pub use costs::Costs;
pub use draft::{Draft, Parts};
pub use greedy::greedy;
pub use score::{Scored, score};

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::budget::Budget;
use crate::cluster::Cluster;
use crate::error::{Error, Result, invalid};
use bound::Bound;
use genetic::{Genetic, Question};

/// Without a limit of time or work the search ends after so many generations that found nothing better.
const MOST_BARREN: u64 = 200;
/// The bound gets one step for so many changes tried.
const BOUND_SHARE: u64 = 8;
/// Why nothing keeps a limit, where that is seen at once.
const FEW_NEAR: &str = "some stage cannot be made up of nodes close enough to each other";
/// A score within this factor of the bound is the bound.
const TIGHT: f64 = 1.0 + 1e-9;

/// What to allocate.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// Nodes of each stage, stage 0 first.
    pub sizes: Vec<usize>,
    /// The nodes of stage 0, where they are fixed.
    pub sources: Option<Vec<usize>>,
    /// No transfer of a message between two nodes of a stage may take longer.
    pub max_replica_transfer_s: Option<f64>,
}

/// How to search.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Same seed and work limit: same allocation, whatever the number of threads.
    pub seed: u64,
    /// At least 1.
    pub threads: usize,
}

/// The best allocation by the surrogate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Allocated {
    /// The best that was seen.
    #[serde(flatten)]
    pub best: Scored,
    /// The best other one: not the same sets in another order, nor with other nodes that are just like these.
    pub runner_up: Option<Scored>,
    /// No allowed allocation scores less.
    pub lower_bound_s: f64,
    /// Proved to be the best there is.
    pub optimal: bool,
    /// Counts of the search, by name.
    #[serde(default)]
    pub statistics: BTreeMap<String, u64>,
}

/// The best allocation of the cluster's nodes to stages of these sizes that is found within `budget`. The stages other
/// than stage 0 come in the order of the tour.
///
/// # Errors
/// [`Error::Invalid`] for sizes and sources that do not fit the cluster, [`Error::Impossible`] where the limit of
/// transfers within a stage cannot be kept, [`Error::NotFound`] where nothing was found that keeps it,
/// [`Error::Cancelled`].
pub fn allocate(cluster: &Cluster, request: &Request, options: Options, budget: &Budget) -> Result<Allocated> {
    let sources = checked(cluster, request)?;
    let costs = Costs::new(cluster);
    let limit_s = request.max_replica_transfer_s.unwrap_or(f64::INFINITY);
    let question = Question { costs: &costs, sizes: &request.sizes, sources: sources.as_deref(), limit_s };
    let pool = rayon::ThreadPoolBuilder::new()
        .num_threads(options.threads)
        .build()
        .map_err(|error| Error::NotFound(format!("threads could not be started: {error}")))?;
    pool.install(|| searched(&question, options, budget))
}

/// Refuses sizes, sources and limits that do not fit the cluster.
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

fn searched(question: &Question<'_>, options: Options, budget: &Budget) -> Result<Allocated> {
    let mut bound = Bound::new(question);
    let mut bound_s = bound.score_s();
    if bound_s.is_infinite() {
        return nothing_fits(question, FEW_NEAR);
    }
    let mut bound_steps = 0;
    let mut genetic = Genetic::new(*question, options.seed);
    let mut exhaustive_steps = 0;
    let mut barren = 0;
    let mut is_exhausted = !exhaustive::is_small(question);
    loop {
        let before = genetic.best().map(|best| best.score_s);
        genetic.advance(budget);
        budget.check_cancelled()?;
        let best = genetic.best().map(|best| best.score_s);
        barren = if best < before || before.is_none() { 0 } else { barren + 1 };
        if !is_exhausted {
            is_exhausted = true;
            let exhausted = exhaustive::exhaust(question, best.unwrap_or(f64::INFINITY), budget);
            exhaustive_steps = exhausted.steps;
            if let Some(better) = exhausted.best {
                genetic.take(&better);
            }
            let best = genetic.best().map(|best| best.score_s);
            if exhausted.is_complete {
                let Some(best) = best else {
                    return nothing_fits(question, "all have been looked at");
                };
                bound_s = bound_s.max(best);
            }
        }
        while bound_steps * BOUND_SHARE < genetic.steps() && !budget.is_over() {
            let more = bound.advance();
            bound_steps += more;
            if more == 0 {
                break;
            }
        }
        bound_s = bound_s.max(bound.score_s());
        let best = genetic.best().map(|best| best.score_s);
        if bound_s.is_infinite() && best.is_none() {
            return nothing_fits(question, FEW_NEAR);
        }
        budget.report(best.unwrap_or(f64::INFINITY), bound_s);
        let proved = best.is_some_and(|best| best <= bound_s * TIGHT);
        let worked = budget.work_limit.is_some_and(|limit| genetic.steps() + exhaustive_steps + bound_steps >= limit);
        let endless = budget.time_limit().is_none() && budget.work_limit.is_none() && barren >= MOST_BARREN;
        if proved || worked || endless || budget.is_over() {
            break;
        }
    }
    let (steps, generations) = (genetic.steps(), genetic.generations());
    let mut found = genetic.into_best().into_iter();
    let Some(best) = found.next() else {
        let why = format!(
            "none of {generations} generations has a partition with max_replica_transfer_s = {}",
            question.limit_s
        );
        return Err(Error::NotFound(why));
    };
    let optimal = best.score_s <= bound_s * TIGHT;
    let lower_bound_s = bound_s.min(best.score_s);
    let statistics = BTreeMap::from([
        ("work", steps + exhaustive_steps + bound_steps),
        ("changes", steps),
        ("generations", generations),
        ("enumerated", exhaustive_steps),
    ]);
    let statistics = statistics.into_iter().map(|(name, count)| (name.to_owned(), count)).collect();
    Ok(Allocated { best, runner_up: found.next(), lower_bound_s, optimal, statistics })
}

fn nothing_fits<T>(question: &Question<'_>, why: &str) -> Result<T> {
    Err(Error::Impossible {
        rule: "max_replica_transfer_s",
        reason: format!(
            "every partition into stages of {:?} nodes has a transfer above {} s within a stage ({why})",
            question.sizes, question.limit_s
        ),
    })
}
