//! A bound from who has to serve the stages: within an iteration of a given length each node can take only so many
//! microbatches, and only from sources that are near enough; together the nodes of every stage must take its share.
//!
//! For each length it is a question of flow, from sources over stages and nodes, and the answer is never wrongly no:
//! memory, work and the ways through a node each give a limit that holds for every plan.

use crate::bound::flow::{Network, UNLIMITED};
use crate::bound::lookahead::{Lookahead, Position, successors};
use crate::budget::Budget;
use crate::error::Result;
use crate::problem::{Instance, NO_STAGE};
use crate::route::{Lengths, RouteTask};
use crate::rules::MemoryRule;
use crate::time::{NEVER, Time};

/// Routes whose sources and waves are alike.
struct Group {
    /// Any one of the sources.
    source: usize,
    waves: usize,
    routes: usize,
    ways: Ways,
}

/// The least times of a route of one source over each node, were nobody else there.
struct Ways {
    /// Out, on and home again.
    around: Vec<Time>,
    /// From the start to the arrival at the node.
    out: Vec<Time>,
    /// From the end of its backward until all is done.
    home: Vec<Time>,
    /// From the start of its forward to the end of its backward.
    held: Vec<Time>,
}

/// For the limits of one node: the least of all groups.
struct Limits {
    out: Vec<Time>,
    home: Vec<Time>,
    held: Vec<Time>,
}

/// No plan takes less (norm and optimizer left out); 0 where the rules leave too much open.
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
    let inner = instance.present.iter().filter(|s| **s != 0).count();
    if !instance.rules.cc1 || inner == 0 {
        return Ok(0);
    }
    let lengths = Lengths::of(instance, tasks.len());
    let mut groups: Vec<Group> = Vec::new();
    let times = |node: usize| instance.classes.iter().map(move |l| (l.forward[node], l.backward[node], l.loss[node]));
    for task in tasks {
        let alike = |group: &&mut Group| {
            let (a, b) = (group.source, task.source);
            group.waves == task.waves && instance.link_index(a) == instance.link_index(b) && times(a).eq(times(b))
        };
        if let Some(group) = groups.iter_mut().find(alike) {
            group.routes += 1;
            continue;
        }
        budget.check_cancelled()?;
        if budget.is_past(share) {
            return Ok(0);
        }
        let ways = Ways::new(instance, lookahead, task.source, &lengths);
        groups.push(Group { source: task.source, waves: task.waves, routes: 1, ways });
    }
    let limits = Limits::new(instance, &groups);
    let visits = lengths.total - lengths.routes;
    let most = if instance.rules.cc3 { visits.div_ceil(inner) } else { lengths.routes };
    let fits = |time: Time| is_enough(instance, &groups, &limits, &lengths, most, visits, time);
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
    // To a millionth: what is left is never worth another flow.
    while high - low > high / 1_000_000 && !budget.is_past(share) {
        let middle = low + (high - low) / 2;
        if fits(middle) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    // The very time at which it becomes enough is one of the times around, where those decide.
    let exact =
        groups.iter().flat_map(|g| g.ways.around.iter().filter(|t| **t < NEVER).map(move |t| t * g.waves as Time));
    let exact = exact.filter(|t| (low..=high).contains(t)).max().unwrap_or(low);
    Ok(if exact > low && !fits(exact - 1) { exact } else { low })
}

/// Whether all visits find a place within an iteration of `time`.
fn is_enough(
    instance: &Instance,
    groups: &[Group],
    limits: &Limits,
    lengths: &Lengths,
    most: usize,
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
        network.connect(source, group_at(g), (group.routes * (lengths.long() - 1)) as u64);
        for stage in instance.present.iter().filter(|s| **s != 0) {
            network.connect(group_at(g), pair_at(g, *stage), group.routes as u64);
            for node in &instance.members[*stage] {
                let around = group.ways.around[*node];
                if around < NEVER && around * group.waves as Time <= time {
                    network.connect(pair_at(g, *stage), node_at(*node), group.routes as u64);
                }
            }
        }
    }
    for stage in instance.present.iter().filter(|s| **s != 0) {
        for node in &instance.members[*stage] {
            network.connect(node_at(*node), stage_at(*stage), limits.routes(instance, *node, waves, time));
        }
        network.connect(stage_at(*stage), sink, most as u64);
    }
    network.greatest(source, sink) >= visits as u64
}

