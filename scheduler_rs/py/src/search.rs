//! Planning and simulation.

use std::time::Duration;

use pyo3::exceptions::PyKeyboardInterrupt;
use pyo3::prelude::*;
use skippipe_core::budget::Budget;
use skippipe_core::error::{Result, invalid};
use skippipe_core::request::FirstAllocation;
use skippipe_core::search::first_allocation as core_first_allocation;
use skippipe_core::simulate::{Dispatch, count_evaluations, resimulate};

use crate::allocate::Allocated;
use crate::errors::OrRaise;
use crate::plan::Plan;
use crate::problem::Problem;
use crate::request::PlanRequest;
use crate::waiting::{Ended, POLL, wait_for};

/// The best plan found for a request within its limits. `progress(elapsed_s, incumbent_s, lower_bound_s, work)` is called
/// about twenty times a second (`incumbent_s` is infinite as long as there is no plan). A KeyboardInterrupt ends the
/// search with the best plan so far (`solver.interrupted`), and is raised where there is none. Raises ImpossibleError
/// where no plan can exist, NoPlanError where none was found, DeadlockError where the dispatch rule deadlocks. With a
/// scope, stages, layers, cluster and microbatches of the plan may differ from the problem's.
#[pyfunction]
#[pyo3(signature = (request, *, progress=None))]
#[expect(clippy::needless_pass_by_value, reason = "PyO3 converts arguments by value")]
pub fn plan(py: Python<'_>, request: &Bound<'_, PlanRequest>, progress: Option<Bound<'_, PyAny>>) -> PyResult<Plan> {
    let PlanRequest { request, limits } = request.get().clone();
    let search = move |budget: &Budget| skippipe_core::plan(&request, budget);
    let Ended { result, interrupted } = wait_for(py, "the planner", &limits, progress.as_ref(), search)?;
    match (result, interrupted) {
        (Ok(mut plan), Some(error)) if error.is_instance_of::<PyKeyboardInterrupt>(py) => {
            plan.solver.interrupted = true;
            Ok(Plan(plan))
        }
        (_, Some(error)) => Err(error),
        (result, None) => result.or_raise().map(Plan),
    }
}

/// The problem on the allocation with which the search for a request begins, and what the surrogate says of that
/// allocation where it is the surrogate's.
#[pyfunction]
pub fn first_allocation(py: Python<'_>, request: &Bound<'_, PlanRequest>) -> PyResult<(Problem, Option<Allocated>)> {
    let PlanRequest { request, limits } = request.get().clone();
    let search = move |budget: &Budget| {
        core_first_allocation(&request, budget).map(|(problem, found)| (problem.into_owned(), found))
    };
    let Ended { result, interrupted } = wait_for(py, "the allocator", &limits, None, search)?;
    let (problem, found) = interrupted.map_or_else(|| result.or_raise(), Err)?;
    Ok((Problem(FirstAllocation::Given(problem)), found.map(Allocated::from)))
}

fn dispatch(order: &str) -> Result<Dispatch> {
    match order {
        "plan" => Ok(Dispatch::Planned),
        "dispatch" => Ok(Dispatch::Rule),
        _ => invalid("order", format!("{order:?}"), "\"plan\" or \"dispatch\""),
    }
}

/// The plan with the times that the simulator gives its tasks: in the order that it states on each node ("plan"), or
/// in the order of the dispatch rule ("dispatch"). Raises DeadlockError naming the cycle, InputError where the tasks do
/// not belong to the routes.
#[pyfunction]
#[pyo3(signature = (plan, *, order="plan"))]
pub fn simulate(py: Python<'_>, plan: &Bound<'_, Plan>, order: &str) -> PyResult<Plan> {
    let dispatch = dispatch(order).or_raise()?;
    let plan = &plan.get().0;
    py.detach(|| resimulate(plan, dispatch)).or_raise().map(Plan)
}

/// How many times a second one thread simulates `plan` anew, routes and order included, measured for `seconds`.
#[pyfunction]
#[pyo3(signature = (plan, *, order="plan", seconds=1.0))]
pub fn benchmark_simulator(py: Python<'_>, plan: &Bound<'_, Plan>, order: &str, seconds: f64) -> PyResult<f64> {
    let dispatch = dispatch(order).or_raise()?;
    let plan = &plan.get().0;
    let limit = match Duration::try_from_secs_f64(seconds) {
        Ok(limit) if seconds > 0.0 && seconds <= 3600.0 => limit,
        _ => return invalid("seconds", seconds, "a number above 0, at most 3600").or_raise(),
    };
    let (mut count, mut took) = (0, 0.0);
    while took < limit.as_secs_f64() {
        py.check_signals()?;
        let (more, seconds) = py.detach(|| count_evaluations(plan, dispatch, POLL.min(limit))).or_raise()?;
        count += more;
        took += seconds;
    }
    Ok(count as f64 / took)
}
