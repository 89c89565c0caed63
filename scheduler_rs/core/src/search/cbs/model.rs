//! What stays the same all over the tree: agents, their ways, the numbering of tasks.

use crate::bound::lookahead::Lookahead;
use crate::budget::Budget;
use crate::problem::Instance;
use crate::route::RouteTask;
use crate::rules::MemoryRule;
use crate::time::{NEVER, Time};

use super::Question;
use super::catalogue::{Way, lay_out, sequences};

/// How many visits the routes make together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Demand {
    /// Per stage, the fewest routes that lie on it.
    pub least: Vec<usize>,
    /// Per stage, the most.
    pub most: Vec<usize>,
    /// Visits of all routes, at least and at most.
    pub total: Option<(usize, usize)>,
    /// Visits of a short route.
    pub short: usize,
    /// Visits of a long route, at most one more.
    pub long: usize,
    /// Number of long routes, at least and at most.
    pub long_routes: Option<(usize, usize)>,
}

/// More ways than this, and the question is left to other methods.
const MOST_WAYS: usize = 60_000;

/// One route to be found, for one or more microbatches.
#[derive(Clone, Debug)]
pub struct Agent {
    /// Where its ways stand in [`Model::kinds`].
    pub kind: usize,
    /// Local number of its source.
    pub source: usize,
    /// Microbatches.
    pub waves: usize,
    /// Slot of its first task.
    pub base: usize,
    /// First word of its ways in a state's sets.
    pub words: usize,
}

/// What the nodes of a stage can do together: work of each counts as what the fastest one would need for it.
#[derive(Clone, Copy, Debug)]
pub struct Yard {
    /// The least forward and backward of any agent on any of its nodes.
    pub forward: Time,
    /// See `forward`.
    pub backward: Time,
    /// So many of such fast nodes would do.
    pub room: f64,
}

/// Agents that are alike: any two may be exchanged.
#[derive(Clone, Debug)]
pub struct Group {
    /// Their numbers, ascending; first forwards (losses where CC1 is off) are in this order.
    pub agents: Vec<usize>,
}

/// See the [module](self). A *slot* is one task of one microbatch on one node, whether its agent goes there or not.
#[derive(Debug)]
pub struct Model<'a> {
    /// Durations and rules.
    pub instance: &'a Instance,
    /// The question's tasks; agent number `a` is `tasks[a]`.
    pub tasks: &'a [RouteTask],
    /// Visits of all routes.
    pub demand: &'a Demand,
    /// One for each task.
    pub agents: Vec<Agent>,
    /// Ways of each kind of agent.
    pub kinds: Vec<Vec<Way>>,
    /// Agents that are alike, where there are at least two.
    pub groups: Vec<Group>,
    /// Global numbers of the nodes that some way uses.
    pub nodes: Vec<usize>,
    /// Stage of each local node.
    pub stage_of: Vec<usize>,
    /// Local nodes of each stage.
    pub members: Vec<Vec<usize>>,
    /// What the nodes of each stage can do.
    pub yards: Vec<Yard>,
    /// Tasks of one wave: two for each node and the loss.
    pub width: usize,
    /// Number of slots.
    pub slots: usize,
    /// Words of all sets of ways.
    pub words: usize,
    /// Duration of each slot.
    pub length: Vec<Time>,
    /// Agent of each slot.
    pub agent_of: Vec<u32>,
    /// The iteration is no shorter than the longest all-reduce.
    pub idle: Time,
    /// Everything one after the other.
    pub serial: Time,
    /// CC3 without CC1: how many routes visit stage 0 is open, so a demand cannot say how many visit the others; but
    /// these are to differ by at most one.
    pub is_even: bool,
}

