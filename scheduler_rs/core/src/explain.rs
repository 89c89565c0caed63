//! Why a plan takes as long as it does: its critical path, what every task waited for, and how late it may start.
//!
//! A plan with the order of its processors fixed is a graph of tasks: each waits for its input, for the task before it on
//! its processor and, between waves, for the wave before. The iteration is the longest path through it.

use rustc_hash::FxHashMap;

use crate::contention::Channels;
use crate::error::Result;
use crate::plan::{Kind, Plan, Task};
use crate::problem::Instance;
use crate::rules::MemoryRule;
use crate::simulate::{Dispatch, resimulate};
use crate::time::{Rounding, Time, seconds};

/// Why a task started when it did, and not before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// It is the first of its microbatch; nothing held it up.
    Start,
    /// Its input arrived then.
    Input,
    /// The wave before it on its route completed then.
    Wave,
    /// Its processor ran other tasks without a pause since the input had arrived.
    Busy,
    /// Its node was idle but held as many microbatches as its memory allows.
    Memory,
    /// Its node was idle: the plan lets a task go first whose input came later.
    Order,
}

impl Reason {
    /// The word in files and messages.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Input => "input",
            Self::Wave => "wave",
            Self::Busy => "busy",
            Self::Memory => "memory",
            Self::Order => "order",
        }
    }
}

/// What became of the time between the arrival of a task's input and its start.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Waits {
    /// Its node ran other tasks, in seconds.
    pub busy_s: f64,
    /// Its node was idle and full, in seconds.
    pub memory_s: f64,
    /// Its node was idle and had room, in seconds.
    pub order_s: f64,
}

/// One task explained.
#[derive(Clone, Debug, PartialEq)]
pub struct Note {
    /// When its input was there, in seconds.
    pub arrival_s: f64,
    /// How much later it may start without lengthening the iteration, the order kept, in seconds.
    pub slack_s: f64,
    /// Why it did not start before.
    pub reason: Reason,
    /// The task that it waited for: the one before in its microbatch (or of the wave before), the one before on its
    /// node, the backward that frees memory, or the one that the order puts first.
    pub blocker: Option<usize>,
    /// What it waited for.
    pub waits: Waits,
}

/// What an interval of time is spent on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// A task, by its index in [`Plan::tasks`].
    Task(usize),
    /// A message from node to node.
    Transfer(usize, usize),
    /// A task has its input and waits; by its index in [`Plan::tasks`].
    Wait(usize, Reason),
    /// The all-reduce of a stage.
    AllReduce(usize),
    /// The exchange of the global gradient norm.
    Norm,
    /// The slowest optimizer step.
    Step,
}

/// An interval of time, in seconds from the start of the iteration.
#[derive(Clone, Debug, PartialEq)]
pub struct Segment {
    /// When it begins.
    pub start_s: f64,
    /// When it ends.
    pub end_s: f64,
    /// What it is spent on.
    pub part: Part,
}

/// A plan explained. Both chains are gapless from 0 to the end of the iteration.
#[derive(Clone, Debug, PartialEq)]
pub struct Explanation {
    /// The plan with the simulator's times in its own order, which are the times that are explained.
    pub plan: Plan,
    /// One for each of its tasks.
    pub notes: Vec<Note>,
    /// A longest chain of tasks and transfers, each of which begins as the one before it ends. It changes microbatch
    /// where a task waited for its node.
    pub critical: Vec<Segment>,
    /// The microbatch at the end of that chain, from the start: tasks, transfers and waiting.
    pub last: Vec<Segment>,
}

/// Explains `plan` as its own order runs.
///
/// # Errors
/// As [`resimulate`].
pub fn explain(plan: &Plan) -> Result<Explanation> {
    let plan = resimulate(plan, Dispatch::Planned)?;
    let instance = plan.instance()?;
    let graph = TaskGraph::new(&plan, &instance);
    let tail = graph.tails();
    let notes =
        (0..plan.tasks.len()).map(|task| graph.note(task, graph.body - graph.start[task] - tail[task])).collect();
    let finish = graph.finish();
    let (critical, last) = (graph.critical(finish), graph.last(finish));
    Ok(Explanation { notes, critical, last, plan })
}

