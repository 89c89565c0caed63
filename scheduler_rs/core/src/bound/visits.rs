//! A bound by maximum flow: within an iteration of a given length, each node can serve only so many microbatches, and
//! only from sources close enough; together the nodes must serve all visits.
//!
//! For a given length, a flow from the sources over stages and nodes relaxes this: memory, work and the round trips
//! over a node each limit its capacity for every plan. So a flow that is too small refutes the length.

use crate::bound::flow::{Network, UNLIMITED};
use crate::bound::lookahead::{Lookahead, Position, successors};
use crate::budget::Budget;
use crate::error::Result;
use crate::problem::{Instance, NO_STAGE};
use crate::quotas::{Quotas, inner_stages};
use crate::route::{Lengths, RouteTask};
use crate::rules::MemoryRule;
use crate::time::{NEVER, Time};

/// Routes with equivalent sources and equal waves.
struct Group {
    /// A representative source.
    source: usize,
    waves: usize,
    routes: usize,
    pass_times: PassTimes,
}

/// Minimum times of a route of one source over each node without waiting.
struct PassTimes {
    /// Whole round trip over the node.
    round_trip: Vec<Time>,
    /// From the start of the route to the arrival at the node.
    out: Vec<Time>,
    /// From the end of the node's backward to the end of the route.
    back: Vec<Time>,
    /// From the start of the node's forward to the end of its backward.
    held: Vec<Time>,
}

/// Minimum over all groups, for each node.
struct Limits {
    out: Vec<Time>,
    back: Vec<Time>,
    held: Vec<Time>,
}

