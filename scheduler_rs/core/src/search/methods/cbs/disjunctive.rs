//! One-machine propagation (TC2): a processor runs one task at a time.
//!
//! Tasks on all paths left to an agent are *mandatory*, the others *optional*. Mandatory tasks are propagated pair by
//! pair (immediate selection, Carlier and Pinson 1989) and by edge finding (Nuijten 1994). Optional tasks receive
//! deductions from mandatory ones and never cause any. For the bound, the mandatory tasks are relaxed to Jackson's
//! preemptive schedule (Carlier 1982).

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::time::{NEVER, Time};

use super::domains::{Domains, Infeasible};
use super::model::Model;

/// An interval variable: a task, or the holding of a microbatch from the start of its forward to the end of its
/// backward.
#[derive(Clone, Copy, Debug)]
pub struct IntervalVar {
    /// Agent.
    pub agent: usize,
    /// Local node.
    pub node: usize,
    /// Whether all paths left to the agent include it.
    pub mandatory: bool,
    /// Operation with which it starts.
    pub start_op: usize,
    /// Operation with which it ends.
    pub end_op: usize,
    /// Earliest start.
    pub earliest_start: Time,
    /// Latest start.
    pub latest_start: Time,
    /// Earliest end.
    pub earliest_end: Time,
    /// Latest end.
    pub latest_end: Time,
    /// Minimum length.
    pub length: Time,
}

/// The interval variables of one node or processor, and working memory kept between calls.
#[derive(Debug, Default)]
pub struct Disjunctive {
    /// Mandatory and optional interval variables.
    pub intervals: Vec<IntervalVar>,
    mandatory: Vec<IntervalVar>,
    bound: Vec<Time>,
    reach: Vec<Time>,
    ends: Vec<Time>,
    queue: BinaryHeap<Reverse<(Time, usize)>>,
    left: Vec<Time>,
}

/// Propagates the tasks of the processor of `node` and sets the slack that they leave below the limit.
///
/// # Errors
/// Where they cannot all complete by the limit.
pub fn propagate_tasks(
    model: &Model<'_>,
    domains: &mut Domains,
    node: usize,
    disjunctive: &mut Disjunctive,
    dirty: &mut [bool],
) -> Result<(), Infeasible> {
    disjunctive.intervals.clear();
    for (agent, own) in model.agents.iter().enumerate() {
        let interval = |op: usize, node: usize, mandatory: bool| {
            let (earliest_start, latest_end, length) =
                (domains.earliest_start[op], domains.latest_end[op], model.length[op]);
            let (latest_start, earliest_end) = (latest_end - length, earliest_start + length);
            IntervalVar {
                agent,
                node,
                mandatory,
                start_op: op,
                end_op: op,
                earliest_start,
                latest_start,
                earliest_end,
                latest_end,
                length,
            }
        };
        for (wave, node) in (0..own.waves).flat_map(|wave| model.sharing[node].iter().map(move |node| (wave, *node))) {
            if domains.is_possible(model, agent, node) {
                let mandatory = domains.is_mandatory(model, agent, node);
                disjunctive.intervals.push(interval(model.op(agent, wave, 2 * node as u32), node, mandatory));
                disjunctive.intervals.push(interval(model.op(agent, wave, 2 * node as u32 + 1), node, mandatory));
            }
            if own.source == node {
                disjunctive.intervals.push(interval(model.op(agent, wave, model.loss_offset()), node, true));
            }
        }
    }
    if disjunctive.intervals.len() < 2 {
        domains.node_slack[node] = NEVER;
        return Ok(());
    }
    immediate_selection(model, domains, disjunctive, dirty)?;
    disjunctive.collect_mandatory();
    disjunctive.edge_finding(false, domains, dirty)?;
    disjunctive.edge_finding(true, domains, dirty)?;
    domains.node_slack[node] = disjunctive.preemptive_slack();
    if domains.node_slack[node] < 0 { Err(Infeasible) } else { Ok(()) }
}

