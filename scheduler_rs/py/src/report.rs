//! `SearchReport` and its parts.

use pyo3::inspect::PyStaticExpr;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use pyo3::{type_hint_identifier, type_hint_subscript};
use skippipe_core::report::{
    AllocationReport as CoreAllocation, LeftOut as CoreLeftOut, RunnerUp as CoreRunnerUp, SearchEvent as CoreEvent,
    SearchReport as Core, Statistics,
};

use crate::allocate::Allocated;

/// What a search reports of itself: the part `solver` of a plan. What a plan of others does not say is None or empty.
#[pyclass(frozen, module = "skippipe._scheduler", eq)]
#[derive(Clone, PartialEq)]
pub struct SearchReport(pub Core);

#[pymethods]
impl SearchReport {
    /// Seconds that the search took.
    #[getter]
    fn wall_s(&self) -> Option<f64> {
        self.0.wall_s
    }

    /// Seed of every random choice.
    #[getter]
    fn seed(&self) -> Option<u64> {
        self.0.seed
    }

    /// Threads that it had.
    #[getter]
    fn threads(&self) -> Option<usize> {
        self.0.threads
    }

    /// Whether the plan is proved to be the best for its allocation and rules.
    #[getter]
    fn optimal(&self) -> bool {
        self.0.optimal == Some(true)
    }

    /// Whether somebody ended the search early.
    #[getter]
    fn interrupted(&self) -> bool {
        self.0.interrupted
    }

    /// Search steps.
    #[getter]
    fn work(&self) -> Option<u64> {
        self.0.work
    }

    /// Rounds of the search for routes and order.
    #[getter]
    fn rounds(&self) -> Option<u64> {
        self.0.rounds
    }

    /// Draws of random routes or straight pipelines.
    #[getter]
    fn attempts(&self) -> Option<u64> {
        self.0.attempts
    }

    /// Plans and bounds as they were found, in order.
    #[getter]
    fn events(&self) -> Vec<SearchEvent> {
        self.0.events.iter().copied().map(SearchEvent).collect()
    }

    /// Counts of the search for routes and order, by name.
    #[getter]
    fn statistics(&self) -> Figures {
        Figures(self.0.statistics.clone())
    }

    /// How the allocation was found, where it was searched by the iteration.
    #[getter]
    fn allocation(&self) -> Option<AllocationReport> {
        self.0.allocation.clone().map(AllocationReport)
    }

    /// The allocation that the surrogate found before, where it was asked.
    #[getter]
    fn surrogate(&self) -> Option<Allocated> {
        self.0.surrogate.clone().map(Allocated)
    }

    fn __repr__(&self) -> String {
        let Core { wall_s, work, optimal, .. } = &self.0;
        format!("SearchReport(wall_s={wall_s:?}, work={work:?}, optimal={optimal:?})")
    }
}

/// Best plan and best bound from a moment of a search on.
#[pyclass(frozen, module = "skippipe._scheduler", eq)]
#[derive(Clone, PartialEq)]
pub struct SearchEvent(CoreEvent);

#[pymethods]
impl SearchEvent {
    /// Seconds since the search began.
    #[getter]
    fn elapsed_s(&self) -> f64 {
        self.0.elapsed_s
    }

    /// Search steps done.
    #[getter]
    fn work(&self) -> u64 {
        self.0.work
    }

    /// Seconds of the best iteration; None as long as there is no plan.
    #[getter]
    fn upper_s(&self) -> Option<f64> {
        self.0.upper_s
    }

    /// Seconds of the best lower bound; None where it tells nothing.
    #[getter]
    fn lower_s(&self) -> Option<f64> {
        Some(self.0.lower_s).filter(|lower_s| *lower_s > 0.0)
    }

    fn __repr__(&self) -> String {
        let CoreEvent { elapsed_s, work, upper_s, lower_s } = self.0;
        format!("SearchEvent(elapsed_s={elapsed_s}, work={work}, upper_s={upper_s:?}, lower_s={lower_s})")
    }
}

/// How the search for an allocation by the iteration went.
#[pyclass(frozen, module = "skippipe._scheduler", eq)]
#[derive(Clone, PartialEq)]
pub struct AllocationReport(CoreAllocation);

