//! `Constraints` and `Problem`.

use pyo3::prelude::*;
use skippipe_core::allocate::joint::Freedom as CoreFreedom;
use skippipe_core::bound::lower_bound_of;
use skippipe_core::budget::Budget;
use skippipe_core::error::{Result, invalid};
use skippipe_core::problem::{Problem as Core, check_absent_nodes};
use skippipe_core::rules::{Constraints as CoreConstraints, MemoryRule};
use skippipe_core::time::seconds;

use crate::cluster::{Cluster, index};
use crate::errors::OrRaise;

/// The rules that a plan keeps; each can be switched off by name.
#[pyclass(frozen, module = "skippipe._scheduler", eq)]
#[derive(Clone, PartialEq)]
pub struct Constraints(pub CoreConstraints);

#[pymethods]
impl Constraints {
    #[new]
    #[pyo3(signature = (*, cc1=true, cc2=true, cc3=true, tc1="held", tc2=true, max_swaps=1, waves=1, max_stage_jump=None))]
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
    ) -> PyResult<Self> {
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

    fn __repr__(&self) -> String {
        let rules = &self.0;
        let flag = |on: bool| if on { "True" } else { "False" };
        format!(
            "Constraints(cc1={}, cc2={}, cc3={}, tc1='{}', tc2={}, max_swaps={}, waves={}, max_stage_jump={})",
            flag(rules.cc1),
            flag(rules.cc2),
            flag(rules.cc3),
            rules.tc1.name(),
            flag(rules.tc2),
            rules.max_swaps,
            rules.waves,
            rules.max_stage_jump.map_or("None".to_owned(), |jump| jump.to_string()),
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

    /// A bound in seconds that no plan of this allocation and these rules can beat.
    fn lower_bound_s(&self) -> PyResult<f64> {
        lower_bound_of(&self.0, &Budget::new(None, None)).or_raise().map(seconds)
    }
}

/// What a search may change of a problem's allocation, beside which node serves in whose place.
///
/// `sizes`: stages may have other numbers of nodes. `unused`: nodes may serve no stage; stage 0 keeps as many as it has,
/// every other stage has at least one, and none gets more than it has unless `sizes` are free too. `layers`: so many decoder layers are shared out anew over the stages,
/// and the microbatches over the sources; times, memory and gradients of the cluster hold for an equal share of the
/// layers (0: both stay as they are). `sources`: other nodes may be sources. `max_replica_transfer_s`: no message between
/// two nodes of one stage takes longer, in seconds (None: any).
#[pyclass(frozen, module = "skippipe._scheduler", eq)]
#[derive(Clone, PartialEq)]
pub struct Freedom(pub CoreFreedom);

#[pymethods]
impl Freedom {
    #[new]
    #[pyo3(signature = (*, sizes=false, layers=0, sources=true, max_replica_transfer_s=None, unused=false))]
    fn new(
        sizes: bool,
        layers: i64,
        sources: bool,
        max_replica_transfer_s: Option<f64>,
        unused: bool,
    ) -> PyResult<Self> {
        let build = || {
            let layers = index("layers", layers)?;
            Ok(CoreFreedom { sizes, layers, unused, sources, max_replica_transfer_s })
        };
        build().or_raise().map(Self)
    }

    /// Stages may have other numbers of nodes.
    #[getter]
    fn sizes(&self) -> bool {
        self.0.sizes
    }

    /// Nodes may serve no stage.
    #[getter]
    fn unused(&self) -> bool {
        self.0.unused
    }

    /// Decoder layers to be shared out; 0: they stay.
    #[getter]
    fn layers(&self) -> usize {
        self.0.layers
    }

    /// Other nodes may be sources.
    #[getter]
    fn sources(&self) -> bool {
        self.0.sources
    }

    /// Seconds that a message within a stage takes at most; None: any.
    #[getter]
    fn max_replica_transfer_s(&self) -> Option<f64> {
        self.0.max_replica_transfer_s
    }

    fn __repr__(&self) -> String {
        let flag = |on: bool| if on { "True" } else { "False" };
        format!(
            "Freedom(sizes={}, layers={}, sources={}, max_replica_transfer_s={}, unused={})",
            flag(self.0.sizes),
            self.0.layers,
            flag(self.0.sources),
            self.0.max_replica_transfer_s.map_or("None".to_owned(), |s| s.to_string()),
            flag(self.0.unused),
        )
    }
}

fn numbers(key: &str, found: &[i64]) -> Result<Vec<usize>> {
    found.iter().enumerate().map(|(i, number)| index(&format!("{key}[{i}]"), *number)).collect()
}
