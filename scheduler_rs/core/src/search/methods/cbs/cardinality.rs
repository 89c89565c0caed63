//! Cardinality constraints on all routes together: quotas of the stages (CC3), classes, lengths, routes over a node (TC1
//! `routes`). And energetic reasoning: whether the nodes of a stage can process the visits that its quota demands.

use smallvec::SmallVec;

use crate::route::{StageSet, stage_bit};
use crate::rules::MemoryRule;
use crate::time::{NEVER, Time};

use super::domains::{Domains, Infeasible};
use super::model::{Model, StageCapacity};

/// Removes the paths that no choice of the others could complete to the required numbers; whether there were any.
pub fn filter_paths(model: &Model<'_>, domains: &mut Domains, dirty: &mut [bool]) -> Result<bool, Infeasible> {
    let mut any = false;
    let (fewest, most) = if model.is_even { even(model, domains) } else { (0, usize::MAX) };
    for stage in model.instance.present.iter().copied() {
        let demand = (model.demand.least[stage], model.demand.most[stage]);
        let (least, most) = if stage == 0 { demand } else { (demand.0.max(fewest), demand.1.min(most)) };
        any |= stage_visitors(model, domains, stage, (least, most), dirty)?;
    }
    if model.instance.rules.tc1 == MemoryRule::Routes {
        for node in 0..model.nodes.len() {
            any |= node_visitors(model, domains, node, dirty)?;
        }
    }
    for class in 0..model.demand.classes.len() {
        any |= class_members(model, domains, class, dirty)?;
    }
    any |= total_visits(model, domains, dirty)?;
    any |= long_routes(model, domains, dirty)?;
    Ok(any)
}

/// What a cardinality constraint implies for the undecided agents.
enum Membership {
    Open,
    All,
    None,
}

/// `certain` agents are members, `open` ones are undecided, and in the end there must be `least` to `most` members.
fn membership(certain: usize, open: usize, least: usize, most: usize) -> Result<Membership, Infeasible> {
    if certain > most || certain + open < least {
        Err(Infeasible)
    } else if open == 0 {
        Ok(Membership::Open)
    } else if certain == most {
        Ok(Membership::None)
    } else if certain + open == least {
        Ok(Membership::All)
    } else {
        Ok(Membership::Open)
    }
}

/// Number of agents that certainly visit a stage, and of those that are undecided.
fn visits(domains: &Domains, stage: usize) -> (usize, usize) {
    let bit = stage_bit(stage);
    let certain = domains.agents.iter().filter(|a| a.required_stages & bit != 0).count();
    (certain, domains.agents.iter().filter(|a| a.possible_stages & !a.required_stages & bit != 0).count())
}

/// Minimum and maximum visits of every inner stage, where these differ by at most one.
fn even(model: &Model<'_>, domains: &Domains) -> (usize, usize) {
    let inner = || model.instance.present.iter().filter(|s| **s != 0).map(|s| visits(domains, *s));
    let fewest = inner().map(|(certain, _)| certain).max().unwrap_or(0).saturating_sub(1);
    (fewest, inner().map(|(certain, open)| certain + open + 1).min().unwrap_or(usize::MAX))
}

fn stage_visitors(
    model: &Model<'_>,
    domains: &mut Domains,
    stage: usize,
    (least, most): (usize, usize),
    dirty: &mut [bool],
) -> Result<bool, Infeasible> {
    let bit = stage_bit(stage);
    let (certain, open) = visits(domains, stage);
    let all = match membership(certain, open, least, most)? {
        Membership::Open => return Ok(false),
        Membership::All => true,
        Membership::None => false,
    };
    for agent in 0..model.agents.len() {
        if domains.agents[agent].possible_stages & !domains.agents[agent].required_stages & bit != 0 {
            domains.retain_paths(model, agent, dirty, |path| (path.stages & bit != 0) == all);
        }
    }
    Ok(true)
}

/// Routes of a class.
fn class_members(
    model: &Model<'_>,
    domains: &mut Domains,
    class: usize,
    dirty: &mut [bool],
) -> Result<bool, Infeasible> {
    let demand = model.demand.classes[class];
    let count = model.agents.len();
    let certain = domains.agents.iter().filter(|agent| agent.classes == 1 << class).count();
    let open = (0..count).filter(|agent| domains.is_class_open(*agent, class)).count();
    let all = match membership(certain, open, demand.least, demand.most)? {
        Membership::Open => return Ok(false),
        Membership::All => true,
        Membership::None => false,
    };
    for agent in 0..count {
        if domains.is_class_open(agent, class) {
            domains.retain_paths(model, agent, dirty, |path| (path.stages == demand.stages) == all);
        }
    }
    Ok(true)
}

