//! Which node of the cluster stands at which position of an instance, and what of that a search may change.
//!
//! Routes and orders are made over the positions of a [`Problem`]'s nodes. Another allocation is the same instance with
//! other nodes at its positions: routes stay what they are, only their times change.

use std::sync::Arc;

use crate::error::{Result, invalid};
use crate::problem::{Instance, Machine, NO_STAGE, Problem};
use crate::route::RouteTask;
use crate::time::Rounding;

/// What a search may change of a problem's allocation, beside which node stands at which position.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AllocationScope {
    /// So many decoder layers are distributed over the stages, and the microbatches over the sources; 0: both stay.
    /// Times, memory and gradients of the cluster hold for an equal share of the layers.
    pub layers: usize,
    /// Nodes may serve no stage: stage 0 keeps as many as it has, every other stage has at least one, and none gets
    /// more than it has.
    pub unused: bool,
    /// Other nodes may be sources.
    pub sources: bool,
    /// No message between two nodes of one stage takes longer; none: any.
    pub max_replica_transfer_s: Option<f64>,
}

impl Default for AllocationScope {
    fn default() -> Self {
        Self { layers: 0, unused: false, sources: true, max_replica_transfer_s: None }
    }
}

/// An allocation as an instance has it: which node stands at each position.
#[derive(Clone, Debug)]
pub struct Placement {
    problem: Arc<Problem>,
    scope: AllocationScope,
    /// Node at each position.
    node_at: Vec<usize>,
    /// Decoder layers of each stage; empty: as the problem has them.
    layers: Vec<usize>,
}

impl Placement {
    /// Every node at its own position, and layers as even as memory lets them be.
    ///
    /// # Errors
    /// Where there are too few layers for the stages, or too many for the memory of a node.
    pub fn new(problem: &Problem, scope: AllocationScope) -> Result<Self> {
        let stages = problem.stages().len();
        if scope.layers > 0 && scope.layers < stages {
            return invalid("layers", scope.layers, format!("at least one for each of the {stages} stages"));
        }
        if let Some(limit) = scope.max_replica_transfer_s.filter(|limit| limit.is_nan() || *limit < 0.0) {
            return invalid("max_replica_transfer_s", limit, "a number of seconds of at least 0");
        }
        let placement = Self {
            problem: Arc::new(problem.clone()),
            node_at: (0..problem.cluster().nodes().len()).collect(),
            layers: if scope.layers > 0 { even_layers(problem, scope.layers) } else { Vec::new() },
            scope,
        };
        for (stage, node) in problem.stages().iter().enumerate().flat_map(|(s, m)| m.iter().map(move |n| (s, *n))) {
            if placement.memory_of(node, stage) == 0 {
                return invalid(
                    format!("cluster.nodes[{node}].memory"),
                    problem.cluster().nodes()[node].memory,
                    format!("room for a microbatch of {} layers of {}", placement.layers[stage], scope.layers),
                );
            }
        }
        let instance = placement.instance();
        match (0..stages).find(|stage| !placement.is_close(&instance, *stage)) {
            Some(stage) => invalid(
                format!("stages[{stage}]"),
                format!("{:?}", problem.stages()[stage]),
                format!(
                    "nodes with no transfer above max_replica_transfer_s = {} s",
                    scope.max_replica_transfer_s.unwrap_or(f64::INFINITY)
                ),
            ),
            None => Ok(placement),
        }
    }

    /// What may be changed.
    #[must_use]
    pub fn scope(&self) -> &AllocationScope {
        &self.scope
    }

    /// Decoder layers of each stage; empty: not to be chosen.
    #[must_use]
    pub fn layers(&self) -> &[usize] {
        &self.layers
    }

    /// The problem's instance with these layers.
    #[must_use]
    pub fn instance(&self) -> Instance {
        let mut instance = Instance::new(&self.problem, Rounding::Up);
        if self.scope.layers > 0 {
            for stage in 0..instance.stage_count() {
                self.apply_layers(&mut instance, stage);
            }
        }
        instance
    }

