//! Whether there can be a plan at all: what is refused before any search.

use crate::search::feasibility::stage_sets::{StageSets, find_stage_sets};
mod stage_sets;

use crate::error::Result;
use crate::problem::{Instance, impossible};
use crate::route::{Lengths, RouteTask, StageOrder, StageSet};
use crate::rules::MemoryRule;

/// A search that has looked through everything and found nothing.
pub fn nothing_exists<T>() -> Result<T> {
    impossible(
        "CC1 to CC3 and TC1",
        "all choices of routes and orders have been looked through, none keeps all of them".to_owned(),
    )
}

/// Refuses what cannot have a plan, with the rule and the figures. Gives stage sets of the routes where
/// `max_stage_jump` makes it a question whether there are any.
pub fn prove_possible(instance: &Instance, tasks: &[RouteTask]) -> Result<Option<Vec<StageSet>>> {
    let lengths = Lengths::of(instance, tasks.len());
    let rules = &instance.rules;
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
    prove_memory(instance, tasks, &lengths)?;
    if !rules.cc3 || rules.max_stage_jump.is_none() {
        return Ok(None);
    }
    match find_stage_sets(instance, &lengths) {
        StageSets::Found(sets) => Ok(Some(sets)),
        StageSets::Unknown => Ok(None),
        StageSets::Impossible => impossible(
            "CC3",
            format!(
                "no choice of {} routes with {} stage visits in all and jumps of at most {} shares the visits out evenly",
                lengths.routes,
                lengths.total,
                rules.max_stage_jump.unwrap_or_default()
            ),
        ),
    }
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
    let inner: Vec<usize> = instance.present.iter().copied().filter(|s| *s != 0).collect();
    let visits = lengths.total.saturating_sub(lengths.routes);
    if rules.cc3 && !inner.is_empty() {
        let each = visits / inner.len();
        if let Some(s) = inner.iter().find(|s| instance.route_capacity(**s) < each) {
            return impossible(
                "TC1",
                format!(
                    "stage {s} has to lie on {each} routes, its nodes have memory for {}",
                    instance.route_capacity(*s)
                ),
            );
        }
    }
    let room: usize = instance.present.iter().map(|s| instance.route_capacity(*s).min(lengths.routes)).sum();
    if room < lengths.total {
        return impossible(
            "TC1",
            format!("the routes make {} stage visits, the nodes have memory for {room}", lengths.total),
        );
    }
    Ok(())
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
