//! Conflict-based search against an exhaustive one that knows the rules alone: every choice of routes, every order.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "common/clusters.rs"]
mod clusters;

use std::collections::BTreeMap;

use clusters::equal_nodes;
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64;
use serde_json::Value;
use skippipe_core::bound::lookahead::Lookahead;
use skippipe_core::bound::lower_bound;
use skippipe_core::budget::Budget;
use skippipe_core::check::check;
use skippipe_core::cluster::{Cluster, ClusterParts, Links, Node};
use skippipe_core::plan::{Microbatch, Plan, PlanFormat, Predicted};
use skippipe_core::problem::{Instance, Problem};
use skippipe_core::report::SearchReport;
use skippipe_core::route::{Lengths, RouteTask, route_tasks};
use skippipe_core::rules::{Constraints, MemoryRule, RouteClass, Strategy};
use skippipe_core::search::methods::cbs::{Answer, Solution, Subproblem, Termination, VisitDemand, solve};
use skippipe_core::simulate::Simulator;
use skippipe_core::time::{NEVER, Rounding, Time, seconds};

/// A random problem small enough for exhaustive search.
fn problem(rng: &mut Pcg64) -> Option<Problem> {
    let stage_count = rng.random_range(2..=4);
    let n = rng.random_range(stage_count..=6);
    let mut stages: Vec<Vec<usize>> = (0..stage_count).map(|s| vec![s]).collect();
    for node in stage_count..n {
        stages[rng.random_range(0..stage_count)].push(node);
    }
    let most = rng.random_range(1..=4);
    let mut whole = |low: u32, high: u32| f64::from(rng.random_range(low..=high));
    let nodes = (0..n)
        .map(|i| Node {
            name: format!("n{i}"),
            forward_s: whole(0, most),
            backward_s: whole(0, most),
            loss_s: whole(0, 2),
            memory: whole(1, 2) as u32,
        })
        .collect();
    let matrix: Vec<Vec<f64>> = (0..n).map(|_| (0..n).map(|_| whole(0, 3)).collect()).collect();
    let gradients: Vec<f64> = (0..stage_count).map(|_| 60.0 * whole(0, 3)).collect();
    let is_rated = rng.random_bool(0.4);
    // Nodes of one region have the same links and yet times of their own.
    let regions = rng.random_bool(0.3).then_some(2);
    let side = regions.unwrap_or(n);
    let matrix: Vec<Vec<f64>> = matrix.into_iter().take(side).map(|row| row[..side].to_vec()).collect();
    let links = if is_rated {
        Links::Rated { latency_s: matrix, bandwidth: vec![vec![60.0; side]; side], overhead_s: 0.0 }
    } else {
        Links::Transfer(matrix)
    };
    let parts = ClusterParts {
        region_of: regions.map(|count| (0..n).map(|i| i % count).collect()),
        gradient_bytes: if is_rated { gradients } else { vec![] },
        norm_s: if rng.random_bool(0.2) { 1.0 } else { 0.0 },
        ..ClusterParts::new(nodes, links)
    };
    let rules = Constraints {
        cc1: rng.random_bool(0.8),
        cc2: rng.random_bool(0.85),
        cc3: rng.random_bool(0.8),
        tc1: [MemoryRule::Held, MemoryRule::Held, MemoryRule::Routes, MemoryRule::Off][rng.random_range(0..4)],
        tc2: true,
        max_swaps: rng.random_range(0..3),
        waves: rng.random_range(1..4),
        max_stage_jump: rng.random_bool(0.25).then(|| rng.random_range(1..4)),
        ..Constraints::default()
    };
    let mut counts: Vec<usize> = stages[0].iter().map(|_| rng.random_range(0..3)).collect();
    if counts.iter().sum::<usize>() == 0 || counts.iter().sum::<usize>() > 4 {
        counts = vec![0; counts.len()];
        counts[0] = rng.random_range(1..=4);
    }
    let ratio = [0.0, 0.25, 1.0 / 3.0, 0.4, 0.5, 0.6][rng.random_range(0..6)];
    let ratio = f64::min(ratio, (stage_count as f64 - 1.0) / stage_count as f64);
    Problem::new(Cluster::new(parts, "").ok()?, stages, vec![], counts, ratio, rules).ok()
}