    /// Has two positions exchange their nodes.
    pub fn swap(&mut self, instance: &mut Instance, a: usize, b: usize) {
        self.node_at.swap(a, b);
        let (left, right) = (instance.stage_of[a], instance.stage_of[b]);
        if self.layers.is_empty() || left == right {
            instance.swap_machines(a, b);
        } else {
            instance.set_machine(a, self.machine(a, left));
            instance.set_machine(b, self.machine(b, right));
        }
        self.update_allreduce(instance, left);
        if left != right {
            self.update_allreduce(instance, right);
        }
    }

    /// Hands a layer on from one stage to another; whether there was one to give, and memory for it.
    pub fn shift_layer(&mut self, instance: &mut Instance, from: usize, to: usize) -> bool {
        if self.layers.get(from).is_none_or(|layers| *layers < 2) {
            return false;
        }
        self.layers[from] -= 1;
        self.layers[to] += 1;
        self.apply_layers(instance, from);
        self.apply_layers(instance, to);
        instance.members[to].iter().all(|position| instance.memory[*position] > 0)
    }

    /// Has a position join a stage, or leave it for none; whether its node has the memory. No route may lead over it.
    pub fn switch(&mut self, instance: &mut Instance, position: usize, to: usize) -> bool {
        let from = instance.stage_of[position];
        if from != NO_STAGE {
            instance.members[from].retain(|p| *p != position);
        }
        if to != NO_STAGE {
            instance.members[to].push(position);
        }
        instance.stage_of[position] = to;
        if !self.layers.is_empty() {
            instance.set_machine(position, self.machine(position, to));
        }
        self.update_allreduce(instance, from);
        self.update_allreduce(instance, to);
        instance.memory[position] > 0
    }

    /// Whether a stage may have one node more.
    #[must_use]
    pub fn may_grow(&self, instance: &Instance, stage: usize) -> bool {
        instance.members[stage].len() < self.problem.stages()[stage].len()
    }

    /// Whether no message within a stage takes longer than is allowed; nodes of no stage send none.
    #[must_use]
    pub fn is_close(&self, instance: &Instance, stage: usize) -> bool {
        let Some(limit) = self.scope.max_replica_transfer_s.filter(|_| stage != NO_STAGE) else { return true };
        let cluster = self.problem.cluster();
        let bytes = cluster.activation_bytes();
        let nodes = || instance.members[stage].iter().map(|position| self.node_at[*position]);
        nodes().all(|i| nodes().all(|j| cluster.transfer_s(i, j, bytes) <= limit))
    }

    /// The nodes of each stage.
    #[must_use]
    pub fn stages(&self, instance: &Instance) -> Vec<Vec<usize>> {
        instance
            .members
            .iter()
            .map(|positions| positions.iter().map(|position| self.node_at[*position]).collect())
            .collect()
    }

    /// The node at a position.
    #[must_use]
    pub fn node_at(&self, position: usize) -> usize {
        self.node_at[position]
    }

    /// The problem of this allocation, with times and memory for its layers and the microbatches of these routes.
    ///
    /// # Errors
    /// As [`Problem::new`].
    pub fn problem(&self, instance: &Instance, tasks: &[RouteTask]) -> Result<Problem> {
        let stages = self.stages(instance);
        let started = |position: &usize| tasks.iter().filter(|t| t.source == *position).map(|t| t.waves).sum();
        let microbatches = instance.members[0].iter().map(started).collect();
        let base = &self.problem;
        let mut parts = base.cluster().clone().into_parts();
        if !self.layers.is_empty() {
            for (position, node) in self.node_at.iter().enumerate() {
                let stage = instance.stage_of[position];
                if stage == NO_STAGE {
                    continue;
                }
                let part = self.part(stage);
                let room = self.memory_of(*node, stage);
                if let Some(layers) = parts.workload.as_mut().and_then(|w| w.node_layers.get_mut(*node)) {
                    *layers = layers.and_then(|layers| whole(layers as f64 * part));
                }
                let node = &mut parts.nodes[*node];
                (node.forward_s, node.backward_s, node.memory) = (node.forward_s * part, node.backward_s * part, room);
            }
            for (stage, bytes) in parts.gradient_bytes.iter_mut().enumerate().take(self.layers.len()) {
                *bytes *= self.part(stage);
            }
        }
        let cluster = crate::cluster::Cluster::new(parts, "cluster.")?;
        let absent = base.absent_stages().to_vec();
        let layers = if self.layers.is_empty() { base.layers() } else { &self.layers };
        Problem::new(cluster, stages, absent, microbatches, base.skip_ratio(), base.constraints().clone())?
            .with_layers(layers.to_vec())
    }