/// What a task's input comes from.
#[derive(Clone, Copy, Debug, Default)]
struct Input {
    /// The task before it in its microbatch, or the last of the wave before; none at the very start.
    from: Option<usize>,
    /// Whether that is the wave before.
    wave: bool,
    /// The message that returns the wave before to its source, sender and receiver; then the one that brings the input.
    wave_return: Option<(usize, usize)>,
    hop: Option<(usize, usize)>,
}

/// What ends the part of the iteration before norm and step.
#[derive(Clone, Copy, Debug)]
enum Finish {
    /// A microbatch completes: its last task.
    Completion(usize),
    /// The all-reduce of a stage, after this task or from the start.
    Reduced(Option<usize>, usize),
}

/// The tasks of a plan and what each of them waits for; times in nanoseconds.
struct TaskGraph<'a> {
    plan: &'a Plan,
    instance: &'a Instance,
    start: Vec<Time>,
    end: Vec<Time>,
    arrival: Vec<Time>,
    input: Vec<Input>,
    /// For each node, the tasks of its processor in their order, and the position of each task there.
    timelines: Vec<NodeTimeline>,
    position: Vec<usize>,
    /// Source of a microbatch, for those tasks that complete it.
    returns_to: Vec<Option<usize>>,
    /// When all microbatches are complete and all stages reduced.
    body: Time,
}

/// The tasks of a node's processor in order, and sums over the time before each of them.
#[derive(Default)]
struct NodeTimeline {
    tasks: Vec<usize>,
    /// Whether the node itself is full before this task.
    full: Vec<bool>,
    /// Time spent idle and full up to the start of each.
    full_idle: Vec<Time>,
    /// Time spent idle with room up to the start of each.
    free_idle: Vec<Time>,
}

impl<'a> TaskGraph<'a> {
    fn new(plan: &'a Plan, instance: &'a Instance) -> Self {
        let count = plan.tasks.len();
        let time = |s: f64| (s * 1e9).round() as Time;
        let mut graph = Self {
            plan,
            instance,
            start: plan.tasks.iter().map(|t| time(t.start_s)).collect(),
            end: plan.tasks.iter().map(|t| time(t.end_s)).collect(),
            arrival: vec![0; count],
            input: vec![Input::default(); count],
            timelines: Vec::new(),
            position: vec![0; count],
            returns_to: vec![None; count],
            body: time(plan.predicted.iteration_s) - instance.epilogue,
        };
        graph.link_microbatches();
        graph.fill_timelines();
        graph.fill_arrivals();
        graph
    }

    /// When the input of each task arrives.
    fn fill_arrivals(&mut self) {
        let mut next = vec![None; self.plan.tasks.len()];
        for task in 0..next.len() {
            let Input { from, wave, wave_return, hop } = self.input[task];
            match from {
                Some(from) if !wave => next[from] = Some(task),
                _ => {
                    self.arrival[task] =
                        from.map_or(0, |from| self.end[from]) + self.travel(wave_return) + self.travel(hop);
                }
            }
        }
        let mut channels = Channels::default();
        channels.reset(self.instance);
        // Of nodes that share a processor each has all of its tasks.
        let nodes = (0..self.timelines.len()).filter(|node| self.instance.processor(*node) == *node);
        for from in nodes.flat_map(|node| &self.timelines[node].tasks) {
            let Some(task) = next[*from] else { continue };
            let (node, to) = (self.node(*from), self.node(task));
            let travel = self.travel(self.input[task].hop);
            self.arrival[task] = channels.deliver(self.instance, node, to, travel, self.end[*from]);
        }
    }