/// The same problem with random weights for its stages, or with random classes of routes.
fn extended(problem: &Problem, rng: &mut Pcg64) -> Option<Problem> {
    let stages = problem.stages().len();
    let rules = problem.constraints().clone();
    if rng.random_bool(0.5) {
        let profile = Some((1..stages).map(|_| [0.0, 1.0, 1.0, 2.0, 3.5][rng.random_range(0..5)]).collect());
        return problem.with(problem.skip_ratio(), Constraints { profile, ..rules }).ok();
    }
    let routes: usize = problem.microbatches().iter().map(|count| count.div_ceil(rules.waves as usize)).sum();
    let mut classes: Vec<RouteClass> = Vec::new();
    let mut left = routes;
    while left > 0 {
        let count = rng.random_range(1..=left);
        let mut stages: Vec<usize> = (0..stages).filter(|s| (*s == 0 && rules.cc1) || rng.random_bool(0.5)).collect();
        if stages.is_empty() {
            stages.push(rng.random_range(0..problem.stages().len()));
        }
        classes.push(RouteClass { stages, routes: count });
        left -= count;
    }
    let visits: usize = classes.iter().map(|class| class.routes * class.stages.len()).sum();
    let left_out = 1.0 - visits as f64 / (routes * stages) as f64;
    problem.with(left_out, Constraints { classes: Some(classes), ..rules }).ok()
}

/// Microbatches of one source that ask for something else than the others.
fn other_load(instance: &mut Instance, rng: &mut Pcg64) {
    let mut class = instance.classes[0].clone();
    for time in class.forward.iter_mut().chain(&mut class.backward).chain(&mut class.loss) {
        *time = 1_000_000_000 * rng.random_range(0..4);
    }
    instance.classes.push(class);
    if let Some(source) = instance.sources.last_mut() {
        source.class = 1;
    }
}

