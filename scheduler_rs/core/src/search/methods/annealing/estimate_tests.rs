//! Local search: every change that is made keeps the rules and can be taken back, and the estimate follows.

use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64;
use smallvec::SmallVec;

use crate::budget::Budget;
use crate::cluster::{Cluster, ClusterParts, Links};
use crate::plan::Kind;
use crate::problem::{Instance, Problem};
use crate::route::{Lengths, RouteTask, StageOrder, route_tasks};
use crate::rules::{Constraints, MemoryRule};
use crate::search::instance_view::InstanceView;
use crate::search::methods::annealing::estimate::Estimate;
use crate::search::methods::routes::{Path, Routes, microbatches_of_paths, paths_of_microbatches};
use crate::search::methods::schedule_annealing::{Schedule, ScheduleAnnealing};
use crate::simulate::Simulator;
use crate::test_clusters::{matrix, node};
use crate::time::Rounding;

/// 14 nodes in five stages, two sources, random times and links, random rules; in some, nodes share processors.
fn instance(rng: &mut Pcg64) -> Instance {
    let nodes = (0..14)
        .map(|i| {
            let times_s = [rng.random_range(0.1..1.0), rng.random_range(0.1..1.0), rng.random_range(0.0..0.2)];
            node(i, times_s, rng.random_range(2..5))
        })
        .collect();
    let parts = ClusterParts::new(nodes, Links::Transfer(matrix(14, |_, _| rng.random_range(0.0..3.0))));
    let rules = Constraints {
        cc1: rng.random_bool(0.8),
        cc2: rng.random_bool(0.8),
        cc3: rng.random_bool(0.7),
        tc1: [MemoryRule::Held, MemoryRule::Routes, MemoryRule::Off][rng.random_range(0..3)],
        max_swaps: rng.random_range(0..3),
        waves: rng.random_range(1..3),
        max_stage_jump: rng.random_bool(0.3).then_some(3),
        ..Constraints::default()
    };
    let stages = vec![vec![0, 1], vec![2, 3, 4], vec![5, 6, 7], vec![8, 9, 10], vec![11, 12, 13]];
    let ratio = [0.2, 1.0 / 3.0, 0.45][rng.random_range(0..3)];
    let mut cluster = Cluster::new(parts, "").unwrap();
    if rng.random_bool(0.3) {
        let processors: Vec<Option<u32>> = (0..14).map(|_| Some(rng.random_range(0..9))).collect();
        cluster = cluster.with_processors(&processors).unwrap();
    }
    let problem = Problem::new(cluster, stages, vec![], vec![4, 3], ratio, rules).unwrap();
    Instance::new(&problem, Rounding::Up)
}

fn start(instance: &Instance, tasks: &[RouteTask], rng: &mut Pcg64) -> Option<Vec<Path>> {
    (0..50).find_map(|_| {
        let microbatches = crate::search::methods::sampling::random_routes(instance, tasks, None, rng)?;
        Some(paths_of_microbatches(&microbatches, tasks.len()))
    })
}

/// Every rule about routes, by its words.
fn keeps_rules(instance: &Instance, tasks: &[RouteTask], paths: &[Path], lengths_before: &[usize]) {
    let rules = &instance.rules;
    let mut visits = vec![0; instance.stage_count()];
    let mut users = vec![0; instance.node_count()];
    for (task, path) in tasks.iter().zip(paths) {
        let order = path
            .iter()
            .try_fold(StageOrder::start(rules), |order, node| order.step(instance.stage_of[*node as usize], rules));
        assert!(order.is_some(), "{path:?}");
        assert!(!rules.cc1 || path[0] as usize == task.source);
        for node in path {
            visits[instance.stage_of[*node as usize]] += 1;
            users[*node as usize] += 1;
        }
    }
    let mut lengths: Vec<usize> = paths.iter().map(SmallVec::len).collect();
    lengths.sort_unstable();
    assert_eq!(lengths, lengths_before);
    assert_eq!(lengths.iter().sum::<usize>(), Lengths::new(tasks.len(), 5, instance.skip_ratio).total);
    if rules.cc3 {
        assert!(visits[1..].iter().max().unwrap() - visits[1..].iter().min().unwrap() <= 1, "{visits:?}");
    }
    if rules.tc1 == MemoryRule::Routes {
        assert!(users.iter().zip(&instance.memory).all(|(count, memory)| count <= memory), "{users:?}");
    }
}

