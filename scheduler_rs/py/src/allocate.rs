//! Allocation of nodes to stages.

use std::collections::BTreeMap;

use pyo3::prelude::*;
use skippipe_core::allocate::{self as core, Options, Request};
use skippipe_core::error::Result;

use crate::cluster::{Cluster, index};
use crate::errors::OrRaise;
use crate::problem::numbers;
use crate::waiting::{Ended, Limits, wait_for};

/// An allocation and what the surrogate says of it, in seconds. `stages` holds the nodes of each stage, stage 0 first,
/// the others in the order of the shortest tour.
#[pyclass(frozen, get_all, module = "skippipe", eq)]
#[derive(Clone, PartialEq)]
pub struct Scored {
    /// Nodes of each stage.
    stages: Vec<Vec<usize>>,
    /// The sum of the parts.
    score_s: f64,
    /// Longest transfer of a message between two nodes of one stage.
    replica_s: f64,
    /// The tour over all stages and back to stage 0: from one to the next, the longest round trip of a message in the
    /// bottleneck matching of their nodes.
    tour_s: f64,
    /// Sum over the stages of twice the mean forward.
    compute_s: f64,
}

#[pymethods]
impl Scored {
    fn __repr__(&self) -> String {
        let Self { stages, score_s, replica_s, tour_s, compute_s } = self;
        format!(
            "Scored(score_s={score_s}, replica_s={replica_s}, tour_s={tour_s}, compute_s={compute_s}, stages={stages:?})"
        )
    }
}

impl From<core::Scored> for Scored {
    fn from(core::Scored { stages, score_s, replica_s, tour_s, compute_s }: core::Scored) -> Self {
        Self { stages, score_s, replica_s, tour_s, compute_s }
    }
}

/// The best allocation found, and what is known of all others.
#[pyclass(frozen, get_all, module = "skippipe", eq)]
#[derive(Clone, PartialEq)]
pub struct Allocated {
    /// The best allocation.
    best: Scored,
    /// The best other one that was seen: not the same stages in another order, nor with other nodes just like these.
    runner_up: Option<Scored>,
    /// No allocation that was allowed has a lower score.
    lower_bound_s: f64,
    /// Whether the best is proved to be the best there is.
    optimal: bool,
    /// Counts of the search, by name.
    statistics: BTreeMap<String, u64>,
}

#[pymethods]
impl Allocated {
    fn __repr__(&self) -> String {
        let Self { best, lower_bound_s, optimal, .. } = self;
        format!("Allocated(score_s={}, lower_bound_s={lower_bound_s}, optimal={optimal})", best.score_s)
    }
}

impl From<core::Allocated> for Allocated {
    fn from(core::Allocated { best, runner_up, lower_bound_s, optimal, statistics }: core::Allocated) -> Self {
        Self { best: best.into(), runner_up: runner_up.map(Scored::from), lower_bound_s, optimal, statistics }
    }
}

/// What the surrogate says of an allocation. `stages` may come in any order but for stage 0; nodes that serve no stage do
/// not count. Raises InputError where a stage is empty, or a node is not in the cluster or in two stages.
#[pyfunction]
#[expect(clippy::needless_pass_by_value, reason = "PyO3 converts arguments by value")]
pub fn score_allocation(py: Python<'_>, cluster: &Bound<'_, Cluster>, stages: Vec<Vec<i64>>) -> PyResult<Scored> {
    let indices = |(s, nodes): (usize, &Vec<i64>)| {
        nodes.iter().enumerate().map(|(i, node)| index(&format!("stages[{s}][{i}]"), *node)).collect()
    };
    let stages: Vec<Vec<usize>> = stages.iter().enumerate().map(indices).collect::<Result<_>>().or_raise()?;
    let cluster = &cluster.get().0;
    py.detach(|| core::score(cluster, &stages)).or_raise().map(Scored::from)
}

/// The best allocation by the surrogate that is found within the limits; same seed and work limit: same allocation,
/// whatever the number of threads. `sizes` are the numbers of nodes, stage 0 first; the stages after it come in the
/// order of the tour, so their sizes may change order. `sources` are the nodes of stage 0, where they are fixed;
/// no transfer within a stage takes longer than `max_replica_transfer_s`. `work_limit` counts changes tried;
/// `progress(elapsed_s, score_s, lower_bound_s, work)` is called about twenty times a second. Raises ImpossibleError
/// where no allocation can keep the limit, NoPlanError where none was found, KeyboardInterrupt after Ctrl-C.
#[pyfunction]
#[pyo3(signature = (
    cluster, sizes, *, sources=None, max_replica_transfer_s=None, time_limit_s=0.2, work_limit=None, threads=1, seed=0,
    progress=None,
))]
#[expect(clippy::too_many_arguments, reason = "the options of a search")]
#[expect(clippy::needless_pass_by_value, reason = "PyO3 converts arguments by value")]
pub fn allocate(
    py: Python<'_>,
    cluster: &Bound<'_, Cluster>,
    sizes: Vec<i64>,
    sources: Option<Vec<i64>>,
    max_replica_transfer_s: Option<f64>,
    time_limit_s: Option<f64>,
    work_limit: Option<i64>,
    threads: i64,
    seed: i64,
    progress: Option<Bound<'_, PyAny>>,
) -> PyResult<Allocated> {
    let limits = Limits::new(time_limit_s, work_limit, threads, seed).or_raise()?;
    let sizes = numbers("sizes", &sizes).or_raise()?;
    let sources = sources.map(|sources| numbers("sources", &sources)).transpose().or_raise()?;
    let request = Request { sizes, sources, max_replica_transfer_s };
    let options = Options { seed: limits.seed, threads: limits.threads, without: None };
    let cluster = cluster.get().0.clone();
    let Ended { result, interrupted } = wait_for(py, "the allocator", &limits, progress.as_ref(), move |budget| {
        core::allocate(&cluster, &request, options, budget)
    })?;
    interrupted.map_or_else(|| result.or_raise().map(Allocated::from), Err)
}

/// A first allocation: compact stages, each near the one before it. `sizes` are the numbers of nodes, stage 0
/// first, and add up to the nodes of the cluster. Gives the nodes of each stage.
#[pyfunction]
#[expect(clippy::needless_pass_by_value, reason = "PyO3 converts arguments by value")]
pub fn greedy_allocation(cluster: &Bound<'_, Cluster>, sizes: Vec<i64>) -> PyResult<Vec<Vec<usize>>> {
    numbers("sizes", &sizes).and_then(|sizes| core::greedy(&cluster.get().0, &sizes)).or_raise()
}
