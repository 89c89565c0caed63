//! Lower bounds on the iteration time of all plans for an allocation and rules.
//!
//! They are computed on the instance with durations rounded down.

mod flow;
pub mod lookahead;
mod visits;

use std::collections::{BTreeMap, BTreeSet};

use crate::bound::lookahead::Lookahead;
use crate::budget::Budget;
use crate::error::Result;
use crate::problem::{Instance, MicrobatchClass, NO_STAGE, Problem, Source};
use crate::quotas::{Quotas, inner_stages};
use crate::route::{Lengths, RouteTask, route_tasks};
use crate::simulate::MicrobatchRoute;
use crate::time::{NEVER, Rounding, Time};

/// Fraction of the time limit that a bound may take.
const SHARE_OF_TIME: f64 = 0.3;

/// Whether an iteration time meets a bound, up to rounding (one part in 10^9).
#[must_use]
pub fn is_tight(iteration: Time, bound: Time) -> bool {
    iteration - bound <= bound / 1_000_000_000
}

/// Lower bound for any routes, in nanoseconds: round trips of the sources under memory and waves, work of sources and
/// stages, visits.
///
/// # Errors
/// [`crate::Error::Cancelled`]
pub fn lower_bound(instance: &Instance, tasks: &[RouteTask], lookahead: &Lookahead, budget: &Budget) -> Result<Time> {
    budget.check_cancelled()?;
    let lengths = Lengths::of(instance, tasks.len());
    let trip = |source: usize| {
        let least = (lengths.short()..=lengths.long())
            .map(|length| lookahead.round_trip(instance, source, length))
            .min()
            .unwrap_or(0);
        if least >= NEVER { 0 } else { least }
    };
    let mut bound = instance.allreduce.iter().copied().max().unwrap_or(0);
    for source in &instance.sources {
        let own = tasks.iter().filter(|t| t.source == source.node);
        bound = bound.max(source_bound(
            instance,
            source.node,
            source.microbatches,
            own.map(|t| t.waves),
            trip(source.node),
        ));
    }
    if instance.rules.cc1 {
        let least = Quotas::least_of(instance, &lengths).least;
        for stage in inner_stages(instance) {
            bound = bound.max(stage_bound(instance, tasks, stage, least[stage]));
        }
    }
    bound = bound.max(processor_bound(instance, tasks, &lengths));
    bound = bound.max(visits::visits_bound(instance, tasks, lookahead, budget, SHARE_OF_TIME)?);
    Ok(bound + instance.epilogue)
}

/// [`lower_bound`] of a problem.
///
/// # Errors
/// [`crate::Error::Cancelled`]
pub fn lower_bound_of(problem: &Problem, budget: &Budget) -> Result<Time> {
    let below = Instance::new(problem, Rounding::Down).without_contention();
    let tasks = route_tasks(&below);
    let lengths = Lengths::of(&below, tasks.len());
    lower_bound(&below, &tasks, &Lookahead::new(&below, lengths.long(), budget, SHARE_OF_TIME)?, budget)
}

/// Lower bound from a source that starts `count` microbatches, each with a round trip of at least `trip`.
///
/// With room for `c` at a time (memory, or one microbatch on each of `c` routes), let `s_j` be the start of the `j`-th
/// forward. `s_(j+1) >= s_j + forward`; and `s_(j+c) >= s_j + trip`, because by then one of those that started at `s_j`
/// or later has returned. The last one still needs its round trip. If it is number `q c + r + 1` with `q > 0`, then `r`
/// more forwards and `r` more backwards have to run between the end of backward number `(q - 1) c + 1` and its start:
/// there was no memory for the forwards before, and there is none for the last one without the backwards.
pub(crate) fn source_bound(
    instance: &Instance,
    source: usize,
    count: usize,
    waves: impl Iterator<Item = usize>,
    trip: Time,
) -> Time {
    let routes: Vec<usize> = waves.collect();
    let in_turn = routes.iter().copied().max().unwrap_or(0) as Time * trip;
    if !instance.rules.cc1 {
        return in_turn.max(count as Time * instance.least_loss(source));
    }
    let mut room = routes.len();
    if instance.memory_is_held() {
        room = room.min(instance.memory[source] as usize);
    }
    let room = room.max(1);
    let last = count - 1;
    // Backwards are one after the other as forwards are, so the slower of both counts.
    let step = if last < room { step_of(instance, source) } else { instance.least_work(source) };
    let by_room = (last / room) as Time * trip + (last % room) as Time * step + trip;
    let load = count as Time * (instance.least_work(source) + instance.least_loss(source));
    in_turn.max(by_room).max(load) + instance.allreduce[0]
}

