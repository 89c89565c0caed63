//! Cumulative propagation (TC1 `held`): a node holds no more microbatches at a time than it has memory for, each from
//! the start of its forward to the end of its backward.
//!
//! Timetabling by the compulsory parts of holdings, an overload check for the bound, and windows that follow from the
//! order of interchangeable agents. For memory 1, holdings are also propagated as tasks of a machine.

use crate::time::{NEVER, Time};

use super::disjunctive::{self, Disjunctive, IntervalVar};
use super::domains::{Domains, Infeasible};
use super::model::Model;

/// Propagates the holdings on `node` and updates the slack that they leave below the limit.
///
/// # Errors
/// Where they exceed the node's memory.
pub fn propagate_holdings(
    model: &Model<'_>,
    domains: &mut Domains,
    node: usize,
    disjunctive: &mut Disjunctive,
    dirty: &mut [bool],
) -> Result<(), Infeasible> {
    let memory = model.memory(node);
    disjunctive.intervals.clear();
    for (agent, own) in model.agents.iter().enumerate() {
        if !domains.is_possible(model, agent, node) {
            continue;
        }
        let mandatory = domains.is_mandatory(model, agent, node);
        for wave in 0..own.waves {
            let (start_op, end_op) =
                (model.op(agent, wave, 2 * node as u32), model.op(agent, wave, 2 * node as u32 + 1));
            disjunctive.intervals.push(IntervalVar {
                agent,
                node,
                mandatory,
                start_op,
                end_op,
                earliest_start: domains.earliest_start[start_op],
                latest_start: domains.latest_end[start_op] - model.length[start_op],
                earliest_end: domains.earliest_start[end_op] + model.length[end_op],
                latest_end: domains.latest_end[end_op],
                length: domains.min_hold[agent * model.nodes.len() + node],
            });
        }
    }
    if disjunctive.intervals.len() <= memory {
        return Ok(());
    }
    timetable(domains, memory, &disjunctive.intervals, dirty);
    disjunctive.collect_mandatory();
    if memory == 1 {
        disjunctive::immediate_selection(model, domains, disjunctive, dirty)?;
        disjunctive.edge_finding(false, domains, dirty)?;
        disjunctive.edge_finding(true, domains, dirty)?;
        domains.node_slack[node] = domains.node_slack[node].min(disjunctive.preemptive_slack());
    } else {
        domains.node_slack[node] = domains.node_slack[node].min(overload_slack(memory, &disjunctive.intervals));
    }
    if domains.node_slack[node] < 0 { Err(Infeasible) } else { Ok(()) }
}

/// A mandatory holding has a compulsory part from its latest start to its earliest end. No other holding may overlap a
/// time that `memory` compulsory parts cover.
fn timetable(domains: &mut Domains, memory: usize, intervals: &[IntervalVar], dirty: &mut [bool]) {
    let mut events: Vec<(Time, i32, usize)> = Vec::new();
    for (i, s) in intervals.iter().enumerate().filter(|(_, s)| s.mandatory && s.latest_start < s.earliest_end) {
        events.push((s.latest_start, 1, i));
        events.push((s.earliest_end, -1, i));
    }
    if events.len() < 2 * memory {
        return;
    }
    events.sort_unstable();
    for (own, s) in intervals.iter().enumerate() {
        let (mut certain, mut full) = (0_usize, None);
        for (time, change, _) in events.iter().filter(|e| e.2 != own) {
            certain = certain.wrapping_add_signed(*change as isize);
            match full {
                None if certain >= memory => full = Some(*time),
                Some(begin) if certain < memory => {
                    full = None;
                    if s.earliest_start + s.length > begin && s.earliest_start < *time {
                        domains.raise_release(s.start_op, s.agent, *time, dirty);
                    }
                    if s.latest_end > begin && s.latest_end - s.length < *time {
                        domains.lower_due(s.end_op, s.agent, begin, dirty);
                    }
                }
                _ => {}
            }
        }
    }
}

/// By how much all latest ends could decrease before the mandatory holdings within some time interval exceed the
/// memory.
fn overload_slack(memory: usize, intervals: &[IntervalVar]) -> Time {
    let capacity = memory as Time;
    let mut slack = NEVER;
    let mut inside: Vec<(Time, Time)> = Vec::new();
    for begin in intervals.iter().filter(|s| s.mandatory).map(|s| s.earliest_start) {
        inside.clear();
        inside.extend(
            intervals.iter().filter(|s| s.mandatory && s.earliest_start >= begin).map(|s| (s.latest_end, s.length)),
        );
        if inside.len() <= memory {
            continue;
        }
        inside.sort_unstable();
        let mut work = 0;
        for (to, length) in &inside {
            work += length;
            slack = slack.min((capacity * (to - begin) - work).div_euclid(capacity));
        }
    }
    slack
}

/// Interchangeable agents start in the order of their numbers. With memory for `c` at their source, agent `i + c`
/// cannot start before `i + 1` of its predecessors have returned.
pub fn propagate_symmetry(model: &Model<'_>, domains: &mut Domains, dirty: &mut [bool]) -> Result<(), Infeasible> {
    if !model.instance.rules.cc1 {
        return Ok(());
    }
    let mut ends: Vec<Time> = Vec::new();
    for class in &model.symmetry_classes {
        let source = model.agents[class.agents[0]].source;
        let (forward, backward) = (2 * source as u32, 2 * source as u32 + 1);
        let capacity = model.memory(source);
        let end = |domains: &Domains, agent: usize| {
            let op = model.op(agent, 0, backward);
            domains.earliest_start[op] + model.length[op]
        };
        let latest_start = |domains: &Domains, agent: usize| {
            let op = model.op(agent, 0, forward);
            domains.latest_end[op] - model.length[op]
        };
        for position in capacity..class.agents.len() {
            let earlier = &class.agents[..position];
            let agent = class.agents[position];
            ends.clear();
            ends.extend(earlier.iter().map(|a| end(domains, *a)));
            ends.sort_unstable();
            let i = position - capacity;
            domains.raise_release(model.op(agent, 0, forward), agent, ends[i], dirty);
            let limit = latest_start(domains, agent);
            match ends.iter().filter(|e| **e <= limit).count() {
                count if count <= i => return Err(Infeasible),
                count if count == i + 1 => {
                    for a in earlier {
                        if end(domains, *a) <= limit {
                            domains.lower_due(model.op(*a, 0, backward), *a, limit, dirty);
                        }
                    }
                }
                _ => {}
            }
            // Of those that have returned by then, one started no earlier than agent `i`.
            let hold = |a: &usize| domains.min_hold[a * model.nodes.len() + source];
            let least = earlier.iter().map(hold).min().unwrap_or(0);
            let before = class.agents[i];
            let op = model.op(before, 0, forward);
            domains.lower_due(op, before, limit - least + model.length[op], dirty);
        }
    }
    Ok(())
}
