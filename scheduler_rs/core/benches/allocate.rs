//! The allocator: matchings, tours, one change of a partition, a whole search.
#![allow(missing_docs, clippy::unwrap_used)]

#[path = "../tests/common/clusters.rs"]
mod clusters;

use std::hint::black_box;
use std::time::Duration;

use clusters::equal_nodes;
use criterion::{Criterion, criterion_group, criterion_main};
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64;
use skippipe_core::allocate::matching::bottleneck;
use skippipe_core::allocate::tour::best_tour;
use skippipe_core::allocate::{Costs, Options, Partition, Request, allocate, greedy};
use skippipe_core::budget::Budget;
use skippipe_core::cluster::Cluster;

fn random(rows: usize, columns: usize) -> Vec<Vec<f64>> {
    let mut rng = Pcg64::seed_from_u64((rows * 1000 + columns) as u64);
    (0..rows).map(|_| (0..columns).map(|_| rng.random_range(0.3..4.0)).collect()).collect()
}

/// 20 nodes with random links.
fn cluster() -> Cluster {
    equal_nodes([0.44, 0.66, 0.11], 3, random(20, 20))
}

fn matchings(c: &mut Criterion) {
    for (rows, columns) in [(3, 5), (50, 50)] {
        let cost = random(rows, columns);
        c.bench_function(&format!("allocate/matching/{rows}x{columns}"), |b| b.iter(|| bottleneck(black_box(&cost))));
    }
}

fn tours(c: &mut Criterion) {
    for stages in [6, 16, 20] {
        let legs = random(stages, stages).concat();
        c.bench_function(&format!("allocate/tour/{stages}"), |b| b.iter(|| best_tour(black_box(&legs), stages).length));
    }
}

fn searching(c: &mut Criterion) {
    let (cluster, sizes) = (cluster(), vec![5, 3, 3, 3, 3, 3]);
    let costs = Costs::new(&cluster);
    let mut partition = Partition::new(&costs, &greedy(&cluster, &sizes).unwrap(), f64::INFINITY);
    let mut rng = Pcg64::seed_from_u64(1);
    c.bench_function("allocate/change/20", |b| {
        b.iter(|| {
            let (one, other) = (rng.random_range(0..20), rng.random_range(0..20));
            if partition.stage_of(one) != partition.stage_of(other) {
                black_box(partition.exchange(&[one, other], f64::INFINITY));
                partition.undo();
            }
        });
    });
    let request = Request { sizes, sources: None, max_replica_transfer_s: None };
    c.bench_function("allocate/0.05s/20", |b| {
        b.iter(|| {
            let budget = Budget::new(Some(Duration::from_millis(50)), None);
            allocate(&cluster, black_box(&request), Options { seed: 0, threads: 1, without: None }, &budget)
                .unwrap()
                .best
                .score_s
        });
    });
}

criterion_group!(benches, matchings, tours, searching);
criterion_main!(benches);
