//! Random instances small enough for exhaustive search.

use rand::RngExt;
use rand_pcg::Pcg64;
use skippipe_core::cluster::{Cluster, ClusterParts, Links};
use skippipe_core::problem::{Instance, Problem};
use skippipe_core::rules::{Constraints, MemoryRule, RouteClass};

use super::clusters::{matrix, node};

/// A random problem small enough for exhaustive search.
pub fn problem(rng: &mut Pcg64) -> Option<Problem> {
    let stage_count = rng.random_range(2..=4);
    let n = rng.random_range(stage_count..=6);
    let mut stages: Vec<Vec<usize>> = (0..stage_count).map(|s| vec![s]).collect();
    for node in stage_count..n {
        stages[rng.random_range(0..stage_count)].push(node);
    }
    let most = rng.random_range(1..=4);
    let mut whole = |low: u32, high: u32| f64::from(rng.random_range(low..=high));
    let nodes = (0..n).map(|i| node(i, [whole(0, most), whole(0, most), whole(0, 2)], whole(1, 2) as u32)).collect();
    let numbers = matrix(n, |_, _| whole(0, 3));
    let gradients: Vec<f64> = (0..stage_count).map(|_| 60.0 * whole(0, 3)).collect();
    let is_rated = rng.random_bool(0.4);
    // Nodes of one region have the same links and yet times of their own.
    let regions = rng.random_bool(0.3).then_some(2);
    let side = regions.unwrap_or(n);
    let numbers: Vec<Vec<f64>> = numbers.into_iter().take(side).map(|row| row[..side].to_vec()).collect();
    let links = if is_rated {
        Links::Rated { latency_s: numbers, bandwidth: vec![vec![60.0; side]; side], overhead_s: 0.0 }
    } else {
        Links::Transfer(numbers)
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

/// The same problem where some nodes share processors.
pub fn sharing(problem: &Problem, rng: &mut Pcg64) -> Option<Problem> {
    let nodes = problem.cluster().nodes().len();
    let most = rng.random_range(1..=3);
    let processors: Vec<Option<u32>> =
        (0..nodes).map(|_| rng.random_bool(0.7).then(|| rng.random_range(0..most))).collect();
    let cluster = problem.cluster().with_processors(&processors).ok()?;
    let (stages, counts) = (problem.stages().to_vec(), problem.microbatches().to_vec());
    Problem::new(cluster, stages, vec![], counts, problem.skip_ratio(), problem.constraints().clone()).ok()
}

/// The same problem with random weights for its stages, or with random classes of routes.
pub fn extended(problem: &Problem, rng: &mut Pcg64) -> Option<Problem> {
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
pub fn other_load(instance: &mut Instance, rng: &mut Pcg64) {
    let mut class = instance.classes[0].clone();
    for time in class.forward.iter_mut().chain(&mut class.backward).chain(&mut class.loss) {
        *time = 1_000_000_000 * rng.random_range(0..4);
    }
    instance.classes.push(class);
    if let Some(source) = instance.sources.last_mut() {
        source.class = 1;
    }
}
