//! `Plan` and its parts.

use std::collections::BTreeMap;

use numpy::{PyArray1, PyFixedUnicode};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyType};
use skippipe_core::contention::Contention;
use skippipe_core::plan::{
    Assumptions as CoreAssumptions, Microbatch as CoreMicrobatch, Plan as Core, Predicted as CorePredicted,
    Task as CoreTask,
};
use skippipe_core::report::SearchReport as CoreReport;
use skippipe_core::request::FirstAllocation;
use skippipe_core::simulate::{on_processors, with_contention};
use skippipe_core::workload::Workload;

use crate::arrays::{Floats, Integers};
use crate::cluster::{Cluster, processor_numbers};
use crate::errors::OrRaise;
use crate::problem::{Constraints, Problem};
use crate::report::SearchReport;

/// One microbatch and its route through the pipeline.
#[pyclass(frozen, get_all, module = "skippipe", eq)]
#[derive(Clone, PartialEq)]
pub struct Microbatch {
    /// Unique number.
    id: usize,
    /// Stage-0 node that it starts from and returns to.
    source: usize,
    /// Nodes in order of the forward pass.
    nodes: Vec<usize>,
    /// Their stages.
    stages: Vec<usize>,
    /// Route, shared by at most `waves` microbatches of one source.
    route: usize,
    /// Place among those, from 0.
    wave: usize,
}

#[pymethods]
impl Microbatch {
    fn __repr__(&self) -> String {
        let Self { id, source, nodes, route, wave, .. } = self;
        format!("Microbatch(id={id}, source={source}, nodes={nodes:?}, route={route}, wave={wave})")
    }
}

impl From<CoreMicrobatch> for Microbatch {
    fn from(CoreMicrobatch { id, source, nodes, stages, route, wave }: CoreMicrobatch) -> Self {
        Self { id, source, nodes, stages, route, wave }
    }
}

/// One task of one microbatch on one node.
#[pyclass(frozen, get_all, module = "skippipe", eq)]
#[derive(Clone, PartialEq)]
pub struct Task {
    /// Node that runs it.
    node: usize,
    /// Id of the microbatch.
    microbatch: usize,
    /// "F" forward, "L" head and loss, "B" backward.
    kind: char,
    /// Position in the route; 0 for "L".
    hop: usize,
    /// Seconds from the start of the iteration.
    start_s: f64,
    /// Seconds from the start of the iteration.
    end_s: f64,
}

#[pymethods]
impl Task {
    fn __repr__(&self) -> String {
        let Self { node, microbatch, kind, hop, start_s, end_s } = self;
        format!("Task({microbatch}{kind}{hop}@{node}, {start_s} s to {end_s} s)")
    }
}

impl From<CoreTask> for Task {
    fn from(CoreTask { node, microbatch, kind, hop, start_s, end_s }: CoreTask) -> Self {
        Self { node, microbatch, kind: kind.letter(), hop, start_s, end_s }
    }
}

/// What the simulator gives for a plan, and how far from the best it can be.
#[pyclass(frozen, get_all, module = "skippipe", eq)]
#[derive(Clone, PartialEq)]
pub struct Predicted {
    /// Seconds of the whole iteration.
    iteration_s: f64,
    /// End of the last backward, in seconds.
    pipeline_s: f64,
    /// All-reduce of each stage, in seconds.
    allreduce_s: Vec<f64>,
    /// No plan of this allocation and these rules (`random-skip`, `skippipe-no-tc2`: of these routes) takes less.
    lower_bound_s: f64,
    /// (iteration_s - lower_bound_s) / lower_bound_s.
    gap: f64,
}

#[pymethods]
impl Predicted {
    fn __repr__(&self) -> String {
        let Self { iteration_s, lower_bound_s, gap, .. } = self;
        format!("Predicted(iteration_s={iteration_s}, lower_bound_s={lower_bound_s}, gap={gap})")
    }
}

impl From<CorePredicted> for Predicted {
    fn from(CorePredicted { iteration_s, pipeline_s, allreduce_s, lower_bound_s, gap }: CorePredicted) -> Self {
        Self { iteration_s, pipeline_s, allreduce_s, lower_bound_s, gap }
    }
}

/// What the times of a plan take for granted of the machines beside the figures of its cluster.
#[pyclass(frozen, get_all, module = "skippipe", eq)]
#[derive(Clone, PartialEq)]
pub struct Assumptions {
    /// Nodes that share a processor, by number: sets of at least two.
    processors: Vec<Vec<usize>>,
    /// Which messages take turns: "none", "link" or "uplink".
    contention: &'static str,
}

#[pymethods]
impl Assumptions {
    fn __repr__(&self) -> String {
        format!("Assumptions(processors={:?}, contention='{}')", self.processors, self.contention)
    }
}

