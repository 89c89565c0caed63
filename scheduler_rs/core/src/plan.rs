//! A plan: the route of every microbatch and the order of every node's tasks. `skippipe.plan/1`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::cluster::{Cluster, ClusterFile};
use crate::contention::Contention;
use crate::error::{Result, invalid};
use crate::format::{check_number, counts, model, object, objects, optional_object, parse, pretty};
use crate::problem::{Instance, Problem, check_absent_nodes, check_index, check_skip_ratio, check_stages};
use crate::report::{SearchReport, report};
use crate::rules::{Constraints, Strategy};
use crate::time::Rounding;

/// Version that this module reads and writes.
pub const FORMAT: &str = "skippipe.plan/1";

/// One microbatch and its route through the pipeline.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Microbatch {
    /// Unique number.
    pub id: usize,
    /// Stage-0 node that it starts from and returns to.
    pub source: usize,
    /// Nodes in order of the forward pass.
    pub nodes: Vec<usize>,
    /// Their stages.
    pub stages: Vec<usize>,
    /// Route, shared by at most `waves` microbatches of one source.
    pub route: usize,
    /// Position among those, from 0.
    pub wave: usize,
}

/// What a task does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Kind {
    /// Forward.
    F,
    /// Head and loss.
    L,
    /// Backward.
    B,
}

impl Kind {
    /// The letter in files and messages.
    #[must_use]
    pub fn letter(self) -> char {
        match self {
            Self::F => 'F',
            Self::L => 'L',
            Self::B => 'B',
        }
    }
}

/// One task of one microbatch on one node. The order of a plan's tasks is normative per node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Task {
    /// Node that runs it.
    pub node: usize,
    /// Id of the microbatch.
    pub microbatch: usize,
    /// Forward, loss or backward.
    pub kind: Kind,
    /// Position in the route; 0 for the loss.
    pub hop: usize,
    /// Seconds from the start of the iteration.
    pub start_s: f64,
    /// Seconds from the start of the iteration.
    pub end_s: f64,
}

/// What the simulator gives for a plan, and how far from the best it can be.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Predicted {
    /// Seconds of the whole iteration.
    pub iteration_s: f64,
    /// End of the last backward, in seconds.
    pub pipeline_s: f64,
    /// All-reduce of each stage, in seconds.
    pub allreduce_s: Vec<f64>,
    /// No plan of this allocation and these rules takes less.
    pub lower_bound_s: f64,
    /// `(iteration_s - lower_bound_s) / lower_bound_s`.
    pub gap: f64,
}

impl Predicted {
    /// Relative distance of `iteration_s` from `lower_bound_s`; 0 where the bound is 0.
    #[must_use]
    pub fn gap_of(iteration_s: f64, lower_bound_s: f64) -> f64 {
        if lower_bound_s > 0.0 { (iteration_s - lower_bound_s) / lower_bound_s } else { 0.0 }
    }
}

/// What the times of a plan take for granted of the machines beside the figures of its cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Assumptions {
    /// Nodes that share a processor, as the cluster has them: sets of at least two, ascending.
    pub processors: Vec<Vec<usize>>,
    /// Which messages take turns.
    pub contention: Contention,
}

impl Assumptions {
    /// What the simulator assumes of a cluster.
    #[must_use]
    pub fn of(cluster: &Cluster) -> Self {
        let mut on: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for node in 0..cluster.nodes().len() {
            on.entry(cluster.processor_of(node)).or_default().push(node);
        }
        let processors = on.into_values().filter(|nodes| nodes.len() > 1).collect();
        Self { processors, contention: cluster.contention() }
    }

    /// The same where it is not the usual, that no node shares its processor and no message waits for another one.
    #[must_use]
    pub fn unusual(cluster: &Cluster) -> Option<Self> {
        let is_unusual = cluster.shares_processors() || !cluster.contention().is_none();
        is_unusual.then(|| Self::of(cluster))
    }
}