/// Minimum time between successive microbatches of a source: the slower of forward and backward.
fn step_of(instance: &Instance, node: usize) -> Time {
    least(instance, node, |l| &l.forward).max(least(instance, node, |l| &l.backward))
}

fn least(instance: &Instance, node: usize, of: impl Fn(&MicrobatchClass) -> &Vec<Time>) -> Time {
    instance.classes.iter().map(|class| of(class)[node]).min().unwrap_or(0)
}

/// The fewest microbatches of so many routes.
fn least_microbatches(tasks: &[RouteTask], routes: usize) -> usize {
    let mut waves: Vec<usize> = tasks.iter().map(|t| t.waves).collect();
    waves.sort_unstable();
    waves.iter().take(routes).sum()
}

/// Lower bound from what sets of processors have to do: what their sources start, and all visits of the stages whose
/// nodes are all on them. It is the mean over the set, for each processor alone, those of each stage, and all.
fn processor_bound(instance: &Instance, tasks: &[RouteTask], lengths: &Lengths) -> Time {
    if !instance.shares_processors() {
        return 0; // sources and stages say as much
    }
    let cc1 = instance.rules.cc1;
    let least = if cc1 { Quotas::least_of(instance, lengths).least } else { vec![0; instance.stage_count()] };
    let processors_of =
        |stage: usize| instance.members[stage].iter().map(|n| instance.processor(*n)).collect::<BTreeSet<usize>>();
    let stages: Vec<(BTreeSet<usize>, Time)> = inner_stages(instance)
        .map(|stage| {
            let each = instance.members[stage].iter().map(|n| instance.least_work(*n)).min().unwrap_or(0);
            (processors_of(stage), least_microbatches(tasks, least[stage]) as Time * each)
        })
        .collect();
    let of_source = |source: &Source| {
        let own = if cc1 { instance.least_work(source.node) } else { 0 };
        (instance.processor(source.node), source.microbatches as Time * (own + instance.least_loss(source.node)))
    };
    let sources: Vec<(usize, Time)> = instance.sources.iter().map(of_source).collect();
    let all: BTreeSet<usize> = instance.present.iter().flat_map(|stage| processors_of(*stage)).collect();
    let mut sets: Vec<BTreeSet<usize>> = all.iter().map(|processor| BTreeSet::from([*processor])).collect();
    sets.extend(stages.iter().map(|(processors, _)| processors.clone()));
    sets.push(all);
    let mean = |set: &BTreeSet<usize>| {
        let started: Time = sources.iter().filter(|(processor, _)| set.contains(processor)).map(|(_, work)| work).sum();
        let visits: Time = stages.iter().filter(|(own, _)| own.is_subset(set)).map(|(_, work)| work).sum();
        (started + visits) / set.len().max(1) as Time
    };
    sets.iter().map(mean).max().unwrap_or(0)
}

