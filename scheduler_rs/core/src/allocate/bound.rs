//! Lower bounds on the score of all partitions.
//!
//! Partitions are classified by their diameter, the longest transfer within a stage. For each level of the diameter
//! there is a lower bound on the tour, by a spanning tree or by Lagrangian relaxation; the least sum of the two is a
//! bound for all partitions. Work goes to the weakest level.

use super::costs::Costs;
use super::matching::{Matcher, SiteCount};
use super::partition::diameter_of;
use super::problem::AllocationProblem;

/// Limit on levels of the diameter.
const MAX_LEVELS: usize = 128;
/// Limit on enumerated patterns.
const MAX_PATTERNS: usize = 10_000;
/// Subgradient steps at a time.
const STEPS_PER_CALL: u32 = 20;
/// Patterns evaluated in the time of one exchange tried by the genetic algorithm.
const PATTERNS_PER_STEP: u64 = 256;
/// Subgradient steps after which a level is final.
const MAX_STEPS_PER_LEVEL: u32 = 400;

/// The lower bound so far.
pub struct ScoreBound {
    compute_s: f64,
    stages: usize,
    sites: Vec<u32>,
    levels: Vec<Level>,
    size_classes: Vec<SizeClass>,
}

/// Partitions whose diameter is at least `low_s` and below `high_s`.
struct Level {
    low_s: f64,
    high_s: f64,
    /// Lower bound on their tours; infinite where there are no such partitions.
    tour_s: f64,
    /// Lagrange multiplier of each site.
    multiplier: Vec<f64>,
    steps: u32,
}

/// The stages of one size, and their possible patterns.
struct SizeClass {
    count: usize,
    patterns: Vec<Pattern>,
}

/// A possible stage: how many nodes of which sites.
struct Pattern {
    sites: Vec<SiteCount>,
    diameter_s: f64,
    /// Lower bound on half of its two legs of the tour.
    half_s: f64,
}

impl ScoreBound {
    /// The bound by spanning trees alone.
    #[must_use]
    pub fn new(problem: &AllocationProblem<'_>) -> Self {
        let AllocationProblem { costs, sizes, sources, limit_s } = *problem;
        let mut sites = vec![0; costs.sites()];
        for node in 0..costs.nodes() {
            sites[costs.site(node)] += 1;
        }
        let size_classes = size_classes_of(problem, &sites).unwrap_or_default();
        let stages = sizes.len();
        let mut levels = levels_of(costs, &sites, limit_s);
        let least_s = pairs(&sites).map(|(a, b)| costs.round_trip_s(a, b)).fold(f64::INFINITY, f64::min);
        for level in &mut levels {
            level.tour_s = spanning_tree_bound_s(costs, level.high_s, stages, least_s);
            if lacks_close_nodes(problem, level.high_s) {
                level.tour_s = f64::INFINITY;
            }
        }
        let sources_s = sources.map_or(0.0, |nodes| diameter_of(costs, nodes));
        levels.retain(|level| level.high_s > sources_s);
        Self { compute_s: least_compute_s(problem), stages, sites, levels, size_classes }
    }

    /// Lower bound on the score of all allowed partitions; infinite where there is none.
    #[must_use]
    pub fn score_s(&self) -> f64 {
        self.compute_s + self.levels.iter().map(|level| level.low_s + level.tour_s).fold(f64::INFINITY, f64::min)
    }

    /// Improves the weakest level; returns the steps spent, 0 where nothing is left to do.
    pub fn advance(&mut self) -> u64 {
        let sum = |level: &Level| level.low_s + level.tour_s;
        let weakest = self.levels.iter_mut().min_by(|a, b| sum(a).total_cmp(&sum(b)));
        let Some(level) = weakest.filter(|level| level.steps < MAX_STEPS_PER_LEVEL && level.tour_s.is_finite()) else {
            return 0;
        };
        if self.size_classes.is_empty() || self.stages < 2 {
            return 0;
        }
        level.subgradient_ascent(&self.size_classes, &self.sites);
        let patterns: usize = self.size_classes.iter().map(|class| class.patterns.len()).sum();
        1 + u64::from(STEPS_PER_CALL) * patterns as u64 / PATTERNS_PER_STEP
    }
}