fn node_visitors(
    model: &Model<'_>,
    domains: &mut Domains,
    node: usize,
    dirty: &mut [bool],
) -> Result<bool, Infeasible> {
    let required = |domains: &Domains, agent: usize| domains.is_mandatory(model, agent, node);
    let free = |domains: &Domains, agent: usize| domains.is_possible(model, agent, node) && !required(domains, agent);
    let count = model.agents.len();
    let certain = (0..count).filter(|a| required(domains, *a)).count();
    let open = (0..count).filter(|a| free(domains, *a)).count();
    // The minimum is what the other nodes of the stage have no memory for.
    let stage = model.stage_of[node];
    let others = model.members[stage].iter().filter(|n| **n != node);
    let least = others.fold(model.demand.least[stage], |left, n| left.saturating_sub(model.memory(*n)));
    let all = match membership(certain, open, least, model.memory(node))? {
        Membership::Open => return Ok(false),
        Membership::All => true,
        Membership::None => false,
    };
    for agent in 0..count {
        if free(domains, agent) {
            domains.retain_paths(model, agent, dirty, |path| path.nodes.contains(&(node as u32)) == all);
        }
    }
    Ok(true)
}

/// Visits over all routes.
fn total_visits(model: &Model<'_>, domains: &mut Domains, dirty: &mut [bool]) -> Result<bool, Infeasible> {
    let Some((least, most)) = model.demand.total else { return Ok(false) };
    let fewest: usize = domains.agents.iter().map(|a| usize::from(a.visits.0)).sum();
    let greatest: usize = domains.agents.iter().map(|a| usize::from(a.visits.1)).sum();
    if fewest > most || greatest < least {
        return Err(Infeasible);
    }
    let mut any = false;
    for agent in 0..model.agents.len() {
        let (low, high) = (usize::from(domains.agents[agent].visits.0), usize::from(domains.agents[agent].visits.1));
        let (at_least, at_most) = (least.saturating_sub(greatest - high), most - (fewest - low));
        if at_least > low || at_most < high {
            any |= domains.retain_paths(model, agent, dirty, |path| (at_least..=at_most).contains(&path.nodes.len()));
        }
    }
    Ok(any)
}

fn long_routes(model: &Model<'_>, domains: &mut Domains, dirty: &mut [bool]) -> Result<bool, Infeasible> {
    let Some((least, most)) = model.demand.long_routes else { return Ok(false) };
    let short = model.demand.short;
    let is_long = |visits: u8| usize::from(visits) > short;
    let certain = domains.agents.iter().filter(|a| is_long(a.visits.0)).count();
    let open = domains.agents.iter().filter(|a| !is_long(a.visits.0) && is_long(a.visits.1)).count();
    let all = match membership(certain, open, least, most)? {
        Membership::Open => return Ok(false),
        Membership::All => true,
        Membership::None => false,
    };
    for agent in 0..model.agents.len() {
        let visits = domains.agents[agent].visits;
        if !is_long(visits.0) && is_long(visits.1) {
            domains.retain_paths(model, agent, dirty, |path| (path.nodes.len() > short) == all);
        }
    }
    Ok(true)
}

/// Sets the slack that the stages' capacity leaves below the limit.
///
/// # Errors
/// Where a stage cannot process its visits by the limit.
pub fn check_stage_energy(model: &Model<'_>, domains: &mut Domains) -> Result<(), Infeasible> {
    domains.stage_slack = NEVER;
    let others = domains.slack();
    for stage in model.instance.present.iter().copied() {
        let least = model.demand.least[stage];
        if least > 0 && !(stage == 0 && model.instance.rules.cc1) {
            let slack = stage_slack(model, domains, stage, least, others.min(domains.stage_slack));
            domains.stage_slack = domains.stage_slack.min(slack);
            if slack < 0 {
                return Err(Infeasible);
            }
        }
    }
    Ok(())
}