/// What the rules say of all routes together; of a part of them, what is left to it.
fn demand(instance: &Instance, tasks: &[RouteTask], others: usize) -> Option<VisitDemand> {
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
fn routes(instance: &Instance, source: usize) -> Vec<Vec<usize>> {
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
fn adds_up(instance: &Instance, demand: &VisitDemand, chosen: &[&Vec<usize>]) -> bool {
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

/// One microbatch in the exhaustive search: tasks as (node, travel before, length, change of what is held, all-reduce).
struct Chain {
    tasks: Vec<(usize, Time, Time, i32, Option<Time>)>,
    return_transfer: Time,
    after: Option<usize>,
}

fn chains(instance: &Instance, tasks: &[RouteTask], chosen: &[&Vec<usize>]) -> Vec<Chain> {
    let mut chains = Vec::new();
    for (task, route) in tasks.iter().zip(chosen) {
        for wave in 0..task.waves {
            let mut chain = Vec::new();
            let mut last = task.source;
            for node in route.iter() {
                chain.push((*node, instance.transfer(last, *node), instance.forward(task.class, *node), 1, None));
                last = *node;
            }
            chain.push((
                task.source,
                instance.transfer(last, task.source),
                instance.loss(task.class, task.source),
                0,
                None,
            ));
            last = task.source;
            for node in route.iter().rev() {
                let reduce = instance.allreduce[instance.stage_of[*node]];
                let travel = instance.transfer(last, *node);
                chain.push((*node, travel, instance.backward(task.class, *node), -1, Some(reduce)));
                last = *node;
            }
            let after = (wave > 0).then(|| chains.len() - 1);
            chains.push(Chain { tasks: chain, return_transfer: instance.transfer(last, task.source), after });
        }
    }
    chains
}

/// Schedules of given routes, tasks appended in the order of their starts, each as early as it can be.
struct Orders<'a> {
    instance: &'a Instance,
    chains: Vec<Chain>,
    done: Vec<usize>,
    ready: Vec<Time>,
    free: Vec<Time>,
    held: Vec<i32>,
    best: Time,
    steps: usize,
}

impl Orders<'_> {
    fn go(&mut self, last: Time, so_far: Time) {
        if self.steps == 0 {
            return;
        }
        self.steps -= 1;
        let mut open = Vec::new();
        let mut is_done = true;
        for (c, chain) in self.chains.iter().enumerate() {
            if self.done[c] == chain.tasks.len() {
                continue;
            }
            is_done = false;
            let begin = match chain.after {
                Some(before) if self.done[c] == 0 => {
                    if self.done[before] < self.chains[before].tasks.len() {
                        continue;
                    }
                    self.ready[before] + self.chains[before].return_transfer
                }
                _ => self.ready[c],
            };
            let (node, travel, ..) = chain.tasks[self.done[c]];
            let start = (begin + travel).max(self.free[node]);
            let rest: Time = chain.tasks[self.done[c]..].iter().map(|t| t.2).sum::<Time>()
                + chain.tasks[self.done[c] + 1..].iter().map(|t| t.1).sum::<Time>()
                + chain.return_transfer;
            if start + rest >= self.best {
                return;
            }
            open.push((start, c));
        }
        if is_done {
            self.best = self.best.min(so_far);
            return;
        }
        open.sort_unstable();
        for (start, c) in open {
            let (node, _, length, change, reduce) = self.chains[c].tasks[self.done[c]];
            let is_full = self.instance.memory_is_held() && self.held[node] >= self.instance.memory[node] as i32;
            if start < last || (change > 0 && is_full) {
                continue;
            }
            let before = (self.ready[c], self.free[node]);
            let end = start + length;
            (self.ready[c], self.free[node]) = (end, end);
            self.done[c] += 1;
            self.held[node] += change;
            let mut value = so_far.max(end + reduce.unwrap_or(0));
            if self.done[c] == self.chains[c].tasks.len() {
                value = value.max(end + self.chains[c].return_transfer);
            }
            if value < self.best {
                self.go(start, value);
            }
            self.held[node] -= change;
            self.done[c] -= 1;
            (self.ready[c], self.free[node]) = before;
        }
    }
}

/// Steps of one exhaustive search; a problem that needs more is skipped.
const MOST_STEPS: usize = 3_000_000;

/// The shortest iteration below `limit` (without norm and optimizer), none where there is none. An error where that
/// takes too long to find out.
fn optimum(instance: &Instance, tasks: &[RouteTask], demand: &VisitDemand, limit: Time) -> Result<Option<Time>, ()> {
    let mut steps = MOST_STEPS;
    let options: Vec<Vec<Vec<usize>>> = tasks
        .iter()
        .map(|t| match &instance.classes[t.class].forced {
            Some(nodes) => vec![nodes.iter().map(|n| *n as usize).collect()],
            None => {
                let fits = |r: &Vec<usize>| (demand.short..=demand.long).contains(&r.len());
                routes(instance, t.source).into_iter().filter(fits).collect()
            }
        })
        .collect();
    let idle = instance.allreduce.iter().copied().max().unwrap_or(0);
    let mut best = limit;
    let mut choice = vec![0_usize; tasks.len()];
    if options.iter().any(Vec::is_empty) {
        return Ok(None);
    }
    loop {
        // Equal agents in ascending order of their routes: the others are the same but for numbers.
        let is_sorted = (1..tasks.len()).all(|i| {
            (tasks[i].source, tasks[i].waves, tasks[i].class)
                != (tasks[i - 1].source, tasks[i - 1].waves, tasks[i - 1].class)
                || choice[i - 1] <= choice[i]
        });
        let chosen: Vec<&Vec<usize>> = options.iter().zip(&choice).map(|(o, c)| &o[*c]).collect();
        if is_sorted && adds_up(instance, demand, &chosen) {
            let chains = chains(instance, tasks, &chosen);
            let count = chains.len();
            let n = instance.node_count();
            let mut orders = Orders {
                instance,
                chains,
                done: vec![0; count],
                ready: vec![0; count],
                free: vec![0; n],
                held: vec![0; n],
                best,
                steps,
            };
            if idle < best {
                orders.go(0, idle);
            }
            (best, steps) = (orders.best, orders.steps);
            if steps == 0 {
                return Err(());
            }
        }
        let Some(index) = (0..choice.len()).rev().find(|i| choice[*i] + 1 < options[*i].len()) else { break };
        choice[index] += 1;
        choice[index + 1..].fill(0);
    }
    Ok((best < limit).then_some(best))
}

struct Asked<'a> {
    instance: &'a Instance,
    tasks: &'a [RouteTask],
    demand: &'a VisitDemand,
    lookahead: &'a Lookahead,
}

impl Asked<'_> {
    fn solve(&self, limit: Time, suboptimality: f64, work_limit: u64) -> Answer {
        let subproblem = Subproblem {
            instance: self.instance,
            tasks: self.tasks,
            demand: self.demand,
            limit,
            suboptimality,
            work_limit,
        };
        solve(&subproblem, self.lookahead, &Budget::new(None, None))
    }
}