impl Level {
    /// Lagrangian relaxation of the constraint that every node is in exactly one stage. Stages are then independent:
    /// the sum of all multipliers, plus for each stage the least half legs of a pattern less the multipliers of its
    /// nodes, is a lower bound for any multipliers. Subgradient steps improve them.
    fn subgradient_ascent(&mut self, size_classes: &[SizeClass], sites: &[u32]) {
        self.multiplier.resize(sites.len(), 0.0);
        for _ in 0..STEPS_PER_CALL {
            self.steps += 1;
            let mut bound: f64 =
                self.multiplier.iter().zip(sites).map(|(multiplier, count)| multiplier * f64::from(*count)).sum();
            let mut missing: Vec<f64> = sites.iter().map(|count| f64::from(*count)).collect();
            for class in size_classes {
                let reduced = |pattern: &Pattern| {
                    let paid: f64 =
                        pattern.sites.iter().map(|(s, n)| self.multiplier[*s as usize] * f64::from(*n)).sum();
                    pattern.half_s - paid
                };
                let allowed = class.patterns.iter().filter(|pattern| pattern.diameter_s < self.high_s);
                let least = allowed.map(|pattern| (reduced(pattern), pattern)).min_by(|a, b| a.0.total_cmp(&b.0));
                let Some((least, pattern)) = least else {
                    self.tour_s = f64::INFINITY;
                    return;
                };
                bound += least * class.count as f64;
                for (site, count) in &pattern.sites {
                    missing[*site as usize] -= f64::from(*count) * class.count as f64;
                }
            }
            self.tour_s = self.tour_s.max(bound);
            let length: f64 = missing.iter().map(|m| m * m).sum();
            if length == 0.0 {
                return;
            }
            let step = 0.5 * self.tour_s.max(f64::MIN_POSITIVE) / length / (1.0 + f64::from(self.steps) / 20.0);
            for (multiplier, missing) in self.multiplier.iter_mut().zip(&missing) {
                *multiplier += step * missing;
            }
        }
    }
}

/// Minimum over the partitions of the sum of twice the mean forward: slow nodes in large stages.
fn least_compute_s(problem: &AllocationProblem<'_>) -> f64 {
    let AllocationProblem { costs, sizes, sources, .. } = *problem;
    let fixed = sources.unwrap_or_default();
    let mut sizes: Vec<usize> = sizes[usize::from(sources.is_some())..].to_vec();
    sizes.sort_unstable();
    let mut forwards: Vec<i128> =
        (0..costs.nodes()).filter(|n| fixed.binary_search(n).is_err()).map(|n| costs.forward_ps(n)).collect();
    forwards.sort_unstable();
    let mut total = Costs::mean_twice_s(fixed.iter().map(|n| costs.forward_ps(*n)).sum(), fixed.len());
    let mut rest = forwards.as_slice();
    for size in sizes {
        let (now, later) = rest.split_at(size.min(rest.len()));
        total += Costs::mean_twice_s(now.iter().sum(), size);
        rest = later;
    }
    total
}

/// The possible diameters, in levels.
fn levels_of(costs: &Costs, sites: &[u32], limit_s: f64) -> Vec<Level> {
    let mut values: Vec<f64> = pairs(sites).map(|(a, b)| costs.apart_s(a, b)).chain([0.0, f64::INFINITY]).collect();
    values.sort_unstable_by(f64::total_cmp);
    values.dedup();
    let allowed = values.partition_point(|value| *value <= limit_s && value.is_finite());
    let stride = allowed.div_ceil(MAX_LEVELS).max(1);
    let steps = (0..allowed).step_by(stride);
    let level = |low: usize| Level {
        low_s: values[low],
        high_s: values[allowed.min(low + stride)],
        tour_s: 0.0,
        multiplier: Vec::new(),
        steps: 0,
    };
    steps.map(level).collect()
}

