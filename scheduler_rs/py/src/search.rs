//! Planning and simulation.

use std::time::Duration;

use pyo3::exceptions::PyKeyboardInterrupt;
use pyo3::prelude::*;
use skippipe_core::budget::Budget;
use skippipe_core::error::{Result, invalid};
use skippipe_core::rules::Strategy;
use skippipe_core::search::{Method, Options, plan_for, plan_freely};
use skippipe_core::simulate::{Dispatch, count_evaluations, resimulate};

use crate::errors::OrRaise;
use crate::plan::Plan;
use crate::problem::{Freedom, Problem};
use crate::waiting::{Ended, Limits, POLL, wait_for};

/// The best plan found for `problem` within the limits; same seed and work limit: same plan, whatever the number of
/// threads. `strategy` is "full", "full-routed", "random-skip", "skippipe-no-tc2" or "skippipe"; `method` is "auto", or
/// "cbs" for conflict-based search alone, which with `suboptimality` above 1 ends with a plan of at most so many times
/// the lower bound; `work_limit` counts search steps; `progress(elapsed_s, incumbent_s, lower_bound_s, work)` is called
/// about twenty times a second (`incumbent_s` is infinite as long as there is no plan). A KeyboardInterrupt ends the
/// search with the best plan so far (`solver` then says `interrupted`), and is raised where there is none. Raises
/// ImpossibleError where no plan can exist, NoPlanError where none was found, LockupError where the dispatch rule locks
/// up. With `freedom` the allocation is searched too, for the strategy that is planned by: stages, layers, cluster and
/// microbatches of the plan may then differ from the problem's.
#[pyfunction]
#[pyo3(signature = (
    problem, strategy="skippipe", *, method="auto", suboptimality=1.0, time_limit_s=1.0, work_limit=None, threads=1,
    seed=0, progress=None, freedom=None,
))]
#[expect(clippy::too_many_arguments, reason = "the options of a search")]
#[expect(clippy::needless_pass_by_value, reason = "PyO3 converts arguments by value")]
pub fn plan(
    py: Python<'_>,
    problem: &Bound<'_, Problem>,
    strategy: &str,
    method: &str,
    suboptimality: f64,
    time_limit_s: Option<f64>,
    work_limit: Option<i64>,
    threads: i64,
    seed: i64,
    progress: Option<Bound<'_, PyAny>>,
    freedom: Option<&Bound<'_, Freedom>>,
) -> PyResult<Plan> {
    let limits = Limits::new(time_limit_s, work_limit, threads, seed).or_raise()?;
    let options = options(strategy, method, suboptimality, &limits).or_raise()?;
    let problem = problem.get().0.clone();
    let freedom = freedom.map(|freedom| freedom.get().0);
    let search = move |budget: &Budget| match freedom {
        Some(freedom) => plan_freely(&problem, freedom, options, budget),
        None => plan_for(&problem, options, budget),
    };
    let Ended { result, interrupted } = wait_for(py, "the planner", &limits, progress.as_ref(), search)?;
    match (result, interrupted) {
        (Ok(mut plan), Some(error)) if error.is_instance_of::<PyKeyboardInterrupt>(py) => {
            plan.solver.insert("interrupted".to_owned(), true.into());
            Ok(Plan(plan))
        }
        (_, Some(error)) => Err(error),
        (result, None) => result.or_raise().map(Plan),
    }
}

fn options(strategy: &str, method: &str, suboptimality: f64, limits: &Limits) -> Result<Options> {
    let strategy = Strategy::from_name(strategy)?;
    let method = match method {
        "auto" => Method::Auto,
        "cbs" => Method::Cbs,
        _ => return invalid("method", format!("{method:?}"), "\"auto\" or \"cbs\""),
    };
    if !(suboptimality.is_finite() && suboptimality >= 1.0) {
        return invalid("suboptimality", suboptimality, "a number of at least 1");
    }
    Ok(Options { strategy, seed: limits.seed, threads: limits.threads, method, suboptimality })
}

fn dispatch(order: &str) -> Result<Dispatch> {
    match order {
        "plan" => Ok(Dispatch::Planned),
        "dispatch" => Ok(Dispatch::Rule),
        _ => invalid("order", format!("{order:?}"), "\"plan\" or \"dispatch\""),
    }
}

/// The plan with the times that the simulator gives its tasks: in the order that it states on each node ("plan"), or
/// in the order of the dispatch rule ("dispatch"). Raises LockupError naming the cycle, InputError where the tasks do
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
