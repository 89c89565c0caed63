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
#[pyclass(frozen, module = "skippipe._scheduler", eq)]
#[derive(Clone, PartialEq)]
pub struct Scored(core::Scored);

#[pymethods]
impl Scored {
    /// Nodes of each stage.
    #[getter]
    fn stages(&self) -> Vec<Vec<usize>> {
        self.0.stages.clone()
    }

    /// The sum of the parts.
    #[getter]
    fn score_s(&self) -> f64 {
        self.0.score_s
    }

    /// Longest transfer of a message between two nodes of one stage.
    #[getter]
    fn replica_s(&self) -> f64 {
        self.0.replica_s
    }

    /// The tour over all stages and back to stage 0: from one to the next, the longest round trip of a message in the
    /// bottleneck matching of their nodes.
    #[getter]
    fn tour_s(&self) -> f64 {
        self.0.tour_s
    }

    /// Sum over the stages of twice the mean forward.
    #[getter]
    fn compute_s(&self) -> f64 {
        self.0.compute_s
    }

    fn __repr__(&self) -> String {
        let core::Scored { stages, score_s, replica_s, tour_s, compute_s } = &self.0;
        format!(
            "Scored(score_s={score_s}, replica_s={replica_s}, tour_s={tour_s}, compute_s={compute_s}, stages={stages:?})"
        )
    }
}

/// The best allocation found, and what is known of all others.
#[pyclass(frozen, module = "skippipe._scheduler", eq)]
#[derive(Clone, PartialEq)]
pub struct Allocated(pub core::Allocated);

#[pymethods]
impl Allocated {
    /// The best allocation.
    #[getter]
    fn best(&self) -> Scored {
        Scored(self.0.best.clone())
    }

    /// The best other one that was seen: not the same stages in another order, nor with other nodes just like these.
    #[getter]
    fn runner_up(&self) -> Option<Scored> {
        self.0.runner_up.clone().map(Scored)
    }

    /// No allocation that was allowed has a lower score.
    #[getter]
    fn lower_bound_s(&self) -> f64 {
        self.0.lower_bound_s
    }

    /// Whether the best is proved to be the best there is.
    #[getter]
    fn optimal(&self) -> bool {
        self.0.optimal
    }

    /// Counts of the search, by name.
    #[getter]
    fn statistics(&self) -> BTreeMap<String, u64> {
        self.0.statistics.clone()
    }

    fn __repr__(&self) -> String {
        let core::Allocated { best, lower_bound_s, optimal, .. } = &self.0;
        format!("Allocated(score_s={}, lower_bound_s={lower_bound_s}, optimal={optimal})", best.score_s)
    }
}

/// What the surrogate says of an allocation. `stages` may come in any order but for stage 0; nodes that serve no stage do
/// not count. Raises InputError where a stage is empty, or a node is not in the cluster or in two places.
#[pyfunction]
#[expect(clippy::needless_pass_by_value, reason = "PyO3 converts arguments by value")]
pub fn score_allocation(py: Python<'_>, cluster: &Bound<'_, Cluster>, stages: Vec<Vec<i64>>) -> PyResult<Scored> {
    let indices = |(s, nodes): (usize, &Vec<i64>)| {
        nodes.iter().enumerate().map(|(i, node)| index(&format!("stages[{s}][{i}]"), *node)).collect()
    };
    let stages: Vec<Vec<usize>> = stages.iter().enumerate().map(indices).collect::<Result<_>>().or_raise()?;
    let cluster = &cluster.get().0;
    py.detach(|| core::score(cluster, &stages)).or_raise().map(Scored)
}

/// The best allocation by the surrogate that is found within the limits; same seed and work limit: same allocation,
/// whatever the number of threads. `sizes` are the numbers of nodes, stage 0 first; the stages after it come in the
/// order of the tour, so their sizes may change places. `sources` are the nodes of stage 0, where they are fixed;
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
    let options = Options { seed: limits.seed, threads: limits.threads };
    let cluster = cluster.get().0.clone();
    let Ended { result, interrupted } = wait_for(py, "the allocator", &limits, progress.as_ref(), move |budget| {
        core::allocate(&cluster, &request, options, budget)
    })?;
    interrupted.map_or_else(|| result.or_raise().map(Allocated), Err)
}

/// A first allocation: compact stages, each near the one before it. `sizes` are the numbers of nodes, stage 0
/// first, and add up to the nodes of the cluster. Gives the nodes of each stage.
#[pyfunction]
#[expect(clippy::needless_pass_by_value, reason = "PyO3 converts arguments by value")]
pub fn greedy_allocation(cluster: &Bound<'_, Cluster>, sizes: Vec<i64>) -> PyResult<Vec<Vec<usize>>> {
    numbers("sizes", &sizes).and_then(|sizes| core::greedy(&cluster.get().0, &sizes)).or_raise()
}