/// Pairs of sites with two different nodes.
fn pairs(sites: &[u32]) -> impl Iterator<Item = (usize, usize)> {
    (0..sites.len()).flat_map(|a| (0..=a).map(move |b| (a, b))).filter(|(a, b)| a != b || sites[*a] > 1)
}

/// Lower bound on tours over stages of a diameter below `high_s`. A stage lies within one component of the graph of
/// transfers below `high_s`, so the tour contains at least a spanning tree of the components, and its other legs take
/// at least the shortest round trip, `least_s`.
fn spanning_tree_bound_s(costs: &Costs, high_s: f64, stages: usize, least_s: f64) -> f64 {
    let count = costs.sites();
    if stages < 2 {
        return 0.0;
    }
    let mut reach = vec![f64::INFINITY; count];
    let mut is_in = vec![false; count];
    let (mut tree_s, mut links) = (0.0, 0);
    let mut at = 0;
    for _ in 1..count {
        is_in[at] = true;
        for (other, reach) in reach.iter_mut().enumerate() {
            let link = if costs.apart_s(at, other) < high_s { 0.0 } else { costs.round_trip_s(at, other) };
            *reach = reach.min(link);
        }
        let next = (0..count).filter(|site| !is_in[*site]).min_by(|a, b| reach[*a].total_cmp(&reach[*b]));
        let Some(next) = next else { break };
        if reach[next] > 0.0 {
            tree_s += reach[next];
            links += 1;
        }
        at = next;
    }
    tree_s + stages.saturating_sub(links) as f64 * least_s
}

/// Whether some node has too few others within `high_s` even for the smallest stage.
fn lacks_close_nodes(problem: &AllocationProblem<'_>, high_s: f64) -> bool {
    let AllocationProblem { costs, sizes, sources, .. } = *problem;
    let fixed = sources.unwrap_or_default();
    let Some(least) = sizes[usize::from(sources.is_some())..].iter().min() else { return false };
    let free = (0..costs.nodes()).filter(|node| fixed.binary_search(node).is_err());
    let mut left = vec![0; costs.sites()];
    for node in free {
        left[costs.site(node)] += 1;
    }
    (0..left.len()).filter(|site| left[*site] > 0).any(|site| {
        let near = (0..left.len()).filter(|other| costs.apart_s(site, *other) < high_s);
        let alone = usize::from(costs.apart_s(site, site) >= high_s);
        near.map(|other| left[other]).sum::<usize>() + alone < *least
    })
}

/// The patterns of each size; none where there are too many.
fn size_classes_of(problem: &AllocationProblem<'_>, sites: &[u32]) -> Option<Vec<SizeClass>> {
    let AllocationProblem { costs, sizes, sources, .. } = *problem;
    let mut left = sites.to_vec();
    let mut size_classes = Vec::new();
    let smallest_but = |s: usize| (0..sizes.len()).filter(|o| *o != s).map(|o| sizes[o]).min().unwrap_or(0);
    let mut list = PatternEnumerator { costs, all: sites, stages: sizes.len(), matcher: Matcher::default() };
    if let Some(nodes) = sources {
        let mut own = vec![0; sites.len()];
        for node in nodes {
            left[costs.site(*node)] -= 1;
            own[costs.site(*node)] += 1;
        }
        let alike: Vec<SiteCount> = (0..).zip(own).filter(|(_, count)| *count > 0).collect();
        size_classes.push(SizeClass { count: 1, patterns: vec![list.pattern(alike, smallest_but(0))] });
    }
    let rest = usize::from(sources.is_some())..sizes.len();
    let firsts: Vec<usize> = rest.clone().filter(|s| !sizes[rest.start..*s].contains(&sizes[*s])).collect();
    if firsts.iter().map(|s| choices(&left, sizes[*s])).fold(0, usize::saturating_add) > MAX_PATTERNS {
        return None;
    }
    for s in firsts {
        let count = rest.clone().filter(|o| sizes[*o] == sizes[s]).count();
        let mut patterns = Vec::new();
        list.extend(&mut Vec::new(), 0, sizes[s], &left, smallest_but(s), &mut patterns);
        size_classes.push(SizeClass { count, patterns });
    }
    Some(size_classes)
}

