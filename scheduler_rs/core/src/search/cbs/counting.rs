//! What all routes together must and may visit: quotas of the stages (CC3), lengths, routes over a node (TC1
//! `routes`); and whether the nodes of a stage can do the work of the routes that it must lie on.

use crate::route::{StageSet, stage_bit};
use crate::rules::MemoryRule;
use crate::time::{NEVER, Time};

use super::model::Model;
use super::state::{Dead, State};

/// Takes off the ways that leave the others no choice that adds up; whether there were any.
pub fn quotas(model: &Model<'_>, state: &mut State, dirty: &mut [bool]) -> Result<bool, Dead> {
    let mut any = false;
    for stage in model.instance.present.iter().copied() {
        any |= visitors(model, state, stage, dirty)?;
    }
    if model.instance.rules.tc1 == MemoryRule::Routes {
        for node in 0..model.nodes.len() {
            any |= users(model, state, node, dirty)?;
        }
    }
    any |= total(model, state, dirty)?;
    any |= long_routes(model, state, dirty)?;
    Ok(any)
}

/// How many more things of a kind must, and may, be chosen by those that are free to: none where all are settled.
enum Choice {
    Open,
    All,
    Nobody,
}

/// `certain` have it, `open` may have it, and it must be `least` to `most` in the end.
fn choice(certain: usize, open: usize, least: usize, most: usize) -> Result<Choice, Dead> {
    if certain > most || certain + open < least {
        Err(Dead)
    } else if open == 0 {
        Ok(Choice::Open)
    } else if certain == most {
        Ok(Choice::Nobody)
    } else if certain + open == least {
        Ok(Choice::All)
    } else {
        Ok(Choice::Open)
    }
}

fn visitors(model: &Model<'_>, state: &mut State, stage: usize, dirty: &mut [bool]) -> Result<bool, Dead> {
    let bit = stage_bit(stage);
    let certain = state.agents.iter().filter(|a| a.must & bit != 0).count();
    let open = state.agents.iter().filter(|a| a.may & !a.must & bit != 0).count();
    let all = match choice(certain, open, model.demand.least[stage], model.demand.most[stage])? {
        Choice::Open => return Ok(false),
        Choice::All => true,
        Choice::Nobody => false,
    };
    for agent in 0..model.agents.len() {
        if state.agents[agent].may & !state.agents[agent].must & bit != 0 {
            let ways = model.ways(agent);
            dirty[agent] |= state.retain(model, agent, |way| (ways[way].stages & bit != 0) == all);
        }
    }
    Ok(true)
}

fn users(model: &Model<'_>, state: &mut State, node: usize, dirty: &mut [bool]) -> Result<bool, Dead> {
    let forced = |state: &State, agent: usize| state.is_forced(model, agent, node);
    let free = |state: &State, agent: usize| state.is_possible(model, agent, node) && !forced(state, agent);
    let count = model.agents.len();
    let certain = (0..count).filter(|a| forced(state, *a)).count();
    let open = (0..count).filter(|a| free(state, *a)).count();
    let Choice::Nobody = choice(certain, open, 0, model.memory(node))? else { return Ok(false) };
    for agent in 0..count {
        if free(state, agent) {
            let ways = model.ways(agent);
            dirty[agent] |= state.retain(model, agent, |way| !ways[way].nodes.contains(&(node as u32)));
        }
    }
    Ok(true)
}

/// Visits of all routes.
fn total(model: &Model<'_>, state: &mut State, dirty: &mut [bool]) -> Result<bool, Dead> {
    let Some((least, most)) = model.demand.total else { return Ok(false) };
    let fewest: usize = state.agents.iter().map(|a| usize::from(a.visits.0)).sum();
    let greatest: usize = state.agents.iter().map(|a| usize::from(a.visits.1)).sum();
    if fewest > most || greatest < least {
        return Err(Dead);
    }
    let mut any = false;
    for agent in 0..model.agents.len() {
        let (low, high) = (usize::from(state.agents[agent].visits.0), usize::from(state.agents[agent].visits.1));
        let (at_least, at_most) = (least.saturating_sub(greatest - high), most - (fewest - low));
        if at_least > low || at_most < high {
            let ways = model.ways(agent);
            any |= state.retain(model, agent, |way| (at_least..=at_most).contains(&ways[way].nodes.len()));
            dirty[agent] = true;
        }
    }
    Ok(any)
}