impl From<CoreAssumptions> for Assumptions {
    fn from(CoreAssumptions { processors, contention }: CoreAssumptions) -> Self {
        Self { processors, contention: contention.name() }
    }
}

/// The route of every microbatch and the order of every node's tasks (`skippipe.plan/1`), as `skippipe.plan` and
/// `skippipe.load_plan` give it.
#[pyclass(frozen, module = "skippipe", eq)]
#[derive(Clone, PartialEq)]
pub struct Plan(pub Core);

#[pymethods]
impl Plan {
    /// Reads `skippipe.plan/1`: types, ranges and shapes; whether it keeps the rules is `check`'s to say. Raises
    /// InputError naming the key that does not fit.
    #[staticmethod]
    fn from_json(text: &str) -> PyResult<Self> {
        Core::from_json(text).or_raise().map(Self)
    }

    /// Writes `skippipe.plan/1`.
    fn to_json(&self) -> String {
        self.0.to_json()
    }

    /// Every rule that the plan breaks, in words; empty where it keeps them all.
    fn check(&self) -> Vec<String> {
        skippipe_core::check::check(&self.0)
    }

    /// Tasks that wait for each other in a cycle, in words, None where the order can be executed; of a plan that
    /// keeps its rules.
    fn find_deadlock(&self) -> Option<String> {
        skippipe_core::check::deadlock(&self.0)
    }

    /// The same routes where nodes with equal numbers share a processor (None: on one of its own), such as those that
    /// one process serves, with the simulator's times. The order on each node stays; those of one processor take their
    /// tasks by the starts that these have in this plan. Where the same nodes share as in this plan it is this plan.
    fn on_processors(&self, py: Python<'_>, processors: Vec<Option<i64>>) -> PyResult<Self> {
        let plan = &self.0;
        py.detach(move || on_processors(plan, &processor_numbers(&processors)?)).or_raise().map(Self)
    }

    /// The same plan where messages take turns, with the simulator's times: none of them ("none"), those from one
    /// processor to another ("link"), or all that a processor sends ("uplink"). Where they do so already it is this plan.
    fn with_contention(&self, py: Python<'_>, contention: &str) -> PyResult<Self> {
        let plan = &self.0;
        py.detach(|| with_contention(plan, Contention::from_name(contention)?)).or_raise().map(Self)
    }

    /// The question that the plan answers, with the plan's allocation.
    fn problem(&self) -> PyResult<Problem> {
        self.0.problem().or_raise().map(FirstAllocation::Given).map(Problem)
    }