/// Lower bound in nanoseconds, norm and optimizer excluded; 0 where the rules leave too much open.
///
/// # Errors
/// [`crate::Error::Cancelled`]
pub fn visits_bound(
    instance: &Instance,
    tasks: &[RouteTask],
    lookahead: &Lookahead,
    budget: &Budget,
    share: f64,
) -> Result<Time> {
    if !instance.rules.cc1 || inner_stages(instance).next().is_none() {
        return Ok(0);
    }
    let lengths = Lengths::of(instance, tasks.len());
    let Some(groups) = groups(instance, tasks, lookahead, &lengths, budget, share)? else { return Ok(0) };
    let limits = Limits::new(instance, &groups);
    let visits = lengths.total - lengths.routes;
    let most = Quotas::least_of(instance, &lengths).most;
    let fits = |time: Time| is_enough(instance, &groups, &limits, &lengths, &most, visits, time);
    let mut low = 0; // nothing takes less
    let mut high = groups.iter().map(|g| lookahead.round_trip(instance, g.source, lengths.short())).max().unwrap_or(0);
    if high >= NEVER {
        return Ok(0);
    }
    high = high.max(1);
    while !fits(high) {
        low = high + 1;
        high = high.saturating_mul(2);
        if high >= NEVER || budget.is_past(share) {
            return Ok(low.min(NEVER));
        }
    }
    // To a millionth: more is not worth another flow.
    while high - low > high / 1_000_000 && !budget.is_past(share) {
        let middle = low + (high - low) / 2;
        if fits(middle) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    // Where round trips decide, the exact threshold is one of them.
    let exact = groups
        .iter()
        .flat_map(|g| g.pass_times.round_trip.iter().filter(|t| **t < NEVER).map(move |t| t * g.waves as Time));
    let exact = exact.filter(|t| (low..=high).contains(t)).max().unwrap_or(low);
    Ok(if exact > low && !fits(exact - 1) { exact } else { low })
}

/// Groups of equivalent routes; none where the time is spent before all are known.
fn groups(
    instance: &Instance,
    tasks: &[RouteTask],
    lookahead: &Lookahead,
    lengths: &Lengths,
    budget: &Budget,
    share: f64,
) -> Result<Option<Vec<Group>>> {
    let mut groups: Vec<Group> = Vec::new();
    let times = |node: usize| instance.classes.iter().map(move |l| (l.forward[node], l.backward[node], l.loss[node]));
    for task in tasks {
        let alike = |group: &&mut Group| {
            let (a, b) = (group.source, task.source);
            group.waves == task.waves && instance.place(a) == instance.place(b) && times(a).eq(times(b))
        };
        if let Some(group) = groups.iter_mut().find(alike) {
            group.routes += 1;
            continue;
        }
        budget.check_cancelled()?;
        if budget.is_past(share) {
            return Ok(None);
        }
        let pass_times = PassTimes::new(instance, lookahead, task.source, lengths);
        groups.push(Group { source: task.source, waves: task.waves, routes: 1, pass_times });
    }
    Ok(Some(groups))
}

/// Whether the flow admits all visits within an iteration of `time`.
fn is_enough(
    instance: &Instance,
    groups: &[Group],
    limits: &Limits,
    lengths: &Lengths,
    most: &[usize],
    visits: usize,
    time: Time,
) -> bool {
    let stages = instance.stage_count();
    let (source, sink) = (0, 1);
    let group_at = |g: usize| 2 + g;
    let pair_at = |g: usize, stage: usize| 2 + groups.len() + g * stages + stage;
    let node_at = |node: usize| 2 + groups.len() * (1 + stages) + node;
    let stage_at = |stage: usize| 2 + groups.len() * (1 + stages) + instance.node_count() + stage;
    let mut network = Network::new(2 + groups.len() * (1 + stages) + instance.node_count() + stages);
    let waves = groups.iter().map(|g| g.waves).min().unwrap_or(1).max(1);
    for (g, group) in groups.iter().enumerate() {
        network.add_edge(source, group_at(g), (group.routes * (lengths.long() - 1)) as u64);
        for stage in instance.present.iter().filter(|s| **s != 0) {
            network.add_edge(group_at(g), pair_at(g, *stage), group.routes as u64);
            for node in &instance.members[*stage] {
                let round_trip = group.pass_times.round_trip[*node];
                if round_trip < NEVER && round_trip * group.waves as Time <= time {
                    network.add_edge(pair_at(g, *stage), node_at(*node), group.routes as u64);
                }
            }
        }
    }
    for stage in instance.present.iter().filter(|s| **s != 0) {
        for node in &instance.members[*stage] {
            network.add_edge(node_at(*node), stage_at(*stage), limits.routes(instance, *node, waves, time));
        }
        network.add_edge(stage_at(*stage), sink, most[*stage] as u64);
    }
    network.maximum_flow(source, sink) >= visits as u64
}

impl Limits {
    fn new(instance: &Instance, groups: &[Group]) -> Self {
        let least = |of: fn(&PassTimes) -> &Vec<Time>| {
            (0..instance.node_count()).map(|n| groups.iter().map(|g| of(&g.pass_times)[n]).min().unwrap_or(0)).collect()
        };
        Self { out: least(|w| &w.out), back: least(|w| &w.back), held: least(|w| &w.held) }
    }

    /// Maximum number of routes of at least `waves` microbatches that a node can serve within `time`.
    ///
    /// Their tasks run one after the other between the first arrival and the last return; under TC1 `held` so do the
    /// holdings of each unit of memory.
    fn routes(&self, instance: &Instance, node: usize, waves: usize, time: Time) -> u64 {
        if self.out[node] >= NEVER {
            return 0;
        }
        let within = time - self.out[node] - self.back[node];
        let count =
            |each: Time| if within < each { 0 } else { (within.checked_div(each)).map_or(UNLIMITED, |c| c as u64) };
        let memory = u64::from(instance.memory[node]);
        let microbatches = count(instance.least_work(node));
        match instance.rules.tc1 {
            MemoryRule::Off => microbatches / waves as u64,
            MemoryRule::Held => microbatches.min(count(self.held[node]).saturating_mul(memory)) / waves as u64,
            MemoryRule::Routes => (microbatches / waves as u64).min(memory),
        }
    }
}

impl PassTimes {
    /// By dynamic programming over positions in the stage order, as [`Lookahead`] does from the other end.
    fn new(instance: &Instance, lookahead: &Lookahead, source: usize, lengths: &Lengths) -> Self {
        let n = instance.node_count();
        let longest = lengths.long();
        let mut times =
            Self { round_trip: vec![NEVER; n], out: vec![NEVER; n], back: vec![NEVER; n], held: vec![NEVER; n] };
        let mut reached = nowhere(n);
        reached[Position::Ahead as usize][source] = (0, 0, 0);
        for hop in 1..longest {
            let level = extended(instance, &reached);
            for node in (0..n).filter(|node| instance.stage_of[*node] != NO_STAGE) {
                for position in Position::ALL {
                    let (round_trip, out, back) = level[position as usize][node];
                    if round_trip >= NEVER {
                        continue;
                    }
                    let on = (lengths.short()..=longest)
                        .filter(|length| hop < *length)
                        .map(|length| lookahead.least(source, node, position, length - 1 - hop))
                        .min()
                        .unwrap_or(NEVER);
                    if on >= NEVER {
                        continue;
                    }
                    let held = on + instance.least_work(node);
                    times.round_trip[node] = times.round_trip[node].min(round_trip + held);
                    times.held[node] = times.held[node].min(held);
                    times.out[node] = times.out[node].min(out);
                    times.back[node] = times.back[node].min(back);
                }
            }
            reached = level;
        }
        times
    }
}

/// By position and node: round trip, outward and return times of the partial routes that end there, without the tasks
/// of that node.
type Reached = [Vec<(Time, Time, Time)>; 3];

fn nowhere(node_count: usize) -> Reached {
    Position::ALL.map(|_| vec![(NEVER, NEVER, NEVER); node_count])
}

/// All partial routes, longer by one node.
fn extended(instance: &Instance, reached: &Reached) -> Reached {
    let forward = |node: usize| instance.classes.iter().map(|class| class.forward[node]).min().unwrap_or(0);
    let backward = |node: usize| instance.classes.iter().map(|class| class.backward[node]).min().unwrap_or(0);
    let mut level = nowhere(instance.node_count());
    for from in 0..instance.stage_count() {
        for position in Position::ALL {
            let ends = &reached[position as usize];
            let starts: Vec<usize> = instance.members[from].iter().copied().filter(|v| ends[*v].0 < NEVER).collect();
            if starts.is_empty() {
                continue;
            }
            for (to, next) in successors(instance, from, position) {
                for u in &instance.members[to] {
                    let best = &mut level[next as usize][*u];
                    for v in &starts {
                        let (round_trip, out, back) = ends[*v];
                        let (outward, inward) = (instance.transfer(*v, *u), instance.transfer(*u, *v));
                        best.0 = best.0.min(round_trip + outward + inward + instance.least_work(*v));
                        best.1 = best.1.min(out + forward(*v) + outward);
                        best.2 = best.2.min(back + backward(*v) + inward);
                    }
                }
            }
        }
    }
    level
}
