//! What all routes together must and may visit: quotas of the stages (CC3), lengths, routes over a node (TC1
//! `routes`); and whether the nodes of a stage can do the work of the routes that it must lie on.

use smallvec::SmallVec;

use crate::route::{StageSet, stage_bit};
use crate::rules::MemoryRule;
use crate::time::{NEVER, Time};

use super::model::{Model, Yard};
use super::state::{Dead, State};

/// Takes off the ways that leave the others no choice that adds up; whether there were any.
pub fn quotas(model: &Model<'_>, state: &mut State, dirty: &mut [bool]) -> Result<bool, Dead> {
    let mut any = false;
    let (fewest, most) = if model.is_even { even(model, state) } else { (0, usize::MAX) };
    for stage in model.instance.present.iter().copied() {
        let demand = (model.demand.least[stage], model.demand.most[stage]);
        let (least, most) = if stage == 0 { demand } else { (demand.0.max(fewest), demand.1.min(most)) };
        any |= visitors(model, state, stage, (least, most), dirty)?;
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

/// Agents that certainly visit a stage, and those that may.
fn visits(state: &State, stage: usize) -> (usize, usize) {
    let bit = stage_bit(stage);
    let certain = state.agents.iter().filter(|a| a.must & bit != 0).count();
    (certain, state.agents.iter().filter(|a| a.may & !a.must & bit != 0).count())
}

/// Where the inner stages are to lie on equally many routes: how many these are at least and at most.
fn even(model: &Model<'_>, state: &State) -> (usize, usize) {
    let inner = || model.instance.present.iter().filter(|s| **s != 0).map(|s| visits(state, *s));
    let fewest = inner().map(|(certain, _)| certain).max().unwrap_or(0).saturating_sub(1);
    (fewest, inner().map(|(certain, open)| certain + open + 1).min().unwrap_or(usize::MAX))
}

fn visitors(
    model: &Model<'_>,
    state: &mut State,
    stage: usize,
    (least, most): (usize, usize),
    dirty: &mut [bool],
) -> Result<bool, Dead> {
    let bit = stage_bit(stage);
    let (certain, open) = visits(state, stage);
    let all = match choice(certain, open, least, most)? {
        Choice::Open => return Ok(false),
        Choice::All => true,
        Choice::Nobody => false,
    };
    for agent in 0..model.agents.len() {
        if state.agents[agent].may & !state.agents[agent].must & bit != 0 {
            state.keep(model, agent, dirty, |way| (way.stages & bit != 0) == all);
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
    // What the other nodes of the stage have no room for comes here.
    let stage = model.stage_of[node];
    let others = model.members[stage].iter().filter(|n| **n != node);
    let least = others.fold(model.demand.least[stage], |left, n| left.saturating_sub(model.memory(*n)));
    let all = match choice(certain, open, least, model.memory(node))? {
        Choice::Open => return Ok(false),
        Choice::All => true,
        Choice::Nobody => false,
    };
    for agent in 0..count {
        if free(state, agent) {
            state.keep(model, agent, dirty, |way| way.nodes.contains(&(node as u32)) == all);
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
            any |= state.keep(model, agent, dirty, |way| (at_least..=at_most).contains(&way.nodes.len()));
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
            state.keep(model, agent, dirty, |way| (way.nodes.len() > short) == all);
        }
    }
    Ok(true)
}

/// The stages' work: how much slack the limit leaves.
pub fn loads(model: &Model<'_>, state: &mut State) -> Result<(), Dead> {
    state.stage_slack = NEVER;
    let others = state.slack();
    for stage in model.instance.present.iter().copied() {
        let least = model.demand.least[stage];
        if least > 0 && !(stage == 0 && model.instance.rules.cc1) {
            let slack = load(model, state, stage, least, others.min(state.stage_slack));
            state.stage_slack = state.stage_slack.min(slack);
            if slack < 0 {
                return Err(Dead);
            }
        }
    }
    Ok(())
}

/// When forwards, or backwards, of the agents that may visit a stage can run there.
#[derive(Debug, Default)]
struct Windows {
    from: Vec<Time>,
    to: Vec<Time>,
}

impl Windows {
    fn sort(&mut self) {
        self.from.sort_unstable();
        self.to.sort_unstable();
    }
}

/// At least `least` routes visit `stage`, who knows which: in each stretch of time lie at least as many forwards and
/// backwards as there are visits, less the agents that could be early and those that could be late. How much earlier
/// could everything have to end until the nodes cannot do that? Slack of `enough` or more is all the same.
fn load(model: &Model<'_>, state: &State, stage: usize, least: usize, enough: Time) -> Time {
    let bit: StageSet = stage_bit(stage);
    let nodes = &model.members[stage];
    let (mut outs, mut backs) = (Windows::default(), Windows::default());
    let mut microbatches: SmallVec<[usize; 32]> = SmallVec::new();
    for (agent, known) in model.agents.iter().enumerate().filter(|(a, _)| state.agents[*a].may & bit != 0) {
        microbatches.push(known.waves);
        for wave in 0..known.waves {
            for (windows, op) in [(&mut outs, 0), (&mut backs, 1)] {
                let (mut from, mut to) = (NEVER, -1);
                for node in nodes.iter().filter(|n| state.is_possible(model, agent, **n)) {
                    let slot = model.slot(agent, wave, 2 * *node as u32 + op);
                    (from, to) = (from.min(state.head[slot]), to.max(state.last[slot]));
                }
                windows.from.push(from);
                windows.to.push(to);
            }
        }
    }
    microbatches.sort_unstable();
    let wanted: usize = microbatches.iter().take(least).sum();
    let Yard { forward, backward, room } = model.yards[stage];
    let work = |outs: usize, backs: usize| (outs as Time * forward + backs as Time * backward) as f64 / room;
    let most = work(wanted, wanted) as Time + 1;
    outs.sort();
    backs.sort();
    let count = outs.from.len();
    let mut slack = enough;
    let mut begins: SmallVec<[Time; 64]> = outs.from.iter().chain(&backs.from).copied().collect();
    begins.sort_unstable();
    begins.dedup();
    let mut ends: SmallVec<[Time; 64]> = outs.to.iter().chain(&backs.to).copied().collect();
    ends.sort_unstable();
    ends.dedup();
    let (mut early_out, mut early_back) = (0, 0);
    for begin in begins {
        while early_out < count && outs.from[early_out] < begin {
            early_out += 1;
        }
        while early_back < count && backs.from[early_back] < begin {
            early_back += 1;
        }
        if early_out >= wanted && early_back >= wanted {
            break;
        }
        let (mut within_out, mut within_back) = (0, 0);
        for end in ends.iter().copied().skip_while(|end| *end <= begin) {
            if end - begin >= most + slack {
                break;
            }
            while within_out < count && outs.to[within_out] <= end {
                within_out += 1;
            }
            while within_back < count && backs.to[within_back] <= end {
                within_back += 1;
            }
            let outs = wanted.saturating_sub(early_out + count - within_out);
            let backs = wanted.saturating_sub(early_back + count - within_back);
            if outs + backs > 0 {
                // A little less, so that rounding cannot count against anybody.
                let least = work(outs, backs) * (1.0 - 1e-12) - 1e-3;
                slack = slack.min(end - begin - least.ceil() as Time);
            }
        }
    }
    slack
}