/// Number of patterns of `size` nodes.
fn choices(left: &[u32], size: usize) -> usize {
    // For each number of nodes up to `size`, over the sites so far.
    let mut counts = vec![0_usize; size + 1];
    counts[0] = 1;
    for count in left {
        for nodes in (1..=size).rev() {
            let fewer = &counts[nodes.saturating_sub(*count as usize)..=nodes];
            counts[nodes] = fewer.iter().fold(0, |sum, counts| sum.saturating_add(*counts));
        }
    }
    counts[size]
}

struct PatternEnumerator<'a> {
    costs: &'a Costs,
    all: &'a [u32],
    stages: usize,
    matcher: Matcher,
}

impl PatternEnumerator<'_> {
    /// Completes a pattern by `missing` nodes from the sites from `site` on, in every way.
    fn extend(
        &mut self,
        chosen: &mut Vec<SiteCount>,
        site: usize,
        missing: usize,
        left: &[u32],
        others: usize,
        patterns: &mut Vec<Pattern>,
    ) {
        if missing == 0 {
            patterns.push(self.pattern(chosen.clone(), others));
            return;
        }
        let mut behind: usize = left[site..].iter().map(|count| *count as usize).sum();
        for next in site..left.len() {
            // Without this check, by far the most choices would lack a node in the end.
            if behind < missing {
                return;
            }
            behind -= left[next] as usize;
            for count in 1..=left[next].min(missing as u32) {
                chosen.push((next as u32, count));
                self.extend(chosen, next + 1, missing - count as usize, left, others, patterns);
                chosen.pop();
            }
        }
    }

    /// Along each of its two legs, as many of its nodes as the smallest other stage has (or all) are matched to nodes
    /// outside. So the shorter leg is at least the best bottleneck matching. As the two neighbours are different
    /// stages, the longer leg is at least the best one in which each node has two partners.
    fn pattern(&mut self, sites: Vec<SiteCount>, others: usize) -> Pattern {
        let size: u32 = sites.iter().map(|(_, count)| count).sum();
        let unmatched = size.saturating_sub(others as u32);
        let nobody = self.all.len() as u32;
        let own = |site: u32| sites.iter().find(|(s, _)| *s == site).map_or(0, |(_, count)| *count);
        let mut leg = |times: u32| {
            let rows: Vec<SiteCount> = sites.iter().map(|(site, count)| (*site, times * count)).collect();
            let mut columns: Vec<SiteCount> =
                (0..nobody).map(|site| (site, self.all[site as usize] - own(site))).filter(|(_, n)| *n > 0).collect();
            columns.push((nobody, times * unmatched));
            let costs = self.costs;
            let trip = |i: u32, j: u32| if j == nobody { 0.0 } else { costs.round_trip_s(i as usize, j as usize) };
            self.matcher.bottleneck(&rows, &columns, trip)
        };
        let half_s = match self.stages {
            0 | 1 => 0.0,
            2 => leg(1),
            _ => (leg(1) + leg(2)) / 2.0,
        };
        let costs = self.costs;
        let mut diameter_s: f64 = 0.0;
        for (i, (a, count)) in sites.iter().enumerate() {
            let within = sites[i + 1..].iter().map(|(b, _)| *b).chain((*count > 1).then_some(*a));
            diameter_s = within.map(|b| costs.apart_s(*a as usize, b as usize)).fold(diameter_s, f64::max);
        }
        Pattern { sites, diameter_s, half_s }
    }
}

