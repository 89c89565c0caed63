//! A partition of the nodes into stages, with its surrogate score updated incrementally.

use super::costs::Costs;
use super::matching::{Matcher, SiteCount};
use super::matching_cache::{MatchingCache, ZobristHash};
use super::tour::{HeldKarp, two_opt_and_or_opt};

/// Up to so many stages, every change is scored by the shortest tour; beyond that, by the current one.
const MAX_EXACT_TOUR: usize = 7;
/// Penalty per second by which a stage exceeds the limit of its diameter.
const EXCESS: f64 = 6.0;

/// The terms of the surrogate score, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ScoreTerms {
    /// Largest diameter: the longest transfer within a stage.
    pub replica_s: f64,
    /// Shortest tour found over the stages.
    pub tour_s: f64,
    /// Sum over the stages of twice the mean forward.
    pub compute_s: f64,
    /// Sum over the stages by how much their diameters exceed the limit.
    pub excess_s: f64,
}

impl ScoreTerms {
    /// The surrogate score.
    #[must_use]
    pub fn score_s(&self) -> f64 {
        self.replica_s + self.tour_s + self.compute_s
    }

    /// Objective of the search: the score plus a penalty for exceeding the limit.
    #[must_use]
    pub fn cost(&self) -> f64 {
        self.score_s() + EXCESS * self.excess_s
    }
}

/// A partition with its score, changed by one exchange at a time.
#[derive(Clone, Debug)]
pub struct Partition<'a> {
    costs: &'a Costs,
    /// Upper bound on the diameter of a stage.
    limit_s: f64,
    members: Vec<Vec<u32>>,
    /// Stage of each node, and its position in `members`.
    position_of: Vec<(u32, u32)>,
    /// Sites of each stage, ascending, with their node counts.
    sites: Vec<Vec<SiteCount>>,
    hashes: Vec<ZobristHash>,
    replica_s: Vec<f64>,
    forward_ps: Vec<i128>,
    /// Bottleneck matching of each pair of stages, row-major; NaN where not computed.
    legs: Vec<f64>,
    order: Vec<usize>,
    terms: ScoreTerms,
    matcher: Matcher,
    /// For partitions that change often.
    cache: Option<MatchingCache>,
    held_karp: HeldKarp,
    undo: Undo,
}

/// The values that the last exchange replaced.
#[derive(Clone, Debug, Default)]
struct Undo {
    cycle: Vec<u32>,
    replica_s: Vec<f64>,
    legs: Vec<f64>,
    terms: ScoreTerms,
}

impl<'a> Partition<'a> {
    /// Scores a partition of all nodes.
    #[must_use]
    pub fn new(costs: &'a Costs, stages: &[Vec<usize>], limit_s: f64) -> Self {
        let members: Vec<Vec<u32>> = stages.iter().map(|s| s.iter().map(|node| *node as u32).collect()).collect();
        let count = members.len();
        let mut position_of = vec![(0, 0); costs.nodes()];
        for (s, nodes) in members.iter().enumerate() {
            for (index, node) in nodes.iter().enumerate() {
                position_of[*node as usize] = (s as u32, index as u32);
            }
        }
        let sites: Vec<Vec<SiteCount>> = members.iter().map(|nodes| sites_of(costs, nodes)).collect();
        let mut partition = Self {
            costs,
            limit_s,
            position_of,
            hashes: sites.iter().map(|sites| ZobristHash::of(sites)).collect(),
            sites,
            replica_s: vec![0.0; count],
            forward_ps: members.iter().map(|m| m.iter().map(|n| costs.forward_ps(*n as usize)).sum()).collect(),
            members,
            legs: vec![f64::NAN; count * count],
            order: (0..count).collect(),
            terms: ScoreTerms::default(),
            matcher: Matcher::default(),
            cache: None,
            held_karp: HeldKarp::default(),
            undo: Undo::default(),
        };
        for stage in 0..count {
            partition.replica_s[stage] = diameter(costs, &partition.sites[stage]);
        }
        partition.improve_tour();
        partition
    }

    /// Caches matchings from now on.
    #[must_use]
    pub fn with_cache(self) -> Self {
        Self { cache: Some(MatchingCache::new()), ..self }
    }

    /// Nodes of each stage, unordered.
    #[must_use]
    pub fn members(&self) -> &[Vec<u32>] {
        &self.members
    }

