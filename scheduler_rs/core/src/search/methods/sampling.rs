//! What an attempt draws at random: quotas and lengths where totals do not divide, and whole routes.

use rand::RngExt;
use rand::seq::{IndexedRandom, SliceRandom};
use rand_pcg::Pcg64;

use crate::problem::Instance;
use crate::quotas::{Quotas, inner_stages, source_visits};
use crate::route::{Lengths, RouteTask, StageOrder, StageSet, Visits, stage_bit};
use crate::rules::class_sets;
use crate::search::instance_view::InstanceView;
use crate::search::methods::prioritised::partial_schedule::{PartialSchedule, Targets};
use crate::search::methods::prioritised::timed_path::TimedPath;
use crate::search::methods::routes::{Path, paths_of_microbatches};
use crate::simulate::MicrobatchRoute;

/// Draws for the routes of an allocation.
const DRAWS: u64 = 100;

/// Random routes of an allocation; none where every draw ran into a dead end.
pub fn random_paths(view: InstanceView<'_>, rng: &mut Pcg64) -> Option<Vec<Path>> {
    let microbatches = (0..DRAWS).find_map(|_| random_routes(view.instance, view.tasks, None, rng))?;
    Some(paths_of_microbatches(&microbatches, view.tasks.len()))
}

/// The stage sets of `sets`, assigned to the routes at random.
#[must_use]
pub fn targets_from_sets(instance: &Instance, sets: &[StageSet], rng: &mut Pcg64) -> Targets {
    let mut sets = sets.to_vec();
    sets.shuffle(rng);
    let count = |stage: usize| sets.iter().filter(|set| **set & stage_bit(stage) != 0).count();
    let visits = (0..instance.stage_count()).map(count).collect();
    Targets {
        visits: Some(visits),
        lengths: sets.iter().map(|set| set.count_ones() as usize).collect(),
        sets: Some(sets),
    }
}

/// Random quotas and lengths that add up; with classes, these at random.
#[must_use]
pub fn targets(instance: &Instance, tasks: &[RouteTask], rng: &mut Pcg64) -> Targets {
    if let Some(sets) = class_sets(&instance.rules) {
        return targets_from_sets(instance, &sets, rng);
    }
    let totals = Lengths::of(instance, tasks.len());
    let mut lengths: Vec<usize> =
        (0..tasks.len()).map(|r| totals.short() + usize::from(r < totals.long_routes())).collect();
    lengths.shuffle(rng);
    Targets { visits: instance.rules.cc3.then(|| quotas(instance, &totals, rng)), lengths, sets: None }
}

fn quotas(instance: &Instance, totals: &Lengths, rng: &mut Pcg64) -> Vec<usize> {
    let mut order: Vec<usize> = inner_stages(instance).collect();
    // Without CC1, about its share of the visits is of stage 0, or any number that the others allow.
    let at_source = source_visits(instance, totals);
    let of_source = if order.is_empty() || instance.rules.cc1 {
        *at_source.end()
    } else {
        let share = (totals.total / (order.len() + 1)).clamp(*at_source.start(), *at_source.end());
        if rng.random_bool(0.5) { share } else { rng.random_range(at_source) }
    };
    let Quotas { least: mut visits, most } = Quotas::of(instance, totals, of_source);
    let mut more = totals.total.saturating_sub(visits.iter().sum());
    order.shuffle(rng);
    // Where memory is counted by routes, one visit more goes to stages that have room for it.
    order.sort_by_key(|s| std::cmp::Reverse(instance.route_capacity(*s) > visits[*s]));
    for stage in order {
        if more > 0 && visits[stage] < most[stage] {
            visits[stage] += 1;
            more -= 1;
        }
    }
    visits
}