/// The execution as a plan, for the checker.
fn plan_of(problem: &Problem, instance: &Instance, found: &Solution) -> Plan {
    let mut simulator = Simulator::new(instance);
    simulator.load(&found.microbatches);
    let outcome = simulator.run_order(&found.order).expect("an order that runs");
    assert_eq!(outcome.iteration - instance.epilogue, found.value);
    let microbatch = |b: &skippipe_core::simulate::MicrobatchRoute| Microbatch {
        id: b.id,
        source: b.source,
        nodes: b.nodes.iter().map(|n| *n as usize).collect(),
        stages: b.nodes.iter().map(|n| instance.stage_of[*n as usize]).collect(),
        route: b.route,
        wave: b.wave,
    };
    Plan {
        format: PlanFormat::One,
        cluster: problem.cluster().clone(),
        constraints: problem.constraints().clone(),
        skip_ratio: problem.skip_ratio(),
        strategy: Strategy::Skippipe,
        stages: problem.stages().to_vec(),
        layers: vec![],
        absent_nodes: vec![],
        absent_stages: vec![],
        model: Value::Null,
        microbatches_per_source: problem.stages()[0]
            .iter()
            .copied()
            .zip(problem.microbatches().iter().copied())
            .collect::<BTreeMap<_, _>>(),
        microbatches: found.microbatches.iter().map(microbatch).collect(),
        tasks: simulator.plan_tasks(&found.order),
        predicted: Predicted {
            iteration_s: seconds(outcome.iteration),
            pipeline_s: seconds(outcome.pipeline),
            allreduce_s: instance.allreduce.iter().map(|t| seconds(*t)).collect(),
            lower_bound_s: 0.0,
            gap: 0.0,
        },
        solver: SearchReport::default(),
    }
}

fn lookahead_of(instance: &Instance, demand: &VisitDemand) -> Lookahead {
    Lookahead::new(instance, demand.long, &Budget::new(None, None), 1.0).unwrap()
}

#[test]
fn optimum_is_that_of_the_exhaustive_search() {
    let (found, none) = compared(500, &mut Pcg64::seed_from_u64(11), |problem, _| Some(problem));
    assert!(found > 250 && none > 5, "{found} with a plan, {none} without");
}

#[test]
fn profiles_and_classes_are_exact_too() {
    let (found, none) = compared(400, &mut Pcg64::seed_from_u64(17), |problem, rng| extended(&problem, rng));
    assert!(found > 200 && none > 5, "{found} with a plan, {none} without");
}

/// Compares the search with the exhaustive one on so many random problems; numbers of those with and without a plan.
fn compared(cases: usize, rng: &mut Pcg64, changed: impl Fn(Problem, &mut Pcg64) -> Option<Problem>) -> (usize, usize) {
    let (mut found, mut none) = (0, 0);
    for case in 0..cases {
        let Some(problem) = problem(rng).and_then(|problem| changed(problem, rng)) else { continue };
        let mut instance = Instance::new(&problem, Rounding::Up);
        let is_uneven = rng.random_bool(0.15);
        if is_uneven {
            other_load(&mut instance, rng);
        }
        let tasks = route_tasks(&instance);
        let Some(demand) = demand(&instance, &tasks, 0) else { continue };
        let lookahead = lookahead_of(&instance, &demand);
        let asked = Asked { instance: &instance, tasks: &tasks, demand: &demand, lookahead: &lookahead };
        let answer = asked.solve(NEVER, 1.0, u64::MAX);
        // Nothing below what was found, and that itself can be had.
        let limit = answer.best.as_ref().map_or(NEVER, |b| b.value + 1);
        let Ok(expected) = optimum(&instance, &tasks, &demand, limit) else { continue };
        assert_eq!(answer.termination, Termination::Exhausted, "case {case}: {:?}", problem.constraints());
        assert_eq!(
            answer.best.as_ref().map(|b| b.value),
            expected,
            "case {case}: {:?} {:?}",
            problem.constraints(),
            answer.best
        );
        assert_eq!(answer.bound, expected.unwrap_or(NEVER), "case {case}");
        let Some(expected) = expected else {
            none += 1;
            continue;
        };
        found += 1;
        // Whole seconds: rounding down changes nothing.
        let bound = lower_bound(&instance, &tasks, &lookahead, &Budget::new(None, None)).unwrap();
        assert!(bound <= expected + instance.epilogue, "case {case}: bound {bound} above {expected}");
        let plan = plan_of(&problem, &instance, answer.best.as_ref().unwrap());
        // Plans know one kind of microbatch.
        if !is_uneven {
            assert_eq!(check(&plan), Vec::<String>::new(), "case {case}");
        }
        // Nothing below the optimum, and with it as the limit nothing at all.
        let none_below = asked.solve(expected, 1.0, u64::MAX);
        assert!(none_below.best.is_none() && none_below.termination == Termination::Exhausted);
        assert_eq!(none_below.bound, expected, "case {case}");
        assert_eq!(asked.solve(expected + 1, 1.0, u64::MAX).best.map(|b| b.value), Some(expected));
        // Bounds at any moment, the same again for the same work, and what the factor allows.
        for work in [1, 30, 200] {
            let stopped = asked.solve(NEVER, 1.0, work);
            assert!(stopped.bound <= expected, "case {case}: {} above {expected}", stopped.bound);
            let again = asked.solve(NEVER, 1.0, work);
            assert_eq!((stopped.bound, stopped.best, stopped.statistics), (again.bound, again.best, again.statistics));
        }
        let loose = asked.solve(NEVER, 1.3, u64::MAX);
        let value = loose.best.unwrap().value;
        assert!(loose.bound <= expected && expected <= value && value as f64 <= 1.3 * loose.bound as f64);
    }
    (found, none)
}