#[test]
fn changes_keep_the_rules_and_the_estimate_follows() {
    let mut rng = Pcg64::seed_from_u64(17);
    let (mut made, mut reassigned) = (0, 0);
    for _ in 0..60 {
        let instance = instance(&mut rng);
        let tasks = route_tasks(&instance);
        let Some(paths) = start(&instance, &tasks, &mut rng) else { continue };
        let mut lengths: Vec<usize> = paths.iter().map(SmallVec::len).collect();
        lengths.sort_unstable();
        let view = InstanceView { instance: &instance, tasks: &tasks };
        let mut routes = Routes::new(view, paths);
        let all = |routes: &Routes| (0..tasks.len()).map(|r| routes.path(r).clone()).collect::<Vec<_>>();
        let mut estimate = Estimate::new(view, &routes, 20_000_000_000);
        estimate.raise(view, 6);
        for step in 0..300 {
            let before = all(&routes);
            let change = if step % 10 == 0 {
                let length = routes.path(0).len();
                let chosen: Vec<usize> = (0..tasks.len()).filter(|r| routes.path(*r).len() == length).collect();
                let from = rng.random_range(view.free_from()..length);
                routes.reassign(view, &chosen, from, length, |route, path| estimate.of_path(view, route, path))
            } else {
                routes.propose(view, rng.random_range(0..tasks.len()), &mut rng)
            };
            let Some(change) = change else { continue };
            let rise = estimate.rise_of_routes(view, &change);
            let Some(back) = routes.apply(view, change) else {
                assert_eq!(all(&routes), before);
                continue;
            };
            keeps_rules(&instance, &tasks, &all(&routes), &lengths);
            estimate.follow(view, &routes, &back);
            let mut fresh = Estimate::new(view, &routes, 20_000_000_000);
            fresh.raise(view, 6);
            assert!((fresh.sum() - estimate.sum()).abs() <= 1e-9 * fresh.sum(), "{} {}", fresh.sum(), estimate.sum());
            if step % 10 == 0 {
                assert!(rise <= 1e-9 * fresh.sum(), "an assignment move that lengthens routes by {rise}");
                reassigned += 1;
            }
            made += 1;
            if rng.random_bool(0.5) {
                let forth = back.iter().map(|(r, _)| (*r, routes.path(*r as usize).clone())).collect();
                routes.undo(view, back);
                assert_eq!(all(&routes), before);
                estimate.follow(view, &routes, &forth);
            }
        }
    }
    assert!(made > 3_000 && reassigned > 100, "{made} changes, {reassigned} assignment moves");
}

/// A schedule has every task once, keeps the memory, and takes as long as the simulator says.
fn is_executable(instance: &Instance, tasks: &[RouteTask], schedule: &Schedule) {
    let mut simulator = Simulator::new(instance);
    simulator.load(&microbatches_of_paths(tasks, &schedule.paths));
    let mut listed: Vec<_> = schedule.order.concat();
    listed.sort_unstable();
    assert!(listed.into_iter().eq(0..simulator.task_count() as u32));
    let outcome = simulator.run_order(&schedule.order).unwrap();
    assert_eq!((outcome.iteration, outcome.finish_sum), schedule.key);
    for (processor, order) in schedule.order.iter().enumerate() {
        let mut held = vec![0; instance.node_count()];
        for task in order {
            assert_eq!(simulator.processor_of(*task), processor);
            let node = simulator.node_of(*task);
            held[node] += match simulator.kind_of(*task).0 {
                Kind::F => 1,
                Kind::L => 0,
                Kind::B => -1,
            };
            assert!(!instance.memory_is_held() || held[node] <= instance.memory[node] as i32);
        }
    }
}

#[test]
fn annealed_schedules_keep_the_rules_and_take_as_long_as_simulated() {
    let mut rng = Pcg64::seed_from_u64(23);
    let (mut improved, mut changed) = (0, 0);
    let forever = Budget::new(None, None);
    for number in 0..40 {
        let instance = instance(&mut rng);
        let tasks = route_tasks(&instance);
        let Some(paths) = start(&instance, &tasks, &mut rng) else { continue };
        let mut lengths: Vec<usize> = paths.iter().map(SmallVec::len).collect();
        lengths.sort_unstable();
        let on = InstanceView { instance: &instance, tasks: &tasks };
        let annealing = || ScheduleAnnealing::new(on, paths.clone(), None, 3_000, Pcg64::seed_from_u64(number));
        let mut whole = annealing();
        let first = whole.best().unwrap().clone();
        is_executable(&instance, &tasks, &first);
        whole.run(u64::MAX, &forever);
        assert!(whole.is_finished());
        let best = whole.best().unwrap().clone();
        is_executable(&instance, &tasks, &best);
        keeps_rules(&instance, &tasks, &best.paths, &lengths);
        assert!(best.key <= first.key);
        improved += usize::from(best.key.0 < first.key.0);
        changed += usize::from(best.paths != first.paths);

        // Slices change nothing.
        let mut sliced = annealing();
        while !sliced.is_finished() {
            sliced.run(100, &forever);
        }
        assert_eq!((sliced.key(), sliced.work()), (whole.key(), whole.work()));
        assert_eq!(sliced.best().unwrap().order, best.order);

        // A schedule that is given stands as it is.
        let given = ScheduleAnnealing::new(on, best.paths.clone(), Some(&best.order), 0, Pcg64::seed_from_u64(1));
        assert_eq!(given.key(), best.key);
        assert_eq!(given.best().unwrap().order, best.order);
        whole.restart(&best.paths, Some(&best.order));
        whole.run(u64::MAX, &forever);
        assert!(whole.key() <= best.key);
        is_executable(&instance, &tasks, whole.best().unwrap());
    }
    assert!(improved > 30 && changed > 30, "{improved} improved, {changed} on other routes");
}
