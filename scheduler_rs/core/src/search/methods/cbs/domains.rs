//! The domains of a tree node: the candidate paths left to each agent, and the time window of each operation.

use smallvec::SmallVec;

use crate::route::{StageSet, stage_bit};
use crate::time::{NEVER, Time};

use super::model::Model;
use super::path_enumeration::CandidatePath;

/// A branching constraint. Those of one branching together exclude no execution.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Decision {
    /// The first operation ends before the second starts; both are on every path left to their agents.
    Order(u32, u32),
    /// Whether an agent visits a local node.
    Node(u32, u32, bool),
    /// Whether an agent visits a stage.
    Stage(u32, u32, bool),
    /// Whether an agent's route is of a class.
    Class(u32, u32, bool),
    /// Whether an agent's route is a long one.
    Long(u32, bool),
    /// Whether an agent takes this path.
    Path(u32, u32, bool),
}

/// No execution within the limit satisfies the constraints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Infeasible;

/// See the [module](self). Times in nanoseconds.
#[derive(Clone, Debug)]
pub struct Domains {
    /// Inclusive upper bound on the iteration time.
    pub limit: Time,
    /// Candidate paths left, one bit each.
    pub candidates: Vec<u64>,
    /// Per operation, the earliest start and latest end (`due`) that other agents leave to it.
    pub release: Vec<Time>,
    /// See `release`.
    pub due: Vec<Time>,
    /// Per operation, the minimum earliest start and maximum latest end over the paths left that include it.
    pub earliest_start: Vec<Time>,
    /// See `earliest_start`.
    pub latest_end: Vec<Time>,
    /// What the paths left to each agent have in common.
    pub agents: Vec<AgentDomain>,
    /// Per agent and local node, number of paths left that visit it.
    pub paths_via: Vec<u32>,
    /// Per agent and local node, minimum time for which a microbatch is held there.
    pub min_hold: Vec<Time>,
    /// Pairs of operations of which the first precedes the second.
    pub precedences: Vec<(u32, u32)>,
    /// Per local node, by how much the limit could be lower before what it holds, or the tasks of its processor, no longer
    /// fit.
    pub node_slack: Vec<Time>,
    /// The same, minimum over the stages.
    pub stage_slack: Time,
}

/// What the paths left to an agent have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AgentDomain {
    /// Paths left.
    pub path_count: u32,
    /// Stages that all of them visit.
    pub required_stages: StageSet,
    /// Stages that some of them visit.
    pub possible_stages: StageSet,
    /// Classes of which some of them are, one bit each.
    pub classes: u64,
    /// Minimum and maximum number of visits.
    pub visits: (u8, u8),
    /// By how much the limit could be lower before none is left.
    pub slack: Time,
}

impl Domains {
    /// All paths of all agents, ordered only by symmetry breaking.
    pub fn root(model: &Model<'_>, limit: Time) -> Self {
        let mut candidates = vec![0_u64; model.words];
        for (number, agent) in model.agents.iter().enumerate() {
            for path in 0..model.paths(number).len() {
                candidates[agent.first_word + path / 64] |= 1 << (path % 64);
            }
        }
        let nodes = model.nodes.len();
        let unknown = AgentDomain {
            path_count: 0,
            required_stages: StageSet::MAX,
            possible_stages: 0,
            classes: 0,
            visits: (u8::MAX, 0),
            slack: Time::MIN,
        };
        let mut precedences = Vec::new();
        for class in &model.symmetry_classes {
            for pair in class.agents.windows(2) {
                let op = |agent: usize| model.op(agent, 0, model.leading_offset(agent)) as u32;
                precedences.push((op(pair[0]), op(pair[1])));
            }
        }
        Self {
            limit,
            candidates,
            release: vec![0; model.op_count],
            due: vec![NEVER; model.op_count],
            earliest_start: vec![0; model.op_count],
            latest_end: vec![NEVER; model.op_count],
            agents: vec![unknown; model.agents.len()],
            paths_via: vec![0; model.agents.len() * nodes],
            min_hold: vec![0; model.agents.len() * nodes],
            precedences,
            node_slack: vec![NEVER; nodes],
            stage_slack: NEVER,
        }
    }

    /// Lower bound on the iteration time under the constraints.
    pub fn bound(&self, model: &Model<'_>) -> Time {
        (self.limit - self.slack().min(self.stage_slack).min(self.limit)).max(model.idle)
    }