/// Places random routes on `schedule`, whatever their times; false where the drawing ran into a dead end.
/// Stage sets are drawn about uniformly, nodes uniformly among those with room.
pub fn routes(schedule: &mut PartialSchedule<'_>, instance: &Instance, rng: &mut Pcg64) -> bool {
    let mut order: Vec<usize> = (0..schedule.tasks().len()).collect();
    order.shuffle(rng);
    for route in order {
        let task = schedule.tasks()[route];
        let visits = schedule.visits(route);
        let mut walk =
            Walk { instance, schedule, visits: &visits, source: task.source, nodes: Vec::new(), tries: 1000 };
        if !walk.go(StageOrder::start(&instance.rules), 0, rng) {
            return false;
        }
        let timed_path = TimedPath { nodes: walk.nodes, starts: Vec::new(), completion: 0, value: 0 };
        schedule.place(route, vec![timed_path; task.waves]);
    }
    true
}

struct Walk<'w, 'a> {
    instance: &'w Instance,
    schedule: &'w PartialSchedule<'a>,
    visits: &'w Visits,
    source: usize,
    nodes: Vec<u32>,
    tries: usize,
}

impl Walk<'_, '_> {
    /// Depth first with the choices in random order.
    fn go(&mut self, order: StageOrder, visited: StageSet, rng: &mut Pcg64) -> bool {
        let hops = self.nodes.len();
        if hops == self.visits.length {
            return true;
        }
        if self.tries == 0 {
            return false;
        }
        self.tries -= 1;
        let mut choices = self.choices(order, visited, hops);
        while let Some(index) = pick(&choices, rng) {
            let (stage, next, _) = choices.swap_remove(index);
            let free: Vec<usize> = self.nodes_for(stage);
            if let Some(node) = free.choose(rng) {
                self.nodes.push(*node as u32);
                if self.go(next, visited | stage_bit(stage), rng) {
                    return true;
                }
                self.nodes.pop();
            }
        }
        false
    }

    fn nodes_for(&self, stage: usize) -> Vec<usize> {
        let begins_at_source = self.instance.rules.cc1 && stage == 0;
        let fits = |n: &usize| self.schedule.room(*n) > 0 && (!begins_at_source || *n == self.source);
        self.instance.members[stage].iter().copied().filter(fits).collect()
    }

    /// Stages that may follow, each weighed by the number of routes that go on from it.
    fn choices(&self, order: StageOrder, visited: StageSet, hops: usize) -> Vec<(usize, StageOrder, f64)> {
        let rules = &self.instance.rules;
        let open = self.visits.allowed & order.reachable(rules) & !visited;
        self.instance
            .present
            .iter()
            .copied()
            .filter(|s| open & stage_bit(*s) != 0)
            .filter_map(|s| Some((s, order.step(s, rules)?)))
            .filter(|(s, next)| self.visits.can_finish(*next, visited | stage_bit(*s), hops + 1, rules))
            .map(|(s, next)| {
                let seen = visited | stage_bit(s);
                let above = (self.visits.allowed & next.reachable(rules) & !seen).count_ones();
                (s, next, choose(above, (self.visits.length - hops - 1) as u32))
            })
            .collect()
    }
}

/// Number of subsets of size `k` of `n` things; at least a little, so that nothing is impossible.
fn choose(n: u32, k: u32) -> f64 {
    (0..k).map(|i| f64::from(n.saturating_sub(i)) / f64::from(i + 1)).product::<f64>().max(1e-9)
}

fn pick(choices: &[(usize, StageOrder, f64)], rng: &mut Pcg64) -> Option<usize> {
    let total: f64 = choices.iter().map(|c| c.2).sum();
    let mut left = rng.random::<f64>() * total;
    for (index, choice) in choices.iter().enumerate() {
        left -= choice.2;
        if left <= 0.0 {
            return Some(index);
        }
    }
    choices.len().checked_sub(1)
}

/// Routes drawn at random under the rules; guided by `sets`, where there are some.
pub fn random_routes(
    instance: &Instance,
    tasks: &[RouteTask],
    sets: Option<&[StageSet]>,
    rng: &mut Pcg64,
) -> Option<Vec<MicrobatchRoute>> {
    let targets = match sets {
        Some(sets) => targets_from_sets(instance, sets, rng),
        None => targets(instance, tasks, rng),
    };
    let mut schedule = PartialSchedule::new(instance, tasks, &targets, false);
    routes(&mut schedule, instance, rng).then(|| schedule.microbatches())
}
