//! The low level: A* with the time dimension over (node, safe interval, stages visited), exact for one
//! microbatch among what is already reserved.
//!
//! The backward pass runs over the nodes of the forward pass, so an early arrival alone is no advantage. Each label
//! therefore carries its return function: the objective as a function of the time at which the gradient
//! comes back to its node. One label dominates another only if it is no later and its return function is
//! nowhere higher. What a microbatch minimises is the latest, over the stages it visits, of the end of its
//! backward plus that stage's all-reduce.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::timed_path::TimedPath;
use crate::bound::lookahead::{Lookahead, Position};
use crate::problem::Instance;
use crate::route::{StageOrder, StageSet, Visits, stage_bit};
use crate::search::methods::prioritised::partial_schedule::PartialSchedule;
use crate::time::{NEVER, Time};

/// What to find a timed path for.
#[derive(Clone, Copy, Debug)]
pub struct Request<'r> {
    /// Node of stage 0.
    pub source: usize,
    /// Its class: an index into [`Instance::classes`].
    pub class: usize,
    /// The microbatch exists from this time on.
    pub release: Time,
    /// What it must and may visit.
    pub visits: Visits,
    /// The nodes, where another wave has chosen the route already.
    pub forced: Option<&'r [u32]>,
    /// A path with a higher objective is of no use.
    pub limit: Time,
}

const NO_LABEL: u32 = u32::MAX;

#[derive(Clone, Debug)]
struct Label {
    node: u32,
    parent: u32,
    hops: u8,
    /// End of the forward at `node`.
    time: Time,
    order: StageOrder,
    visited: StageSet,
    back: Return,
}

/// The objective over the time `t` at which the gradient arrives: with the first piece `(last, floor)` whose
/// `last` is not before `t`, `max(floor, t + delay)`; beyond the last piece there is no return.
#[derive(Clone, Debug)]
struct Return {
    pieces: SmallVec<[(Time, Time); 4]>,
    delay: Time,
}

impl Return {
    /// At the source nothing is left to do.
    fn at_source() -> Self {
        Self { pieces: SmallVec::from_slice(&[(NEVER, Time::MIN)]), delay: 0 }
    }

    fn at(&self, time: Time) -> Option<Time> {
        let piece = self.pieces.iter().find(|(last, _)| *last >= time)?;
        Some(piece.1.max(time + self.delay))
    }

    /// With one more node between here and the source: `gaps` are the times at which its backward may start,
    /// which takes `length` and must end by `deadline`; then `travel` to the node before; its stage reduces
    /// for `reduce`.
    fn through(
        &self,
        gaps: impl Iterator<Item = (Time, Time)>,
        length: Time,
        deadline: Time,
        travel: Time,
        reduce: Time,
    ) -> Self {
        let delay = length + reduce.max(travel + self.delay);
        let mut pieces: SmallVec<[(Time, Time); 4]> = SmallVec::new();
        for (first, last) in gaps {
            let last = last.min(deadline - length);
            for (limit, floor) in &self.pieces {
                let until = if *limit >= NEVER { last } else { last.min(limit - length - travel) };
                if until >= first && pieces.last().is_none_or(|p| until > p.0) {
                    pieces.push((until, (*floor).max(first + delay)));
                }
                if until == last {
                    break;
                }
            }
            if first > deadline - length {
                break;
            }
        }
        Self { pieces, delay }
    }

    /// Whether this is nowhere above `other` from `from` on (sufficient, not necessary).
    fn covers(&self, other: &Self, from: Time) -> bool {
        if self.delay > other.delay {
            return false;
        }
        let mut own = self.pieces.iter();
        let Some(mut piece) = own.next() else { return other.pieces.is_empty() };
        for (last, floor) in other.pieces.iter().filter(|(last, _)| *last >= from) {
            while piece.0 < *last {
                match own.next() {
                    Some(next) => piece = next,
                    None => return false,
                }
            }
            if piece.1 > (*floor).max(from + other.delay) {
                return false;
            }
        }
        true
    }
}

/// Finds timed paths; keeps its memory between calls.
#[derive(Debug)]
pub struct Router<'a> {
    instance: &'a Instance,
    lookahead: &'a Lookahead,
    labels: Vec<Label>,
    /// By value, then by depth; when diving by depth, then by value.
    queue: BinaryHeap<Reverse<(Time, Time, u32)>>,
    /// Work of one search after which it dives for any good path rather than prove the best.
    patience: u64,
    diving: bool,
    best: FxHashMap<(u32, u8, StageOrder), SmallVec<[u32; 4]>>,
    /// Steps looked at and labels made since the start; the measure of work.
    pub work: u64,
}

/// Depth rank of a label that has reached its last stage: its value is exact.
const COMPLETE: Time = 0;

