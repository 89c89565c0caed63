//! `SearchReport` and its parts.

use pyo3::inspect::PyStaticExpr;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use pyo3::{type_hint_identifier, type_hint_subscript};
use skippipe_core::report as core;

use crate::allocate::Allocated;

/// What a search reports of itself: the part `solver` of a plan. What a plan of others does not say is None or empty.
#[pyclass(frozen, get_all, module = "skippipe", eq)]
#[derive(Clone, PartialEq)]
pub struct SearchReport {
    /// Seconds that the search took.
    wall_s: Option<f64>,
    /// Seed of every random choice.
    seed: Option<u64>,
    /// Threads that it had.
    threads: Option<usize>,
    /// Whether the plan is proved to be the best for its allocation and rules.
    optimal: bool,
    /// Whether somebody ended the search early.
    interrupted: bool,
    /// Search steps.
    work: Option<u64>,
    /// Rounds of the search for routes and order.
    rounds: Option<u64>,
    /// Draws of random routes or straight pipelines.
    attempts: Option<u64>,
    /// Plans and bounds as they were found, in order.
    events: Vec<SearchEvent>,
    /// Counts of the search for routes and order, by name.
    statistics: Figures,
    /// How the allocation was found, where it was searched by the iteration.
    allocation: Option<AllocationReport>,
    /// The allocation that the surrogate found before, where it was asked.
    surrogate: Option<Allocated>,
}

impl From<core::SearchReport> for SearchReport {
    fn from(report: core::SearchReport) -> Self {
        Self {
            wall_s: report.wall_s,
            seed: report.seed,
            threads: report.threads,
            optimal: report.optimal == Some(true),
            interrupted: report.interrupted,
            work: report.work,
            rounds: report.rounds,
            attempts: report.attempts,
            events: report.events.into_iter().map(SearchEvent::from).collect(),
            statistics: Figures(report.statistics),
            allocation: report.allocation.map(AllocationReport::from),
            surrogate: report.surrogate.map(Allocated::from),
        }
    }
}

/// Best plan and best bound from a moment of a search on.
#[pyclass(frozen, get_all, module = "skippipe", eq)]
#[derive(Clone, PartialEq)]
pub struct SearchEvent {
    /// Seconds since the search began.
    elapsed_s: f64,
    /// Search steps done.
    work: u64,
    /// Seconds of the best iteration; None as long as there is no plan.
    upper_s: Option<f64>,
    /// Seconds of the best lower bound; None where it says nothing.
    lower_s: Option<f64>,
}

impl From<core::SearchEvent> for SearchEvent {
    fn from(core::SearchEvent { elapsed_s, work, upper_s, lower_s }: core::SearchEvent) -> Self {
        Self { elapsed_s, work, upper_s, lower_s: Some(lower_s).filter(|lower_s| *lower_s > 0.0) }
    }
}

/// How the search for an allocation by the iteration went.
#[pyclass(frozen, get_all, module = "skippipe", eq)]
#[derive(Clone, PartialEq)]
pub struct AllocationReport {
    /// Seconds of the iteration on the first allocation.
    start_s: Option<f64>,
    /// The best plan of another allocation.
    runner_up: Option<RunnerUp>,
    /// Rounds of the search.
    rounds: u64,
    /// Search steps.
    work: u64,
    /// No allocation that was allowed takes less, in seconds.
    lower_bound_s: f64,
    /// Whether every allocation was looked at by itself.
    planned_one_by_one: bool,
    /// What each absent node would cost.
    left_out: Vec<LeftOut>,
}

impl From<core::AllocationReport> for AllocationReport {
    fn from(report: core::AllocationReport) -> Self {
        let core::AllocationReport { start_s, runner_up, rounds, work, lower_bound_s, planned_one_by_one, left_out } =
            report;
        let runner_up = runner_up.map(|core::RunnerUp { stages, iteration_s }| RunnerUp { stages, iteration_s });
        let left_out = left_out.into_iter().map(LeftOut::from).collect();
        Self { start_s, runner_up, rounds, work, lower_bound_s, planned_one_by_one, left_out }
    }
}

/// An allocation, and the iteration of its best plan.
#[pyclass(frozen, get_all, module = "skippipe", eq)]
#[derive(Clone, PartialEq)]
pub struct RunnerUp {
    /// Nodes of each stage.
    stages: Vec<Vec<usize>>,
    /// Seconds of the iteration.
    iteration_s: f64,
}

/// What an absent node would cost in the stage where it costs least, routes and order being the same.
#[pyclass(frozen, get_all, module = "skippipe", eq)]
#[derive(Clone, PartialEq)]
pub struct LeftOut {
    /// The node.
    node: usize,
    /// The stage.
    stage: usize,
    /// Seconds of the stage's all-reduce with the node.
    allreduce_s: f64,
    /// Seconds of the stage's all-reduce without it.
    allreduce_without_s: f64,
    /// Seconds of the iteration with the node.
    iteration_s: f64,
}

impl From<core::LeftOut> for LeftOut {
    fn from(left_out: core::LeftOut) -> Self {
        let core::LeftOut { node, stage, allreduce_s, allreduce_without_s, iteration_s } = left_out;
        Self { node, stage, allreduce_s, allreduce_without_s, iteration_s }
    }
}

/// Out: `dict[str, float]`, whole numbers as `int`.
#[derive(Clone, PartialEq)]
pub struct Figures(core::Statistics);

impl<'py> IntoPyObject<'py> for &Figures {
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
        for (name, number) in &self.0.0 {
            match number.as_u64() {
                Some(count) => figures.set_item(name, count)?,
                None => figures.set_item(name, number.as_f64())?,
            }
        }
        Ok(figures)
    }
}