    /// Sites of a stage, ascending, with their node counts.
    #[must_use]
    pub fn sites(&self, stage: usize) -> &[SiteCount] {
        &self.sites[stage]
    }

    /// Stage of a node.
    #[must_use]
    pub fn stage_of(&self, node: u32) -> usize {
        self.position_of[node as usize].0 as usize
    }

    /// Diameter of each stage: its longest transfer, in seconds.
    #[must_use]
    pub fn replica_s(&self) -> &[f64] {
        &self.replica_s
    }

    /// The tour by which the partition is scored. Up to `MAX_EXACT_TOUR` stages only [`Self::improve_tour`] updates
    /// it.
    #[must_use]
    pub fn order(&self) -> &[usize] {
        &self.order
    }

    /// The terms of the score.
    #[must_use]
    pub fn terms(&self) -> ScoreTerms {
        self.terms
    }

    /// Bottleneck matching of two stages by round trips, in seconds: a leg of the tour.
    pub fn leg(&mut self, a: usize, b: usize) -> f64 {
        let count = self.members.len();
        let known = self.legs[a * count + b];
        if !known.is_nan() {
            return known;
        }
        let (small, large) = if self.members[a].len() <= self.members[b].len() { (a, b) } else { (b, a) };
        let Self { costs, cache, matcher, sites, .. } = self;
        let trip = |i: u32, j: u32| costs.round_trip_s(i as usize, j as usize);
        let mut find = || matcher.bottleneck(&sites[small], &sites[large], trip);
        let value = match cache {
            Some(cache) => cache.get(self.hashes[a], self.hashes[b], find),
            None => find(),
        };
        self.legs[a * count + b] = value;
        self.legs[b * count + a] = value;
        value
    }

    /// Cyclic exchange: moves each node of the cycle to the stage of the next one, the last to that of the first. The
    /// nodes are of different stages. Returns the new cost, or infinity as soon as it is known to exceed `most`.
    pub fn exchange(&mut self, cycle: &[u32], most: f64) -> f64 {
        let count = self.members.len();
        let Self { undo, legs, replica_s, position_of, .. } = self;
        undo.cycle.clear();
        undo.cycle.extend_from_slice(cycle);
        undo.terms = self.terms;
        undo.replica_s.clear();
        undo.legs.clear();
        for node in cycle {
            let stage = position_of[*node as usize].0 as usize;
            undo.replica_s.push(replica_s[stage]);
            undo.legs.extend_from_slice(&legs[stage * count..][..count]);
        }
        self.apply_cycle(cycle);
        for node in cycle {
            let stage = self.stage_of(*node);
            self.replica_s[stage] = diameter(self.costs, &self.sites[stage]);
            for other in 0..count {
                self.legs[stage * count + other] = f64::NAN;
                self.legs[other * count + stage] = f64::NAN;
            }
        }
        self.score(most)
    }

    /// Reverts the last exchange.
    pub fn undo(&mut self) {
        let count = self.members.len();
        let cycle = std::mem::take(&mut self.undo.cycle);
        let back: Vec<u32> = cycle.iter().rev().copied().collect();
        self.apply_cycle(&back);
        // The nodes are back in their old stages.
        for (i, node) in cycle.iter().enumerate() {
            let stage = self.stage_of(*node);
            self.replica_s[stage] = self.undo.replica_s[i];
            for other in 0..count {
                let value = self.undo.legs[i * count + other];
                self.legs[stage * count + other] = value;
                self.legs[other * count + stage] = value;
            }
        }
        self.terms = self.undo.terms;
        self.undo.cycle = cycle;
    }

    /// Improves the tour over the stages; returns the new cost.
    pub fn improve_tour(&mut self) -> f64 {
        self.fill_legs();
        let count = self.members.len();
        if (3..=MAX_EXACT_TOUR).contains(&count) {
            self.order = self.held_karp.order(&self.legs, count);
        } else if count > 3 {
            two_opt_and_or_opt(&self.legs, &mut self.order);
        }
        self.score(f64::INFINITY)
    }

    fn fill_legs(&mut self) {
        for a in 0..self.members.len() {
            for b in 0..a {
                self.leg(a, b);
            }
        }
    }

