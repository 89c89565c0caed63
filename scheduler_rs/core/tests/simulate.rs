//! The simulator on random plans: its times are longest paths, its dispatch rule is the rule, shared processors add up.
#![allow(clippy::unwrap_used, clippy::panic)]

#[path = "common/clusters.rs"]
mod clusters;
#[path = "common/planned.rs"]
mod planned;
#[path = "common/problems.rs"]
mod problems;

use std::collections::BTreeMap;

use planned::{microbatch_routes, planned};
use problems::problems;
use proptest::prelude::*;
use skippipe_core::check::{check, deadlock};
use skippipe_core::contention::Contention;
use skippipe_core::explain::explain;
use skippipe_core::plan::{Kind, Plan};
use skippipe_core::problem::Instance;
use skippipe_core::simulate::{Dispatch, Simulator, TaskId, on_processors, resimulate, with_contention};
use skippipe_core::time::{Rounding, Time};

const CLOSE_S: f64 = 1e-6;

/// Ends of all tasks in seconds, by repeated relaxation: each begins when its input and its processor are there. A message
/// begins when it has been computed, and the bytes of the one before it on its link are gone.
fn longest_paths(plan: &Plan) -> Vec<f64> {
    let cluster = &plan.cluster;
    let bytes = cluster.activation_bytes();
    let number: BTreeMap<_, _> =
        plan.tasks.iter().enumerate().map(|(i, t)| ((t.microbatch, t.kind, t.hop), i)).collect();
    let length = |i: usize| {
        let node = &cluster.nodes()[plan.tasks[i].node];
        match plan.tasks[i].kind {
            Kind::F => node.forward_s,
            Kind::L => node.loss_s,
            Kind::B => node.backward_s,
        }
    };
    // What each task, and then the message that leaves after it, waits for, and the seconds from there.
    let count = plan.tasks.len();
    let mut awaited: Vec<Vec<(usize, f64)>> = vec![Vec::new(); 2 * count];
    let mut first_arrival = vec![0.0; 2 * count];
    let mut receiver = vec![None; count];
    let mut last_on_processor = BTreeMap::new();
    for (i, task) in plan.tasks.iter().enumerate() {
        awaited[i].extend(last_on_processor.insert(cluster.processor_of(task.node), i).map(|before| (before, 0.0)));
    }
    for microbatch in &plan.microbatches {
        let hops = microbatch.nodes.len();
        let forward = (0..hops).map(|hop| number[&(microbatch.id, Kind::F, hop)]);
        let backward = (0..hops).rev().map(|hop| number[&(microbatch.id, Kind::B, hop)]);
        let chain: Vec<usize> = forward.chain([number[&(microbatch.id, Kind::L, 0)]]).chain(backward).collect();
        for pair in chain.windows(2) {
            let travel = cluster.transfer_s(plan.tasks[pair[0]].node, plan.tasks[pair[1]].node, bytes);
            awaited[count + pair[0]].push((pair[0], 0.0));
            awaited[pair[1]].push((count + pair[0], travel));
            receiver[pair[0]] = (travel > 0.0).then_some(plan.tasks[pair[1]].node);
        }
        let out = cluster.transfer_s(microbatch.source, microbatch.nodes[0], bytes);
        first_arrival[chain[0]] = out;
        if microbatch.wave > 0 {
            let is_before = |other: &&skippipe_core::plan::Microbatch| {
                other.route == microbatch.route && other.wave + 1 == microbatch.wave
            };
            let before = plan.microbatches.iter().find(is_before).unwrap();
            let back = cluster.transfer_s(microbatch.nodes[0], microbatch.source, bytes);
            awaited[chain[0]].push((number[&(before.id, Kind::B, 0)], back + out));
        }
    }
    let mut last_on_link = BTreeMap::new();
    for (i, receiver) in receiver.into_iter().enumerate() {
        let Some(to) = receiver.filter(|_| plan.cluster.contention() != Contention::None) else { continue };
        let from = plan.tasks[i].node;
        let link = (plan.cluster.contention() == Contention::Link).then(|| cluster.processor_of(to));
        let occupied = cluster.transfer_s(from, to, bytes) - cluster.transfer_s(from, to, 0.0);
        let before = last_on_link.insert((cluster.processor_of(from), link), (count + i, occupied));
        awaited[count + i].extend(before);
    }
    let length = |i: usize| if i < count { length(i) } else { 0.0 };
    let mut ends: Vec<f64> = (0..2 * count).map(|i| first_arrival[i] + length(i)).collect();
    loop {
        let mut is_settled = true;
        for i in 0..ends.len() {
            let start =
                awaited[i].iter().map(|(before, travel)| ends[*before] + travel).fold(first_arrival[i], f64::max);
            is_settled &= start + length(i) <= ends[i] + 1e-12;
            ends[i] = ends[i].max(start + length(i));
        }
        if is_settled {
            ends.truncate(count);
            return ends;
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 80, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn times_are_the_longest_paths(problem in problems()) {
        let plan = planned(&problem, 300)?;
        let ends = longest_paths(&plan);
        for (task, end) in plan.tasks.iter().zip(&ends) {
            prop_assert!((task.end_s - end).abs() < CLOSE_S, "{task:?} ends at {end}");
        }
        let cluster = &plan.cluster;
        let completion = |b: &skippipe_core::plan::Microbatch| {
            let last = plan.tasks.iter().position(|t| (t.microbatch, t.kind, t.hop) == (b.id, Kind::B, 0)).unwrap();
            ends[last] + cluster.transfer_s(b.nodes[0], b.source, cluster.activation_bytes())
        };
        let pipeline = plan.microbatches.iter().map(completion).fold(0.0, f64::max);
        prop_assert!((plan.predicted.pipeline_s - pipeline).abs() < CLOSE_S);
        let reduced = (0..plan.stages.len()).map(|stage| {
            let last = plan.tasks.iter().zip(&ends).filter(|(t, _)| t.kind == Kind::B && plan.stages[stage].contains(&t.node));
            last.map(|(_, end)| *end).fold(0.0, f64::max) + cluster.allreduce_s(stage, &plan.stages[stage])
        });
        let step = cluster.step_s().iter().copied().fold(0.0, f64::max);
        let iteration = reduced.fold(pipeline, f64::max) + cluster.norm_s() + step;
        prop_assert!((plan.predicted.iteration_s - iteration).abs() < CLOSE_S, "{} {iteration}", plan.predicted.iteration_s);
    }

    /// Work-conserving: an idle processor never leaves a task waiting that it may run; losses and backwards go first, then
    /// what came first.
    #[test]
    fn dispatch_follows_its_rule(problem in problems()) {
        let plan = planned(&problem, 1)?;
        let instance = Instance::new(&problem, Rounding::Up);
        let mut simulator = Simulator::new(&instance);
        let microbatches = microbatch_routes(&plan);
        simulator.load(&microbatches);
        prop_assume!(simulator.run_dispatch().is_ok());
        let arrival = |task: TaskId| -> Time {
            let b = simulator.microbatch_of(task);
            let (first, source) = (simulator.tasks_of(b).start, microbatches[b].source);
            if task > first {
                return simulator.end_of(task - 1) + instance.transfer(simulator.node_of(task - 1), simulator.node_of(task));
            }
            let out = instance.transfer(source, simulator.node_of(task));
            if microbatches[b].wave == 0 { out } else { simulator.completion_of(b - 1) + out }
        };
        for (processor, order) in simulator.dispatched_order().iter().enumerate() {
            let mut held = vec![0; instance.node_count()];
            let mut free_at = 0;
            for (i, task) in order.iter().enumerate() {
                let (start, (kind, _)) = (simulator.start_of(*task), simulator.kind_of(*task));
                prop_assert!(start >= arrival(*task).max(free_at));
                // Held at this moment: forwards before it whose backward has not ended.
                let has_room = |task: TaskId| {
                    let node = simulator.node_of(task);
                    !instance.memory_is_held() || held[node] < instance.memory[node]
                };
                prop_assert!(kind != Kind::F || has_room(*task));
                let key = |task: TaskId| {
                    let is_forward = simulator.kind_of(task).0 == Kind::F;
                    (is_forward, arrival(task), microbatches[simulator.microbatch_of(task)].id, task)
                };
                for later in &order[i..] {
                    let is_allowed = simulator.kind_of(*later).0 != Kind::F || has_room(*later);
                    if is_allowed {
                        // Whoever may run begins as soon as it can, and nobody of lower rank goes before it.
                        prop_assert!(arrival(*later).max(free_at) >= start,
                            "task {later} waits at processor {processor} from {} while it is idle until {start}", arrival(*later));
                        prop_assert!(arrival(*later) > start || key(*task) <= key(*later));
                    }
                }
                free_at = simulator.end_of(*task);
                held[simulator.node_of(*task)] += u32::from(kind == Kind::F);
                held[simulator.node_of(*task)] -= u32::from(kind == Kind::B);
            }
        }
        let ruled = resimulate(&plan, Dispatch::Rule).unwrap();
        prop_assert_eq!(ruled.tasks, simulator.plan_tasks(&simulator.dispatched_order()));
    }

    /// Whatever nodes share: rules are kept, routes and the order of each node stay, and the times are those of the plan's
    /// own order.
    #[test]
    fn a_plan_goes_to_other_processors(
        problem in problems(),
        processors in prop::collection::vec(prop::option::weighted(0.8, 0_u32..4), 15),
    ) {
        let plan = planned(&problem, 100)?;
        let nodes = plan.cluster.nodes().len();
        let moved = on_processors(&plan, &processors[..nodes]).unwrap();
        prop_assert_eq!(check(&moved), Vec::<String>::new());
        prop_assert_eq!(deadlock(&moved), None);
        prop_assert_eq!(&moved.microbatches, &plan.microbatches);
        prop_assert!(moved.predicted.lower_bound_s <= moved.predicted.iteration_s);
        for node in 0..nodes {
            let of = |plan: &Plan| {
                let own = plan.tasks.iter().filter(|task| task.node == node);
                own.map(|task| (task.microbatch, task.kind, task.hop)).collect::<Vec<_>>()
            };
            prop_assert_eq!(of(&moved), of(&plan));
        }
        for (task, end) in moved.tasks.iter().zip(&longest_paths(&moved)) {
            prop_assert!((task.end_s - end).abs() < CLOSE_S, "{task:?} ends at {end}");
        }
        prop_assert_eq!(&on_processors(&moved, &processors[..nodes]).unwrap(), &moved);
        prop_assert!(on_processors(&plan, &[None; 16]).is_err());
    }

    /// Messages that take turns only wait longer, and the plan says so.
    #[test]
    fn messages_take_turns(problem in problems()) {
        let mut before = planned(&problem, 100)?;
        let original = before.clone();
        for contention in [Contention::Link, Contention::Uplink] {
            let plan = with_contention(&before, contention).unwrap();
            prop_assert_eq!(plan.cluster.contention(), contention);
            for (task, end) in plan.tasks.iter().zip(&longest_paths(&plan)) {
                prop_assert!((task.end_s - end).abs() < CLOSE_S, "{task:?} ends at {end}");
            }
            prop_assert!(plan.tasks.iter().zip(&before.tasks).all(|(task, earlier)| task.end_s >= earlier.end_s));
            prop_assert_eq!(check(&plan), Vec::<String>::new());
            prop_assert_eq!(&with_contention(&plan, contention).unwrap(), &plan);
            prop_assert_eq!(&Plan::from_json(&plan.to_json()).unwrap(), &plan);
            prop_assert!(resimulate(&plan, Dispatch::Rule).unwrap_or_else(|_| plan.clone()).cluster.contention() == contention);
            let explained = explain(&plan).unwrap();
            for chain in [&explained.critical, &explained.last] {
                prop_assert_eq!(chain[0].start_s, 0.0);
                prop_assert!(chain.windows(2).all(|pair| pair[0].end_s == pair[1].start_s));
                prop_assert!((chain[chain.len() - 1].end_s - plan.predicted.iteration_s).abs() < CLOSE_S);
            }
            before = plan;
        }
        let free = with_contention(&before, Contention::None).unwrap();
        prop_assert_eq!(free.tasks, original.tasks);
        prop_assert_eq!(free.assumptions, original.assumptions);
    }

    #[test]
    fn one_processor_has_the_work_of_all(problem in problems()) {
        let plan = planned(&problem, 100)?;
        // It never waits for a message and sums nothing up over replicas.
        let busy: f64 = plan.tasks.iter().map(|task| task.end_s - task.start_s).sum();
        let step = plan.cluster.step_s().iter().copied().fold(0.0, f64::max);
        let alone = on_processors(&plan, &vec![Some(0); plan.cluster.nodes().len()]).unwrap().predicted.iteration_s;
        prop_assert!((alone - (busy + plan.cluster.norm_s() + step)).abs() < CLOSE_S, "{alone} {busy}");
    }

    /// Numbers alone make no difference, and what each node has to itself is not written.
    #[test]
    fn separate_processors_are_none(problem in problems()) {
        let cluster = problem.cluster().with_processors(&vec![None; problem.cluster().nodes().len()]).unwrap();
        let numbers: Vec<Option<u32>> = (0..cluster.nodes().len() as u32).rev().map(Some).collect();
        let numbered = cluster.with_processors(&numbers).unwrap();
        prop_assert_eq!(&numbered, &cluster);
        prop_assert!(!numbered.to_json().contains("processor"));
    }
}
