//! The question: which plan for this cluster, allocation and rules; and the same in whole nanoseconds.

use std::sync::Arc;

use crate::cluster::Cluster;
use crate::error::{Error, Result, invalid};
use crate::plan::{check_skip_ratio, check_stages};
use crate::rules::{Constraints, MemoryRule};
use crate::time::{LONGEST_S, NEVER, Rounding, Time};

/// A question that a plan answers; always consistent.
#[derive(Clone, Debug, PartialEq)]
pub struct Problem {
    cluster: Cluster,
    stages: Vec<Vec<usize>>,
    absent_stages: Vec<usize>,
    microbatches: Vec<usize>,
    skip_ratio: f64,
    constraints: Constraints,
    layers: Vec<usize>,
}

impl Problem {
    /// `stages` are the nodes of each stage; `microbatches` are for the nodes of stage 0 in that order;
    /// `absent_stages` are served by nobody and visited by no route. Nodes of no stage are absent: they run nothing and
    /// take no part in an all-reduce; [`check_absent_nodes`] holds them against those that are meant to be.
    ///
    /// # Errors
    /// [`Error::Invalid`] naming the key that does not fit.
    pub fn new(
        cluster: Cluster,
        stages: Vec<Vec<usize>>,
        absent_stages: Vec<usize>,
        microbatches: Vec<usize>,
        skip_ratio: f64,
        constraints: Constraints,
    ) -> Result<Self> {
        constraints.check()?;
        check_stages(&cluster, &stages, &absent_stages)?;
        check_members(&cluster, &stages, &absent_stages)?;
        check_skip_ratio(skip_ratio, stages.len())?;
        let present = stages.len() - absent_stages.len();
        if skip_ratio > (present as f64 - 1.0) / present as f64 + 1e-9 {
            return invalid(
                "skip_ratio",
                skip_ratio,
                format!("a ratio that leaves every route a stage: {present} stages are present"),
            );
        }
        if microbatches.len() != stages[0].len() {
            return invalid(
                "microbatches",
                format!("a list of {}", microbatches.len()),
                format!("one count for each of the {} nodes of stage 0", stages[0].len()),
            );
        }
        let total = microbatches.iter().copied().fold(0, usize::saturating_add);
        if total == 0 || total > MOST_MICROBATCHES {
            return invalid(
                "microbatches",
                format!("{total} in all"),
                format!("1 to {MOST_MICROBATCHES} microbatches in all"),
            );
        }
        let problem =
            Self { cluster, stages, absent_stages, microbatches, skip_ratio, constraints, layers: Vec::new() };
        problem.check_horizon(total)?;
        Ok(problem)
    }

    /// The same question with other rules or another ratio.
    ///
    /// # Errors
    /// As [`Problem::new`].
    pub fn with(&self, skip_ratio: f64, constraints: Constraints) -> Result<Self> {
        Self::new(
            self.cluster.clone(),
            self.stages.clone(),
            self.absent_stages.clone(),
            self.microbatches.clone(),
            skip_ratio,
            constraints,
        )?
        .with_layers(self.layers.clone())
    }

    /// The same question for other nodes in the stages.
    ///
    /// # Errors
    /// As [`Problem::new`].
    pub(crate) fn reallocated(&self, stages: Vec<Vec<usize>>) -> Result<Self> {
        Self::new(
            self.cluster.clone(),
            stages,
            self.absent_stages.clone(),
            self.microbatches.clone(),
            self.skip_ratio,
            self.constraints.clone(),
        )?
        .with_layers(self.layers.clone())
    }

    /// The same question with the decoder layers of each stage known.
    ///
    /// # Errors
    /// Where there is not one count for each stage (or none at all).
    pub fn with_layers(self, layers: Vec<usize>) -> Result<Self> {
        if !layers.is_empty() && layers.len() != self.stages.len() {
            return invalid(
                "layers",
                format!("a list of {}", layers.len()),
                format!("one count for each of the {} stages, or none", self.stages.len()),
            );
        }
        Ok(Self { layers, ..self })
    }

    /// The same question on a cluster of the same nodes and links, none of them slower.
    pub(crate) fn on_faster(&self, cluster: Cluster) -> Self {
        Self { cluster, ..self.clone() }
    }

    /// Decoder layers of each stage; empty: not known.
    #[must_use]
    pub fn layers(&self) -> &[usize] {
        &self.layers
    }

