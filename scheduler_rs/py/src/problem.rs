//! `Constraints` and `Problem`.

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use skippipe_core::allocate::Request;
use skippipe_core::bound::lower_bound_of;
use skippipe_core::budget::Budget;
use skippipe_core::error::{Result, invalid};
use skippipe_core::problem::{Problem as Core, check_absent_nodes};
use skippipe_core::request::{FirstAllocation, UnallocatedProblem};
use skippipe_core::rules::{Constraints as CoreConstraints, MemoryRule, RouteClass};
use skippipe_core::time::seconds;

use crate::cluster::{Cluster, index};
use crate::errors::OrRaise;

/// The rules that a plan keeps; each can be switched off by name. `profile` has one weight for each stage but stage 0;
/// `classes` are pairs of stages and the number of routes that visit exactly these.
#[pyclass(frozen, module = "skippipe", eq)]
#[derive(Clone, PartialEq)]
pub struct Constraints(pub CoreConstraints);

#[pymethods]
impl Constraints {
    #[new]
    #[pyo3(signature = (*, cc1=true, cc2=true, cc3=true, tc1="held", tc2=true, max_swaps=1, waves=1, max_stage_jump=None, profile=None, classes=None))]
    #[expect(clippy::too_many_arguments, reason = "one rule each")]
    fn new(
        cc1: bool,
        cc2: bool,
        cc3: bool,
        tc1: &str,
        tc2: bool,
        max_swaps: i64,
        waves: i64,
        max_stage_jump: Option<i64>,
        profile: Option<Vec<f64>>,
        classes: Option<Vec<(Vec<i64>, i64)>>,
    ) -> PyResult<Self> {
        let class = |(i, (stages, routes)): (usize, (Vec<i64>, i64))| {
            let key = format!("constraints.classes[{i}]");
            Ok(RouteClass {
                stages: numbers(&format!("{key}.stages"), &stages)?,
                routes: index(&format!("{key}.routes"), routes)?,
            })
        };
        let build = || {
            Ok(CoreConstraints {
                cc1,
                cc2,
                cc3,
                tc1: MemoryRule::from_name(tc1)?,
                tc2,
                max_swaps: count("max_swaps", max_swaps, 0)?,
                waves: count("waves", waves, 1)?,
                max_stage_jump: max_stage_jump.map(|jump| count("max_stage_jump", jump, 1)).transpose()?,
                profile,
                classes: classes
                    .map(|classes| classes.into_iter().enumerate().map(class).collect::<Result<_>>())
                    .transpose()?,
            })
        };
        build().or_raise().map(Self)
    }

    /// The rule set of the published figures: waves 2, TC1 `routes`, at most 2 swaps, jumps of at most 4 stages.
    #[staticmethod]
    fn reference() -> Self {
        Self(CoreConstraints::reference())
    }

    /// Stage 0 is never skipped and comes first.
    #[getter]
    fn cc1(&self) -> bool {
        self.0.cc1
    }

    /// Stages in increasing order but for at most `max_swaps` swaps of neighbours.
    #[getter]
    fn cc2(&self) -> bool {
        self.0.cc2
    }

    /// Stages 1.. lie on equally many routes.
    #[getter]
    fn cc3(&self) -> bool {
        self.0.cc3
    }