    /// Lower bound on tours of at least three stages: half of the two shortest legs of each.
    fn tour_lower_bound(&self) -> f64 {
        let count = self.members.len();
        let mut sum = 0.0;
        for (stage, legs) in self.legs.chunks_exact(count).enumerate() {
            let (mut first, mut second) = (f64::INFINITY, f64::INFINITY);
            for (other, leg) in legs.iter().enumerate() {
                if other != stage {
                    second = second.min(leg.max(first));
                    first = first.min(*leg);
                }
            }
            sum += first + second;
        }
        sum / 2.0
    }

    fn apply_cycle(&mut self, cycle: &[u32]) {
        let Some(first) = cycle.first() else { return };
        let mut position = self.position_of[*first as usize];
        // From the last to the first, each takes the position of the next one.
        for node in cycle.iter().rev() {
            let to = position;
            position = self.position_of[*node as usize];
            self.move_to(*node, position, to);
        }
    }

    fn move_to(&mut self, node: u32, from: (u32, u32), to: (u32, u32)) {
        let site = self.costs.site(node as usize) as u32;
        remove_site(&mut self.sites[from.0 as usize], site);
        self.hashes[from.0 as usize].remove(site);
        self.hashes[to.0 as usize].add(site);
        add_site(&mut self.sites[to.0 as usize], site);
        let forward = self.costs.forward_ps(node as usize);
        self.forward_ps[from.0 as usize] -= forward;
        self.forward_ps[to.0 as usize] += forward;
        self.members[to.0 as usize][to.1 as usize] = node;
        self.position_of[node as usize] = to;
    }

    fn score(&mut self, most: f64) -> f64 {
        let count = self.members.len();
        let replica_s = self.replica_s.iter().copied().fold(0.0, f64::max);
        let excess_s = self.replica_s.iter().map(|s| (s - self.limit_s).max(0.0)).sum();
        let compute_s =
            self.forward_ps.iter().zip(&self.members).map(|(sum, m)| Costs::mean_twice_s(*sum, m.len())).sum();
        self.terms = ScoreTerms { replica_s, tour_s: 0.0, compute_s, excess_s };
        if self.terms.cost() > most {
            return f64::INFINITY;
        }
        self.terms.tour_s = match count {
            0 | 1 => 0.0,
            2 => 2.0 * self.leg(0, 1),
            3..=MAX_EXACT_TOUR => {
                self.fill_legs();
                if self.terms.cost() + self.tour_lower_bound() > most {
                    return f64::INFINITY;
                }
                self.held_karp.length(&self.legs, count)
            }
            _ => {
                let mut sum = 0.0;
                for i in 0..count {
                    sum += self.leg(self.order[i], self.order[(i + 1) % count]);
                    if self.terms.cost() + sum > most {
                        return f64::INFINITY;
                    }
                }
                sum
            }
        };
        self.terms.cost()
    }
}

/// Diameter of a set of nodes: the longest transfer between two of them, in seconds.
#[must_use]
pub fn diameter_of(costs: &Costs, nodes: &[usize]) -> f64 {
    let mut sites = Vec::with_capacity(nodes.len());
    for node in nodes {
        add_site(&mut sites, costs.site(*node) as u32);
    }
    diameter(costs, &sites)
}

fn diameter(costs: &Costs, sites: &[SiteCount]) -> f64 {
    let mut longest: f64 = 0.0;
    for (i, (site, count)) in sites.iter().enumerate() {
        if *count > 1 {
            longest = longest.max(costs.apart_s(*site as usize, *site as usize));
        }
        for (other, _) in &sites[i + 1..] {
            longest = longest.max(costs.apart_s(*site as usize, *other as usize));
        }
    }
    longest
}

fn sites_of(costs: &Costs, nodes: &[u32]) -> Vec<SiteCount> {
    let mut sites = Vec::with_capacity(nodes.len() + 1);
    for node in nodes {
        add_site(&mut sites, costs.site(*node as usize) as u32);
    }
    sites
}

fn add_site(sites: &mut Vec<SiteCount>, site: u32) {
    match sites.binary_search_by_key(&site, |(s, _)| *s) {
        Ok(at) => sites[at].1 += 1,
        Err(at) => sites.insert(at, (site, 1)),
    }
}

fn remove_site(sites: &mut Vec<SiteCount>, site: u32) {
    if let Ok(at) = sites.binary_search_by_key(&site, |(s, _)| *s) {
        sites[at].1 -= 1;
        if sites[at].1 == 0 {
            sites.remove(at);
        }
    }
}