/// A whole plan. Reading one checks its form; whether it keeps the rules is [`crate::check`]'s to say.
///
/// The fields are those of the file, in its order; `C` is another type than [`Cluster`] only while a file is read.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, bound(deserialize = "C: Deserialize<'de>"))]
pub struct Plan<C = Cluster> {
    /// Its version.
    pub format: PlanFormat,
    /// The cluster that it was made for.
    #[serde(deserialize_with = "object")]
    pub cluster: C,
    /// The rules that it keeps.
    #[serde(deserialize_with = "object")]
    pub constraints: Constraints,
    /// Share of stage visits left out.
    pub skip_ratio: f64,
    /// How it was made.
    pub strategy: Strategy,
    /// Nodes of each stage.
    pub stages: Vec<Vec<usize>>,
    /// Decoder layers of each stage; empty: not known.
    #[serde(default)]
    pub layers: Vec<usize>,
    /// Nodes that serve no stage: the plan is faster without them.
    #[serde(default)]
    pub absent_nodes: Vec<usize>,
    /// Stages that no node serves.
    #[serde(default)]
    pub absent_stages: Vec<usize>,
    /// What model it was made for, or null.
    #[serde(default, deserialize_with = "model")]
    pub model: Value,
    /// What its times take for granted; none: that no node shares its processor, and no message waits for another one.
    #[serde(default, deserialize_with = "optional_object", skip_serializing_if = "Option::is_none")]
    pub assumptions: Option<Assumptions>,
    /// Microbatches that each source starts.
    #[serde(deserialize_with = "counts")]
    pub microbatches_per_source: BTreeMap<usize, usize>,
    /// All microbatches.
    #[serde(deserialize_with = "objects")]
    pub microbatches: Vec<Microbatch>,
    /// All tasks, those of one node in the order in which it runs them.
    #[serde(deserialize_with = "objects")]
    pub tasks: Vec<Task>,
    /// Predicted times.
    #[serde(deserialize_with = "object")]
    pub predicted: Predicted,
    /// How the search went.
    #[serde(deserialize_with = "report")]
    pub solver: SearchReport,
}

/// [`FORMAT`], which is all that a plan may state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum PlanFormat {
    /// The version that this module reads and writes.
    #[default]
    #[serde(rename = "skippipe.plan/1")]
    One,
}

impl Plan {
    /// Reads `skippipe.plan/1`: types, ranges and shapes, not the rules.
    ///
    /// # Errors
    /// [`crate::Error::Format`] or [`crate::Error::Invalid`], naming the key.
    pub fn from_json(text: &str) -> Result<Self> {
        parse::<Plan<ClusterFile>>(text, FORMAT)?.check()
    }

    /// Writes `skippipe.plan/1`.
    #[must_use]
    pub fn to_json(&self) -> String {
        pretty(&serde_json::to_value(self).unwrap_or_default())
    }

    /// The same plan for another cluster of as many nodes; its times stay, and [`crate::simulate::resimulate`] gives the
    /// new ones.
    ///
    /// # Errors
    /// Where the cluster has other nodes in number, or gradients of other stages.
    pub fn with_cluster(&self, cluster: Cluster) -> Result<Self> {
        let (found, expected) = (cluster.nodes().len(), self.cluster.nodes().len());
        if found != expected {
            return invalid("cluster.nodes", format!("a list of {found}"), format!("the {expected} nodes of the plan"));
        }
        let plan = Self { assumptions: Assumptions::unusual(&cluster), cluster, ..self.clone() };
        plan.check_shapes()?;
        Ok(plan)
    }

    /// The problem that this plan answers, as its times take it.
    ///
    /// # Errors
    /// As [`Self::problem`].
    pub fn instance(&self) -> Result<Instance> {
        Ok(Instance::new(&self.problem()?, Rounding::Up))
    }

    /// The question that this plan answers.
    ///
    /// # Errors
    /// Where allocation, counts or rules do not make a problem.
    pub fn problem(&self) -> Result<Problem> {
        let sources = self.stages.first().map_or(&[][..], Vec::as_slice);
        let counts = sources.iter().map(|n| self.microbatches_per_source.get(n).copied().unwrap_or(0)).collect();
        let problem = Problem::new(
            self.cluster.clone(),
            self.stages.clone(),
            self.absent_stages.clone(),
            counts,
            self.skip_ratio,
            self.constraints.clone(),
        )?;
        check_absent_nodes(&problem, &self.absent_nodes)?;
        problem.with_layers(self.layers.clone())
    }
}