    /// The plan's tasks as columns, in the order of `tasks`: a dict of arrays of shape (tasks,) with the keys `node`,
    /// `stage`, `microbatch` and `hop` (int64), `kind` ("F", "L" or "B"), `start_s` and `end_s` (float64). A data frame
    /// is made of it by `pandas.DataFrame(plan.task_arrays())`.
    #[pyo3(signature = () -> "dict[str, NDArray[Any]]")]
    fn task_arrays<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let plan = &self.0;
        let mut stage_of = vec![0; plan.cluster.nodes().len()];
        for (stage, nodes) in plan.stages.iter().enumerate() {
            nodes.iter().for_each(|node| stage_of[*node] = stage);
        }
        let integers =
            |value: &dyn Fn(&CoreTask) -> usize| Integers(plan.tasks.iter().map(|task| value(task) as i64).collect());
        let floats = |value: &dyn Fn(&CoreTask) -> f64| Floats(plan.tasks.iter().map(value).collect());
        let kinds = plan.tasks.iter().map(|task| PyFixedUnicode([u32::from(task.kind.letter())]));
        let columns = PyDict::new(py);
        columns.set_item("node", integers(&|task| task.node))?;
        columns.set_item("stage", integers(&|task| stage_of[task.node]))?;
        columns.set_item("microbatch", integers(&|task| task.microbatch))?;
        columns.set_item("kind", PyArray1::from_iter(py, kinds))?;
        columns.set_item("hop", integers(&|task| task.hop))?;
        columns.set_item("start_s", floats(&|task| task.start_s))?;
        columns.set_item("end_s", floats(&|task| task.end_s))?;
        Ok(columns)
    }

    /// Draws the plan as a Gantt chart, its critical path outlined, and gives the matplotlib axes that it is on: `axes`,
    /// or those of a new figure, so that `plan.plot().figure.savefig("plan.svg")` writes a file. Raises InputError where
    /// matplotlib is not installed (`pip install "skippipe[plot]"`), DeadlockError where the plan's order cannot be executed.
    #[pyo3(signature = (axes=None))]
    fn plot<'py>(slf: &Bound<'py, Self>, axes: Option<Bound<'py, PyAny>>) -> PyResult<Bound<'py, PyAny>> {
        slf.py().import("skippipe.report.plots")?.call_method1("plot_plan", (slf, axes))
    }

    /// The cluster that it was made for.
    #[getter]
    fn cluster(&self) -> Cluster {
        Cluster(self.0.cluster.clone())
    }

    /// What its times take for granted of the machines.
    #[getter]
    fn assumptions(&self) -> Assumptions {
        CoreAssumptions::of(&self.0.cluster).into()
    }

    /// The rules that it keeps.
    #[getter]
    fn constraints(&self) -> Constraints {
        Constraints(self.0.constraints.clone())
    }

    /// Share of stage visits left out.
    #[getter]
    fn skip_ratio(&self) -> f64 {
        self.0.skip_ratio
    }

    /// "full", "full-routed", "random-skip", "skippipe-no-tc2" or "skippipe".
    #[getter]
    fn strategy(&self) -> &'static str {
        self.0.strategy.name()
    }

    /// Whether its lower bound holds for its own routes alone, as its strategy does not look for the best ones.
    #[getter]
    fn is_bound_by_routes(&self) -> bool {
        self.0.strategy.is_bound_by_routes()
    }

    /// Nodes of each stage.
    #[getter]
    fn stages(&self) -> Vec<Vec<usize>> {
        self.0.stages.clone()
    }

    /// Decoder layers of each stage; empty: not known.
    #[getter]
    fn layers(&self) -> Vec<usize> {
        self.0.layers.clone()
    }

    /// Nodes that serve no stage: they run nothing and take no part in an all-reduce.
    #[getter]
    fn absent_nodes(&self) -> Vec<usize> {
        self.0.absent_nodes.clone()
    }

    /// Stages that no node serves.
    #[getter]
    fn absent_stages(&self) -> Vec<usize> {
        self.0.absent_stages.clone()
    }

    /// What model it was made for: a JSON object as text, or None.
    #[getter]
    fn model(&self) -> Option<String> {
        (!self.0.model.is_null()).then(|| self.0.model.to_string())
    }

    /// Microbatches that each source starts, by node number.
    #[getter]
    fn microbatches_per_source(&self) -> BTreeMap<usize, usize> {
        self.0.microbatches_per_source.clone()
    }

    /// All microbatches.
    #[getter]
    fn microbatches(&self) -> Vec<Microbatch> {
        self.0.microbatches.iter().cloned().map(Microbatch::from).collect()
    }

    /// All tasks; those of one processor stand in the order in which it runs them.
    #[getter]
    fn tasks(&self) -> Vec<Task> {
        self.0.tasks.iter().cloned().map(Task::from).collect()
    }

    /// Predicted times.
    #[getter]
    fn predicted(&self) -> Predicted {
        self.0.predicted.clone().into()
    }

    /// How the search went.
    #[getter]
    fn solver(&self) -> SearchReport {
        self.0.solver.clone().into()
    }

    /// The same plan without how it was found.
    fn without_report(&self) -> Self {
        Self(Core { solver: CoreReport::default(), ..self.0.clone() })
    }

    /// The same plan for another cluster of as many nodes on the same processors; its times stay, and `simulate` gives the
    /// new ones. For other processors: `on_processors`.
    fn with_cluster(&self, cluster: &Bound<'_, Cluster>) -> PyResult<Self> {
        self.0.with_cluster(cluster.get().0.clone()).or_raise().map(Self)
    }

    /// The same plan, said to be for this model.
    #[pyo3(signature = (*, config_sha256, hidden, layers, microbatch_size, sequence, wire_dtype))]
    fn with_model(
        &self,
        config_sha256: String,
        hidden: u64,
        layers: u64,
        microbatch_size: u64,
        sequence: u64,
        wire_dtype: String,
    ) -> Self {
        let workload = Workload {
            config_sha256: Some(config_sha256),
            hidden: Some(hidden),
            layers: Some(layers),
            microbatch_size: Some(microbatch_size),
            sequence: Some(sequence),
            wire_dtype: Some(wire_dtype),
            ..Workload::default()
        };
        Self(Core { model: workload.model(), ..self.0.clone() })
    }

    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> PyResult<(Bound<'py, PyAny>, (Bound<'py, PyType>,))> {
        let read = slf.py().import("operator")?.call_method1("methodcaller", ("from_json", slf.get().to_json()))?;
        Ok((read, (slf.get_type(),)))
    }

    fn __repr__(&self) -> String {
        let plan = &self.0;
        format!(
            "Plan({}, {} microbatches, {} s)",
            plan.strategy.name(),
            plan.microbatches.len(),
            plan.predicted.iteration_s
        )
    }
}