#[cfg(test)]
mod tests {
    use super::super::exhaustive::enumerate;
    use super::super::score::scored;
    use super::*;
    use crate::budget::Budget;
    use crate::cluster::{Cluster, ClusterParts, Links};
    use crate::test_clusters::{matrix, node};
    use rand::{RngExt, SeedableRng};
    use rand_pcg::Pcg64;

    /// With `regions`, nodes of the same one of three regions differ only in speed.
    fn cluster(rng: &mut Pcg64, count: usize, regions: bool) -> Cluster {
        let times = [0.5, 1.0, 2.0, 3.5, 6.0];
        let side = if regions { 3 } else { count };
        let mut time = |_: usize| times[rng.random_range(0..times.len())];
        let nodes = (0..count).map(|i| node(i, [time(i), 1.0, 0.0], 1)).collect();
        let links = Links::Transfer(matrix(side, |_, j| time(j)));
        let region_of = regions.then(|| (0..count).map(|i| i % side).collect());
        let parts = ClusterParts { region_of, ..ClusterParts::new(nodes, links) };
        Cluster::new(parts, "").unwrap()
    }

    #[test]
    fn choices_are_counted_before_they_are_listed() {
        let mut rng = Pcg64::seed_from_u64(4);
        for (nodes, regions, sizes) in
            [(9, false, [5, 4]), (9, true, [5, 4]), (40, false, [39, 1]), (60, true, [58, 2])]
        {
            let costs = Costs::new(&cluster(&mut rng, nodes, regions));
            let problem = AllocationProblem { costs: &costs, sizes: &sizes, sources: None, limit_s: f64::INFINITY };
            let mut sites = vec![0; costs.sites()];
            (0..nodes).for_each(|node| sites[costs.site(node)] += 1);
            let listed = size_classes_of(&problem, &sites).unwrap();
            for (class, size) in listed.iter().zip(sizes) {
                assert_eq!(class.patterns.len(), choices(&sites, size));
                assert!(
                    class
                        .patterns
                        .iter()
                        .all(|pattern| pattern.sites.iter().map(|(_, n)| *n as usize).sum::<usize>() == size)
                );
            }
        }
    }

    #[test]
    fn no_partition_scores_less() {
        let mut rng = Pcg64::seed_from_u64(3);
        let mut shares = Vec::new();
        for sizes in [[3, 2, 2, 1].as_slice(), &[2, 2, 2, 2], &[1, 3, 3], &[4, 4], &[5, 1, 1], &[2, 2, 2, 1, 1]] {
            for case in 0..25 {
                let cluster = cluster(&mut rng, sizes.iter().sum(), case % 5 < 2);
                let costs = Costs::new(&cluster);
                let sources: Option<Vec<usize>> = (case % 3 == 0).then(|| (0..sizes[0]).collect());
                let limit_s = if case % 2 == 0 { f64::INFINITY } else { 3.5 };
                let problem = AllocationProblem { costs: &costs, sizes, sources: sources.as_deref(), limit_s };
                let best = enumerate(&problem, f64::INFINITY, &Budget::new(None, None)).best;
                let best = best.map_or(f64::INFINITY, |stages| scored(&costs, &stages).score_s);
                let mut bound = ScoreBound::new(&problem);
                let first = bound.score_s();
                while bound.advance() > 0 {
                    assert!(bound.score_s() <= best + 1e-9, "{sizes:?}: {} above {best}", bound.score_s());
                }
                assert!(first <= bound.score_s() + 1e-9);
                if best.is_finite() {
                    shares.push(bound.score_s() / best);
                }
            }
        }
        // Far from empty, too.
        assert!(shares.iter().sum::<f64>() / shares.len() as f64 > 0.8, "{shares:?}");
    }
}