/// Work of a step whose node's reservations had to be looked through, beside the 1 of any step.
const SEARCHED: u64 = 4;

/// How often the search asks whether to give up.
const STEPS_PER_POLL: u64 = 4096;

/// A search gives up after so many times its patience.
const PERSISTENCE: u64 = 4;

impl<'a> Router<'a> {
    /// For one instance. A search that has done `patience` steps goes on depth first: on large instances with
    /// many nodes alike the proof of the best path takes far longer than the path.
    #[must_use]
    pub fn new(instance: &'a Instance, lookahead: &'a Lookahead, patience: u64) -> Self {
        Self {
            instance,
            lookahead,
            labels: Vec::new(),
            queue: BinaryHeap::new(),
            patience,
            diving: false,
            best: FxHashMap::default(),
            work: 0,
        }
    }

    /// The best timed path (a good one, where the patience ran out) among what `schedule` has reserved, none where there is
    /// none within the limit. `stop` is asked now and then whether to give up.
    pub fn find(
        &mut self,
        schedule: &PartialSchedule<'_>,
        request: &Request<'_>,
        stop: &dyn Fn() -> bool,
    ) -> Option<TimedPath> {
        self.labels.clear();
        self.queue.clear();
        self.best.clear();
        self.diving = false;
        self.start(schedule, request);
        let begun = self.work;
        let mut polled = begun;
        while let Some(Reverse((first, second, id))) = self.queue.pop() {
            let (value, rank) = if self.diving { (second, first) } else { (first, second) };
            if rank == COMPLETE {
                return Some(self.trace(schedule, request, id, value));
            }
            if !self.diving && self.work - begun > self.patience {
                self.dive();
            }
            if self.work - polled >= STEPS_PER_POLL {
                polled = self.work;
                if stop() || self.work - begun > self.patience.saturating_mul(PERSISTENCE) {
                    return None;
                }
            }
            self.expand(schedule, request, id);
        }
        None
    }

    fn dive(&mut self) {
        self.diving = true;
        self.queue = self.queue.drain().map(|Reverse((value, rank, id))| Reverse((rank, value, id))).collect();
    }

    fn push(&mut self, value: Time, rank: Time, id: u32) {
        let key = if self.diving { (rank, value, id) } else { (value, rank, id) };
        self.queue.push(Reverse(key));
    }

    fn start(&mut self, schedule: &PartialSchedule<'_>, request: &Request<'_>) {
        let rules = &self.instance.rules;
        let at_source = Return::at_source();
        let root = StageOrder::start(rules);
        for stage in self.instance.present.iter().copied() {
            if request.visits.allowed & stage_bit(stage) == 0 {
                continue;
            }
            let Some(order) = root.step(stage, rules) else { continue };
            if !request.visits.can_finish(order, stage_bit(stage), 1, rules) {
                continue;
            }
            for node in &self.instance.members[stage] {
                if (rules.cc1 && *node != request.source) || !self.fits(schedule, request, *node, 0) {
                    continue;
                }
                let arrival = request.release + self.instance.transfer(request.source, *node);
                let parent = Step { id: NO_LABEL, node: request.source, hops: 0, visited: 0 };
                self.enter(schedule, request, &parent, &at_source, *node, order, arrival);
            }
        }
    }

    fn fits(&self, schedule: &PartialSchedule<'_>, request: &Request<'_>, node: usize, hop: usize) -> bool {
        match request.forced {
            Some(nodes) => nodes[hop] as usize == node,
            None => schedule.room(node) > 0,
        }
    }

    fn expand(&mut self, schedule: &PartialSchedule<'_>, request: &Request<'_>, id: u32) {
        let rules = &self.instance.rules;
        let label = self.labels[id as usize].clone();
        let (node, hops) = (label.node as usize, label.hops as usize);
        let parent = Step { id, node, hops, visited: label.visited };
        let mut open = request.visits.allowed & label.order.reachable(rules) & !label.visited;
        while open != 0 {
            let stage = open.trailing_zeros() as usize;
            open &= open - 1;
            let Some(order) = label.order.step(stage, rules) else { continue };
            if !request.visits.can_finish(order, label.visited | stage_bit(stage), hops + 1, rules) {
                continue;
            }
            for next in &self.instance.members[stage] {
                if !self.fits(schedule, request, *next, hops) {
                    continue;
                }
                let arrival = label.time + self.instance.transfer(node, *next);
                self.enter(schedule, request, &parent, &label.back, *next, order, arrival);
            }
        }
    }

