//! `Constraints` and `Problem`.

use pyo3::prelude::*;
use skippipe_core::bound::lower_bound_of;
use skippipe_core::budget::Budget;
use skippipe_core::error::{Result, invalid};
use skippipe_core::problem::{Problem as Core, check_absent_nodes};
use skippipe_core::rules::{Constraints as CoreConstraints, MemoryRule, RouteClass};
use skippipe_core::time::seconds;

use crate::cluster::{Cluster, index};
use crate::errors::OrRaise;

/// The rules that a plan keeps; each can be switched off by name. `profile` has one weight for each stage but stage 0;
/// `classes` are pairs of stages and the number of routes that visit exactly these.
#[pyclass(frozen, module = "skippipe._scheduler", eq)]
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

/// The question that a plan answers: a cluster, the nodes of each stage, the microbatches of each node of stage 0
/// (in the order of `stages[0]`), the share of stage visits left out, the rules. `absent_nodes` are those that serve no
/// stage.
#[pyclass(frozen, module = "skippipe._scheduler", eq)]
#[derive(Clone, PartialEq)]
pub struct Problem(pub Core);

#[pymethods]
impl Problem {
    #[new]
    #[pyo3(signature = (cluster, stages, microbatches, *, skip_ratio, constraints=None, absent_stages=Vec::new(), layers=Vec::new(), absent_nodes=Vec::new()))]
    #[expect(clippy::too_many_arguments, reason = "the parts of a question")]
    #[expect(clippy::needless_pass_by_value, reason = "PyO3 converts arguments by value")]
    fn new(
        cluster: &Bound<'_, Cluster>,
        stages: Vec<Vec<i64>>,
        microbatches: Vec<i64>,
        skip_ratio: f64,
        constraints: Option<&Bound<'_, Constraints>>,
        absent_stages: Vec<i64>,
        layers: Vec<i64>,
        absent_nodes: Vec<i64>,
    ) -> PyResult<Self> {
        let build = || {
            let stages = stages
                .iter()
                .enumerate()
                .map(|(s, members)| numbers(&format!("stages[{s}]"), members))
                .collect::<Result<_>>()?;
            let rules = constraints.map_or_else(CoreConstraints::default, |rules| rules.get().0.clone());
            let absent = numbers("absent_stages", &absent_stages)?;
            let counts = numbers("microbatches", &microbatches)?;
            let problem = Core::new(cluster.get().0.clone(), stages, absent, counts, skip_ratio, rules)?;
            check_absent_nodes(&problem, &numbers("absent_nodes", &absent_nodes)?)?;
            problem.with_layers(numbers("layers", &layers)?)
        };
        build().or_raise().map(Self)
    }

    /// The nodes and the links between them.
    #[getter]
    fn cluster(&self) -> Cluster {
        Cluster(self.0.cluster().clone())
    }

    /// Microbatches of each node of stage 0, in their order.
    #[getter]
    fn microbatches(&self) -> Vec<usize> {
        self.0.microbatches().to_vec()
    }

    /// Decoder layers of each stage; empty: not known.
    #[getter]
    fn layers(&self) -> Vec<usize> {
        self.0.layers().to_vec()
    }

    /// Stages that no node serves.
    #[getter]
    fn absent_stages(&self) -> Vec<usize> {
        self.0.absent_stages().to_vec()
    }

    /// Nodes that serve no stage.
    #[getter]
    fn absent_nodes(&self) -> Vec<usize> {
        self.0.absent_nodes()
    }

    /// Nodes of each stage.
    #[getter]
    fn stages(&self) -> Vec<Vec<usize>> {
        self.0.stages().to_vec()
    }

    /// The same question under other rules.
    #[pyo3(signature = (constraints, *, skip_ratio))]
    fn with_rules(&self, constraints: &Bound<'_, Constraints>, skip_ratio: f64) -> PyResult<Self> {
        self.0.with(skip_ratio, constraints.get().0.clone()).or_raise().map(Self)
    }

    /// A bound in seconds that no plan of this allocation and these rules can beat.
    fn lower_bound_s(&self) -> PyResult<f64> {
        lower_bound_of(&self.0, &Budget::new(None, None)).or_raise().map(seconds)
    }
}

/// Numbers that have to be indices or counts.
pub fn numbers(key: &str, found: &[i64]) -> Result<Vec<usize>> {
    found.iter().enumerate().map(|(i, number)| index(&format!("{key}[{i}]"), *number)).collect()
}