    /// Node memory: "held", "routes" or "off".
    #[getter]
    fn tc1(&self) -> &'static str {
        self.0.tc1.name()
    }

    /// Routes and order know that a node runs one task at a time.
    #[getter]
    fn tc2(&self) -> bool {
        self.0.tc2
    }

    /// For CC2.
    #[getter]
    fn max_swaps(&self) -> u32 {
        self.0.max_swaps
    }

    /// Microbatches that share a route, one after the other.
    #[getter]
    fn waves(&self) -> u32 {
        self.0.waves
    }

    /// The most by which a step may pass the furthest stage so far; None: any.
    #[getter]
    fn max_stage_jump(&self) -> Option<u32> {
        self.0.max_stage_jump
    }

    /// Weights of the stages but stage 0, by which the visits are shared out; None: evenly.
    #[getter]
    fn profile(&self) -> Option<Vec<f64>> {
        self.0.profile.clone()
    }

    /// Stages and number of routes of each class of routes; None: no classes.
    #[getter]
    fn classes(&self) -> Option<Vec<(Vec<usize>, usize)>> {
        let pair = |class: &RouteClass| (class.stages.clone(), class.routes);
        self.0.classes.as_ref().map(|classes| classes.iter().map(pair).collect())
    }

    #[pyo3(signature = () -> "tuple[tuple[()], dict[str, object]]")]
    fn __getnewargs_ex__<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyTuple>, Bound<'py, PyDict>)> {
        let rules = PyDict::new(py);
        rules.set_item("cc1", self.cc1())?;
        rules.set_item("cc2", self.cc2())?;
        rules.set_item("cc3", self.cc3())?;
        rules.set_item("tc1", self.tc1())?;
        rules.set_item("tc2", self.tc2())?;
        rules.set_item("max_swaps", self.max_swaps())?;
        rules.set_item("waves", self.waves())?;
        rules.set_item("max_stage_jump", self.max_stage_jump())?;
        rules.set_item("profile", self.profile())?;
        rules.set_item("classes", self.classes())?;
        Ok((PyTuple::empty(py), rules))
    }

    fn __repr__(&self) -> String {
        let rules = &self.0;
        let flag = |on: bool| if on { "True" } else { "False" };
        format!(
            "Constraints(cc1={}, cc2={}, cc3={}, tc1='{}', tc2={}, max_swaps={}, waves={}, max_stage_jump={}, \
             profile={}, classes={})",
            flag(rules.cc1),
            flag(rules.cc2),
            flag(rules.cc3),
            rules.tc1.name(),
            flag(rules.tc2),
            rules.max_swaps,
            rules.waves,
            rules.max_stage_jump.map_or("None".to_owned(), |jump| jump.to_string()),
            rules.profile.as_ref().map_or("None".to_owned(), |weights| format!("{weights:?}")),
            self.classes().map_or("None".to_owned(), |classes| format!("{classes:?}")),
        )
    }
}

fn count(key: &str, found: i64, least: u32) -> Result<u32> {
    match u32::try_from(found) {
        Ok(number) if number >= least => Ok(number),
        _ => invalid(format!("constraints.{key}"), found, format!("an integer of at least {least}")),
    }
}

/// Microbatches of each source, or one number for all.
#[derive(FromPyObject)]
enum Counts {
    Each(i64),
    List(Vec<i64>),
}

/// The question that a plan answers: how one training iteration runs on a cluster; always consistent.
///
/// Give either `stages`, the nodes of each stage by number, or `sizes`, how many nodes each stage has: then `skippipe.plan`
/// decides which ones. Stage 0 comes first; its nodes are the sources.
///
/// Args:
///     cluster: the nodes and the links between them.
///     stages: nodes of each stage; None where `sizes` is given.
///     microbatches: microbatches that each source starts per iteration: one number, or one for each source, in the order
///         of `stages[0]` or `sources`. Default: 6.
///     sizes: number of nodes of each stage; they add up to the nodes of the cluster.
///     sources: with `sizes`, the nodes of stage 0; None: any.
///     max_replica_transfer_s: with `sizes`, no message between two nodes of a stage takes longer, in seconds; None: any.
///     skip_ratio: share of all stage visits left out, stage 0 counted: from 0 to (stages - 1) / stages.
///     constraints: the rules to keep; None: all of them, as `Constraints()` has them.
///     layers: decoder layers of each stage; empty: not known.
///     absent_stages: stages without nodes, which no route visits.
///     absent_nodes: with `stages`, the nodes that serve no stage.
///
/// Raises:
///     skippipe.errors.InputError: a value that cannot be used; the message names the key.
///
/// Example:
///     >>> import numpy as np
///     >>> import skippipe
///     >>> cluster = skippipe.Cluster(
///     ...     ["a", "b", "c", "d"], np.full(4, 0.1), np.full(4, 0.2), np.full(4, 0.05), [4] * 4,
///     ...     transfer_s=np.full((4, 4), 0.01),
///     ... )
///     >>> problem = skippipe.Problem(cluster, sizes=[2, 1, 1], microbatches=4)
///     >>> problem
///     Problem(4 nodes, sizes=[2, 1, 1], microbatches=[4, 4], skip_ratio=0.3333333333333333)
///     >>> problem.with_rules(problem.constraints, skip_ratio=0.0).skip_ratio
///     0.0
#[pyclass(frozen, module = "skippipe", eq)]
#[derive(Clone, PartialEq)]
pub struct Problem(pub FirstAllocation);

