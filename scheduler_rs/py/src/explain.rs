//! `Explanation` of a plan, and `Upgrade`s.

use pyo3::prelude::*;
use skippipe_core::explain::{Explanation as Core, Note, Part, Segment as CoreSegment};
use skippipe_core::upgrade::{Gain, Upgrade as CoreUpgrade, gains};

use crate::arrays::{Floats, Integers};
use crate::cluster::Cluster;
use crate::errors::OrRaise;
use crate::plan::Plan;

/// A time interval on a path through the iteration.
#[pyclass(frozen, module = "skippipe", eq)]
#[derive(Clone, PartialEq)]
pub struct Segment(CoreSegment);

#[pymethods]
impl Segment {
    /// "task", "transfer", "busy", "memory", "order" or "wave" (what a task waited for), "all-reduce", "norm", "step".
    #[getter]
    fn part(&self) -> &'static str {
        match self.0.part {
            Part::Task(_) => "task",
            Part::Transfer(..) => "transfer",
            Part::Wait(_, reason) => reason.name(),
            Part::AllReduce(_) => "all-reduce",
            Part::Norm => "norm",
            Part::Step => "step",
        }
    }

    /// Seconds from the start of the iteration.
    #[getter]
    fn start_s(&self) -> f64 {
        self.0.start_s
    }

    /// Seconds from the start of the iteration.
    #[getter]
    fn end_s(&self) -> f64 {
        self.0.end_s
    }

    /// The task that runs or waits, by its index in the plan's tasks; None for other parts.
    #[getter]
    fn task(&self) -> Option<usize> {
        match self.0.part {
            Part::Task(task) | Part::Wait(task, _) => Some(task),
            _ => None,
        }
    }

    /// Sender and receiver of a transfer; None for other parts.
    #[getter]
    fn link(&self) -> Option<(usize, usize)> {
        match self.0.part {
            Part::Transfer(from, to) => Some((from, to)),
            _ => None,
        }
    }

    /// Stage of an all-reduce; None for other parts.
    #[getter]
    fn stage(&self) -> Option<usize> {
        match self.0.part {
            Part::AllReduce(stage) => Some(stage),
            _ => None,
        }
    }

    fn __repr__(&self) -> String {
        format!("Segment({}, {} s to {} s)", self.part(), self.0.start_s, self.0.end_s)
    }
}

/// Why a plan takes as long as it does. Arrays have one entry for each of the plan's tasks.
#[pyclass(frozen, module = "skippipe")]
pub struct Explanation(Core);

#[pymethods]
impl Explanation {
    /// The plan with the simulator's times in its own order, which are the times that are explained.
    #[getter]
    fn plan(&self) -> Plan {
        Plan(self.0.plan.clone())
    }

    /// When each task's input was there, in seconds.
    #[getter]
    fn arrival_s(&self) -> Floats {
        self.column(|note| note.arrival_s)
    }

    /// How much later each task may start without lengthening the iteration, the order kept, in seconds.
    #[getter]
    fn slack_s(&self) -> Floats {
        self.column(|note| note.slack_s)
    }

    /// Why each task did not start before: "start", "input" (arrived then), "wave" (the one before completed then),
    /// "busy" (its node ran others), "memory" (its node was idle but full), "order" (its node was idle; the plan lets
    /// another go first).
    #[getter]
    fn reasons(&self) -> Vec<&'static str> {
        self.0.notes.iter().map(|note| note.reason.name()).collect()
    }

    /// The task behind that reason, by its index in the plan's tasks; -1 where there is none.
    #[getter]
    fn blockers(&self) -> Integers {
        Integers(self.0.notes.iter().map(|note| note.blocker.map_or(-1, |task| task as i64)).collect())
    }

    /// Seconds that each task waited, its input at hand, while its node ran others.
    #[getter]
    fn busy_s(&self) -> Floats {
        self.column(|note| note.waits.busy_s)
    }

    /// Seconds that each task waited, its input at hand, while its node was idle and full.
    #[getter]
    fn memory_s(&self) -> Floats {
        self.column(|note| note.waits.memory_s)
    }

    /// Seconds that each task waited, its input at hand, while its node was idle and had room.
    #[getter]
    fn order_s(&self) -> Floats {
        self.column(|note| note.waits.order_s)
    }

    /// The critical path, without a gap from 0 to the end of the iteration: tasks, transfers and what follows them, each
    /// of which begins as the one before it ends. It changes microbatch where a task waited for its node.
    #[getter]
    fn critical(&self) -> Vec<Segment> {
        self.0.critical.iter().cloned().map(Segment).collect()
    }

    /// The microbatch at the end of that path, without a gap from 0: tasks, transfers and waiting.
    #[getter]
    fn last(&self) -> Vec<Segment> {
        self.0.last.iter().cloned().map(Segment).collect()
    }
}

impl Explanation {
    fn column(&self, value: impl Fn(&Note) -> f64) -> Floats {
        Floats(self.0.notes.iter().map(value).collect())
    }
}

/// A node or a link made twice as fast, and what that gains with the routes of a plan unchanged.
#[pyclass(frozen, module = "skippipe", eq)]
#[derive(Clone, PartialEq)]
pub struct Upgrade(Gain);

#[pymethods]
impl Upgrade {
    /// The node whose forward, loss and backward are halved; None for a link.
    #[getter]
    fn node(&self) -> Option<usize> {
        match self.0.upgrade {
            CoreUpgrade::Node(node) => Some(node),
            _ => None,
        }
    }

    /// Sender and receiver of the link whose latency is halved and bandwidth doubled: nodes, or regions where the
    /// cluster has those; None for a node.
    #[getter]
    fn link(&self) -> Option<(usize, usize)> {
        match self.0.upgrade {
            CoreUpgrade::Node(_) => None,
            CoreUpgrade::Link(from, to) | CoreUpgrade::Both(from, to) => Some((from, to)),
        }
    }

    /// Whether both directions of the link are faster.
    #[getter]
    fn both_ways(&self) -> bool {
        matches!(self.0.upgrade, CoreUpgrade::Both(..))
    }

    /// Seconds of the iteration, the order of every node kept.
    #[getter]
    fn iteration_s(&self) -> f64 {
        self.0.iteration_s
    }

    /// Seconds of the iteration in the order of the dispatch rule, where that is shorter; else None.
    #[getter]
    fn dispatched_s(&self) -> Option<f64> {
        self.0.dispatched_s
    }

    /// The cluster with this upgrade.
    fn apply(&self, cluster: &Bound<'_, Cluster>) -> Cluster {
        Cluster(self.0.upgrade.of(&cluster.get().0))
    }

    fn __repr__(&self) -> String {
        format!("Upgrade({:?}, {} s)", self.0.upgrade, self.0.iteration_s)
    }
}

/// Explains a plan as its own order runs. Raises DeadlockError or InputError as `simulate` does.
#[pyfunction]
pub fn explain(py: Python<'_>, plan: &Bound<'_, Plan>) -> PyResult<Explanation> {
    let plan = &plan.get().0;
    py.detach(|| skippipe_core::explain::explain(plan)).or_raise().map(Explanation)
}

/// The upgrades that shorten the iteration of an explained plan with its routes and order kept, best first.
#[pyfunction]
pub fn upgrades(py: Python<'_>, explanation: &Bound<'_, Explanation>) -> PyResult<Vec<Upgrade>> {
    let explanation = &explanation.get().0;
    let gains = py.detach(|| gains(explanation)).or_raise()?;
    Ok(gains.into_iter().map(Upgrade).collect())
}
