//! TC1 `held`: a node holds no more microbatches at a time than it has memory for, each from the start of its
//! forward to the end of its backward.

use crate::time::{NEVER, Time};

use super::machine::{self, Machine, Stretch};
use super::model::Model;
use super::propagate::{due, release};
use super::state::{Dead, State};

/// Holdings on `node`: windows, and how much slack the limit leaves.
pub fn holdings(
    model: &Model<'_>,
    state: &mut State,
    node: usize,
    machine: &mut Machine,
    dirty: &mut [bool],
) -> Result<(), Dead> {
    let memory = model.memory(node);
    machine.stretches.clear();
    for (agent, known) in model.agents.iter().enumerate() {
        if !state.is_possible(model, agent, node) {
            continue;
        }
        let forced = state.is_forced(model, agent, node);
        for wave in 0..known.waves {
            let (first, last) =
                (model.slot(agent, wave, 2 * node as u32), model.slot(agent, wave, 2 * node as u32 + 1));
            machine.stretches.push(Stretch {
                agent,
                forced,
                first,
                last,
                from: state.head[first],
                latest: state.last[first] - model.length[first],
                soonest: state.head[last] + model.length[last],
                to: state.last[last],
                length: state.hold[agent * model.nodes.len() + node],
            });
        }
    }
    if machine.stretches.len() <= memory {
        return Ok(());
    }
    certain(state, memory, &machine.stretches, dirty);
    machine.take_forced();
    if memory == 1 {
        machine::pairs(model, state, node, machine, dirty)?;
        machine.edges(false, state, dirty)?;
        machine.edges(true, state, dirty)?;
        state.node_slack[node] = state.node_slack[node].min(machine.slack());
    } else {
        state.node_slack[node] = state.node_slack[node].min(energy(memory, &machine.stretches));
    }
    if state.node_slack[node] < 0 { Err(Dead) } else { Ok(()) }
}

/// From its latest start to its earliest end a forced holding is certain. No other one may lie across a time at
/// which `memory` are certain.
fn certain(state: &mut State, memory: usize, stretches: &[Stretch], dirty: &mut [bool]) {
    let mut events: Vec<(Time, i32, usize)> = Vec::new();
    for (i, s) in stretches.iter().enumerate().filter(|(_, s)| s.forced && s.latest < s.soonest) {
        events.push((s.latest, 1, i));
        events.push((s.soonest, -1, i));
    }
    if events.len() < 2 * memory {
        return;
    }
    events.sort_unstable();
    for (own, s) in stretches.iter().enumerate() {
        let (mut certain, mut full) = (0_usize, None);
        for (time, change, _) in events.iter().filter(|e| e.2 != own) {
            certain = certain.wrapping_add_signed(*change as isize);
            match full {
                None if certain >= memory => full = Some(*time),
                Some(begin) if certain < memory => {
                    full = None;
                    if s.from + s.length > begin && s.from < *time {
                        release(state, s.first, s.agent, *time, dirty);
                    }
                    if s.to > begin && s.to - s.length < *time {
                        due(state, s.last, s.agent, begin, dirty);
                    }
                }
                _ => {}
            }
        }
    }
}

/// In each stretch of time, the holdings that lie in it whole must have room. How much earlier could everything
/// have to end until they have none?
fn energy(memory: usize, stretches: &[Stretch]) -> Time {
    let room = memory as Time;
    let mut slack = NEVER;
    let mut inside: Vec<(Time, Time)> = Vec::new();
    for begin in stretches.iter().filter(|s| s.forced).map(|s| s.from) {
        inside.clear();
        inside.extend(stretches.iter().filter(|s| s.forced && s.from >= begin).map(|s| (s.to, s.length)));
        if inside.len() <= memory {
            continue;
        }
        inside.sort_unstable();
        let mut work = 0;
        for (to, length) in &inside {
            work += length;
            slack = slack.min((room * (to - begin) - work).div_euclid(room));
        }
    }
    slack
}

/// Equal agents start in the order of their numbers, and with room for `c` at their source the one number `i + c`
/// cannot start before `i + 1` of those before it are home.
pub fn in_turn(model: &Model<'_>, state: &mut State, dirty: &mut [bool]) -> Result<(), Dead> {
    if !model.instance.rules.cc1 {
        return Ok(());
    }
    let mut ends: Vec<Time> = Vec::new();
    for group in &model.groups {
        let source = model.agents[group.agents[0]].source;
        let (out, back) = (2 * source as u32, 2 * source as u32 + 1);
        let room = model.memory(source);
        let end = |state: &State, agent: usize| {
            let slot = model.slot(agent, 0, back);
            state.head[slot] + model.length[slot]
        };
        let latest = |state: &State, agent: usize| {
            let slot = model.slot(agent, 0, out);
            state.last[slot] - model.length[slot]
        };
        for place in room..group.agents.len() {
            let earlier = &group.agents[..place];
            let agent = group.agents[place];
            ends.clear();
            ends.extend(earlier.iter().map(|a| end(state, *a)));
            ends.sort_unstable();
            let home = place - room;
            release(state, model.slot(agent, 0, out), agent, ends[home], dirty);
            let limit = latest(state, agent);
            match ends.iter().filter(|e| **e <= limit).count() {
                count if count <= home => return Err(Dead),
                count if count == home + 1 => {
                    for a in earlier {
                        if end(state, *a) <= limit {
                            due(state, model.slot(*a, 0, back), *a, limit, dirty);
                        }
                    }
                }
                _ => {}
            }
            // Of those that are home by then, one started no earlier than agent number `home`.
            let hold = |a: &usize| state.hold[a * model.nodes.len() + source];
            let least = earlier.iter().map(hold).min().unwrap_or(0);
            let before = group.agents[home];
            let slot = model.slot(before, 0, out);
            due(state, slot, before, limit - least + model.length[slot], dirty);
        }
    }
    Ok(())
}
