//! All ways of one kind of agent that can still matter: every node sequence that keeps the rules of a single route
//! and is home within the limit when nobody is in its way.

use smallvec::SmallVec;

use super::Question;
use super::model::Demand;
use crate::bound::lookahead::{Lookahead, Position};
use crate::budget::Budget;
use crate::problem::Instance;
use crate::route::{RouteTask, StageOrder, StageSet, stage_bit};
use crate::rules::MemoryRule;
use crate::time::{NEVER, Time};

/// One node sequence, with its tasks laid out for the low level.
#[derive(Clone, Debug)]
pub struct Way {
    /// Local node numbers in order of the forward pass.
    pub nodes: SmallVec<[u32; 8]>,
    /// Their stages.
    pub stages: StageSet,
    /// Tasks of one wave, `F0 .. F(h-1) L B(h-1) .. B0`.
    pub steps: Vec<Step>,
    /// For each hop, the time from the start of its forward to the end of its backward when nothing waits.
    pub holds: SmallVec<[Time; 8]>,
    /// Transfer from the last node back to the source, after the last task.
    pub return_transfer: Time,
    /// One wave, out and home, when nothing waits.
    pub trip: Time,
}

/// One task of a way.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    /// Number of the task among those of a wave: `2 n` is the forward on local node `n`, `2 n + 1` its backward, the
    /// last one is head and loss.
    pub op: u32,
    /// Transfer of its input.
    pub travel: Time,
    /// Duration.
    pub length: Time,
    /// All-reduce of its stage, which follows a backward; 0 for others.
    pub reduce: Time,
}

/// Search steps between two questions whether to stop.
const STEPS_PER_POLL: u64 = 4096;

/// Node sequences (global node numbers) for the agents like `task`, none where they are more than `most` or the time
/// is over. `latest`: ways that take longer for all their waves are of no use. `listed` counts what was looked at.
pub fn sequences(
    question: &Question<'_>,
    lookahead: &Lookahead,
    task: &RouteTask,
    latest: Time,
    most: usize,
    budget: &Budget,
    listed: &mut u64,
) -> Option<Vec<Vec<u32>>> {
    let Question { instance, demand, .. } = *question;
    if let Some(nodes) = &instance.classes[task.class].forced {
        return Some(vec![nodes.clone()]);
    }
    let mut search = Search {
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
        search.length = length;
        search.go(StageOrder::start(&instance.rules), 0, task.source, 0);
    }
    *listed += search.steps;
    (!search.is_stopped).then_some(search.found)
}

struct Search<'a> {
    instance: &'a Instance,
    lookahead: &'a Lookahead,
    demand: &'a Demand,
    task: &'a RouteTask,
    /// For one wave.
    latest: Time,
    length: usize,
    nodes: Vec<u32>,
    found: Vec<Vec<u32>>,
    most: usize,
    steps: u64,
    is_stopped: bool,
    budget: &'a Budget,
}

impl Search<'_> {
    /// `around`: time out to the last node and home from it, its own tasks counted.
    fn go(&mut self, order: StageOrder, visited: StageSet, last: usize, around: Time) {
        if self.nodes.len() == self.length {
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
                self.go(next, visited | stage_bit(stage), node, whole);
                self.nodes.pop();
            }
        }
    }
}

/// Lays out the tasks of `sequence`; `local` gives the local number of a node.
pub fn lay_out(
    instance: &Instance,
    task: &RouteTask,
    sequence: &[u32],
    local: &dyn Fn(usize) -> u32,
    loss_op: u32,
) -> Way {
    let (source, class) = (task.source, task.class);
    let mut steps = Vec::with_capacity(2 * sequence.len() + 1);
    let mut stages = 0;
    let mut last = source;
    for node in sequence.iter().map(|n| *n as usize) {
        let travel = instance.transfer(last, node);
        steps.push(Step { op: 2 * local(node), travel, length: instance.forward(class, node), reduce: 0 });
        stages |= stage_bit(instance.stage_of[node]);
        last = node;
    }
    let travel = instance.transfer(last, source);
    steps.push(Step { op: loss_op, travel, length: instance.loss(class, source), reduce: 0 });
    last = source;
    for node in sequence.iter().rev().map(|n| *n as usize) {
        let reduce = instance.allreduce[instance.stage_of[node]];
        let travel = instance.transfer(last, node);
        steps.push(Step { op: 2 * local(node) + 1, travel, length: instance.backward(class, node), reduce });
        last = node;
    }
    let return_transfer = instance.transfer(last, source);
    let hops = sequence.len();
    let whole = |from: usize, to: usize| {
        steps[from].length + steps[from + 1..=to].iter().map(|s| s.travel + s.length).sum::<Time>()
    };
    let holds = (0..hops).map(|h| whole(h, 2 * hops - h)).collect();
    let trip = steps.iter().map(|s| s.travel + s.length).sum::<Time>() + return_transfer;
    Way { nodes: sequence.iter().map(|n| local(*n as usize)).collect(), stages, steps, holds, return_transfer, trip }
}