#[test]
fn one_source_alone_is_a_relaxation() {
    let mut rng = Pcg64::seed_from_u64(5);
    let mut tried = 0;
    while tried < 90 {
        let Some(problem) = problem(&mut rng) else { continue };
        let problem = if tried < 60 { Some(problem) } else { extended(&problem, &mut rng) };
        let Some(problem) = problem else { continue };
        let instance = Instance::new(&problem, Rounding::Down);
        let all = route_tasks(&instance);
        if instance.sources.len() < 2 {
            continue;
        }
        let Some(whole) = demand(&instance, &all, 0) else { continue };
        let Ok(Some(optimum_of_all)) = optimum(&instance, &all, &whole, NEVER) else { continue };
        tried += 1;
        for source in &instance.sources {
            let tasks: Vec<RouteTask> = all.iter().copied().filter(|t| t.source == source.node).collect();
            let Some(part) = demand(&instance, &tasks, all.len() - tasks.len()) else { continue };
            let lookahead = lookahead_of(&instance, &part);
            let asked = Asked { instance: &instance, tasks: &tasks, demand: &part, lookahead: &lookahead };
            let answer = asked.solve(NEVER, 1.0, u64::MAX);
            assert_eq!(optimum(&instance, &tasks, &part, NEVER), Ok(answer.best.map(|b| b.value)));
            assert!(answer.bound <= optimum_of_all);
        }
    }
}

#[test]
fn too_many_paths_are_reduced_by_a_lower_limit() {
    let mut rng = Pcg64::seed_from_u64(3);
    let (stage_count, replicas) = (7, 9);
    let n = 1 + (stage_count - 1) * replicas;
    let stages: Vec<Vec<usize>> = std::iter::once(vec![0])
        .chain((0..stage_count - 1).map(|s| (1 + s * replicas..1 + (s + 1) * replicas).collect()))
        .collect();
    let transfer_s = (0..n).map(|_| (0..n).map(|_| rng.random_range(1.0..9.0)).collect()).collect();
    let cluster = equal_nodes([0.1, 0.2, 0.1], 1, transfer_s);
    let rules = Constraints { max_swaps: 0, ..Constraints::default() };
    let problem = Problem::new(cluster, stages, vec![], vec![1], 0.0, rules).unwrap();
    let instance = Instance::new(&problem, Rounding::Up);
    let tasks = route_tasks(&instance);
    let demand = demand(&instance, &tasks, 0).unwrap();
    let lookahead = lookahead_of(&instance, &demand);
    let asked = Asked { instance: &instance, tasks: &tasks, demand: &demand, lookahead: &lookahead };
    let least = lookahead.round_trip(&instance, 0, stage_count);
    let answer = asked.solve(NEVER, 1.0, u64::MAX);
    assert_eq!((answer.termination, answer.bound), (Termination::Exhausted, least));
    assert_eq!(answer.best.map(|best| best.value), Some(least));
}
