//! Enumeration of the candidate paths of one kind of agent: every node sequence that satisfies the rules for a single
//! route (CC1, CC2, `max_stage_jump`, lengths or classes) and returns within the limit when no other agent delays it.
//!
//! Depth-first, pruned by the admissible look-ahead.

use smallvec::SmallVec;

use super::interface::{ClassDemand, Subproblem, VisitDemand};
use crate::bound::lookahead::{Lookahead, Position};
use crate::budget::Budget;
use crate::problem::Instance;
use crate::route::{RouteTask, StageOrder, StageSet, stage_bit};
use crate::rules::MemoryRule;
use crate::time::{NEVER, Time};

/// One node sequence with its tasks.
#[derive(Clone, Debug)]
pub struct CandidatePath {
    /// Local node numbers in order of the forward pass.
    pub nodes: SmallVec<[u32; 8]>,
    /// Their stages.
    pub stages: StageSet,
    /// Tasks of one wave, `F0 .. F(h-1) L B(h-1) .. B0`.
    pub steps: Vec<PathTask>,
    /// For each node, the time from the start of its forward to the end of its backward without waiting.
    pub holds: SmallVec<[Time; 8]>,
    /// Transfer from the first node back to the source, after the last task.
    pub return_transfer: Time,
    /// Round trip of one wave without waiting.
    pub trip: Time,
}

/// One task of a path.
#[derive(Clone, Copy, Debug)]
pub struct PathTask {
    /// Offset of its operation in a wave, see [`super::model::Model`].
    pub offset: u32,
    /// Transfer time of its input.
    pub travel: Time,
    /// Duration.
    pub length: Time,
    /// All-reduce of its stage, which follows a backward; 0 for others.
    pub allreduce: Time,
}

/// Partial paths between two checks of the budget.
const STEPS_PER_POLL: u64 = 4096;

/// Node sequences (global node numbers) for the agents like `task`; none where there are more than `most`, or the
/// budget is spent. Paths whose waves take longer than `latest` are left out. `listed` counts the partial paths
/// visited.
pub fn enumerate_paths(
    subproblem: &Subproblem<'_>,
    lookahead: &Lookahead,
    task: &RouteTask,
    latest: Time,
    most: usize,
    budget: &Budget,
    listed: &mut u64,
) -> Option<Vec<Vec<u32>>> {
    let Subproblem { instance, demand, .. } = *subproblem;
    if let Some(nodes) = &instance.classes[task.class].forced {
        return Some(vec![nodes.clone()]);
    }
    let mut enumerator = PathEnumerator {
        instance,
        lookahead,
        demand,
        task,
        latest: latest / task.waves.max(1) as Time,
        length: 0,
        nodes: Vec::new(),
        found: Vec::new(),
        most,
        steps: 0,
        is_stopped: false,
        budget,
    };
    for length in demand.short..=demand.long {
        enumerator.length = length;
        enumerator.extend(StageOrder::start(&instance.rules), 0, task.source, 0);
    }
    *listed += enumerator.steps;
    (!enumerator.is_stopped).then_some(enumerator.found)
}

struct PathEnumerator<'a> {
    instance: &'a Instance,
    lookahead: &'a Lookahead,
    demand: &'a VisitDemand,
    task: &'a RouteTask,
    /// Latest completion of one wave.
    latest: Time,
    length: usize,
    nodes: Vec<u32>,
    found: Vec<Vec<u32>>,
    most: usize,
    steps: u64,
    is_stopped: bool,
    budget: &'a Budget,
}

impl PathEnumerator<'_> {
    /// Extends the sequence by every allowed node. `around`: round trip to `last` without waiting, its tasks included.
    fn extend(&mut self, order: StageOrder, visited: StageSet, last: usize, around: Time) {
        let may_become = |class: &ClassDemand| visited & !class.stages == 0;
        if !self.demand.classes.is_empty() && !self.demand.classes.iter().any(may_become) {
            return;
        }
        if self.nodes.len() == self.length {
            if !self.demand.classes.is_empty() && self.demand.classes.iter().all(|class| class.stages != visited) {
                return;
            }
            self.found.push(self.nodes.clone());
            self.is_stopped |= self.found.len() > self.most;
            return;
        }
        let instance = self.instance;
        let rules = &instance.rules;
        let left = self.length - self.nodes.len() - 1;
        let mut open = order.reachable(rules) & !visited;
        for stage in instance.present.iter().copied() {
            if open & stage_bit(stage) == 0 || self.demand.most[stage] == 0 {
                continue;
            }
            open &= !stage_bit(stage);
            let Some(next) = order.step(stage, rules) else { continue };
            let position = Position::of(next, stage);
            for node in instance.members[stage].iter().copied() {
                let begins_elsewhere = rules.cc1 && self.nodes.is_empty() && node != self.task.source;
                let no_room = rules.tc1 != MemoryRule::Off && instance.memory[node] == 0;
                if self.is_stopped || begins_elsewhere || no_room {
                    continue;
                }
                self.steps += 1;
                self.is_stopped |= self.steps.is_multiple_of(STEPS_PER_POLL) && self.budget.is_over();
                let ahead = self.lookahead.least(self.task.source, node, position, left);
                let own = instance.forward(self.task.class, node) + instance.backward(self.task.class, node);
                let whole = around + own + instance.transfer(last, node) + instance.transfer(node, last);
                if ahead >= NEVER || whole + ahead > self.latest {
                    continue;
                }
                self.nodes.push(node as u32);
                self.extend(next, visited | stage_bit(stage), node, whole);
                self.nodes.pop();
            }
        }
    }
}

impl CandidatePath {
    /// The path along `sequence` (global node numbers); `local` gives the local number of a node.
    pub fn new(
        instance: &Instance,
        task: &RouteTask,
        sequence: &[u32],
        local: &dyn Fn(usize) -> u32,
        loss_offset: u32,
    ) -> Self {
        let (source, class) = (task.source, task.class);
        let mut steps = Vec::with_capacity(2 * sequence.len() + 1);
        let mut stages = 0;
        let mut last = source;
        for node in sequence.iter().map(|n| *n as usize) {
            let travel = instance.transfer(last, node);
            steps.push(PathTask {
                offset: 2 * local(node),
                travel,
                length: instance.forward(class, node),
                allreduce: 0,
            });
            stages |= stage_bit(instance.stage_of[node]);
            last = node;
        }
        let travel = instance.transfer(last, source);
        steps.push(PathTask { offset: loss_offset, travel, length: instance.loss(class, source), allreduce: 0 });
        last = source;
        for node in sequence.iter().rev().map(|n| *n as usize) {
            let allreduce = instance.allreduce[instance.stage_of[node]];
            let travel = instance.transfer(last, node);
            steps.push(PathTask {
                offset: 2 * local(node) + 1,
                travel,
                length: instance.backward(class, node),
                allreduce,
            });
            last = node;
        }
        let return_transfer = instance.transfer(last, source);
        let hops = sequence.len();
        let whole = |from: usize, to: usize| {
            steps[from].length + steps[from + 1..=to].iter().map(|s| s.travel + s.length).sum::<Time>()
        };
        let holds = (0..hops).map(|h| whole(h, 2 * hops - h)).collect();
        let trip = steps.iter().map(|s| s.travel + s.length).sum::<Time>() + return_transfer;
        Self {
            nodes: sequence.iter().map(|n| local(*n as usize)).collect(),
            stages,
            steps,
            holds,
            return_transfer,
            trip,
        }
    }
}