    /// Inputs of all tasks, and which of them complete a microbatch.
    fn link_microbatches(&mut self) {
        let plan = self.plan;
        let index_of: FxHashMap<usize, usize> = plan.microbatches.iter().enumerate().map(|(i, b)| (b.id, i)).collect();
        let mut chains = vec![Vec::new(); plan.microbatches.len()];
        for (i, task) in plan.tasks.iter().enumerate() {
            chains[index_of[&task.microbatch]].push(i);
        }
        let mut sorted: Vec<usize> = (0..chains.len()).collect();
        sorted.sort_by_key(|i| (plan.microbatches[*i].route, plan.microbatches[*i].wave));
        let mut before: Option<(usize, usize)> = None; // route and last task of the microbatch before
        for i in sorted {
            let microbatch = &plan.microbatches[i];
            let chain = &mut chains[i];
            chain.sort_by_key(|t| position_in_chain(&plan.tasks[*t], microbatch.nodes.len()));
            let hop = |from: usize, to: usize| (from != to).then_some((from, to));
            let wave = before.filter(|(route, _)| *route == microbatch.route).map(|(_, task)| task);
            let mut from = Input { from: wave, wave: wave.is_some(), ..Input::default() };
            from.wave_return = wave.and_then(|task| hop(plan.tasks[task].node, microbatch.source));
            let mut at = microbatch.source;
            for task in chain.iter() {
                let node = plan.tasks[*task].node;
                self.input[*task] = Input { hop: hop(at, node), ..from };
                from = Input { from: Some(*task), ..Input::default() };
                at = node;
            }
            if let Some(last) = from.from {
                self.returns_to[last] = Some(microbatch.source);
                before = Some((microbatch.route, last));
            }
        }
    }

    /// Tasks of each processor and what it was idle for.
    fn fill_timelines(&mut self) {
        let instance = self.instance;
        let mut ran = vec![Vec::new(); instance.node_count()];
        for (i, task) in self.plan.tasks.iter().enumerate() {
            let own: &mut Vec<usize> = &mut ran[instance.processor(task.node)];
            self.position[i] = own.len();
            own.push(i);
        }
        let timeline = |node| NodeTimeline { tasks: ran[instance.processor(node)].clone(), ..NodeTimeline::default() };
        let mut timelines: Vec<NodeTimeline> = (0..instance.node_count()).map(timeline).collect();
        let counted = self.instance.rules.tc1 == MemoryRule::Held;
        for (node, timeline) in timelines.iter_mut().enumerate() {
            let (mut held, mut free_at, mut full_idle, mut free_idle) = (0, 0, 0, 0);
            for task in &timeline.tasks {
                let full = counted && held >= self.instance.memory[node];
                let idle = self.start[*task] - free_at;
                *(if full { &mut full_idle } else { &mut free_idle }) += idle;
                timeline.full.push(full);
                timeline.full_idle.push(full_idle);
                timeline.free_idle.push(free_idle);
                free_at = self.end[*task];
                match self.plan.tasks[*task].kind {
                    Kind::F if self.plan.tasks[*task].node == node => held += 1,
                    Kind::B if self.plan.tasks[*task].node == node => held = held.saturating_sub(1),
                    _ => {}
                }
            }
        }
        self.timelines = timelines;
    }

    fn kind(&self, task: usize) -> Kind {
        self.plan.tasks[task].kind
    }

    fn node(&self, task: usize) -> usize {
        self.plan.tasks[task].node
    }

    fn travel(&self, hop: Option<(usize, usize)>) -> Time {
        hop.map_or(0, |(from, to)| self.instance.transfer(from, to))
    }

    /// What the message takes that brings a task its input, with what it waits for others on its link.
    fn taken(&self, task: usize) -> Time {
        let Input { from, wave, hop, .. } = self.input[task];
        from.filter(|_| !wave).map_or(self.travel(hop), |from| self.arrival[task] - self.end[from])
    }

    /// The task before on the same processor.
    fn before(&self, task: usize) -> Option<usize> {
        let timeline = &self.timelines[self.node(task)];
        self.position[task].checked_sub(1).map(|position| timeline.tasks[position])
    }

    /// From the end of `task` to the completion of its microbatch; none where more tasks follow.
    fn return_transfer(&self, task: usize) -> Option<Time> {
        self.returns_to[task].map(|source| self.instance.transfer(self.node(task), source))
    }

    fn allreduce_after(&self, task: usize) -> Option<(usize, Time)> {
        let stage = self.instance.stage_of[self.node(task)];
        (self.kind(task) == Kind::B).then(|| (stage, self.instance.allreduce[stage]))
    }

