//! Which routes, and which choices of them, the rules allow: by their words.

use skippipe_core::problem::Instance;
use skippipe_core::route::{Lengths, RouteTask};
use skippipe_core::rules::{MemoryRule, RouteClass};
use skippipe_core::search::methods::cbs::VisitDemand;

/// What the rules say of all routes together; of a part of them, what is left to it.
pub fn demand(instance: &Instance, tasks: &[RouteTask], others: usize) -> Option<VisitDemand> {
    if instance.rules.profile.is_some() || instance.rules.classes.is_some() {
        return VisitDemand::of(instance, tasks.len(), tasks.len() + others);
    }
    let lengths = Lengths::new(tasks.len() + others, instance.present.len(), instance.skip_ratio);
    let count = tasks.len();
    let mut demand = VisitDemand {
        least: vec![0; instance.stage_count()],
        most: vec![count; instance.stage_count()],
        total: (others == 0).then_some((lengths.total, lengths.total)),
        short: lengths.short(),
        long: lengths.long(),
        long_routes: (others == 0 && lengths.long_routes() > 0)
            .then_some((lengths.long_routes(), lengths.long_routes())),
        classes: vec![],
    };
    if instance.rules.cc3 {
        // Without CC1 the share of the inner stages depends on the routes; the search knows that itself.
        if !instance.rules.cc1 {
            return (others == 0).then_some(demand);
        }
        let inner = instance.present.len() - 1;
        let visits = lengths.total - lengths.routes;
        for stage in instance.present.iter().skip(1) {
            demand.least[*stage] = (visits / inner).saturating_sub(others);
            demand.most[*stage] = visits.div_ceil(inner).min(count);
        }
    }
    Some(demand)
}

/// Every route that the rules allow to one source.
pub fn routes(instance: &Instance, source: usize) -> Vec<Vec<usize>> {
    let mut found = Vec::new();
    let mut open = vec![Vec::new()];
    while let Some(route) = open.pop() {
        for stage in &instance.present {
            if route.iter().any(|n| instance.stage_of[*n] == *stage) {
                continue;
            }
            for node in &instance.members[*stage] {
                let mut next: Vec<usize> = route.clone();
                next.push(*node);
                if is_legal(instance, source, &next) {
                    found.push(next.clone());
                }
                open.push(next);
            }
        }
    }
    found.sort();
    found
}

/// CC1, CC2 and jumps by their words.
fn is_legal(instance: &Instance, source: usize, route: &[usize]) -> bool {
    let rules = &instance.rules;
    let stages: Vec<usize> = route.iter().map(|n| instance.stage_of[*n]).collect();
    if rules.cc1 && route[0] != source {
        return false;
    }
    let mut furthest = 0;
    for stage in &stages {
        if rules.max_stage_jump.is_some_and(|jump| *stage > furthest + jump as usize) {
            return false;
        }
        furthest = furthest.max(*stage);
    }
    if !rules.cc2 {
        return true;
    }
    let (mut sorted, mut swaps, mut at) = (stages.clone(), 0, 0);
    while at + 1 < sorted.len() {
        if sorted[at] == sorted[at + 1] + 1 {
            sorted.swap(at, at + 1);
            swaps += 1;
            at += 1;
        }
        at += 1;
    }
    swaps <= rules.max_swaps && sorted.windows(2).all(|w| w[0] < w[1])
}

/// Whether a choice of routes keeps what concerns all of them.
pub fn adds_up(instance: &Instance, demand: &VisitDemand, chosen: &[&Vec<usize>]) -> bool {
    let within = |range: Option<(usize, usize)>, n: usize| range.is_none_or(|(a, b)| a <= n && n <= b);
    let visits = |stage: usize| chosen.iter().filter(|r| r.iter().any(|n| instance.stage_of[*n] == stage)).count();
    let users = |node: usize| chosen.iter().filter(|r| r.contains(&node)).count();
    let memory = |node: usize| instance.memory[node] as usize;
    let inner: Vec<usize> = instance.present.iter().filter(|s| **s != 0).map(|s| visits(*s)).collect();
    let is_of = |route: &[usize], class: &RouteClass| {
        let mut stages: Vec<usize> = route.iter().map(|n| instance.stage_of[*n]).collect();
        let mut expected = class.stages.clone();
        stages.sort_unstable();
        expected.sort_unstable();
        stages == expected
    };
    if let Some(classes) = &instance.rules.classes {
        let others = classes.iter().map(|class| class.routes).sum::<usize>() - chosen.len();
        let keeps = |route: &&Vec<usize>| {
            let asked: usize = classes.iter().filter(|class| is_of(route, class)).map(|class| class.routes).sum();
            let same = |other: &&&Vec<usize>| classes.iter().any(|class| is_of(route, class) && is_of(other, class));
            chosen.iter().filter(same).count() <= asked
        };
        // All others may be of one class.
        let is_reached = |class: &RouteClass| {
            let same = |other: &&RouteClass| other.stages == class.stages;
            let asked: usize = classes.iter().filter(same).map(|other| other.routes).sum();
            chosen.iter().filter(|route| is_of(route, class)).count() + others >= asked
        };
        let has_room = (0..instance.node_count()).all(|n| users(n) <= memory(n));
        return chosen.iter().all(|route| classes.iter().any(|class| is_of(route, class)))
            && chosen.iter().all(keeps)
            && classes.iter().all(is_reached)
            && (instance.rules.tc1 != MemoryRule::Routes || has_room);
    }
    if let (Some(weights), true, Some(_)) = (&instance.rules.profile, instance.rules.cc3, demand.total) {
        let weights: Vec<f64> = instance.present.iter().filter(|s| **s != 0).map(|s| weights[*s - 1]).collect();
        let limit = chosen.len() as f64;
        let share = |factor: f64| weights.iter().map(move |weight| (weight * factor).min(limit));
        let visits = inner.iter().sum::<usize>() as f64;
        let (mut low, mut high) = (0.0, 1e6);
        for _ in 0..200 {
            let middle = (low + high) / 2.0;
            if share(middle).sum::<f64>() < visits { low = middle } else { high = middle }
        }
        if share(high).zip(&inner).any(|(share, visits)| (*visits as f64 - share).abs() >= 1.0 - 1e-6) {
            return false;
        }
    }
    let is_even =
        instance.rules.profile.is_some() || inner.iter().max() <= inner.iter().min().map(|least| least + 1).as_ref();
    if instance.rules.cc3 && !instance.rules.cc1 && demand.total.is_some() && !is_even {
        return false;
    }
    within(demand.total, chosen.iter().map(|r| r.len()).sum())
        && within(demand.long_routes, chosen.iter().filter(|r| r.len() > demand.short).count())
        && instance.present.iter().all(|s| demand.least[*s] <= visits(*s) && visits(*s) <= demand.most[*s])
        && (instance.rules.tc1 != MemoryRule::Routes || (0..instance.node_count()).all(|n| users(n) <= memory(n)))
}