impl<'a> Model<'a> {
    /// None where the ways are too many to list. `latest`: iterations above are of no use. `listed` counts what was
    /// looked at.
    pub fn new(
        question: &Question<'a>,
        lookahead: &Lookahead,
        latest: Time,
        budget: &Budget,
        listed: &mut u64,
    ) -> Option<Self> {
        let Question { instance, tasks, demand, .. } = *question;
        let mut keys: Vec<(usize, usize)> = Vec::new();
        let mut lists: Vec<Vec<Vec<u32>>> = Vec::new();
        let mut kind_of = Vec::new();
        for task in tasks {
            let key = (task.source, task.class);
            let kind = keys.iter().position(|k| *k == key).unwrap_or(keys.len());
            if kind == keys.len() {
                // The agent with the fewest waves has the most ways.
                let waves = tasks.iter().filter(|t| (t.source, t.class) == key).map(|t| t.waves).min().unwrap_or(1);
                keys.push(key);
                let room = MOST_WAYS.checked_sub(lists.iter().map(Vec::len).sum())?;
                let task = RouteTask { waves, ..*task };
                lists.push(sequences(question, lookahead, &task, latest, room, budget, listed)?);
            }
            kind_of.push(kind);
        }
        let mut used = vec![false; instance.node_count()];
        for node in lists.iter().flatten().flatten() {
            used[*node as usize] = true;
        }
        for task in tasks {
            used[task.source] = true;
        }
        let nodes: Vec<usize> = (0..used.len()).filter(|n| used[*n]).collect();
        let mut local = vec![0_u32; used.len()];
        for (l, node) in nodes.iter().enumerate() {
            local[*node] = l as u32;
        }
        let loss_op = 2 * nodes.len() as u32;
        let kinds: Vec<Vec<Way>> = keys
            .iter()
            .zip(&lists)
            .map(|((source, class), list)| {
                let task = RouteTask { source: *source, class: *class, waves: 1, first_microbatch: 0 };
                list.iter().map(|s| lay_out(instance, &task, s, &|node| local[node], loss_op)).collect()
            })
            .collect();
        let width = loss_op as usize + 1;
        let (mut agents, mut base, mut words) = (Vec::new(), 0, 0);
        let (mut length, mut agent_of) = (Vec::new(), Vec::new());
        for (task, kind) in tasks.iter().zip(&kind_of) {
            let source = local[task.source] as usize;
            agents.push(Agent { kind: *kind, source, waves: task.waves, base, words });
            base += width * task.waves;
            words += kinds[*kind].len().div_ceil(64);
            agent_of.resize(base, agents.len() as u32 - 1);
            for _ in 0..task.waves {
                for node in &nodes {
                    length.push(instance.forward(task.class, *node));
                    length.push(instance.backward(task.class, *node));
                }
                length.push(instance.loss(task.class, task.source));
            }
        }
        let longest = |kind: &usize| kinds[*kind].iter().map(|w| w.trip).max().unwrap_or(0);
        let idle = instance.allreduce.iter().copied().max().unwrap_or(0);
        let serial = tasks.iter().zip(&kind_of).map(|(t, k)| t.waves as Time * longest(k)).sum::<Time>() + idle;
        let stage_of: Vec<usize> = nodes.iter().map(|n| instance.stage_of[*n]).collect();
        let mut members = vec![Vec::new(); instance.stage_count()];
        for (l, stage) in stage_of.iter().enumerate() {
            members[*stage].push(l);
        }
        let yards = instance.members.iter().map(|own| yard(instance, tasks, own)).collect();
        Some(Self {
            instance,
            tasks,
            demand,
            groups: groups(tasks),
            agents,
            kinds,
            nodes,
            stage_of,
            members,
            yards,
            width,
            slots: base,
            words,
            length,
            agent_of,
            idle,
            serial,
            is_even: instance.rules.cc3 && !instance.rules.cc1 && demand.total.is_some(),
        })
    }

    /// The ways of an agent.
    pub fn ways(&self, agent: usize) -> &[Way] {
        &self.kinds[self.agents[agent].kind]
    }

    /// The slot of task `op` of one wave of an agent.
    pub fn slot(&self, agent: usize, wave: usize, op: u32) -> usize {
        self.agents[agent].base + wave * self.width + op as usize
    }

    /// Task number of head and loss.
    pub fn loss_op(&self) -> u32 {
        self.width as u32 - 1
    }

    /// Local node on which a task of an agent runs.
    pub fn node_of(&self, agent: usize, op: u32) -> usize {
        if op == self.loss_op() { self.agents[agent].source } else { op as usize / 2 }
    }

    /// Whether nodes hold no more microbatches than they have memory for.
    pub fn is_held(&self) -> bool {
        self.instance.memory_is_held()
    }

    /// Microbatches (or routes) that a local node has memory for.
    pub fn memory(&self, node: usize) -> usize {
        if self.instance.rules.tc1 == MemoryRule::Off {
            usize::MAX
        } else {
            self.instance.memory[self.nodes[node]] as usize
        }
    }

    /// The task by which equal agents are put in order: the first forward, which all of them have under CC1.
    pub fn leading_op(&self, agent: usize) -> u32 {
        if self.instance.rules.cc1 { 2 * self.agents[agent].source as u32 } else { self.loss_op() }
    }

    /// Iterations above are of no use: the limit, and what it takes to run everything one after the other.
    pub fn horizon(&self, limit: Time) -> Time {
        (limit.min(NEVER) - 1).min(self.serial)
    }
}

fn yard(instance: &Instance, tasks: &[RouteTask], nodes: &[usize]) -> Yard {
    let lengths =
        |node: usize| tasks.iter().map(move |t| (instance.forward(t.class, node), instance.backward(t.class, node)));
    let all = || nodes.iter().flat_map(|n| lengths(*n));
    let forward = all().map(|l| l.0).min().unwrap_or(0);
    let backward = all().map(|l| l.1).min().unwrap_or(0);
    let ratio = |fast: Time, own: Time| if own == 0 { 1.0 } else { fast as f64 / own as f64 };
    let speed =
        |node: &usize| lengths(*node).map(|(f, b)| ratio(forward, f).max(ratio(backward, b))).fold(0.0, f64::max);
    Yard { forward, backward, room: nodes.iter().map(speed).sum::<f64>().max(f64::MIN_POSITIVE) }
}

fn groups(tasks: &[RouteTask]) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    let alike = |a: usize, b: usize| {
        let (a, b) = (&tasks[a], &tasks[b]);
        (a.source, a.class, a.waves) == (b.source, b.class, b.waves)
    };
    for agent in 0..tasks.len() {
        match groups.iter_mut().find(|g| alike(g.agents[0], agent)) {
            Some(group) => group.agents.push(agent),
            None => groups.push(Group { agents: vec![agent] }),
        }
    }
    groups.retain(|g| g.agents.len() > 1);
    groups
}
