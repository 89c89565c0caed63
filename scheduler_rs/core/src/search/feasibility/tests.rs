//! What is refused before any search, against every choice of stages for all routes, by the words of the rules.

use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64;

use super::prove_possible;
use crate::error::Error;
use crate::problem::{Instance, Problem};
use crate::route::{Lengths, RouteTask, route_tasks};
use crate::rules::{Constraints, MemoryRule, RouteClass};
use crate::test_clusters::{equal_nodes, matrix};
use crate::time::Rounding;

/// Up to five stages of one or two nodes, up to five routes, random rules; some with an absent stage, some with classes.
fn problem(rng: &mut Pcg64) -> Option<Problem> {
    let count = rng.random_range(2..6_usize);
    let absent: Vec<usize> = (2..count).filter(|_| rng.random_bool(0.15)).collect();
    let (mut stages, mut next) = (Vec::new(), 0);
    for stage in 0..count {
        let size = if absent.contains(&stage) { 0 } else { rng.random_range(1..3) };
        stages.push((next..next + size).collect::<Vec<usize>>());
        next += size;
    }
    let memory = rng.random_range(1..4);
    let cluster = equal_nodes([1.0, 1.0, 0.1], memory, matrix(next, |_, _| 0.1));
    let microbatches: Vec<usize> = stages[0].iter().map(|_| rng.random_range(1..4)).collect();
    let cc1 = rng.random_bool(0.7);
    let routes: usize = microbatches.iter().sum();
    let present: Vec<usize> = (0..count).filter(|stage| !absent.contains(stage)).collect();
    let classes = rng.random_bool(0.25).then(|| {
        let mut class = |routes: usize| {
            let mut stages: Vec<usize> = present.iter().copied().filter(|_| rng.random_bool(0.5)).collect();
            if stages.is_empty() || (cc1 && stages[0] != 0) {
                stages.insert(0, 0);
            }
            stages.shuffle(rng);
            RouteClass { stages, routes }
        };
        let half = routes / 2;
        [half, routes - half].into_iter().filter(|routes| *routes > 0).map(&mut class).collect::<Vec<_>>()
    });
    let visits = |classes: &Vec<RouteClass>| classes.iter().map(|c| c.routes * c.stages.len()).sum::<usize>();
    let skip_ratio = match &classes {
        Some(classes) => 1.0 - visits(classes) as f64 / (routes * present.len()) as f64,
        None => rng.random_range(0.0..0.8),
    };
    let rules = Constraints {
        cc1,
        cc2: rng.random_bool(0.7),
        cc3: rng.random_bool(0.7),
        tc1: [MemoryRule::Held, MemoryRule::Routes][rng.random_range(0..2)],
        max_swaps: rng.random_range(0..3),
        max_stage_jump: rng.random_bool(0.6).then(|| rng.random_range(1..4)),
        classes,
        ..Constraints::default()
    };
    Problem::new(cluster, stages, absent, microbatches, skip_ratio, rules).ok()
}

/// All subsets of the stages that a route can visit in some order.
fn stage_choices(instance: &Instance) -> Vec<Vec<usize>> {
    let subsets = 1_u32..1 << instance.present.len();
    let of = |bits: u32| {
        let chosen = instance.present.iter().enumerate().filter(|(i, _)| bits >> i & 1 == 1);
        chosen.map(|(_, stage)| *stage).collect::<Vec<usize>>()
    };
    subsets.map(of).filter(|stages| can_be_ordered(stages, &mut Vec::new(), &instance.rules)).collect()
}

/// Whether some order of these stages, after those `so_far`, keeps CC1, CC2 and `max_stage_jump`.
fn can_be_ordered(stages: &[usize], so_far: &mut Vec<usize>, rules: &Constraints) -> bool {
    if so_far.len() == stages.len() {
        return keeps_order(so_far, rules);
    }
    stages.iter().any(|stage| {
        !so_far.contains(stage) && {
            so_far.push(*stage);
            let found = can_be_ordered(stages, so_far, rules);
            so_far.pop();
            found
        }
    })
}

fn keeps_order(order: &[usize], rules: &Constraints) -> bool {
    let furthest_before = |hop: usize| order[..hop].iter().copied().max().unwrap_or(0);
    let jumps = |jump: u32| (0..order.len()).any(|hop| order[hop] > furthest_before(hop) + jump as usize);
    if (rules.cc1 && order[0] != 0) || rules.max_stage_jump.is_some_and(jumps) {
        return false;
    }
    // Descents by one that share no stage are swaps; without them the stages ascend.
    let descents: Vec<usize> = (1..order.len()).filter(|hop| order[*hop] < order[hop - 1]).collect();
    let mut sorted = order.to_vec();
    descents.iter().for_each(|hop| sorted.swap(hop - 1, *hop));
    let are_swaps = descents.iter().all(|hop| order[*hop] + 1 == order[hop - 1])
        && descents.windows(2).all(|two| two[1] > two[0] + 1)
        && descents.len() <= rules.max_swaps as usize
        && sorted.is_sorted();
    !rules.cc2 || are_swaps
}

