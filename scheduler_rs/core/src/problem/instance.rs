//! A problem in whole nanoseconds, laid out for the inner loops.

use std::sync::Arc;

use super::statement::Problem;
use crate::cluster::Cluster;
use crate::contention::Contention;
use crate::rules::{Constraints, MemoryRule};
use crate::time::{Rounding, Time};

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
    /// What it computes on, by the first node of the cluster on it.
    pub processor: u32,
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
    /// Number of each node's processor; its own where no processor is shared.
    processor_of: Vec<u32>,
    shares_processors: bool,
    contention: Contention,
    /// For how long a message occupies its link, as `transfer`; empty without contention.
    occupied: Arc<[Time]>,
}

impl Instance {
    /// Resolves `problem` with durations rounded this way.
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
        let transfer = transfer_table(cluster, side, cluster.activation_bytes(), rounding);
        let occupied = if cluster.contention().is_none() {
            Arc::default()
        } else {
            // Down, so that messages never occupy a link for too short a time.
            let latency = transfer_table(cluster, side, 0.0, Rounding::Down);
            transfer.iter().zip(latency).map(|(all, latency)| all - latency).collect()
        };
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
            processor_of: (0..nodes.len()).map(|node| cluster.processor_of(node) as u32).collect(),
            shares_processors: cluster.shares_processors(),
            contention: cluster.contention(),
            occupied,
        }
    }

    /// The same where messages do not disturb each other: a relaxation, in which no plan takes longer.
    #[must_use]
    pub fn without_contention(self) -> Self {
        Self { contention: Contention::None, occupied: Arc::default(), ..self }
    }

    /// Which messages take turns.
    #[inline]
    #[must_use]
    pub fn contention(&self) -> Contention {
        self.contention
    }

    /// Nanoseconds in which a message from node `i` to node `j` occupies its link; 0 without contention.
    #[inline]
    #[must_use]
    pub fn occupied(&self, i: usize, j: usize) -> Time {
        let at = self.link_index[i] as usize * self.side + self.link_index[j] as usize;
        self.occupied.get(at).copied().unwrap_or(0)
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
        if self.processor_of[i] == self.processor_of[j] {
            return 0;
        }
        self.transfer[self.link_index[i] as usize * self.side + self.link_index[j] as usize]
    }

    /// Two nodes at the same place have the same transfers from and to everybody else.
    #[must_use]
    pub fn place(&self, node: usize) -> (usize, usize) {
        let processor = if self.shares_processors { self.processor(node) } else { 0 };
        (self.link_index[node] as usize, processor)
    }

    /// What a node computes on, below [`Instance::node_count`]: nodes with the same number run one task at a time, and
    /// their transfers take no time. A node that shares with none has its own number, but where other nodes share and
    /// the allocation is being searched.
    #[inline]
    #[must_use]
    pub fn processor(&self, node: usize) -> usize {
        self.processor_of[node] as usize
    }

    /// Whether some nodes share a processor.
    #[inline]
    #[must_use]
    pub fn shares_processors(&self) -> bool {
        self.shares_processors
    }

    /// Makes `node` another machine; the stage that it serves stays.
    pub(crate) fn set_machine(&mut self, node: usize, machine: Machine) {
        let Machine { link_index, forward, backward, loss, memory, processor } = machine;
        self.link_index[node] = link_index;
        if self.shares_processors {
            self.processor_of[node] = processor;
        }
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
        self.place(a) == self.place(b) && self.memory[a] == self.memory[b] && self.classes.iter().all(alike)
    }

    /// Exchanges the machines of two nodes.
    pub(crate) fn swap_machines(&mut self, a: usize, b: usize) {
        self.link_index.swap(a, b);
        if self.shares_processors {
            self.processor_of.swap(a, b);
        }
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
/// Nanoseconds of a message of `bytes` between nodes, by their indices into the link matrices.
fn transfer_table(cluster: &Cluster, side: usize, bytes: f64, rounding: Rounding) -> Vec<Time> {
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
                table[a * side + b] = rounding.nanoseconds(cluster.link_s(*i, *j, bytes));
            }
        }
    }
    table
}