    /// The cluster.
    #[must_use]
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// Nodes of each stage.
    #[must_use]
    pub fn stages(&self) -> &[Vec<usize>] {
        &self.stages
    }

    /// Stages that no node serves.
    #[must_use]
    pub fn absent_stages(&self) -> &[usize] {
        &self.absent_stages
    }

    /// Nodes that serve no stage, in ascending order.
    #[must_use]
    pub fn absent_nodes(&self) -> Vec<usize> {
        let mut serves = vec![false; self.cluster.nodes().len()];
        self.stages.iter().flatten().for_each(|node| serves[*node] = true);
        (0..serves.len()).filter(|node| !serves[*node]).collect()
    }

    /// Microbatches of an iteration, of all sources together.
    #[must_use]
    pub fn microbatch_count(&self) -> usize {
        self.microbatches.iter().sum()
    }

    /// Microbatches of each node of stage 0, in their order.
    #[must_use]
    pub fn microbatches(&self) -> &[usize] {
        &self.microbatches
    }

    /// Share of stage visits left out.
    #[must_use]
    pub fn skip_ratio(&self) -> f64 {
        self.skip_ratio
    }

    /// The rules.
    #[must_use]
    pub fn constraints(&self) -> &Constraints {
        &self.constraints
    }

    /// A plan that runs everything one after another takes less than this; it must fit the clock.
    fn check_horizon(&self, total: usize) -> Result<()> {
        let nodes = self.cluster.nodes();
        let slowest = nodes.iter().map(|n| n.forward_s + n.backward_s + n.loss_s).fold(0.0, f64::max);
        let all: Vec<usize> = (0..nodes.len()).collect();
        let longest = self.cluster.slowest_s(&all).unwrap_or(0.0);
        let reduce = self.stages.iter().enumerate().map(|(s, m)| self.cluster.allreduce_s(s, m)).fold(0.0, f64::max);
        let serial = total as f64 * self.stages.len() as f64 * (slowest + 4.0 * longest) + reduce;
        let most = NEVER as f64 / 8e9;
        if serial < most && longest <= LONGEST_S {
            return Ok(());
        }
        invalid(
            "cluster",
            format!("so slow that the iteration could take {serial:e} s"),
            format!("less than {most:e} s"),
        )
    }
}

/// The most microbatches of one iteration; far above what the search can use.
pub const MOST_MICROBATCHES: usize = 20_000;

fn check_members(cluster: &Cluster, stages: &[Vec<usize>], absent: &[usize]) -> Result<()> {
    let n = cluster.nodes().len();
    let mut serves = vec![None; n];
    for (s, members) in stages.iter().enumerate() {
        if members.is_empty() != absent.contains(&s) {
            let expected = if members.is_empty() {
                "at least one node, or the stage in absent_stages"
            } else {
                "no node, since absent_stages names the stage"
            };
            return invalid(format!("stages[{s}]"), format!("{members:?}"), expected);
        }
        for (i, node) in members.iter().enumerate() {
            if let Some(other) = serves[*node].replace(s) {
                return invalid(
                    format!("stages[{s}][{i}]"),
                    node,
                    format!("a node that serves no other stage (stage {other} has it)"),
                );
            }
        }
    }
    Ok(())
}

/// Whether `absent_nodes` are the nodes that serve no stage of `problem`, each once. Where a stage was lost, those that
/// served it need not be named.
///
/// # Errors
/// [`Error::Invalid`] naming the key.
pub fn check_absent_nodes(problem: &Problem, absent_nodes: &[usize]) -> Result<()> {
    let names = |node: usize| format!("{node} ({:?})", problem.cluster.nodes()[node].name);
    let unserving = problem.absent_nodes();
    for (i, node) in absent_nodes.iter().enumerate() {
        if absent_nodes[..i].contains(node) || !unserving.contains(node) {
            return invalid(format!("absent_nodes[{i}]"), node, "a node that serves no stage, named once");
        }
    }
    match unserving.into_iter().find(|node| !absent_nodes.contains(node)) {
        Some(node) if problem.absent_stages.is_empty() => {
            invalid("stages", format!("without node {}", names(node)), "every node in exactly one stage")
        }
        _ => Ok(()),
    }
}

