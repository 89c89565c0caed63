//! Planning and simulation: long calls run on a thread of their own, so that the GIL is free and Ctrl-C works.

use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use pyo3::exceptions::{PyKeyboardInterrupt, PyRuntimeError};
use pyo3::prelude::*;
use skippipe_core::budget::Budget;
use skippipe_core::error::{Result, invalid};
use skippipe_core::rules::Strategy;
use skippipe_core::search::{Method, Options, plan_for};
use skippipe_core::simulate::{Dispatch, count_evaluations, resimulate};

use crate::errors::OrRaise;
use crate::plan::Plan;
use crate::problem::Problem;

/// How often signals are looked at and progress is told.
const POLL: Duration = Duration::from_millis(50);

/// The best plan found for `problem` within the limits; same seed and work limit: same plan, whatever the number of
/// threads. `strategy` is "full", "full-routed", "random-skip", "skippipe-no-tc2" or "skippipe"; `method` is "auto", or
/// "cbs" for conflict-based search alone, which with `suboptimality` above 1 ends with a plan of at most so many times
/// the lower bound; `work_limit` counts search steps; `progress(elapsed_s, incumbent_s, lower_bound_s, work)` is called
/// about twenty times a second (`incumbent_s` is infinite as long as there is no plan). A KeyboardInterrupt ends the
/// search with the best plan so far (`solver` then says `interrupted`), and is raised where there is none. Raises
/// ImpossibleError where no plan can exist, NoPlanError where none was found, LockupError where the dispatch rule locks
/// up.
#[pyfunction]
#[pyo3(signature = (
    problem, strategy="skippipe", *, method="auto", suboptimality=1.0, time_limit_s=1.0, work_limit=None, threads=1,
    seed=0, progress=None,
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
) -> PyResult<Plan> {
    let (options, time_limit, work_limit) =
        options(strategy, method, suboptimality, time_limit_s, work_limit, threads, seed).or_raise()?;
    let budget = Arc::new(Budget::new(time_limit, work_limit));
    let problem = problem.get().0.clone();
    let (sender, receiver) = channel();
    let worker = {
        let budget = Arc::clone(&budget);
        std::thread::Builder::new().name("skippipe-plan".to_owned()).spawn(move || {
            let result = plan_for(&problem, options, &budget);
            // The receiver waits until this has been sent or dropped.
            let _ = sender.send(result);
        })?
    };
    let mut interrupted = None;
    // A receiver may be moved to where the GIL is free, not shared with it.
    let mut receiver = receiver;
    let result = loop {
        let (received, back) = py.detach(move || (receiver.recv_timeout(POLL), receiver));
        receiver = back;
        match received {
            Ok(result) => break Some(result),
            Err(RecvTimeoutError::Disconnected) => break None,
            Err(RecvTimeoutError::Timeout) => {}
        }
        if interrupted.is_none()
            && let Err(error) = py.check_signals().and_then(|()| tell(progress.as_ref(), &budget))
        {
            budget.cancel();
            interrupted = Some(error);
        }
    };
    let ended = py.detach(|| worker.join());
    match (ended, result) {
        (Ok(()), Some(result)) => match (result, interrupted) {
            (Ok(mut plan), Some(error)) if error.is_instance_of::<PyKeyboardInterrupt>(py) => {
                plan.solver.insert("interrupted".to_owned(), true.into());
                Ok(Plan(plan))
            }
            (_, Some(error)) => Err(error),
            (result, None) => {
                let plan = result.or_raise()?;
                tell(progress.as_ref(), &budget)?;
                Ok(Plan(plan))
            }
        },
        _ => Err(PyRuntimeError::new_err("the planner failed: please report this with the cluster and the command")),
    }
}

fn tell(progress: Option<&Bound<'_, PyAny>>, budget: &Budget) -> PyResult<()> {
    let Some(callback) = progress else { return Ok(()) };
    let now = budget.progress();
    callback.call1((now.elapsed_s, now.incumbent_s, now.bound_s, now.work)).map(drop)
}

type Limits = (Options, Option<Duration>, Option<u64>);

fn options(
    strategy: &str,
    method: &str,
    suboptimality: f64,
    time_limit_s: Option<f64>,
    work_limit: Option<i64>,
    threads: i64,
    seed: i64,
) -> Result<Limits> {
    let strategy = Strategy::from_name(strategy)?;
    let method = match method {
        "auto" => Method::Auto,
        "cbs" => Method::Cbs,
        _ => return invalid("method", format!("{method:?}"), "\"auto\" or \"cbs\""),
    };
    if !(suboptimality.is_finite() && suboptimality >= 1.0) {
        return invalid("suboptimality", suboptimality, "a number of at least 1");
    }
    let time_limit = match time_limit_s {
        None => None,
        Some(s) if s >= 0.0 => Some(Duration::try_from_secs_f64(s).unwrap_or(Duration::MAX)),
        Some(s) => return invalid("time_limit_s", s, "a number of seconds of at least 0, or none"),
    };
    let work_limit = match work_limit.map(u64::try_from) {
        None => None,
        Some(Ok(steps)) => Some(steps),
        Some(Err(_)) => {
            return invalid(
                "work_limit",
                work_limit.unwrap_or_default(),
                "a number of search steps of at least 0, or none",
            );
        }
    };
    let threads = match usize::try_from(threads) {
        Ok(count) if (1..=MOST_THREADS).contains(&count) => count,
        _ => return invalid("threads", threads, format!("an integer from 1 to {MOST_THREADS}")),
    };
    match u64::try_from(seed) {
        Ok(seed) => Ok((Options { strategy, seed, threads, method, suboptimality }, time_limit, work_limit)),
        Err(_) => invalid("seed", seed, "an integer of at least 0"),
    }
}

const MOST_THREADS: usize = 1024;

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