impl Plan<ClusterFile> {
    fn check(self) -> Result<Plan> {
        let cluster = self.cluster.check("cluster.")?;
        if let Some(stated) = self.assumptions {
            let known = Assumptions::of(&cluster);
            if stated.contention != known.contention {
                return invalid(
                    "assumptions.contention",
                    stated.contention.name(),
                    format!("{}, as cluster.contention has it", known.contention.name()),
                );
            }
            if stated != known {
                return invalid(
                    "assumptions.processors",
                    format!("{:?}", stated.processors),
                    format!("{:?}, the nodes that share a processor in the cluster", known.processors),
                );
            }
        }
        let plan = Plan {
            format: self.format,
            assumptions: Assumptions::unusual(&cluster),
            cluster,
            constraints: self.constraints,
            skip_ratio: self.skip_ratio,
            strategy: self.strategy,
            stages: self.stages,
            layers: self.layers,
            absent_nodes: self.absent_nodes,
            absent_stages: self.absent_stages,
            model: self.model,
            microbatches_per_source: self.microbatches_per_source,
            microbatches: self.microbatches,
            tasks: self.tasks,
            predicted: self.predicted,
            solver: self.solver,
        };
        plan.check_shapes()?;
        plan.check_microbatches()?;
        plan.check_times()?;
        Ok(plan)
    }
}

impl Plan {
    fn check_shapes(&self) -> Result<()> {
        let (n, s_count) = (self.cluster.nodes().len(), self.stages.len());
        check_stages(&self.cluster, &self.stages, &self.absent_stages)?;
        self.constraints.check(s_count, &self.absent_stages)?;
        check_skip_ratio(self.skip_ratio, s_count)?;
        if !self.layers.is_empty() && self.layers.len() != s_count {
            return invalid(
                "layers",
                format!("a list of {}", self.layers.len()),
                format!("one count for each of the {s_count} stages, or none"),
            );
        }
        for (i, node) in self.absent_nodes.iter().enumerate() {
            check_index(|| format!("absent_nodes[{i}]"), *node, n)?;
        }
        if !(self.model.is_null() || self.model.is_object()) {
            return invalid("model", &self.model, "an object or null");
        }
        for source in self.microbatches_per_source.keys() {
            check_index(|| format!("microbatches_per_source[{source}]"), *source, n)?;
        }
        Ok(())
    }

    fn check_microbatches(&self) -> Result<()> {
        let (n, s_count) = (self.cluster.nodes().len(), self.stages.len());
        if self.microbatches.is_empty() {
            return invalid("microbatches", "an empty list", "at least one microbatch");
        }
        for (i, microbatch) in self.microbatches.iter().enumerate() {
            if microbatch.nodes.is_empty() {
                return invalid(format!("microbatches[{i}].nodes"), "an empty list", "a route of at least one node");
            }
            check_index(|| format!("microbatches[{i}].source"), microbatch.source, n)?;
            for (hop, node) in microbatch.nodes.iter().enumerate() {
                check_index(|| format!("microbatches[{i}].nodes[{hop}]"), *node, n)?;
            }
            for (hop, stage) in microbatch.stages.iter().enumerate() {
                check_index(|| format!("microbatches[{i}].stages[{hop}]"), *stage, s_count)?;
            }
        }
        let ids: rustc_hash::FxHashSet<usize> = self.microbatches.iter().map(|b| b.id).collect();
        for (i, task) in self.tasks.iter().enumerate() {
            check_index(|| format!("tasks[{i}].node"), task.node, n)?;
            if !ids.contains(&task.microbatch) {
                return invalid(
                    format!("tasks[{i}].microbatch"),
                    task.microbatch,
                    "the id of a microbatch of this plan",
                );
            }
        }
        Ok(())
    }

    fn check_times(&self) -> Result<()> {
        for (i, task) in self.tasks.iter().enumerate() {
            check_number(|| format!("tasks[{i}].start_s"), task.start_s, 0.0)?;
            check_number(|| format!("tasks[{i}].end_s"), task.end_s, 0.0)?;
        }
        let said = &self.predicted;
        for (key, value) in [
            ("iteration_s", said.iteration_s),
            ("pipeline_s", said.pipeline_s),
            ("lower_bound_s", said.lower_bound_s),
            ("gap", said.gap),
        ] {
            check_number(|| format!("predicted.{key}"), value, 0.0)?;
        }
        if said.allreduce_s.len() != self.stages.len() {
            return invalid(
                "predicted.allreduce_s",
                format!("a list of {}", said.allreduce_s.len()),
                format!("one time for each of the {} stages", self.stages.len()),
            );
        }
        for (s, time) in said.allreduce_s.iter().enumerate() {
            check_number(|| format!("predicted.allreduce_s[{s}]"), *time, 0.0)?;
        }
        Ok(())
    }
}
