//! A node of the tree laid open: which ways each agent has left, and when each of its tasks can run.

use smallvec::SmallVec;

use crate::route::{StageSet, stage_bit};
use crate::time::{NEVER, Time};

use super::catalogue::Way;
use super::model::Model;

/// A constraint of the tree. Each stands beside others that together leave nothing out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Decision {
    /// The first slot's task ends before the second one's starts; both agents visit the node.
    Order(u32, u32),
    /// Whether an agent visits a (local) node.
    Node(u32, u32, bool),
    /// Whether an agent visits a stage.
    Stage(u32, u32, bool),
    /// Whether an agent's route is a long one.
    Long(u32, bool),
    /// Whether an agent takes this very way.
    Way(u32, u32, bool),
}

/// Nothing that keeps the constraints is home within the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dead;

/// See the [module](self). Times are windows: a task starts no earlier and ends no later.
#[derive(Clone, Debug)]
pub struct State {
    /// Only iterations up to this one are looked for.
    pub limit: Time,
    /// Ways left, one bit each.
    pub alive: Vec<u64>,
    /// Per slot, the earliest start and latest end that other agents leave to it.
    pub release: Vec<Time>,
    /// See `release`.
    pub due: Vec<Time>,
    /// Per slot, the earliest start and latest end over the agent's ways through it.
    pub head: Vec<Time>,
    /// See `head`.
    pub last: Vec<Time>,
    /// Per agent, what is known of it.
    pub agents: Vec<Known>,
    /// Per agent and local node, how many of its ways lead over it.
    pub cover: Vec<u32>,
    /// Per agent and local node, the least time for which a microbatch is held there.
    pub hold: Vec<Time>,
    /// Orders decided on.
    pub orders: Vec<(u32, u32)>,
    /// Per local node, by how much the limit could be lower before its tasks no longer fit.
    pub node_slack: Vec<Time>,
    /// The same for the stages together.
    pub stage_slack: Time,
}

/// What the ways left to an agent have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Known {
    /// Ways left.
    pub ways: u32,
    /// Stages that all of them visit.
    pub must: StageSet,
    /// Stages that some of them visit.
    pub may: StageSet,
    /// Visits, at least and at most.
    pub visits: (u8, u8),
    /// By how much the limit could be lower before none is left.
    pub slack: Time,
}

impl State {
    /// All ways of all agents.
    pub fn root(model: &Model<'_>, limit: Time) -> Self {
        let mut alive = vec![0_u64; model.words];
        for (number, agent) in model.agents.iter().enumerate() {
            for way in 0..model.ways(number).len() {
                alive[agent.words + way / 64] |= 1 << (way % 64);
            }
        }
        let nodes = model.nodes.len();
        let known = Known { ways: 0, must: StageSet::MAX, may: 0, visits: (u8::MAX, 0), slack: Time::MIN };
        let mut orders = Vec::new();
        for group in &model.groups {
            for pair in group.agents.windows(2) {
                let slot = |agent: usize| model.slot(agent, 0, model.leading_op(agent)) as u32;
                orders.push((slot(pair[0]), slot(pair[1])));
            }
        }
        Self {
            limit,
            alive,
            release: vec![0; model.slots],
            due: vec![NEVER; model.slots],
            head: vec![0; model.slots],
            last: vec![NEVER; model.slots],
            agents: vec![known; model.agents.len()],
            cover: vec![0; model.agents.len() * nodes],
            hold: vec![0; model.agents.len() * nodes],
            orders,
            node_slack: vec![NEVER; nodes],
            stage_slack: NEVER,
        }
    }

    /// Nothing below this can keep the constraints.
    pub fn bound(&self, model: &Model<'_>) -> Time {
        (self.limit - self.slack().min(self.stage_slack).min(self.limit)).max(model.idle)
    }

    /// By how much the limit could be lower before an agent, or a node, cannot do its part.
    pub fn slack(&self) -> Time {
        self.agents.iter().map(|a| a.slack).chain(self.node_slack.iter().copied()).min().unwrap_or(NEVER)
    }

    /// Takes a way off.
    pub fn remove(&mut self, model: &Model<'_>, agent: usize, way: usize) {
        self.alive[model.agents[agent].words + way / 64] &= !(1 << (way % 64));
    }

    /// The ways left to an agent, ascending.
    pub fn ways<'s>(&'s self, model: &'s Model<'_>, agent: usize) -> impl Iterator<Item = usize> + 's {
        let first = model.agents[agent].words;
        let count = model.ways(agent).len().div_ceil(64);
        self.alive[first..first + count].iter().enumerate().flat_map(|(place, word)| {
            let mut word = *word;
            std::iter::from_fn(move || {
                (word != 0).then(|| {
                    let bit = word.trailing_zeros() as usize;
                    word &= word - 1;
                    64 * place + bit
                })
            })
        })
    }

    /// Keeps only the ways for which `fits` holds; whether any was taken off, and so the agent is dirty.
    pub fn keep(&mut self, model: &Model<'_>, agent: usize, dirty: &mut [bool], fits: impl Fn(&Way) -> bool) -> bool {
        let ways = model.ways(agent);
        let gone: SmallVec<[usize; 64]> = self.ways(model, agent).filter(|way| !fits(&ways[*way])).collect();
        for way in &gone {
            self.remove(model, agent, *way);
        }
        dirty[agent] |= !gone.is_empty();
        !gone.is_empty()
    }

    /// Whether all ways of an agent lead over a node.
    pub fn is_forced(&self, model: &Model<'_>, agent: usize, node: usize) -> bool {
        self.cover[agent * model.nodes.len() + node] == self.agents[agent].ways
    }

    /// Whether any does.
    pub fn is_possible(&self, model: &Model<'_>, agent: usize, node: usize) -> bool {
        self.cover[agent * model.nodes.len() + node] > 0
    }

    /// Puts a constraint in place; the agents whose windows are to be found anew go into `dirty`.
    pub fn apply(&mut self, model: &Model<'_>, decision: Decision, dirty: &mut [bool]) {
        match decision {
            Decision::Order(first, second) => self.orders.push((first, second)),
            Decision::Node(agent, node, visits) => {
                self.keep(model, agent as usize, dirty, |way| way.nodes.contains(&node) == visits);
            }
            Decision::Stage(agent, stage, visits) => {
                let bit = stage_bit(stage as usize);
                self.keep(model, agent as usize, dirty, |way| (way.stages & bit != 0) == visits);
            }
            Decision::Long(agent, long) => {
                let short = model.demand.short;
                self.keep(model, agent as usize, dirty, |way| (way.nodes.len() > short) == long);
            }
            Decision::Way(agent, number, takes) => {
                let chosen: *const Way = &model.ways(agent as usize)[number as usize];
                self.keep(model, agent as usize, dirty, |way| std::ptr::eq(way, chosen) == takes);
            }
        }
    }
}