    /// Longest path from the start of each task to the end of all microbatches and all-reduces.
    fn tails(&self) -> Vec<Time> {
        let count = self.plan.tasks.len();
        let mut waiting = vec![0_u8; count]; // tasks that come after this one
        for task in 0..count {
            for earlier in [self.input[task].from, self.before(task)].into_iter().flatten() {
                waiting[earlier] += 1;
            }
        }
        let mut tail: Vec<Time> = vec![0; count];
        let mut ready: Vec<usize> = (0..count).filter(|t| waiting[*t] == 0).collect();
        while let Some(task) = ready.pop() {
            let length = self.end[task] - self.start[task];
            let back = self.return_transfer(task).unwrap_or(0);
            let reduced = self.allreduce_after(task).map_or(0, |(_, time)| time);
            tail[task] = length + tail[task].max(back).max(reduced);
            let travel = self.arrival[task] - self.input[task].from.map_or(0, |from| self.end[from]);
            for (earlier, gap) in [(self.input[task].from, travel), (self.before(task), 0)] {
                let Some(earlier) = earlier else { continue };
                tail[earlier] = tail[earlier].max(gap + tail[task]);
                waiting[earlier] -= 1;
                if waiting[earlier] == 0 {
                    ready.push(earlier);
                }
            }
        }
        tail
    }

    fn note(&self, task: usize, slack: Time) -> Note {
        let (reason, blocker, waits) = self.why(task);
        let [busy_s, memory_s, order_s] = waits.map(seconds);
        let waits = Waits { busy_s, memory_s, order_s };
        Note { arrival_s: seconds(self.arrival[task]), slack_s: seconds(slack), reason, blocker, waits }
    }

    /// The reason of a start, the task behind it, and the time spent on [busy, memory, order].
    fn why(&self, task: usize) -> (Reason, Option<usize>, [Time; 3]) {
        let (arrival, start, from) = (self.arrival[task], self.start[task], self.input[task].from);
        if start == arrival {
            let reason = match from {
                None => Reason::Start,
                Some(_) if self.input[task].wave => Reason::Wave,
                Some(_) => Reason::Input,
            };
            return (reason, from, [0; 3]);
        }
        let (timeline, position) = (&self.timelines[self.node(task)], self.position[task]);
        // The first task of this node that ends after the input had arrived. It is never this one, for that starts
        // as the one before it ends.
        let first = timeline.tasks.partition_point(|t| self.end[*t] <= arrival);
        let cut = (self.start[timeline.tasks[first]] - arrival).max(0);
        let full_idle =
            timeline.full_idle[position] - timeline.full_idle[first] + if timeline.full[first] { cut } else { 0 };
        let free_idle =
            timeline.free_idle[position] - timeline.free_idle[first] + if timeline.full[first] { 0 } else { cut };
        let busy = start - arrival - full_idle - free_idle;
        // Memory holds back forwards alone.
        let gated = self.kind(task) == Kind::F;
        let (memory, order) = if gated { (full_idle, free_idle) } else { (0, full_idle + free_idle) };
        let idle_before = |wanted_full: Option<bool>| {
            let begin = |p: usize| if p == first { arrival } else { self.end[timeline.tasks[p - 1]] };
            (first..position).rev().find(|p| {
                wanted_full.is_none_or(|full| timeline.full[*p] == full) && self.start[timeline.tasks[*p]] > begin(*p)
            })
        };
        let blocker = |p: Option<usize>| p.map(|p| timeline.tasks[p]);
        let waits = [busy, memory, order];
        if memory > 0 {
            let freed =
                idle_before(Some(true)).and_then(|p| (p..position).find(|p| self.kind(timeline.tasks[*p]) == Kind::B));
            (Reason::Memory, blocker(freed), waits)
        } else if order > 0 {
            (Reason::Order, blocker(idle_before(None)), waits)
        } else {
            (Reason::Busy, self.before(task), waits)
        }
    }