/// Whether some choice of stages for all routes keeps the rules about numbers.
struct EveryChoice<'a> {
    instance: &'a Instance,
    tasks: &'a [RouteTask],
    choices: Vec<Vec<usize>>,
}

impl EveryChoice<'_> {
    fn is_possible(&self, chosen: &mut Vec<usize>) -> bool {
        if chosen.len() == self.tasks.len() {
            return self.keeps_numbers(chosen);
        }
        // Which route has which stages makes no difference to the numbers.
        (chosen.last().copied().unwrap_or(0)..self.choices.len()).any(|next| {
            chosen.push(next);
            let found = self.is_possible(chosen);
            chosen.pop();
            found
        })
    }

    fn keeps_numbers(&self, chosen: &[usize]) -> bool {
        let (instance, rules) = (self.instance, &self.instance.rules);
        let routes: Vec<&Vec<usize>> = chosen.iter().map(|choice| &self.choices[*choice]).collect();
        self.keeps_visits(&routes)
            && (rules.tc1 != MemoryRule::Routes
                || instance.present.iter().all(|stage| {
                    let visits = routes.iter().filter(|stages| stages.contains(stage)).count();
                    visits <= instance.members[*stage].iter().map(|node| instance.memory[*node] as usize).sum()
                }))
    }

    /// Classes, or lengths and CC3.
    fn keeps_visits(&self, routes: &[&Vec<usize>]) -> bool {
        let (instance, rules) = (self.instance, &self.instance.rules);
        if let Some(classes) = &rules.classes {
            let sorted = |mut lists: Vec<Vec<usize>>| {
                lists.iter_mut().for_each(|stages| stages.sort_unstable());
                lists.sort();
                lists
            };
            let asked = classes.iter().flat_map(|class| std::iter::repeat_n(class.stages.clone(), class.routes));
            return sorted(routes.iter().map(|stages| (*stages).clone()).collect()) == sorted(asked.collect());
        }
        let lengths = Lengths::new(routes.len(), instance.present.len(), instance.skip_ratio);
        let inner = || instance.present.iter().filter(|stage| **stage != 0);
        let visits: Vec<usize> =
            inner().map(|stage| routes.iter().filter(|stages| stages.contains(stage)).count()).collect();
        let spread = visits.iter().max().zip(visits.iter().min()).map_or(0, |(most, least)| most - least);
        routes.iter().map(|stages| stages.len()).sum::<usize>() == lengths.total
            && routes.iter().all(|stages| (lengths.short()..=lengths.long()).contains(&stages.len()))
            && (!rules.cc3 || spread <= 1)
    }

    /// Under CC1 a source is on all routes of its own.
    fn sources_have_room(&self) -> bool {
        let rules = &self.instance.rules;
        let started = |source: usize| self.tasks.iter().filter(|task| task.source == source).count();
        let has_room = |source: &usize| started(*source) <= self.instance.memory[*source] as usize;
        !rules.cc1 || rules.tc1 != MemoryRule::Routes || self.instance.members[0].iter().all(has_room)
    }
}

#[test]
fn what_is_refused_has_no_choice_of_stages_and_the_rest_has_one() {
    let mut rng = Pcg64::seed_from_u64(17);
    let (mut refused, mut given) = (0, 0);
    for case in 0..1500 {
        let Some(problem) = problem(&mut rng) else { continue };
        let instance = Instance::new(&problem, Rounding::Up);
        let tasks = route_tasks(&instance);
        let every = EveryChoice { instance: &instance, tasks: &tasks, choices: stage_choices(&instance) };
        let is_possible = every.sources_have_room() && every.is_possible(&mut Vec::new());
        let rules = &instance.rules;
        match prove_possible(&instance, &tasks) {
            Err(Error::Impossible { .. }) => {
                refused += 1;
                assert!(!is_possible, "{case}: {rules:?}, skip ratio {}", instance.skip_ratio);
            }
            Err(error) => panic!("{case}: {error}"),
            Ok(sets) => {
                // Memory and jumps are looked at one after the other: what both together forbid is left to the search.
                let is_decided = rules.tc1 != MemoryRule::Routes || rules.max_stage_jump.is_none();
                assert!(is_possible || !is_decided, "{case}: {rules:?}, skip ratio {}", instance.skip_ratio);
                let Some(sets) = sets else { continue };
                given += 1;
                let stages_of =
                    |set: &u128| (0..instance.stage_count()).filter(|stage| set >> stage & 1 == 1).collect::<Vec<_>>();
                let lists: Vec<Vec<usize>> = sets.iter().map(stages_of).collect();
                assert!(lists.iter().all(|stages| every.choices.contains(stages)), "{case}");
                assert!(every.keeps_visits(&lists.iter().collect::<Vec<_>>()), "{case}");
            }
        }
    }
    assert!(refused > 100 && given > 100, "{refused}, {given}");
}
