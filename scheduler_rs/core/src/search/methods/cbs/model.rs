//! What is constant over the whole tree: agents, their candidate paths, and the numbering of operations.

use crate::bound::lookahead::Lookahead;
use crate::budget::Budget;
use crate::problem::Instance;
use crate::route::{RouteTask, StageSet};
use crate::rules::MemoryRule;
use crate::time::{NEVER, Time};

use super::interface::{Subproblem, VisitDemand};
use super::path_enumeration::{CandidatePath, enumerate_paths};

/// With more candidate paths than this, the subproblem is left to other methods.
const MAX_PATHS: usize = 60_000;

/// One route to find, for one or more microbatches.
#[derive(Clone, Debug)]
pub struct Agent {
    /// Index of its candidate paths in [`Model::kinds`].
    pub kind: usize,
    /// Local number of its source.
    pub source: usize,
    /// Microbatches.
    pub waves: usize,
    /// Its first operation.
    pub first_op: usize,
    /// First word of its bits in `Domains::candidates`.
    pub first_word: usize,
}

/// Relaxation of the nodes of one stage to a single resource: every task counts with the time that the fastest node
/// needs for it.
#[derive(Clone, Copy, Debug)]
pub struct StageCapacity {
    /// Minimum forward time over all agents and nodes.
    pub forward: Time,
    /// Minimum backward time over all agents and nodes.
    pub backward: Time,
    /// Equivalent number of nodes of that speed.
    pub capacity: f64,
}

/// Interchangeable agents.
#[derive(Clone, Debug)]
pub struct SymmetryClass {
    /// Their numbers, ascending. To break the symmetry, their first forwards (losses where CC1 is off) start in
    /// this order.
    pub agents: Vec<usize>,
}

/// See the [module](self).
///
/// An *operation* is one task of one microbatch of one agent on one node, whether or not the agent goes there. Its
/// *offset* is its number among those of a wave: `2 n` is the forward on local node `n`, `2 n + 1` its backward, and
/// the last one is head and loss.
#[derive(Debug)]
pub struct Model<'a> {
    /// Durations and rules.
    pub instance: &'a Instance,
    /// The subproblem's tasks; agent number `a` is `tasks[a]`.
    pub tasks: &'a [RouteTask],
    /// How many visits the routes make together.
    pub demand: &'a VisitDemand,
    /// One for each task.
    pub agents: Vec<Agent>,
    /// Candidate paths of each kind of agent.
    pub kinds: Vec<Vec<CandidatePath>>,
    /// Classes of at least two interchangeable agents.
    pub symmetry_classes: Vec<SymmetryClass>,
    /// Global numbers of the nodes that some path uses.
    pub nodes: Vec<usize>,
    /// Stage of each local node.
    pub stage_of: Vec<usize>,
    /// For each local node, those on its processor, itself among them, ascending.
    pub sharing: Vec<Vec<usize>>,
    /// Local nodes of each stage.
    pub members: Vec<Vec<usize>>,
    /// Capacity of each stage.
    pub capacities: Vec<StageCapacity>,
    /// Operations of one wave: two for each node, and the loss.
    pub width: usize,
    /// Number of operations.
    pub op_count: usize,
    /// Words of `Domains::candidates`.
    pub words: usize,
    /// Duration of each operation, in nanoseconds.
    pub length: Vec<Time>,
    /// Agent of each operation.
    pub agent_of: Vec<u32>,
    /// The longest all-reduce: a lower bound on every iteration.
    pub idle: Time,
    /// Upper bound: all routes one after the other.
    pub serial: Time,
    /// CC3 without CC1: the number of visits of stage 0 is open, so no quota can be given for the other stages, but
    /// theirs differ by at most one.
    pub is_even: bool,
}

/// Node sequences of each kind of agent; a kind is a source and a class of microbatches.
struct Kinds {
    keys: Vec<(usize, usize)>,
    sequences: Vec<Vec<Vec<u32>>>,
    /// Kind of each task.
    of_task: Vec<usize>,
}