/// A stage-0 node and what it starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Source {
    /// Node number.
    pub node: usize,
    /// Microbatches per iteration.
    pub microbatches: usize,
    /// Their class: an index into [`Instance::classes`].
    pub class: usize,
}

/// What each microbatch of a class asks of every node. Problems have one class; microbatches of other sizes, or jobs with
/// a route of their own, are classes of their own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MicrobatchClass {
    /// Forward on each node.
    pub forward: Vec<Time>,
    /// Backward on each node.
    pub backward: Vec<Time>,
    /// Head and loss on each node.
    pub loss: Vec<Time>,
    /// The nodes of its route in order, where they are not to be chosen.
    pub forced: Option<Vec<u32>>,
}

/// What a node brings to the stage that it serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Machine {
    /// Index into the link matrices.
    pub link_index: u32,
    /// Forward, backward, head and loss of a microbatch.
    pub forward: Time,
    pub backward: Time,
    pub loss: Time,
    /// Microbatches that it can hold.
    pub memory: u32,
}

/// Not a stage: the node is idle.
pub const NO_STAGE: usize = usize::MAX;

/// A problem in whole nanoseconds, laid out for the inner loops.
#[derive(Clone, Debug)]
pub struct Instance {
    /// Stage of each node, [`NO_STAGE`] where it serves none.
    pub stage_of: Vec<usize>,
    /// Nodes of each stage.
    pub members: Vec<Vec<usize>>,
    /// Stages that some node serves, ascending.
    pub present: Vec<usize>,
    /// Classes of microbatches, at least one.
    pub classes: Vec<MicrobatchClass>,
    /// Microbatches that each node can hold.
    pub memory: Vec<u32>,
    /// All-reduce of each stage.
    pub allreduce: Vec<Time>,
    /// What follows once after everything: norm and the slowest optimizer step.
    pub epilogue: Time,
    /// Sources with at least one microbatch.
    pub sources: Vec<Source>,
    /// The rules.
    pub rules: Constraints,
    /// Share of stage visits left out.
    pub skip_ratio: f64,
    link_index: Vec<u32>,
    side: usize,
    /// Shared by all copies: it is the greatest part.
    transfer: Arc<[Time]>,
}

impl Instance {
    /// Resolves `problem` with durations rounded as told.
    #[must_use]
    pub fn new(problem: &Problem, rounding: Rounding) -> Self {
        let cluster = problem.cluster();
        let nodes = cluster.nodes();
        let time = |s: f64| rounding.nanoseconds(s);
        let mut stage_of = vec![NO_STAGE; nodes.len()];
        for (s, members) in problem.stages().iter().enumerate() {
            for node in members {
                stage_of[*node] = s;
            }
        }
        let side = cluster.links().side();
        let link_index: Vec<u32> = (0..nodes.len()).map(|i| cluster.link_index(i) as u32).collect();
        let transfer = transfer_table(cluster, side, rounding);
        let sources = problem.stages()[0]
            .iter()
            .zip(problem.microbatches())
            .filter(|(_, count)| **count > 0)
            .map(|(node, count)| Source { node: *node, microbatches: *count, class: 0 })
            .collect();
        let step = cluster.step_s().iter().map(|s| time(*s)).max().unwrap_or(0);
        Self {
            present: (0..problem.stages().len()).filter(|s| !problem.stages()[*s].is_empty()).collect(),
            members: problem.stages().to_vec(),
            classes: vec![MicrobatchClass {
                forward: nodes.iter().map(|n| time(n.forward_s)).collect(),
                backward: nodes.iter().map(|n| time(n.backward_s)).collect(),
                loss: nodes.iter().map(|n| time(n.loss_s)).collect(),
                forced: None,
            }],
            memory: nodes.iter().map(|n| n.memory).collect(),
            allreduce: problem.stages().iter().enumerate().map(|(s, m)| time(cluster.allreduce_s(s, m))).collect(),
            epilogue: time(cluster.norm_s()) + step,
            sources,
            rules: problem.constraints().clone(),
            skip_ratio: problem.skip_ratio(),
            stage_of,
            link_index,
            side,
            transfer: transfer.into(),
        }
    }

    /// Nanoseconds of a forward of one microbatch of `class` on `node`.
    #[inline]
    #[must_use]
    pub fn forward(&self, class: usize, node: usize) -> Time {
        self.classes[class].forward[node]
    }