/// Earliest starts and latest ends, on a stage, of the forwards or backwards of the agents that may visit it.
#[derive(Debug, Default)]
struct Windows {
    earliest_start: Vec<Time>,
    latest_end: Vec<Time>,
}

impl Windows {
    fn sort(&mut self) {
        self.earliest_start.sort_unstable();
        self.latest_end.sort_unstable();
    }
}

/// All windows on a stage, each list ascending, and the minimum number of microbatches that visit it with `least`
/// routes.
fn stage_windows(model: &Model<'_>, domains: &Domains, stage: usize, least: usize) -> (Windows, Windows, usize) {
    let bit: StageSet = stage_bit(stage);
    let nodes = &model.members[stage];
    let (mut forwards, mut backwards) = (Windows::default(), Windows::default());
    let mut microbatches: SmallVec<[usize; 32]> = SmallVec::new();
    for (agent, a) in model.agents.iter().enumerate().filter(|(a, _)| domains.agents[*a].possible_stages & bit != 0) {
        microbatches.push(a.waves);
        for wave in 0..a.waves {
            for (windows, offset) in [(&mut forwards, 0), (&mut backwards, 1)] {
                let (mut start, mut end) = (NEVER, -1);
                for node in nodes.iter().filter(|n| domains.is_possible(model, agent, **n)) {
                    let op = model.op(agent, wave, 2 * *node as u32 + offset);
                    (start, end) = (start.min(domains.earliest_start[op]), end.max(domains.latest_end[op]));
                }
                windows.earliest_start.push(start);
                windows.latest_end.push(end);
            }
        }
    }
    microbatches.sort_unstable();
    forwards.sort();
    backwards.sort();
    (forwards, backwards, microbatches.iter().take(least).sum())
}

fn distinct(one: &[Time], other: &[Time]) -> SmallVec<[Time; 64]> {
    let mut times: SmallVec<[Time; 64]> = one.iter().chain(other).copied().collect();
    times.sort_unstable();
    times.dedup();
    times
}

/// Advances `count` to the number of leading elements for which `is_within` holds.
fn advance(count: &mut usize, times: &[Time], is_within: impl Fn(Time) -> bool) {
    while *count < times.len() && is_within(times[*count]) {
        *count += 1;
    }
}

/// Energetic reasoning over visits whose agents are undecided: at least `least` routes visit `stage`, so in each time
/// interval lie at least as many forwards and backwards as there are visits, less those that could start before it and
/// those that could end after it. By how much could all latest ends decrease before the nodes cannot process them?
/// A slack of `enough` or more need not be exact.
fn stage_slack(model: &Model<'_>, domains: &Domains, stage: usize, least: usize, enough: Time) -> Time {
    let (forwards, backwards, visits) = stage_windows(model, domains, stage, least);
    let StageCapacity { forward, backward, capacity } = model.capacities[stage];
    let work = |forwards: usize, backwards: usize| {
        (forwards as Time * forward + backwards as Time * backward) as f64 / capacity
    };
    let all_work = work(visits, visits) as Time + 1;
    let count = forwards.earliest_start.len();
    let mut slack = enough;
    let ends = distinct(&forwards.latest_end, &backwards.latest_end);
    let (mut early_forwards, mut early_backwards) = (0, 0);
    for begin in distinct(&forwards.earliest_start, &backwards.earliest_start) {
        advance(&mut early_forwards, &forwards.earliest_start, |start| start < begin);
        advance(&mut early_backwards, &backwards.earliest_start, |start| start < begin);
        if early_forwards >= visits && early_backwards >= visits {
            break;
        }
        let (mut within_forwards, mut within_backwards) = (0, 0);
        for end in ends.iter().copied().skip_while(|end| *end <= begin) {
            if end - begin >= all_work + slack {
                break;
            }
            advance(&mut within_forwards, &forwards.latest_end, |latest| latest <= end);
            advance(&mut within_backwards, &backwards.latest_end, |latest| latest <= end);
            let inside_forwards = visits.saturating_sub(early_forwards + count - within_forwards);
            let inside_backwards = visits.saturating_sub(early_backwards + count - within_backwards);
            if inside_forwards + inside_backwards > 0 {
                // A little less, so that rounding cannot make the bound too high.
                let energy = work(inside_forwards, inside_backwards) * (1.0 - 1e-12) - 1e-3;
                slack = slack.min(end - begin - energy.ceil() as Time);
            }
        }
    }
    slack
}
