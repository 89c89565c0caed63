//! `PlanRequest` and its parts.

use std::sync::Arc;

use pyo3::prelude::*;
use skippipe_core::allocate::Request;
use skippipe_core::allocate::joint::AllocationScope as CoreScope;
use skippipe_core::error::{Result, invalid};
use skippipe_core::request::{
    FirstAllocation, Method, Options, PlanRequest as Core, UnallocatedProblem as CoreUnallocated,
};
use skippipe_core::rules::Strategy;

use crate::cluster::{Cluster, index};
use crate::errors::OrRaise;
use crate::problem::{Constraints, Problem, numbers};
use crate::waiting::Limits;

/// A problem whose allocation is still to be found, first by the surrogate: see `allocate` for `sizes`, `sources` and
/// `max_replica_transfer_s`, and `Problem` for the rest. Microbatches are given in the order of `sources`, where those
/// are fixed.
#[pyclass(frozen, module = "skippipe._scheduler", eq)]
#[derive(Clone, PartialEq)]
pub struct UnallocatedProblem(CoreUnallocated);

#[pymethods]
impl UnallocatedProblem {
    #[new]
    #[pyo3(signature = (cluster, sizes, microbatches, *, skip_ratio, constraints=None, sources=None, max_replica_transfer_s=None, layers=Vec::new()))]
    #[expect(clippy::too_many_arguments, reason = "the parts of a question")]
    #[expect(clippy::needless_pass_by_value, reason = "PyO3 converts arguments by value")]
    fn new(
        cluster: &Bound<'_, Cluster>,
        sizes: Vec<i64>,
        microbatches: Vec<i64>,
        skip_ratio: f64,
        constraints: Option<&Bound<'_, Constraints>>,
        sources: Option<Vec<i64>>,
        max_replica_transfer_s: Option<f64>,
        layers: Vec<i64>,
    ) -> PyResult<Self> {
        let build = || {
            let request = Request {
                sizes: numbers("sizes", &sizes)?,
                sources: sources.as_deref().map(|sources| numbers("sources", sources)).transpose()?,
                max_replica_transfer_s,
            };
            let rules = constraints.map(|rules| rules.get().0.clone()).unwrap_or_default();
            let counts = numbers("microbatches", &microbatches)?;
            let layers = numbers("layers", &layers)?;
            CoreUnallocated::new(cluster.get().0.clone(), request, counts, skip_ratio, rules, layers)
        };
        build().or_raise().map(Self)
    }

    /// The nodes and the links between them.
    #[getter]
    fn cluster(&self) -> Cluster {
        Cluster(self.0.cluster().clone())
    }
}

/// What a search may change of a problem's allocation, beside which node serves which stage.
///
/// `sizes`: stages may have other numbers of nodes. `unused`: nodes may serve no stage; stage 0 keeps as many as it has,
/// every other stage has at least one, and none gets more than it has unless `sizes` may change too. `layers`: so many decoder layers are shared out anew over the
/// stages, and the microbatches over the sources; times, memory and gradients of the cluster hold for an equal share of
/// the layers (0: both stay as they are). `sources`: other nodes may be sources. `max_replica_transfer_s`: no message between
/// two nodes of one stage takes longer, in seconds (None: any).
#[pyclass(frozen, get_all, module = "skippipe._scheduler", eq)]
#[derive(Clone, PartialEq)]
pub struct AllocationScope {
    /// Stages may have other numbers of nodes.
    sizes: bool,
    /// Decoder layers to be shared out; 0: they stay.
    layers: usize,
    /// Other nodes may be sources.
    sources: bool,
    /// Seconds that a message within a stage takes at most; None: any.
    max_replica_transfer_s: Option<f64>,
    /// Nodes may serve no stage.
    unused: bool,
}

#[pymethods]
impl AllocationScope {
    #[new]
    #[pyo3(signature = (*, sizes=false, layers=0, sources=true, max_replica_transfer_s=None, unused=false))]
    fn new(
        sizes: bool,
        layers: i64,
        sources: bool,
        max_replica_transfer_s: Option<f64>,
        unused: bool,
    ) -> PyResult<Self> {
        let layers = index("layers", layers).or_raise()?;
        Ok(Self { sizes, layers, sources, max_replica_transfer_s, unused })
    }

    fn __repr__(&self) -> String {
        let flag = |on: bool| if on { "True" } else { "False" };
        let Self { sizes, layers, sources, max_replica_transfer_s, unused } = self;
        format!(
            "AllocationScope(sizes={}, layers={layers}, sources={}, max_replica_transfer_s={}, unused={})",
            flag(*sizes),
            flag(*sources),
            max_replica_transfer_s.map_or("None".to_owned(), |s| s.to_string()),
            flag(*unused),
        )
    }
}

impl AllocationScope {
    fn core(&self) -> CoreScope {
        let Self { sizes, layers, sources, max_replica_transfer_s, unused } = *self;
        CoreScope { sizes, layers, unused, sources, max_replica_transfer_s }
    }
}

/// What `plan` is asked for: `first`, a problem with its allocation or one whose first allocation is the surrogate's;
/// `scope`, what may be changed of that by the iteration (None: it stands); and how to search. `strategy` is "full",
/// "full-routed", "random-skip", "skippipe-no-tc2" or "skippipe"; `method` is "auto", or "cbs" for conflict-based search
/// alone, which with `suboptimality` above 1 ends with a plan of at most so many times the lower bound; `work_limit`
/// counts search steps. Same seed and work limit: same plan, whatever the number of threads.
#[pyclass(frozen, module = "skippipe._scheduler")]
#[derive(Clone)]
pub struct PlanRequest {
    pub request: Arc<Core>,
    pub limits: Limits,
}

#[pymethods]
impl PlanRequest {
    #[new]
    #[pyo3(signature = (
        first, strategy="skippipe", *, scope=None, method="auto", suboptimality=1.0, time_limit_s=1.0, work_limit=None,
        threads=1, seed=0,
    ))]
    #[expect(clippy::too_many_arguments, reason = "the options of a search")]
    fn new(
        first: First<'_>,
        strategy: &str,
        scope: Option<&Bound<'_, AllocationScope>>,
        method: &str,
        suboptimality: f64,
        time_limit_s: Option<f64>,
        work_limit: Option<i64>,
        threads: i64,
        seed: i64,
    ) -> PyResult<Self> {
        let first = match first {
            First::Given(problem) => FirstAllocation::Given(problem.get().0.clone()),
            First::Surrogate(problem) => FirstAllocation::Surrogate(problem.get().0.clone()),
        };
        let build = || {
            let limits = Limits::new(time_limit_s, work_limit, threads, seed)?;
            let options = options(strategy, method, suboptimality, &limits)?;
            let scope = scope.map(|scope| scope.get().core());
            Ok(Self { request: Arc::new(Core { first, scope, options }), limits })
        };
        build().or_raise()
    }
}

/// A problem with its allocation, or without.
#[derive(FromPyObject)]
enum First<'py> {
    Given(Bound<'py, Problem>),
    Surrogate(Bound<'py, UnallocatedProblem>),
}

fn options(strategy: &str, method: &str, suboptimality: f64, limits: &Limits) -> Result<Options> {
    let strategy = Strategy::from_name(strategy)?;
    let method = Method::from_name(method)?;
    if !(suboptimality.is_finite() && suboptimality >= 1.0) {
        return invalid("suboptimality", suboptimality, "a number of at least 1");
    }
    Ok(Options { strategy, seed: limits.seed, threads: limits.threads, method, suboptimality })
}