    /// By how much the limit could be lower before an agent or a node fails.
    pub fn slack(&self) -> Time {
        self.agents.iter().map(|a| a.slack).chain(self.node_slack.iter().copied()).min().unwrap_or(NEVER)
    }

    /// Removes a path.
    pub fn remove(&mut self, model: &Model<'_>, agent: usize, path: usize) {
        self.candidates[model.agents[agent].first_word + path / 64] &= !(1 << (path % 64));
    }

    /// The paths left to an agent, ascending.
    pub fn paths<'s>(&'s self, model: &'s Model<'_>, agent: usize) -> impl Iterator<Item = usize> + 's {
        let first = model.agents[agent].first_word;
        let count = model.paths(agent).len().div_ceil(64);
        self.candidates[first..first + count].iter().enumerate().flat_map(|(index, word)| {
            let mut word = *word;
            std::iter::from_fn(move || {
                (word != 0).then(|| {
                    let bit = word.trailing_zeros() as usize;
                    word &= word - 1;
                    64 * index + bit
                })
            })
        })
    }

    /// Retains only the paths for which `fits` holds; whether any was removed, and so the agent is dirty.
    pub fn retain_paths(
        &mut self,
        model: &Model<'_>,
        agent: usize,
        dirty: &mut [bool],
        fits: impl Fn(&CandidatePath) -> bool,
    ) -> bool {
        let paths = model.paths(agent);
        let gone: SmallVec<[usize; 64]> = self.paths(model, agent).filter(|path| !fits(&paths[*path])).collect();
        for path in &gone {
            self.remove(model, agent, *path);
        }
        dirty[agent] |= !gone.is_empty();
        !gone.is_empty()
    }

    /// Whether some, but not all paths left to an agent are of a class.
    pub fn is_class_open(&self, agent: usize, class: usize) -> bool {
        let bit = 1 << class;
        self.agents[agent].classes & bit != 0 && self.agents[agent].classes != bit
    }

    /// Whether all paths left to an agent visit a node.
    pub fn is_mandatory(&self, model: &Model<'_>, agent: usize, node: usize) -> bool {
        self.paths_via[agent * model.nodes.len() + node] == self.agents[agent].path_count
    }

    /// Whether any of them does.
    pub fn is_possible(&self, model: &Model<'_>, agent: usize, node: usize) -> bool {
        self.paths_via[agent * model.nodes.len() + node] > 0
    }

    /// Adds a constraint; agents that lost paths become dirty.
    pub fn apply(&mut self, model: &Model<'_>, decision: Decision, dirty: &mut [bool]) {
        match decision {
            Decision::Order(first, second) => self.precedences.push((first, second)),
            Decision::Node(agent, node, visits) => {
                self.retain_paths(model, agent as usize, dirty, |path| path.nodes.contains(&node) == visits);
            }
            Decision::Stage(agent, stage, visits) => {
                let bit = stage_bit(stage as usize);
                self.retain_paths(model, agent as usize, dirty, |path| (path.stages & bit != 0) == visits);
            }
            Decision::Class(agent, class, is_of) => {
                let stages = model.demand.classes[class as usize].stages;
                self.retain_paths(model, agent as usize, dirty, |path| (path.stages == stages) == is_of);
            }
            Decision::Long(agent, long) => {
                let short = model.demand.short;
                self.retain_paths(model, agent as usize, dirty, |path| (path.nodes.len() > short) == long);
            }
            Decision::Path(agent, number, takes) => {
                let selection: *const CandidatePath = &model.paths(agent as usize)[number as usize];
                self.retain_paths(model, agent as usize, dirty, |path| std::ptr::eq(path, selection) == takes);
            }
        }
    }

    /// Raises the earliest start that other agents leave to an operation; its agent becomes dirty where that is news.
    pub fn raise_release(&mut self, op: usize, agent: usize, time: Time, dirty: &mut [bool]) {
        if time > self.earliest_start[op] && time > self.release[op] {
            self.release[op] = time;
            dirty[agent] = true;
        }
    }

    /// Lowers the latest end that other agents leave to an operation; its agent becomes dirty where that is news.
    pub fn lower_due(&mut self, op: usize, agent: usize, time: Time, dirty: &mut [bool]) {
        if time < self.latest_end[op] && time < self.due[op] {
            self.due[op] = time;
            dirty[agent] = true;
        }
    }
}