#[pymethods]
impl Problem {
    #[new]
    #[pyo3(signature = (cluster, stages=None, microbatches=Counts::Each(6), *, sizes=None, sources=None, max_replica_transfer_s=None, skip_ratio=0.3333333333333333, constraints=None, layers=Vec::new(), absent_stages=Vec::new(), absent_nodes=Vec::new()), text_signature = "(cluster, stages=None, microbatches=6, *, sizes=None, sources=None, max_replica_transfer_s=None, skip_ratio=0.3333333333333333, constraints=None, layers=(), absent_stages=(), absent_nodes=())")]
    #[expect(clippy::too_many_arguments, reason = "the parts of a question")]
    #[expect(clippy::needless_pass_by_value, reason = "PyO3 converts arguments by value")]
    fn new(
        cluster: &Bound<'_, Cluster>,
        stages: Option<Vec<Vec<i64>>>,
        microbatches: Counts,
        sizes: Option<Vec<i64>>,
        sources: Option<Vec<i64>>,
        max_replica_transfer_s: Option<f64>,
        skip_ratio: f64,
        constraints: Option<&Bound<'_, Constraints>>,
        layers: Vec<i64>,
        absent_stages: Vec<i64>,
        absent_nodes: Vec<i64>,
    ) -> PyResult<Self> {
        let cluster = cluster.get().0.clone();
        let rules = constraints.map_or_else(CoreConstraints::default, |rules| rules.get().0.clone());
        let build = || {
            let layers = numbers("layers", &layers)?;
            let absent_stages = numbers("absent_stages", &absent_stages)?;
            let absent_nodes = numbers("absent_nodes", &absent_nodes)?;
            match (stages, sizes) {
                (Some(stages), None) => {
                    let only_with_sizes = sources.map(|found| ("sources", format!("{found:?}")));
                    let found = max_replica_transfer_s.map(|found| ("max_replica_transfer_s", found.to_string()));
                    if let Some((key, found)) = only_with_sizes.or(found) {
                        return invalid(key, found, "none, as stages is given");
                    }
                    let member = |(s, members): (usize, &Vec<i64>)| numbers(&format!("stages[{s}]"), members);
                    let stages: Vec<Vec<usize>> = stages.iter().enumerate().map(member).collect::<Result<_>>()?;
                    let counts = counts(microbatches, stages.first().map_or(0, Vec::len))?;
                    let problem = Core::new(cluster, stages, absent_stages, counts, skip_ratio, rules)?;
                    check_absent_nodes(&problem, &absent_nodes)?;
                    Ok(FirstAllocation::Given(problem.with_layers(layers)?))
                }
                (None, Some(sizes)) => {
                    for (key, found) in [("absent_stages", &absent_stages), ("absent_nodes", &absent_nodes)] {
                        if !found.is_empty() {
                            return invalid(key, format!("{found:?}"), "none, as sizes is given");
                        }
                    }
                    let sizes = numbers("sizes", &sizes)?;
                    let counts = counts(microbatches, sizes.first().copied().unwrap_or(0))?;
                    let sources = sources.map(|sources| numbers("sources", &sources)).transpose()?;
                    let request = Request { sizes, sources, max_replica_transfer_s };
                    UnallocatedProblem::new(cluster, request, counts, skip_ratio, rules, layers)
                        .map(FirstAllocation::Surrogate)
                }
                (Some(_), Some(sizes)) => invalid("sizes", format!("{sizes:?}"), "none, as stages is given"),
                (None, None) => invalid("stages", "none", "the nodes of each stage, or sizes"),
            }
        };
        build().or_raise().map(Self)
    }

    /// The nodes and the links between them.
    #[getter]
    fn cluster(&self) -> Cluster {
        Cluster(self.0.problem().cluster().clone())
    }

    /// Nodes of each stage; empty where they are still to be chosen.
    #[getter]
    fn stages(&self) -> Vec<Vec<usize>> {
        match &self.0 {
            FirstAllocation::Given(problem) => problem.stages().to_vec(),
            FirstAllocation::Surrogate(_) => Vec::new(),
        }
    }

    /// Number of nodes of each stage.
    #[getter]
    fn sizes(&self) -> Vec<usize> {
        self.0.problem().stages().iter().map(Vec::len).collect()
    }

    /// Nodes of stage 0; None where they are still to be chosen.
    #[getter]
    fn sources(&self) -> Option<Vec<usize>> {
        match &self.0 {
            FirstAllocation::Given(problem) => problem.stages().first().cloned(),
            FirstAllocation::Surrogate(open) => open.request().sources.clone(),
        }
    }