    /// A stage's layers as a part of an equal share.
    fn part(&self, stage: usize) -> f64 {
        let equal = self.scope.layers as f64 / self.problem.stages().len() as f64;
        self.layers.get(stage).map_or(1.0, |layers| *layers as f64 / equal)
    }

    fn memory_of(&self, node: usize, stage: usize) -> u32 {
        let memory = self.problem.cluster().nodes()[node].memory;
        if self.layers.is_empty() { memory } else { held(memory, self.part(stage)) }
    }

    fn machine(&self, position: usize, stage: usize) -> Machine {
        let number = self.node_at[position];
        let cluster = self.problem.cluster();
        let node = &cluster.nodes()[number];
        let part = self.part(stage);
        let time = |s: f64| Rounding::Up.nanoseconds(s);
        Machine {
            link_index: cluster.link_index(number) as u32,
            forward: time(node.forward_s * part),
            backward: time(node.backward_s * part),
            loss: time(node.loss_s),
            memory: self.memory_of(number, stage),
            processor: cluster.processor_of(number) as u32,
        }
    }

    /// Gives the nodes of a stage times and memory for its layers.
    fn apply_layers(&self, instance: &mut Instance, stage: usize) {
        for i in 0..instance.members[stage].len() {
            let position = instance.members[stage][i];
            instance.set_machine(position, self.machine(position, stage));
        }
        self.update_allreduce(instance, stage);
    }

    fn update_allreduce(&self, instance: &mut Instance, stage: usize) {
        let cluster = self.problem.cluster();
        if stage == NO_STAGE || cluster.gradient_bytes().is_empty() {
            return;
        }
        let members: Vec<usize> = instance.members[stage].iter().map(|position| self.node_at[*position]).collect();
        let bytes = cluster.gradient_bytes().get(stage).copied().unwrap_or(0.0) * self.part(stage);
        instance.allreduce[stage] = Rounding::Up.nanoseconds(cluster.ring_s(bytes, &members));
    }
}

/// A number of layers, where it is a whole one of at least 1.
fn whole(layers: f64) -> Option<u64> {
    let rounded = layers.round();
    (rounded >= 1.0 && (layers - rounded).abs() < 1e-9).then_some(rounded as u64)
}

/// Microbatches that a node can hold whose stage has this part of an equal share of the layers.
fn held(memory: u32, part: f64) -> u32 {
    (f64::from(memory) / part + 1e-9).floor() as u32
}

/// Layers of each stage, as even as can be; the remainder goes to the first stages that have the memory for it.
fn even_layers(problem: &Problem, layers: usize) -> Vec<usize> {
    let stages = problem.stages().len();
    let memory_of = |stage: usize| {
        problem.stages()[stage].iter().map(|n| problem.cluster().nodes()[*n].memory).min().unwrap_or(u32::MAX)
    };
    let mut shared = vec![layers / stages; stages];
    for _ in 0..layers % stages {
        let is_full = |s: usize| held(memory_of(s), ((shared[s] + 1) * stages) as f64 / layers as f64) == 0;
        if let Some(next) = (0..stages).min_by_key(|s| (is_full(*s), shared[*s], *s)) {
            shared[next] += 1;
        }
    }
    shared
}
