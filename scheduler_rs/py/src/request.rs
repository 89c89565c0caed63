//! `PlanRequest` and its parts.

use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use skippipe_core::allocate::joint::AllocationScope as CoreScope;
use skippipe_core::error::{Result, invalid};
use skippipe_core::part::Part;
use skippipe_core::request::{Method, Options, PlanRequest as Core};
use skippipe_core::rules::Strategy;

use crate::cluster::index;
use crate::errors::OrRaise;
use crate::problem::Problem;
use crate::waiting::Limits;

/// What a search may change of a problem's allocation, beside which node serves which stage.
///
/// `unused`: nodes may serve no stage; stage 0 keeps as many as it has, every other stage has at least one, and none gets
/// more than it has. `layers`: so many decoder layers are shared out anew over the stages, and the microbatches over the
/// sources; times, memory and gradients of the cluster hold for an equal share of the layers (0: both stay as they are).
/// `sources`: other nodes may be sources. `max_replica_transfer_s`: no message between two nodes of one stage takes longer,
/// in seconds (None: any).
#[pyclass(frozen, get_all, module = "skippipe", eq)]
#[derive(Clone, PartialEq)]
pub struct AllocationScope {
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
    #[pyo3(signature = (*, layers=0, sources=true, max_replica_transfer_s=None, unused=false))]
    fn new(layers: i64, sources: bool, max_replica_transfer_s: Option<f64>, unused: bool) -> PyResult<Self> {
        let layers = index("layers", layers).or_raise()?;
        Ok(Self { layers, sources, max_replica_transfer_s, unused })
    }

    #[pyo3(signature = () -> "tuple[tuple[()], dict[str, object]]")]
    fn __getnewargs_ex__<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyTuple>, Bound<'py, PyDict>)> {
        let scope = PyDict::new(py);
        scope.set_item("layers", self.layers)?;
        scope.set_item("sources", self.sources)?;
        scope.set_item("max_replica_transfer_s", self.max_replica_transfer_s)?;
        scope.set_item("unused", self.unused)?;
        Ok((PyTuple::empty(py), scope))
    }

    fn __repr__(&self) -> String {
        let flag = |on: bool| if on { "True" } else { "False" };
        let Self { layers, sources, max_replica_transfer_s, unused } = self;
        format!(
            "AllocationScope(layers={layers}, sources={}, max_replica_transfer_s={}, unused={})",
            flag(*sources),
            max_replica_transfer_s.map_or("None".to_owned(), |s| s.to_string()),
            flag(*unused),
        )
    }
}

impl AllocationScope {
    fn core(&self) -> CoreScope {
        let Self { layers, sources, max_replica_transfer_s, unused } = *self;
        CoreScope { layers, unused, sources, max_replica_transfer_s }
    }
}

/// What `plan` is asked for: `first`, a problem, whose first allocation is the surrogate's where it has none; `scope`,
/// what may be changed of that by the iteration (None: it stands); and how to search. `strategy` is "full",
/// "full-routed", "random-skip", "skippipe-no-tc2" or "skippipe"; `method` is "auto", or "cbs" for conflict-based search
/// alone, which with `suboptimality` above 1 ends with a plan of at most so many times the lower bound; `work_limit`
/// counts search steps; `without` names a part of the search that is left out, for a study of what it is worth. Same seed
/// and work limit: same plan, whatever the number of threads.
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
        threads=1, seed=0, without=None,
    ))]
    #[expect(clippy::too_many_arguments, reason = "the options of a search")]
    fn new(
        first: &Bound<'_, Problem>,
        strategy: &str,
        scope: Option<&Bound<'_, AllocationScope>>,
        method: &str,
        suboptimality: f64,
        time_limit_s: Option<f64>,
        work_limit: Option<i64>,
        threads: i64,
        seed: i64,
        without: Option<&str>,
    ) -> PyResult<Self> {
        let first = first.get().0.clone();
        let build = || {
            let limits = Limits::new(time_limit_s, work_limit, threads, seed)?;
            let without = without.map(Part::from_name).transpose()?;
            let options = Options { without, ..options(strategy, method, suboptimality, &limits)? };
            let scope = scope.map(|scope| scope.get().core());
            Ok(Self { request: Arc::new(Core { first, scope, options }), limits })
        };
        build().or_raise()
    }
}

fn options(strategy: &str, method: &str, suboptimality: f64, limits: &Limits) -> Result<Options> {
    let strategy = Strategy::from_name(strategy)?;
    let method = Method::from_name(method)?;
    if !(suboptimality.is_finite() && suboptimality >= 1.0) {
        return invalid("suboptimality", suboptimality, "a number of at least 1");
    }
    Ok(Options { strategy, seed: limits.seed, threads: limits.threads, method, suboptimality, without: None })
}
