//! Whether there can be a plan at all: what is refused before any search.

mod stage_sets;
#[cfg(test)]
mod tests;

use self::stage_sets::{StageSets, find_stage_sets};
use crate::error::Result;
use crate::problem::{Instance, impossible};
use crate::quotas::{Quotas, inner_stages, source_visits};
use crate::route::{Lengths, RouteTask, StageOrder, StageSet, stage_bit};
use crate::rules::{MemoryRule, class_sets};

/// A search that has looked through everything and found nothing.
pub fn nothing_exists<T>() -> Result<T> {
    impossible(
        "CC1 to CC3 and TC1",
        "all choices of routes and orders have been looked through, none keeps all of them".to_owned(),
    )
}

/// Refuses what cannot have a plan, with the rule and the figures. Gives stage sets of the routes where classes state
/// them, or where `max_stage_jump` makes it a question whether there are any.
///
/// But for that rule and the times, numbers decide. Lengths differ by at most one, so routes exist for any quotas that add
/// up and are no more than the routes: equal row sums are majorised by all others (Gale and Ryser). So a profile can be
/// kept if its stages can take all visits, TC1 `routes` if so many visits of each stage find room on its nodes. With
/// classes each route has its stages, whatever the others have: an order is all that it needs.
pub fn prove_possible(instance: &Instance, tasks: &[RouteTask]) -> Result<Option<Vec<StageSet>>> {
    let lengths = Lengths::of(instance, tasks.len());
    let rules = &instance.rules;
    if let Some(sets) = class_sets(rules) {
        prove_orders(instance, &sets)?;
        prove_memory(instance, tasks, &lengths)?;
        return Ok(Some(sets));
    }
    for length in [lengths.short(), lengths.long()] {
        if !some_order(instance, StageOrder::start(rules), 0, length) {
            return impossible(
                "max_stage_jump",
                format!(
                    "no stage order of {length} of the stages {:?} keeps max_stage_jump = {}",
                    instance.present,
                    rules.max_stage_jump.unwrap_or_default()
                ),
            );
        }
    }
    prove_profile(instance, &lengths)?;
    prove_memory(instance, tasks, &lengths)?;
    if !rules.cc3 || rules.max_stage_jump.is_none() {
        return Ok(None);
    }
    match find_stage_sets(instance, &lengths) {
        StageSets::Found(sets) => Ok(Some(sets)),
        StageSets::Unknown => Ok(None),
        StageSets::Impossible => impossible(
            if rules.profile.is_some() { "profile" } else { "CC3" },
            format!(
                "no choice of {} routes with {} stage visits in all and jumps of at most {} shares the visits out {}",
                lengths.routes,
                lengths.total,
                rules.max_stage_jump.unwrap_or_default(),
                if rules.profile.is_some() { "as the weights say" } else { "evenly" }
            ),
        ),
    }
}

/// Ascending stages jump least, so no other order of a class keeps `max_stage_jump` where they do not.
fn prove_orders(instance: &Instance, sets: &[StageSet]) -> Result<()> {
    let keeps_order = |set: &StageSet| {
        let mut stages = instance.present.iter().filter(|stage| set & stage_bit(**stage) != 0);
        stages
            .try_fold(StageOrder::start(&instance.rules), |order, stage| order.step(*stage, &instance.rules))
            .is_some()
    };
    let Some(set) = sets.iter().find(|set| !keeps_order(set)) else { return Ok(()) };
    let stages: Vec<usize> = instance.present.iter().copied().filter(|stage| set & stage_bit(*stage) != 0).collect();
    let jump = instance.rules.max_stage_jump.unwrap_or_default();
    impossible("max_stage_jump", format!("no order of the class {stages:?} keeps max_stage_jump = {jump}"))
}

/// Whether the stages with a weight above 0 can take the visits.
fn prove_profile(instance: &Instance, lengths: &Lengths) -> Result<()> {
    let quotas = Quotas::least_of(instance, lengths);
    let room: usize = quotas.most.iter().sum();
    if instance.rules.profile.is_none() || !instance.rules.cc3 || room >= lengths.total {
        return Ok(());
    }
    let visits = lengths.total - quotas.most[0];
    impossible(
        "profile",
        format!(
            "the {} routes make {visits} visits of stages 1.., those with a weight above 0 can take {}",
            lengths.routes,
            room - quotas.most[0]
        ),
    )
}

/// TC1 `routes` is a matter of counting.
fn prove_memory(instance: &Instance, tasks: &[RouteTask], lengths: &Lengths) -> Result<()> {
    let rules = &instance.rules;
    if rules.tc1 != MemoryRule::Routes {
        return Ok(());
    }
    if rules.cc1 {
        for source in &instance.sources {
            let routes = tasks.iter().filter(|t| t.source == source.node).count();
            let memory = instance.memory[source.node] as usize;
            if routes > memory {
                return impossible(
                    "TC1",
                    format!(
                        "source {} starts {} microbatches on {routes} routes, its memory is {memory}",
                        source.node, source.microbatches
                    ),
                );
            }
        }
    }
    let least = Quotas::least_of(instance, lengths).least;
    if let Some(s) = inner_stages(instance).find(|s| instance.route_capacity(*s) < least[*s]) {
        return impossible(
            "TC1",
            format!(
                "stage {s} has to lie on {} routes, its nodes have memory for {}",
                least[s],
                instance.route_capacity(s)
            ),
        );
    }
    // Without CC1 it is open how many routes visit stage 0.
    let room_with = |visits: usize| {
        let quotas = Quotas::of(instance, lengths, visits);
        let has_room = instance.present.iter().all(|s| quotas.least[*s] <= instance.route_capacity(*s));
        let room: usize = instance.present.iter().map(|s| quotas.most[*s].min(instance.route_capacity(*s))).sum();
        (room, has_room)
    };
    let rooms = || source_visits(instance, lengths).map(room_with);
    if rooms().any(|(room, has_room)| has_room && room >= lengths.total) {
        return Ok(());
    }
    let room = rooms().map(|(room, _)| room).max().unwrap_or(0);
    if room < lengths.total {
        return impossible(
            "TC1",
            format!("the routes make {} stage visits, the nodes have memory for {room}", lengths.total),
        );
    }
    impossible("TC1", "the nodes have no memory for the visits in any way to share them out".to_owned())
}

/// Whether some stage order of `length` goes on from `order`. Going to the next present stage above is always
/// allowed where anything is, so no search is needed beyond the lowest choice.
fn some_order(instance: &Instance, order: StageOrder, from: usize, length: usize) -> bool {
    if length == 0 {
        return true;
    }
    let next = instance.present[from..].iter().position(|s| order.step(*s, &instance.rules).is_some());
    next.is_some_and(|i| {
        let stage = instance.present[from + i];
        order.step(stage, &instance.rules).is_some_and(|o| some_order(instance, o, from + i + 1, length - 1))
    })
}