/// Lower bound from a stage that at least `quota` routes visit. Its processors share their microbatches. Before the first
/// one there is a forward at a source and a transfer; after the last one a transfer and a backward at a source, or the
/// stage's all-reduce.
fn stage_bound(instance: &Instance, tasks: &[RouteTask], stage: usize, quota: usize) -> Time {
    let visits = least_microbatches(tasks, quota);
    if visits == 0 {
        return 0;
    }
    let nodes = &instance.members[stage];
    let mut of_processor: BTreeMap<usize, Time> = BTreeMap::new();
    for node in nodes {
        let work = of_processor.entry(instance.processor(*node)).or_insert(NEVER);
        *work = (*work).min(instance.least_work(*node));
    }
    let each: Vec<Time> = of_processor.into_values().collect();
    let (head, tail) = nodes.iter().fold((NEVER, NEVER), |(head, tail), n| {
        let others = || (0..instance.node_count()).filter(|p| p != n && instance.stage_of[*p] != NO_STAGE);
        let inward = others().map(|p| instance.transfer(p, *n)).min().unwrap_or(0);
        let outward = others().map(|p| instance.transfer(*n, p)).min().unwrap_or(0);
        (head.min(inward), tail.min(outward))
    });
    let first = instance.sources.iter().map(|s| least(instance, s.node, |l| &l.forward)).min().unwrap_or(0);
    let last = instance.sources.iter().map(|s| least(instance, s.node, |l| &l.backward)).min().unwrap_or(0);
    first + head + shared_load(&each, visits) + (tail + last + instance.allreduce[0]).max(instance.allreduce[stage])
}

/// Minimum makespan of `jobs` identical jobs on machines with these processing times.
fn shared_load(each: &[Time], jobs: usize) -> Time {
    let done = |time: Time| each.iter().map(|p| if *p == 0 { jobs } else { (time / p) as usize }).sum::<usize>();
    let (mut low, mut high) = (0, each.iter().copied().min().unwrap_or(0) * jobs as Time);
    while low < high {
        let middle = low + (high - low) / 2;
        if done(middle) >= jobs {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    low
}

/// Lower bound for given routes, in nanoseconds: the longest round trip with its waves, and the work of every
/// processor.
#[must_use]
pub fn route_bound(instance: &Instance, microbatches: &[MicrobatchRoute]) -> Time {
    let mut load = vec![0; instance.node_count()];
    let mut trips = vec![0; microbatches.len()];
    let mut bound: Time = 0;
    let mut in_turn: Time = 0;
    for (b, microbatch) in microbatches.iter().enumerate() {
        let mut previous = microbatch.source;
        let mut trip = instance.loss(microbatch.class, microbatch.source);
        load[instance.processor(microbatch.source)] += instance.loss(microbatch.class, microbatch.source);
        for node in microbatch.nodes.iter().map(|n| *n as usize) {
            trip += instance.transfer(previous, node)
                + instance.transfer(node, previous)
                + instance.forward(microbatch.class, node)
                + instance.backward(microbatch.class, node);
            load[instance.processor(node)] +=
                instance.forward(microbatch.class, node) + instance.backward(microbatch.class, node);
            previous = node;
        }
        trip += instance.transfer(previous, microbatch.source) + instance.transfer(microbatch.source, previous);
        in_turn = if b > 0 && microbatches[b - 1].route == microbatch.route { in_turn + trip } else { trip };
        bound = bound.max(in_turn);
        trips[b] = trip;
    }
    bound = load.into_iter().fold(bound, Time::max);
    for source in &instance.sources {
        let own = || microbatches.iter().zip(&trips).filter(|(b, _)| b.source == source.node);
        let trip = own().map(|(_, trip)| *trip).min().unwrap_or(0);
        let mut waves: Vec<usize> = Vec::new();
        let mut route = None;
        for (microbatch, _) in own() {
            match waves.last_mut() {
                Some(count) if route == Some(microbatch.route) => *count += 1,
                _ => waves.push(1),
            }
            route = Some(microbatch.route);
        }
        let count = waves.iter().sum();
        if count > 0 {
            bound = bound.max(source_bound(instance, source.node, count, waves.into_iter(), trip));
        }
    }
    bound + instance.epilogue
}

#[cfg(test)]
mod tests {
    use super::shared_load;

    #[test]
    fn jobs_are_shared_by_speed() {
        assert_eq!(shared_load(&[2, 3], 5), 6);
        assert_eq!(shared_load(&[7], 3), 21);
        assert_eq!(shared_load(&[0, 9], 100), 0);
    }
}