    /// Nanoseconds of its backward.
    #[inline]
    #[must_use]
    pub fn backward(&self, class: usize, node: usize) -> Time {
        self.classes[class].backward[node]
    }

    /// Nanoseconds of its head and loss.
    #[inline]
    #[must_use]
    pub fn loss(&self, class: usize, node: usize) -> Time {
        self.classes[class].loss[node]
    }

    /// The least forward and backward, one after the other, of any class on `node`.
    #[must_use]
    pub fn least_work(&self, node: usize) -> Time {
        self.classes.iter().map(|class| class.forward[node] + class.backward[node]).min().unwrap_or(0)
    }

    /// The least head and loss of any class on `node`.
    #[must_use]
    pub fn least_loss(&self, node: usize) -> Time {
        self.classes.iter().map(|class| class.loss[node]).min().unwrap_or(0)
    }

    /// Nanoseconds of one message from node `i` to node `j`.
    #[inline]
    #[must_use]
    pub fn transfer(&self, i: usize, j: usize) -> Time {
        if i == j { 0 } else { self.transfer[self.link_index[i] as usize * self.side + self.link_index[j] as usize] }
    }

    /// Two nodes with the same link index have the same links to everybody else.
    #[must_use]
    pub fn link_index(&self, node: usize) -> usize {
        self.link_index[node] as usize
    }

    /// Makes `node` another machine; the stage that it serves stays.
    pub(crate) fn set_machine(&mut self, node: usize, machine: Machine) {
        let Machine { link_index, forward, backward, loss, memory } = machine;
        self.link_index[node] = link_index;
        self.memory[node] = memory;
        for class in &mut self.classes {
            (class.forward[node], class.backward[node], class.loss[node]) = (forward, backward, loss);
        }
    }

    /// Whether nothing changes where two nodes exchange their machines.
    pub(crate) fn is_alike(&self, a: usize, b: usize) -> bool {
        let alike = |class: &MicrobatchClass| {
            class.forward[a] == class.forward[b]
                && class.backward[a] == class.backward[b]
                && class.loss[a] == class.loss[b]
        };
        self.link_index(a) == self.link_index(b) && self.memory[a] == self.memory[b] && self.classes.iter().all(alike)
    }

    /// Exchanges the machines of two nodes.
    pub(crate) fn swap_machines(&mut self, a: usize, b: usize) {
        self.link_index.swap(a, b);
        self.memory.swap(a, b);
        for class in &mut self.classes {
            class.forward.swap(a, b);
            class.backward.swap(a, b);
            class.loss.swap(a, b);
        }
    }

    /// Routes that a stage can take under TC1 `routes`; without that rule no limit.
    pub(crate) fn route_capacity(&self, stage: usize) -> usize {
        if self.rules.tc1 != MemoryRule::Routes {
            return usize::MAX;
        }
        self.members[stage].iter().map(|node| self.memory[*node] as usize).sum()
    }

    /// Number of nodes.
    #[must_use]
    pub fn node_count(&self) -> usize {
        self.stage_of.len()
    }

    /// Number of stages, absent ones too.
    #[must_use]
    pub fn stage_count(&self) -> usize {
        self.members.len()
    }

    /// Whether memory gates a forward at run time.
    #[must_use]
    pub fn memory_is_held(&self) -> bool {
        self.rules.tc1 == MemoryRule::Held
    }
}

/// Over link indices; a node's link to itself is never asked for, so its entry may be anything.
fn transfer_table(cluster: &Cluster, side: usize, rounding: Rounding) -> Vec<Time> {
    let mut representative = vec![Vec::with_capacity(2); side];
    for i in 0..cluster.nodes().len() {
        let nodes = &mut representative[cluster.link_index(i)];
        if nodes.len() < 2 {
            nodes.push(i);
        }
    }
    let mut table = vec![0; side * side];
    for a in 0..side {
        for b in 0..side {
            let pair = if a == b {
                (representative[a].first(), representative[a].get(1))
            } else {
                (representative[a].first(), representative[b].first())
            };
            if let (Some(i), Some(j)) = pair {
                table[a * side + b] = rounding.nanoseconds(cluster.transfer_s(*i, *j, cluster.activation_bytes()));
            }
        }
    }
    table
}

/// [`Error::Impossible`] with the figures.
pub(crate) fn impossible<T>(rule: &'static str, reason: String) -> Result<T> {
    Err(Error::Impossible { rule, reason })
}