/// Of two intervals of which one cannot come first, the other one does; an optional one that fits neither before nor
/// after a mandatory one is removed, with the paths over its node.
pub fn immediate_selection(
    model: &Model<'_>,
    domains: &mut Domains,
    disjunctive: &Disjunctive,
    dirty: &mut [bool],
) -> Result<(), Infeasible> {
    let all = &disjunctive.intervals;
    for (i, x) in all.iter().enumerate().filter(|(_, x)| x.mandatory) {
        for (j, y) in all.iter().enumerate() {
            if x.agent == y.agent || (y.mandatory && j < i) {
                continue;
            }
            let (before, after) = (x.earliest_end <= y.latest_start, y.earliest_end <= x.latest_start);
            match (before, after) {
                (true, true) => {}
                (false, false) if y.mandatory => return Err(Infeasible),
                (false, false) => {
                    domains.retain_paths(model, y.agent, dirty, |path| !path.nodes.contains(&(y.node as u32)));
                }
                (true, false) => {
                    domains.raise_release(y.start_op, y.agent, x.earliest_end, dirty);
                    if y.mandatory {
                        domains.lower_due(x.end_op, x.agent, y.latest_start, dirty);
                    }
                }
                (false, true) => {
                    domains.lower_due(y.end_op, y.agent, x.latest_start, dirty);
                    if y.mandatory {
                        domains.raise_release(x.start_op, x.agent, y.earliest_end, dirty);
                    }
                }
            }
        }
    }
    Ok(())
}

impl Disjunctive {
    /// Collects the mandatory intervals for [`Self::edge_finding`] and [`Self::preemptive_slack`].
    pub fn collect_mandatory(&mut self) {
        self.mandatory.clear();
        self.mandatory.extend(self.intervals.iter().filter(|s| s.mandatory));
    }

    /// Edge finding: where a set of intervals cannot be completed in time with one more among them, that one comes
    /// after all of them. `mirrored`: the same with time reversed, for latest ends.
    pub fn edge_finding(
        &mut self,
        mirrored: bool,
        domains: &mut Domains,
        dirty: &mut [bool],
    ) -> Result<(), Infeasible> {
        let n = self.mandatory.len();
        let flip = |s: &IntervalVar| {
            if mirrored { (-s.latest_end, -s.earliest_start) } else { (s.earliest_start, s.latest_end) }
        };
        self.mandatory.sort_unstable_by_key(|s| (flip(s), s.start_op));
        self.bound.clear();
        self.bound.resize(n, Time::MIN);
        self.reach.resize(n, 0);
        self.ends.clear();
        self.ends.extend(self.mandatory.iter().map(|s| flip(s).1));
        self.ends.sort_unstable();
        self.ends.dedup();
        for end in self.ends.iter().copied() {
            let (mut work, mut latest) = (0, Time::MIN);
            for (i, s) in self.mandatory.iter().enumerate().rev() {
                let (from, to) = flip(s);
                if to <= end {
                    work += s.length;
                    latest = latest.max(from + work);
                    if latest > end {
                        return Err(Infeasible);
                    }
                }
                self.reach[i] = latest;
            }
            let mut reached = Time::MIN;
            for (i, s) in self.mandatory.iter().enumerate() {
                let (from, to) = flip(s);
                if to <= end {
                    reached = reached.max(from + work);
                    work -= s.length;
                } else if reached > Time::MIN && reached + s.length > end {
                    self.bound[i] = self.bound[i].max(latest);
                } else if work > 0 && from + work + s.length > end {
                    self.bound[i] = self.bound[i].max(self.reach[i]);
                }
            }
        }
        for (s, bound) in self.mandatory.iter().zip(&self.bound) {
            if *bound == Time::MIN {
                continue;
            }
            if mirrored {
                domains.lower_due(s.end_op, s.agent, -*bound, dirty);
            } else {
                domains.raise_release(s.start_op, s.agent, *bound, dirty);
            }
        }
        Ok(())
    }

    /// By how much all latest ends could decrease before Jackson's preemptive schedule misses one of them; negative
    /// where it already does.
    pub fn preemptive_slack(&mut self) -> Time {
        self.mandatory.sort_unstable_by_key(|s| (s.earliest_start, s.start_op));
        self.queue.clear();
        self.left.clear();
        self.left.extend(self.mandatory.iter().map(|s| s.length));
        let (mut time, mut next, mut slack) = (0, 0, NEVER);
        loop {
            let coming = self.mandatory.get(next).map_or(NEVER, |s| s.earliest_start);
            let Some(Reverse((to, task))) = self.queue.pop() else {
                if next == self.mandatory.len() {
                    return slack;
                }
                time = time.max(coming);
                while next < self.mandatory.len() && self.mandatory[next].earliest_start <= time {
                    self.queue.push(Reverse((self.mandatory[next].latest_end, next)));
                    next += 1;
                }
                continue;
            };
            let end = time + self.left[task];
            if end <= coming {
                time = end;
                slack = slack.min(to - end);
            } else {
                self.left[task] = end - coming;
                time = coming;
                self.queue.push(Reverse((to, task)));
            }
            while next < self.mandatory.len() && self.mandatory[next].earliest_start <= time {
                self.queue.push(Reverse((self.mandatory[next].latest_end, next)));
                next += 1;
            }
        }
    }
}