#[pymethods]
impl AllocationReport {
    /// Seconds of the iteration on the first allocation.
    #[getter]
    fn start_s(&self) -> Option<f64> {
        self.0.start_s
    }

    /// The best plan of another allocation.
    #[getter]
    fn runner_up(&self) -> Option<RunnerUp> {
        self.0.runner_up.clone().map(RunnerUp)
    }

    /// Rounds of the search.
    #[getter]
    fn rounds(&self) -> u64 {
        self.0.rounds
    }

    /// Search steps.
    #[getter]
    fn work(&self) -> u64 {
        self.0.work
    }

    /// No allocation that was allowed takes less, in seconds.
    #[getter]
    fn lower_bound_s(&self) -> f64 {
        self.0.lower_bound_s
    }

    /// Whether every allocation was looked at by itself.
    #[getter]
    fn planned_one_by_one(&self) -> bool {
        self.0.planned_one_by_one
    }

    /// What each absent node would cost.
    #[getter]
    fn left_out(&self) -> Vec<LeftOut> {
        self.0.left_out.iter().cloned().map(LeftOut).collect()
    }

    fn __repr__(&self) -> String {
        let CoreAllocation { start_s, lower_bound_s, work, .. } = &self.0;
        format!("AllocationReport(start_s={start_s:?}, lower_bound_s={lower_bound_s}, work={work})")
    }
}

/// An allocation, and the iteration of its best plan.
#[pyclass(frozen, module = "skippipe._scheduler", eq)]
#[derive(Clone, PartialEq)]
pub struct RunnerUp(CoreRunnerUp);

#[pymethods]
impl RunnerUp {
    /// Nodes of each stage.
    #[getter]
    fn stages(&self) -> Vec<Vec<usize>> {
        self.0.stages.clone()
    }

    /// Seconds of the iteration.
    #[getter]
    fn iteration_s(&self) -> f64 {
        self.0.iteration_s
    }

    fn __repr__(&self) -> String {
        format!("RunnerUp(iteration_s={}, stages={:?})", self.0.iteration_s, self.0.stages)
    }
}

/// What an absent node would cost in the stage where it costs least, routes and order being the same.
#[pyclass(frozen, module = "skippipe._scheduler", eq)]
#[derive(Clone, PartialEq)]
pub struct LeftOut(CoreLeftOut);

#[pymethods]
impl LeftOut {
    /// The node.
    #[getter]
    fn node(&self) -> usize {
        self.0.node
    }

    /// The stage.
    #[getter]
    fn stage(&self) -> usize {
        self.0.stage
    }

    /// Seconds of the stage's all-reduce with the node.
    #[getter]
    fn allreduce_s(&self) -> f64 {
        self.0.allreduce_s
    }

    /// Seconds of the stage's all-reduce without it.
    #[getter]
    fn allreduce_without_s(&self) -> f64 {
        self.0.allreduce_without_s
    }

    /// Seconds of the iteration with the node.
    #[getter]
    fn iteration_s(&self) -> f64 {
        self.0.iteration_s
    }

    fn __repr__(&self) -> String {
        format!("LeftOut(node={}, stage={}, iteration_s={})", self.0.node, self.0.stage, self.0.iteration_s)
    }
}

/// Out: `dict[str, float]`, whole numbers as `int`.
pub struct Figures(Statistics);

impl<'py> IntoPyObject<'py> for Figures {
    type Target = PyDict;
    type Output = Bound<'py, PyDict>;
    type Error = PyErr;
    const OUTPUT_TYPE: PyStaticExpr = type_hint_subscript!(
        type_hint_identifier!("builtins", "dict"),
        type_hint_identifier!("builtins", "str"),
        type_hint_identifier!("builtins", "float")
    );

    fn into_pyobject(self, py: Python<'py>) -> PyResult<Self::Output> {
        let figures = PyDict::new(py);
        for (name, number) in self.0.0 {
            match number.as_u64() {
                Some(count) => figures.set_item(name, count)?,
                None => figures.set_item(name, number.as_f64())?,
            }
        }
        Ok(figures)
    }
}