impl Limits {
    fn new(instance: &Instance, groups: &[Group]) -> Self {
        let least = |of: fn(&Ways) -> &Vec<Time>| {
            (0..instance.node_count()).map(|n| groups.iter().map(|g| of(&g.ways)[n]).min().unwrap_or(0)).collect()
        };
        Self { out: least(|w| &w.out), home: least(|w| &w.home), held: least(|w| &w.held) }
    }

    /// The most routes of `waves` microbatches or more that a node serves within `time`.
    ///
    /// One after the other their tasks fill the time between the first arrival and the last way home; under TC1
    /// `held` so do the holdings of each place in memory.
    fn routes(&self, instance: &Instance, node: usize, waves: usize, time: Time) -> u64 {
        if self.out[node] >= NEVER {
            return 0;
        }
        let within = time - self.out[node] - self.home[node];
        let count =
            |each: Time| if within < each { 0 } else { (within.checked_div(each)).map_or(UNLIMITED, |c| c as u64) };
        let memory = u64::from(instance.memory[node]);
        let batches = count(instance.least_work(node));
        match instance.rules.tc1 {
            MemoryRule::Off => batches / waves as u64,
            MemoryRule::Held => batches.min(count(self.held[node]).saturating_mul(memory)) / waves as u64,
            MemoryRule::Routes => (batches / waves as u64).min(memory),
        }
    }
}

impl Ways {
    /// By dynamic programming over places in the stage order, as [`Lookahead`] does from the other end.
    fn new(instance: &Instance, lookahead: &Lookahead, source: usize, lengths: &Lengths) -> Self {
        let n = instance.node_count();
        let longest = lengths.long();
        let mut ways = Self { around: vec![NEVER; n], out: vec![NEVER; n], home: vec![NEVER; n], held: vec![NEVER; n] };
        let forward = |node: usize| instance.classes.iter().map(|l| l.forward[node]).min().unwrap_or(0);
        let backward = |node: usize| instance.classes.iter().map(|l| l.backward[node]).min().unwrap_or(0);
        // Time out and home together, out alone, home alone: before a node's own tasks.
        let nowhere = || Position::ALL.map(|_| vec![(NEVER, NEVER, NEVER); n]);
        let mut reached = nowhere();
        reached[Position::Ahead as usize][source] = (0, 0, 0);
        for hop in 1..longest {
            let mut level = nowhere();
            for from in 0..instance.stage_count() {
                for position in Position::ALL {
                    let starts: Vec<usize> = instance.members[from]
                        .iter()
                        .copied()
                        .filter(|v| reached[position as usize][*v].0 < NEVER)
                        .collect();
                    if starts.is_empty() {
                        continue;
                    }
                    for (to, next) in successors(instance, from, position) {
                        for u in &instance.members[to] {
                            let best = &mut level[next as usize][*u];
                            for v in &starts {
                                let (around, out, home) = reached[position as usize][*v];
                                let (there, back) = (instance.transfer(*v, *u), instance.transfer(*u, *v));
                                best.0 = best.0.min(around + there + back + instance.least_work(*v));
                                best.1 = best.1.min(out + forward(*v) + there);
                                best.2 = best.2.min(home + backward(*v) + back);
                            }
                        }
                    }
                }
            }
            for node in (0..n).filter(|node| instance.stage_of[*node] != NO_STAGE) {
                for position in Position::ALL {
                    let (around, out, home) = level[position as usize][node];
                    if around >= NEVER {
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
                    ways.around[node] = ways.around[node].min(around + held);
                    ways.held[node] = ways.held[node].min(held);
                    ways.out[node] = ways.out[node].min(out);
                    ways.home[node] = ways.home[node].min(home);
                }
            }
            reached = level;
        }
        ways
    }
}