fn long_routes(model: &Model<'_>, state: &mut State, dirty: &mut [bool]) -> Result<bool, Dead> {
    let Some((least, most)) = model.demand.long_routes else { return Ok(false) };
    let short = model.demand.short;
    let is_long = |visits: u8| usize::from(visits) > short;
    let certain = state.agents.iter().filter(|a| is_long(a.visits.0)).count();
    let open = state.agents.iter().filter(|a| !is_long(a.visits.0) && is_long(a.visits.1)).count();
    let all = match choice(certain, open, least, most)? {
        Choice::Open => return Ok(false),
        Choice::All => true,
        Choice::Nobody => false,
    };
    for agent in 0..model.agents.len() {
        let visits = state.agents[agent].visits;
        if !is_long(visits.0) && is_long(visits.1) {
            let ways = model.ways(agent);
            dirty[agent] |= state.retain(model, agent, |way| (ways[way].nodes.len() > short) == all);
        }
    }
    Ok(true)
}

/// The stages' work: how much slack the limit leaves.
pub fn loads(model: &Model<'_>, state: &mut State) -> Result<(), Dead> {
    state.stage_slack = NEVER;
    for stage in model.instance.present.iter().copied() {
        let least = model.demand.least[stage];
        if least > 0 && !(stage == 0 && model.instance.rules.cc1) {
            let slack = load(model, state, stage, least);
            state.stage_slack = state.stage_slack.min(slack);
            if slack < 0 {
                return Err(Dead);
            }
        }
    }
    Ok(())
}

/// What one agent would do at a stage, whichever of its nodes it goes to.
#[derive(Clone, Copy, Debug)]
struct Visit {
    /// Earliest start of the forward, of the backward.
    from: (Time, Time),
    /// Latest end of the forward, of the backward.
    to: (Time, Time),
}

/// At least `least` routes visit `stage`, who knows which: in each stretch of time lie at least as many forwards and
/// backwards as there are visits, less the agents that could be early and those that could be late. How much earlier
/// could everything have to end until the nodes cannot do that?
fn load(model: &Model<'_>, state: &State, stage: usize, least: usize) -> Time {
    let bit: StageSet = stage_bit(stage);
    let nodes = &model.members[stage];
    let mut visits: Vec<Visit> = Vec::new();
    let (mut microbatches, mut shortest) = (Vec::new(), (NEVER, NEVER));
    for (agent, known) in model.agents.iter().enumerate().filter(|(a, _)| state.agents[*a].may & bit != 0) {
        microbatches.push(known.waves);
        for wave in 0..known.waves {
            let mut visit = Visit { from: (NEVER, NEVER), to: (-1, -1) };
            for node in nodes.iter().filter(|n| state.is_possible(model, agent, **n)) {
                let (out, back) =
                    (model.slot(agent, wave, 2 * *node as u32), model.slot(agent, wave, 2 * *node as u32 + 1));
                visit.from = (visit.from.0.min(state.head[out]), visit.from.1.min(state.head[back]));
                visit.to = (visit.to.0.max(state.last[out]), visit.to.1.max(state.last[back]));
                shortest = (shortest.0.min(model.length[out]), shortest.1.min(model.length[back]));
            }
            visits.push(visit);
        }
    }
    microbatches.sort_unstable();
    let wanted: usize = microbatches.iter().take(least).sum();
    if wanted == 0 {
        return NEVER;
    }
    // Work of a node counts as what the fastest node would need for it.
    let speed = |node: &usize| {
        let lengths = |agent: usize| {
            let slot = model.slot(agent, 0, 2 * *node as u32);
            (model.length[slot], model.length[slot + 1])
        };
        let ratio = |fast: Time, own: Time| if own == 0 { 1.0 } else { fast as f64 / own as f64 };
        (0..model.agents.len())
            .map(lengths)
            .map(|(f, b)| ratio(shortest.0, f).max(ratio(shortest.1, b)).min(1.0))
            .fold(0.0, f64::max)
    };
    let room: f64 = nodes.iter().map(speed).sum();
    let sorted = |key: &dyn Fn(&Visit) -> Time| {
        let mut times: Vec<Time> = visits.iter().map(key).collect();
        times.sort_unstable();
        times
    };
    let (out_from, back_from) = (sorted(&|v| v.from.0), sorted(&|v| v.from.1));
    let (out_to, back_to) = (sorted(&|v| v.to.0), sorted(&|v| v.to.1));
    let mut slack = NEVER;
    for begin in out_from.iter().chain(&back_from) {
        let early_out = out_from.partition_point(|t| t < begin);
        let early_back = back_from.partition_point(|t| t < begin);
        if early_out >= wanted && early_back >= wanted {
            continue;
        }
        for end in out_to.iter().chain(&back_to).filter(|end| *end > begin) {
            let late_out = visits.len() - out_to.partition_point(|t| t <= end);
            let late_back = visits.len() - back_to.partition_point(|t| t <= end);
            let outs = wanted.saturating_sub(early_out + late_out) as Time;
            let backs = wanted.saturating_sub(early_back + late_back) as Time;
            let work = outs * shortest.0 + backs * shortest.1;
            if work > 0 {
                slack = slack.min(end - begin - (work as f64 / room - 1e-3).ceil() as Time);
            }
        }
    }
    slack
}