impl Kinds {
    /// None where there are more than [`MAX_PATHS`] sequences, or the budget is spent.
    fn enumerate(
        subproblem: &Subproblem<'_>,
        lookahead: &Lookahead,
        latest: Time,
        budget: &Budget,
        listed: &mut u64,
    ) -> Option<Self> {
        let tasks = subproblem.tasks;
        let mut kinds = Self { keys: Vec::new(), sequences: Vec::new(), of_task: Vec::new() };
        for task in tasks {
            let key = (task.source, task.class);
            let kind = kinds.keys.iter().position(|k| *k == key).unwrap_or(kinds.keys.len());
            if kind == kinds.keys.len() {
                // The agent with the fewest waves has the most paths.
                let waves = tasks.iter().filter(|t| (t.source, t.class) == key).map(|t| t.waves).min().unwrap_or(1);
                kinds.keys.push(key);
                let room = MAX_PATHS.checked_sub(kinds.sequences.iter().map(Vec::len).sum())?;
                let task = RouteTask { waves, ..*task };
                kinds.sequences.push(enumerate_paths(subproblem, lookahead, &task, latest, room, budget, listed)?);
            }
            kinds.of_task.push(kind);
        }
        Some(kinds)
    }

    /// Nodes that a sequence or a source uses, ascending.
    fn nodes(&self, node_count: usize, tasks: &[RouteTask]) -> Vec<usize> {
        let mut used = vec![false; node_count];
        for node in self.sequences.iter().flatten().flatten() {
            used[*node as usize] = true;
        }
        for task in tasks {
            used[task.source] = true;
        }
        (0..used.len()).filter(|n| used[*n]).collect()
    }

    /// Candidate paths of each kind; `local` gives the local number of a node.
    fn paths(&self, instance: &Instance, local: &[u32], loss_offset: u32) -> Vec<Vec<CandidatePath>> {
        let paths = |((source, class), sequences): (&(usize, usize), &Vec<Vec<u32>>)| {
            let task = RouteTask { source: *source, class: *class, waves: 1, first_microbatch: 0 };
            let path = |s: &Vec<u32>| CandidatePath::new(instance, &task, s, &|node| local[node], loss_offset);
            sequences.iter().map(path).collect()
        };
        self.keys.iter().zip(&self.sequences).map(paths).collect()
    }
}

impl<'a> Model<'a> {
    /// None where there are too many paths to enumerate. Paths that take longer than `latest` are left out. `listed`
    /// counts the partial paths visited.
    pub fn new(
        subproblem: &Subproblem<'a>,
        lookahead: &Lookahead,
        latest: Time,
        budget: &Budget,
        listed: &mut u64,
    ) -> Option<Self> {
        let Subproblem { instance, tasks, demand, .. } = *subproblem;
        let by_kind = Kinds::enumerate(subproblem, lookahead, latest, budget, listed)?;
        let nodes = by_kind.nodes(instance.node_count(), tasks);
        let mut local = vec![0_u32; instance.node_count()];
        for (l, node) in nodes.iter().enumerate() {
            local[*node] = l as u32;
        }
        let loss_offset = 2 * nodes.len() as u32;
        let width = loss_offset as usize + 1;
        let kinds = by_kind.paths(instance, &local, loss_offset);
        let agents = number_agents(tasks, &by_kind.of_task, &kinds, &local, width);
        let op_count = agents.iter().map(|agent| agent.waves * width).sum();
        let words = agents.iter().map(|agent| kinds[agent.kind].len().div_ceil(64)).sum();
        let (length, agent_of) = operations(instance, tasks, &nodes);
        let longest = |kind: &usize| kinds[*kind].iter().map(|path| path.trip).max().unwrap_or(0);
        let idle = instance.allreduce.iter().copied().max().unwrap_or(0);
        let serial = tasks.iter().zip(&by_kind.of_task).map(|(t, k)| t.waves as Time * longest(k)).sum::<Time>() + idle;
        let stage_of: Vec<usize> = nodes.iter().map(|n| instance.stage_of[*n]).collect();
        let shares = |a: usize, b: usize| instance.processor(a) == instance.processor(b);
        let sharing = nodes.iter().map(|a| (0..nodes.len()).filter(|l| shares(*a, nodes[*l])).collect()).collect();
        let mut members = vec![Vec::new(); instance.stage_count()];
        for (l, stage) in stage_of.iter().enumerate() {
            members[*stage].push(l);
        }
        Some(Self {
            instance,
            tasks,
            demand,
            symmetry_classes: symmetry_classes(tasks),
            agents,
            kinds,
            nodes,
            stage_of,
            sharing,
            members,
            capacities: instance.members.iter().map(|own| stage_capacity(instance, tasks, own)).collect(),
            width,
            op_count,
            words,
            length,
            agent_of,
            idle,
            serial,
            is_even: instance.rules.cc3 && !instance.rules.cc1 && demand.total.is_some(),
        })
    }

    /// The class that visits exactly these stages, as a bit; 0 without classes.
    pub fn class_bit(&self, stages: StageSet) -> u64 {
        self.demand.classes.iter().position(|class| class.stages == stages).map_or(0, |index| 1 << index)
    }