    /// The most seconds of a message within a stage, where the nodes are still to be chosen; None: any.
    #[getter]
    fn max_replica_transfer_s(&self) -> Option<f64> {
        match &self.0 {
            FirstAllocation::Given(_) => None,
            FirstAllocation::Surrogate(open) => open.request().max_replica_transfer_s,
        }
    }

    /// Microbatches of each node of stage 0, in their order.
    #[getter]
    fn microbatches(&self) -> Vec<usize> {
        self.0.problem().microbatches().to_vec()
    }

    /// Share of stage visits left out.
    #[getter]
    fn skip_ratio(&self) -> f64 {
        self.0.problem().skip_ratio()
    }

    /// The rules to keep.
    #[getter]
    fn constraints(&self) -> Constraints {
        Constraints(self.0.problem().constraints().clone())
    }

    /// Decoder layers of each stage; empty: not known.
    #[getter]
    fn layers(&self) -> Vec<usize> {
        self.0.problem().layers().to_vec()
    }

    /// Stages that no node serves.
    #[getter]
    fn absent_stages(&self) -> Vec<usize> {
        self.0.problem().absent_stages().to_vec()
    }

    /// Nodes that serve no stage.
    #[getter]
    fn absent_nodes(&self) -> Vec<usize> {
        match &self.0 {
            FirstAllocation::Given(problem) => problem.absent_nodes(),
            FirstAllocation::Surrogate(_) => Vec::new(),
        }
    }

    /// The same question under other rules.
    #[pyo3(signature = (constraints, *, skip_ratio))]
    fn with_rules(&self, constraints: &Bound<'_, Constraints>, skip_ratio: f64) -> PyResult<Self> {
        self.0.with(skip_ratio, constraints.get().0.clone()).or_raise().map(Self)
    }

    /// A bound in seconds that no plan of this allocation and these rules can beat. Raises InputError where the nodes are
    /// still to be chosen.
    fn lower_bound_s(&self) -> PyResult<f64> {
        let FirstAllocation::Given(problem) = &self.0 else {
            return invalid("stages", "none", "the nodes of each stage").or_raise();
        };
        lower_bound_of(problem, &Budget::new(None, None)).or_raise().map(seconds)
    }

    fn __repr__(&self) -> String {
        let problem = self.0.problem();
        let allocation = match &self.0 {
            FirstAllocation::Given(_) => format!("stages={:?}", self.stages()),
            FirstAllocation::Surrogate(_) => format!("sizes={:?}", self.sizes()),
        };
        format!(
            "Problem({} nodes, {allocation}, microbatches={:?}, skip_ratio={})",
            problem.cluster().nodes().len(),
            self.microbatches(),
            problem.skip_ratio()
        )
    }

    #[pyo3(signature = () -> "tuple[tuple[Cluster], dict[str, object]]")]
    fn __getnewargs_ex__<'py>(&self, py: Python<'py>) -> PyResult<((Cluster,), Bound<'py, PyDict>)> {
        let arguments = PyDict::new(py);
        match &self.0 {
            FirstAllocation::Given(_) => {
                arguments.set_item("stages", self.stages())?;
                arguments.set_item("absent_stages", self.absent_stages())?;
                arguments.set_item("absent_nodes", self.absent_nodes())?;
            }
            FirstAllocation::Surrogate(_) => {
                arguments.set_item("sizes", self.sizes())?;
                arguments.set_item("sources", self.sources())?;
                arguments.set_item("max_replica_transfer_s", self.max_replica_transfer_s())?;
            }
        }
        arguments.set_item("microbatches", self.microbatches())?;
        arguments.set_item("skip_ratio", self.skip_ratio())?;
        arguments.set_item("constraints", self.constraints())?;
        arguments.set_item("layers", self.layers())?;
        Ok(((self.cluster(),), arguments))
    }
}

fn counts(microbatches: Counts, sources: usize) -> Result<Vec<usize>> {
    match microbatches {
        Counts::Each(count) => Ok(vec![index("microbatches", count)?; sources]),
        Counts::List(counts) => numbers("microbatches", &counts),
    }
}

/// Numbers that have to be indices or counts.
pub fn numbers(key: &str, found: &[i64]) -> Result<Vec<usize>> {
    found.iter().enumerate().map(|(i, number)| index(&format!("{key}[{i}]"), *number)).collect()
}