    /// What ends last: the completion of a microbatch before an all-reduce, then the lower number.
    fn finish(&self) -> Finish {
        let tasks = || 0..self.plan.tasks.len();
        let id = |task: &usize| (self.plan.tasks[*task].microbatch, self.plan.tasks[*task].hop);
        let completes =
            |task: &usize| self.return_transfer(*task).is_some_and(|back| self.end[*task] + back == self.body);
        if let Some(task) = tasks().filter(completes).min_by_key(id) {
            return Finish::Completion(task);
        }
        let reduced = |task: usize| {
            self.allreduce_after(task).filter(|(_, time)| self.end[task] + time == self.body).map(|(s, _)| (task, s))
        };
        if let Some((task, stage)) = tasks().filter_map(reduced).min_by_key(|(task, _)| id(task)) {
            return Finish::Reduced(Some(task), stage);
        }
        let slowest = (0..self.instance.stage_count()).find(|s| self.instance.allreduce[*s] == self.body);
        Finish::Reduced(None, slowest.unwrap_or_default())
    }

    /// The chain of tasks each of which had to wait for the one before, backwards from the finish.
    fn critical(&self, finish: Finish) -> Vec<Segment> {
        let mut parts = self.after(finish);
        let mut next = finish.task();
        while let Some(task) = next {
            parts.push(Part::Task(task), self.end[task] - self.start[task]);
            next = self.before(task);
            if self.start[task] == self.arrival[task] {
                let Input { from, wave_return, hop, .. } = self.input[task];
                push_transfer(&mut parts, hop, self.taken(task));
                push_transfer(&mut parts, wave_return, self.travel(wave_return));
                next = from;
            }
        }
        parts.segments()
    }

    /// The path of the microbatch at the finish, with what it waited for.
    fn last(&self, finish: Finish) -> Vec<Segment> {
        let mut parts = self.after(finish);
        let mut next = finish.task();
        while let Some(task) = next {
            parts.push(Part::Task(task), self.end[task] - self.start[task]);
            let (_, _, [busy, memory, order]) = self.why(task);
            parts.push(Part::Wait(task, Reason::Order), order);
            parts.push(Part::Wait(task, Reason::Memory), memory);
            parts.push(Part::Wait(task, Reason::Busy), busy);
            let Input { from, wave, hop, .. } = self.input[task];
            push_transfer(&mut parts, hop, self.taken(task));
            if wave {
                parts.push(Part::Wait(task, Reason::Wave), self.arrival[task] - self.travel(hop));
            }
            next = from.filter(|_| !wave);
        }
        parts.segments()
    }

    /// What follows the last task, from the end of the iteration backwards.
    fn after(&self, finish: Finish) -> Backwards {
        let norm = Rounding::Up.nanoseconds(self.plan.cluster.norm_s());
        let mut parts = Backwards { at: self.body + self.instance.epilogue, segments: Vec::new() };
        parts.push(Part::Step, self.instance.epilogue - norm);
        parts.push(Part::Norm, norm);
        match finish {
            Finish::Completion(task) => {
                let node = self.node(task);
                let hop = self.returns_to[task].filter(|source| *source != node).map(|source| (node, source));
                push_transfer(&mut parts, hop, self.travel(hop));
            }
            Finish::Reduced(_, stage) => parts.push(Part::AllReduce(stage), self.instance.allreduce[stage]),
        }
        parts
    }
}

fn push_transfer(parts: &mut Backwards, hop: Option<(usize, usize)>, time: Time) {
    if let Some((from, to)) = hop {
        parts.push(Part::Transfer(from, to), time);
    }
}

impl Finish {
    fn task(self) -> Option<usize> {
        match self {
            Self::Completion(task) => Some(task),
            Self::Reduced(task, _) => task,
        }
    }
}

/// Segments put together from the end of the iteration to its start.
struct Backwards {
    at: Time,
    segments: Vec<Segment>,
}

impl Backwards {
    /// Tasks may take no time and are listed all the same; everything else is left out then.
    fn push(&mut self, part: Part, length: Time) {
        if length == 0 && !matches!(part, Part::Task(_)) {
            return;
        }
        self.segments.push(Segment { start_s: seconds(self.at - length), end_s: seconds(self.at), part });
        self.at -= length;
    }

    fn segments(mut self) -> Vec<Segment> {
        debug_assert_eq!(self.at, 0, "a chain with a gap");
        self.segments.reverse();
        self.segments
    }
}

fn position_in_chain(task: &Task, hops: usize) -> usize {
    match task.kind {
        Kind::F => task.hop,
        Kind::L => hops,
        Kind::B => 2 * hops - task.hop,
    }
}
