//! Long calls: on a thread of their own, so that the GIL is free and Ctrl-C works, with the limits that all of them have.

use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use skippipe_core::budget::Budget;
use skippipe_core::error::{Result, invalid};

/// How often signals are checked and progress is reported.
pub const POLL: Duration = Duration::from_millis(50);

/// The most threads that a call may start.
const MOST_THREADS: usize = 1024;

/// What a long call may take, and what it draws its random numbers from.
#[derive(Clone, Copy)]
pub struct Limits {
    time: Option<Duration>,
    work: Option<u64>,
    /// At least 1.
    pub threads: usize,
    /// The same for the same result.
    pub seed: u64,
}

impl Limits {
    /// Checks what Python gave; keys as in its signatures.
    pub fn new(time_limit_s: Option<f64>, work_limit: Option<i64>, threads: i64, seed: i64) -> Result<Self> {
        let time = match time_limit_s {
            None => None,
            Some(s) if s >= 0.0 => Some(Duration::try_from_secs_f64(s).unwrap_or(Duration::MAX)),
            Some(s) => return invalid("time_limit_s", s, "a number of seconds of at least 0, or none"),
        };
        let work = match work_limit.map(u64::try_from) {
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
            Ok(seed) => Ok(Self { time, work, threads, seed }),
            Err(_) => invalid("seed", seed, "an integer of at least 0"),
        }
    }
}

/// How a long call has ended.
pub struct Ended<T> {
    /// What it gave.
    pub result: Result<T>,
    /// Why it was stopped early: what the signal's handler or the callback raised.
    pub interrupted: Option<PyErr>,
}

/// Runs `work` on a thread of its own until it ends; `progress` is called about twenty times a second. A signal or a
/// callback that raises makes it end early.
pub fn wait_for<T: Send + 'static>(
    py: Python<'_>,
    name: &str,
    limits: &Limits,
    progress: Option<&Bound<'_, PyAny>>,
    work: impl FnOnce(&Budget) -> Result<T> + Send + 'static,
) -> PyResult<Ended<T>> {
    let budget = Arc::new(Budget::new(limits.time, limits.work));
    let (sender, receiver) = channel();
    let worker = {
        let budget = Arc::clone(&budget);
        std::thread::Builder::new().name(format!("skippipe-{name}")).spawn(move || {
            // The receiver waits until this has been sent or dropped.
            let _ = sender.send(work(&budget));
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
            && let Err(error) = py.check_signals().and_then(|()| tell(progress, &budget))
        {
            budget.cancel();
            interrupted = Some(error);
        }
    };
    let ended = py.detach(|| worker.join());
    let (Ok(()), Some(result)) = (ended, result) else {
        let message = format!("{name} failed: please report this with the cluster and the command");
        return Err(PyRuntimeError::new_err(message));
    };
    if result.is_ok() && interrupted.is_none() {
        tell(progress, &budget)?;
    }
    Ok(Ended { result, interrupted })
}

fn tell(progress: Option<&Bound<'_, PyAny>>, budget: &Budget) -> PyResult<()> {
    let Some(callback) = progress else { return Ok(()) };
    let now = budget.progress();
    callback.call1((now.elapsed_s, now.incumbent_s, now.bound_s, now.work)).map(drop)
}