    /// Labels for one more stage at `node`, where the input arrives at `arrival`: one for each time in which
    /// the node can hold the microbatch, since within one the earliest start is never worse.
    #[expect(
        clippy::too_many_arguments,
        reason = "the state of one expansion, apart it would be copied for every node"
    )]
    fn enter(
        &mut self,
        schedule: &PartialSchedule<'_>,
        request: &Request<'_>,
        parent: &Step,
        back: &Return,
        node: usize,
        order: StageOrder,
        arrival: Time,
    ) {
        self.work += 1;
        let instance = self.instance;
        let stage = instance.stage_of[node];
        let left = request.visits.length - parent.hops - 1;
        let position = Position::of(order, stage);
        let ahead = self.lookahead.least(request.source, node, position, left);
        if ahead >= NEVER {
            return;
        }
        let (forward, backward) = (instance.forward(request.class, node), instance.backward(request.class, node));
        let travel = instance.transfer(node, parent.node);
        let line = schedule.timeline(node);
        // Without looking at the node's own reservations: most successors end here.
        let hopeful = back.at(arrival + forward + ahead + backward + travel);
        if hopeful.is_none_or(|value| value > request.limit) {
            return;
        }
        self.work += SEARCHED;
        for (from, to) in schedule.windows(node) {
            if *to <= arrival {
                continue;
            }
            let start = line.earliest(arrival.max(*from), forward);
            let time = start + forward;
            if time + ahead + backward > *to {
                continue;
            }
            let earliest_back = time + ahead;
            let back =
                back.through(line.gaps(earliest_back, backward), backward, *to, travel, instance.allreduce[stage]);
            let Some(value) = back.at(earliest_back) else { continue };
            if value > request.limit {
                continue;
            }
            let label = Label {
                node: node as u32,
                parent: parent.id,
                hops: parent.hops as u8 + 1,
                time,
                order,
                visited: parent.visited | stage_bit(stage),
                back,
            };
            self.offer(schedule, request, label, value);
        }
    }

    /// Keeps a label unless another one is at least as good.
    fn offer(&mut self, schedule: &PartialSchedule<'_>, request: &Request<'_>, label: Label, value: Time) {
        self.work += 1;
        let id = self.labels.len() as u32;
        let key = (label.node, label.hops, label.order);
        let rivals = self.best.entry(key).or_default();
        let labels = &self.labels;
        if rivals.iter().any(|r| {
            let rival = &labels[*r as usize];
            rival.time <= label.time && rival.back.covers(&label.back, label.time)
        }) {
            return;
        }
        rivals.retain(|r| {
            let rival = &labels[*r as usize];
            !(label.time <= rival.time && label.back.covers(&rival.back, rival.time))
        });
        rivals.push(id);
        if usize::from(label.hops) == request.visits.length {
            if let Some((arrival, _)) = self.turn(schedule, request, &label)
                && let Some(value) = label.back.at(arrival)
                && value <= request.limit
            {
                self.push(value, COMPLETE, id);
            }
        } else {
            self.push(value, Time::from(u8::MAX - label.hops), id);
        }
        self.labels.push(label);
    }

    /// From the last forward over head and loss at the source to the arrival of the gradient; and the
    /// start of head and loss.
    fn turn(&self, schedule: &PartialSchedule<'_>, request: &Request<'_>, last: &Label) -> Option<(Time, Time)> {
        let (node, source) = (last.node as usize, request.source);
        let arrival = last.time + self.instance.transfer(node, source);
        let loss = self.instance.loss(request.class, source);
        let start = schedule.timeline(source).earliest(arrival, loss);
        (start < NEVER).then(|| (start + loss + self.instance.transfer(source, node), start))
    }

    fn trace(&self, schedule: &PartialSchedule<'_>, request: &Request<'_>, id: u32, value: Time) -> TimedPath {
        let instance = self.instance;
        let mut nodes = Vec::new();
        let mut starts = Vec::new();
        let last = &self.labels[id as usize];
        let mut next = id;
        while next != NO_LABEL {
            let label = &self.labels[next as usize];
            nodes.push(label.node);
            starts.push(label.time - instance.forward(request.class, label.node as usize));
            next = label.parent;
        }
        nodes.reverse();
        starts.reverse();
        let mut arrival = 0;
        if let Some((back, loss)) = self.turn(schedule, request, last) {
            starts.push(loss);
            arrival = back;
        }
        let mut completion = 0;
        for (hop, node) in nodes.iter().enumerate().rev() {
            let node = *node as usize;
            // As early as possible: the return function has shown that this leads back by `value`.
            let backward = instance.backward(request.class, node);
            let start = schedule.timeline(node).earliest(arrival, backward);
            starts.push(start);
            let before = if hop == 0 { request.source } else { nodes[hop - 1] as usize };
            arrival = start + backward + instance.transfer(node, before);
            completion = arrival;
        }
        TimedPath { nodes, starts, completion, value }
    }
}

/// Where an expansion comes from.
struct Step {
    id: u32,
    node: usize,
    hops: usize,
    visited: StageSet,
}
