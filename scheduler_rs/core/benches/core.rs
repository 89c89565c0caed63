//! The inner loops: simulation in all modes, the look-ahead, a first plan, a proof.
#![allow(missing_docs, clippy::unwrap_used)]

#[path = "../tests/common/clusters.rs"]
mod clusters;
#[path = "../tests/common/job_shop.rs"]
mod job_shop;

use std::hint::black_box;

use clusters::equal_nodes;
use criterion::{Criterion, criterion_group, criterion_main};
use job_shop::shop;
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64;
use skippipe_core::bound::lookahead::Lookahead;
use skippipe_core::budget::Budget;
use skippipe_core::plan::Plan;
use skippipe_core::problem::{Instance, Problem};
use skippipe_core::request::{Options, PlanRequest};
use skippipe_core::rules::{Constraints, Strategy};
use skippipe_core::search::methods::cbs::solve;
use skippipe_core::simulate::{MicrobatchRoute, OrderGraph, Replaced, Simulator, TaskId};
use skippipe_core::time::Rounding;

/// 20 nodes in 6 stages, 5 sources with 6 microbatches each, random links of 0.3 to 4 s.
fn problem() -> Problem {
    let mut rng = Pcg64::seed_from_u64(1);
    let transfer_s = (0..20).map(|_| (0..20).map(|_| rng.random_range(0.3..4.0)).collect()).collect();
    let mut next = 0;
    let stages = [5, 3, 3, 3, 3, 3].map(|size| {
        next += size;
        (next - size..next).collect::<Vec<usize>>()
    });
    let cluster = equal_nodes([0.44, 0.66, 0.11], 3, transfer_s);
    Problem::new(cluster, stages.to_vec(), vec![], vec![6; 5], 1.0 / 3.0, Constraints::default()).unwrap()
}

fn plan(problem: &Problem, work_limit: u64) -> Plan {
    let options = Options::new(Strategy::Skippipe, 0);
    skippipe_core::plan(&PlanRequest::given(problem.clone(), options), &Budget::new(None, Some(work_limit))).unwrap()
}

fn simulation(c: &mut Criterion) {
    let problem = problem();
    let instance = Instance::new(&problem, Rounding::Up);
    let microbatches: Vec<MicrobatchRoute> = plan(&problem, 1)
        .microbatches
        .iter()
        .map(|b| MicrobatchRoute {
            id: b.id,
            source: b.source,
            route: b.route,
            wave: b.wave,
            class: 0,
            nodes: b.nodes.iter().map(|n| *n as u32).collect(),
        })
        .collect();
    let mut simulator = Simulator::new(&instance);
    simulator.load(&microbatches);
    simulator.run_dispatch().unwrap();
    let order = simulator.dispatched_order();
    c.bench_function("simulate/order/30", |b| {
        b.iter(|| {
            simulator.load(black_box(&microbatches));
            simulator.run_order(black_box(&order)).unwrap().iteration
        });
    });
    c.bench_function("simulate/dispatch/30", |b| {
        b.iter(|| {
            simulator.load(black_box(&microbatches));
            simulator.run_dispatch().unwrap().iteration
        });
    });
    changes(c, &instance, &microbatches, &order);
    // As the dispatch rule has it: backwards and losses first.
    let priorities: Vec<u32> = (0..microbatches.len() as u32).flat_map(|b| [1000 + b, b]).collect();
    c.bench_function("simulate/prioritised/30", |b| {
        b.iter(|| {
            simulator.load(black_box(&microbatches));
            simulator.run_prioritised(black_box(&priorities)).unwrap().iteration
        });
    });
}

/// Two neighbours on a node are swapped, and the iteration with them.
fn changes(c: &mut Criterion, instance: &Instance, microbatches: &[MicrobatchRoute], order: &[Vec<TaskId>]) {
    let mut graph = OrderGraph::new(instance, microbatches, order).unwrap();
    let mut pairs = Vec::new();
    for from in 0..graph.order().len() - 1 {
        let [a, b] = [graph.order()[from], graph.order()[from + 1]];
        if graph.processor_of(a) == graph.processor_of(b) && graph.replace(from, &[b, a]) == Replaced::Done {
            graph.replace(from, &[a, b]);
            pairs.push((from, [b, a]));
        }
    }
    let mut turn = 0;
    c.bench_function("simulate/changed-order/30", |bencher| {
        bencher.iter(|| {
            let (from, [a, b]) = pairs[turn / 2 % pairs.len()];
            let pair = if turn % 2 == 0 { [a, b] } else { [b, a] };
            turn += 1;
            graph.replace(black_box(from), black_box(&pair));
            graph.iteration()
        });
    });
}

fn planning(c: &mut Criterion) {
    let problem = problem();
    let instance = Instance::new(&problem, Rounding::Down);
    let budget = Budget::new(None, None);
    c.bench_function("lookahead/20", |b| b.iter(|| Lookahead::new(black_box(&instance), 4, &budget, 1.0).unwrap()));
    c.bench_function("plan/first-round/20", |b| b.iter(|| plan(black_box(&problem), 1).predicted.iteration_s));
}

/// The job shop ft06, from nothing to the proof.
fn proving(c: &mut Criterion) {
    let (shop, budget) = (shop("ft06"), Budget::new(None, None));
    let encoded = shop.encode();
    let (subproblem, lookahead) = (encoded.subproblem(u64::MAX), encoded.lookahead());
    let optimum = encoded.makespan(solve(&subproblem, &lookahead, &budget).bound);
    assert_eq!(optimum, shop.optimum);
    c.bench_function("cbs/ft06", |b| b.iter(|| solve(black_box(&subproblem), &lookahead, &budget).bound));
}

criterion_group!(benches, simulation, planning, proving);
criterion_main!(benches);