    /// Candidate paths of an agent.
    pub fn paths(&self, agent: usize) -> &[CandidatePath] {
        &self.kinds[self.agents[agent].kind]
    }

    /// The operation at an offset in one wave of an agent.
    pub fn op(&self, agent: usize, wave: usize, offset: u32) -> usize {
        self.agents[agent].first_op + wave * self.width + offset as usize
    }

    /// Offset of an operation in its wave.
    pub fn offset_of(&self, agent: usize, op: usize) -> usize {
        (op - self.agents[agent].first_op) % self.width
    }

    /// Offset of head and loss.
    pub fn loss_offset(&self) -> u32 {
        self.width as u32 - 1
    }

    /// Local node on which an agent's operation runs.
    pub fn node_of(&self, agent: usize, offset: u32) -> usize {
        if offset == self.loss_offset() { self.agents[agent].source } else { offset as usize / 2 }
    }

    /// The processor of a local node, by the first local node on it.
    pub fn processor(&self, node: usize) -> usize {
        self.sharing[node][0]
    }

    /// Whether TC1 limits how many microbatches a node holds at a time.
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

    /// Offset of the operation that orders interchangeable agents: the first forward, which all of them have under CC1.
    pub fn leading_offset(&self, agent: usize) -> u32 {
        if self.instance.rules.cc1 { 2 * self.agents[agent].source as u32 } else { self.loss_offset() }
    }

    /// Largest iteration time of interest: below `limit`, and no longer than all routes one after the other.
    pub fn horizon(&self, limit: Time) -> Time {
        (limit.min(NEVER) - 1).min(self.serial)
    }
}

/// Agents with consecutive operations and words.
fn number_agents(
    tasks: &[RouteTask],
    kind_of: &[usize],
    kinds: &[Vec<CandidatePath>],
    local: &[u32],
    width: usize,
) -> Vec<Agent> {
    let (mut first_op, mut first_word) = (0, 0);
    let number = |(task, kind): (&RouteTask, &usize)| {
        let source = local[task.source] as usize;
        let agent = Agent { kind: *kind, source, waves: task.waves, first_op, first_word };
        first_op += width * task.waves;
        first_word += kinds[*kind].len().div_ceil(64);
        agent
    };
    tasks.iter().zip(kind_of).map(number).collect()
}

/// Duration and agent of each operation.
fn operations(instance: &Instance, tasks: &[RouteTask], nodes: &[usize]) -> (Vec<Time>, Vec<u32>) {
    let (mut length, mut agent_of) = (Vec::new(), Vec::new());
    for (agent, task) in tasks.iter().enumerate() {
        for _ in 0..task.waves {
            for node in nodes {
                length.push(instance.forward(task.class, *node));
                length.push(instance.backward(task.class, *node));
            }
            length.push(instance.loss(task.class, task.source));
        }
        agent_of.resize(length.len(), agent as u32);
    }
    (length, agent_of)
}

fn stage_capacity(instance: &Instance, tasks: &[RouteTask], nodes: &[usize]) -> StageCapacity {
    let lengths =
        |node: usize| tasks.iter().map(move |t| (instance.forward(t.class, node), instance.backward(t.class, node)));
    let all = || nodes.iter().flat_map(|n| lengths(*n));
    let forward = all().map(|l| l.0).min().unwrap_or(0);
    let backward = all().map(|l| l.1).min().unwrap_or(0);
    let ratio = |fast: Time, own: Time| if own == 0 { 1.0 } else { fast as f64 / own as f64 };
    let speed =
        |node: &usize| lengths(*node).map(|(f, b)| ratio(forward, f).max(ratio(backward, b))).fold(0.0, f64::max);
    StageCapacity { forward, backward, capacity: nodes.iter().map(speed).sum::<f64>().max(f64::MIN_POSITIVE) }
}

fn symmetry_classes(tasks: &[RouteTask]) -> Vec<SymmetryClass> {
    let mut classes: Vec<SymmetryClass> = Vec::new();
    let alike = |a: usize, b: usize| {
        let (a, b) = (&tasks[a], &tasks[b]);
        (a.source, a.class, a.waves) == (b.source, b.class, b.waves)
    };
    for agent in 0..tasks.len() {
        match classes.iter_mut().find(|class| alike(class.agents[0], agent)) {
            Some(class) => class.agents.push(agent),
            None => classes.push(SymmetryClass { agents: vec![agent] }),
        }
    }
    classes.retain(|class| class.agents.len() > 1);
    classes
}
