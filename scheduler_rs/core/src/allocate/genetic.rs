//! Genetic clustering: a memetic algorithm over partitions of the nodes into stages. Children come from crossover or
//! from one parent, and each is refined by annealing.
//!
//! Every generation has the same number of children, each with a random stream of its own, inserted into the population
//! in the order of their numbers. So the result does not depend on the number of threads.

use rand::RngExt;
use rand::seq::SliceRandom;
use rand_pcg::Pcg64;
use rayon::prelude::*;

use super::Options;
use super::costs::Costs;
use super::partition::{Partition, ScoreTerms, diameter_of};
use super::problem::AllocationProblem;
use super::refine::{Cooling, refine};
use super::score::{Scored, scored};
use crate::budget::Budget;
use crate::part::Part;

/// Partitions in the population.
const POPULATION: usize = 16;
/// Children of one generation.
const CHILDREN_PER_GENERATION: usize = 4;
/// Exchanges tried per node when a child is refined.
const STEPS_PER_NODE: u64 = 100;
/// Fraction of children with two parents; the others are refined copies of one.
const CROSSOVER_RATE: f64 = 0.5;
/// Temperatures as fractions of the median transfer: the highest initial ones of the first partitions and of children,
/// and the final one.
const INITIAL_TEMPERATURE: f64 = 0.25;
const CHILD_TEMPERATURE: f64 = 0.1;
const FINAL_TEMPERATURE: f64 = 0.03;
/// Lower bound on the median transfer, in seconds.
const LEAST_UNIT_S: f64 = 1e-12;

/// A member of the population.
#[derive(Clone, Debug)]
struct Individual {
    stages: Vec<Vec<usize>>,
    scored: Scored,
    /// The score plus the penalty for exceeding the limit.
    cost: f64,
    key: Vec<Vec<usize>>,
}

/// The population and the best partitions so far.
pub struct Genetic<'a> {
    problem: AllocationProblem<'a>,
    movable: Vec<u32>,
    unit_s: f64,
    options: Options,
    born: u64,
    population: Vec<Individual>,
    best: Vec<Individual>,
    steps: u64,
    generations: u64,
}

impl<'a> Genetic<'a> {
    /// An empty population.
    #[must_use]
    pub fn new(problem: AllocationProblem<'a>, options: Options) -> Self {
        let fixed = problem.sources.unwrap_or_default();
        let movable =
            (0..problem.costs.nodes()).filter(|n| fixed.binary_search(n).is_err()).map(|n| n as u32).collect();
        Self {
            problem,
            movable,
            // Where transfers take no time, deteriorations are pointless.
            unit_s: problem.costs.median_s().max(LEAST_UNIT_S),
            options,
            born: 0,
            population: Vec::new(),
            best: Vec::new(),
            steps: 0,
            generations: 0,
        }
    }

    /// Runs one generation.
    pub fn advance(&mut self, budget: &Budget) {
        let this = &*self;
        let born = this.born;
        // The first child is always made, however short the time.
        let is_wanted = |number: u64| number == 0 || !budget.is_over();
        let born_now = |i: u64| is_wanted(born + i).then(|| this.child(born + i, budget));
        let children: Vec<Option<(Individual, u64)>> =
            (0..CHILDREN_PER_GENERATION as u64).into_par_iter().map(born_now).collect();
        self.born += CHILDREN_PER_GENERATION as u64;
        self.generations += 1;
        for (child, steps) in children.into_iter().flatten() {
            self.steps += steps;
            budget.add_work(steps);
            self.record_best(&child);
            self.insert(child);
        }
    }

    /// The best partition so far within the limit.
    #[must_use]
    pub fn best(&self) -> Option<&Scored> {
        self.best.first().map(|individual| &individual.scored)
    }

    /// The best partition and the runner-up.
    #[must_use]
    pub fn into_best(self) -> Vec<Scored> {
        self.best.into_iter().map(|individual| individual.scored).collect()
    }

    /// Exchanges tried so far.
    #[must_use]
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// Generations so far.
    #[must_use]
    pub fn generations(&self) -> u64 {
        self.generations
    }

    /// Inserts a partition found elsewhere.
    pub fn inject(&mut self, stages: &[Vec<usize>]) {
        let individual = self.individual(stages.to_vec());
        self.record_best(&individual);
        self.insert(individual);
    }

    fn individual(&self, stages: Vec<Vec<usize>>) -> Individual {
        let AllocationProblem { costs, limit_s, .. } = self.problem;
        let scored = scored(costs, &stages);
        let parts = ScoreTerms { excess_s: excess_s(costs, &stages, limit_s), ..scored.terms() };
        let key = key_of(costs, &stages);
        Individual { stages, scored, cost: parts.cost(), key }
    }

    fn child(&self, number: u64, budget: &Budget) -> (Individual, u64) {
        let mut rng = Pcg64::new(u128::from(self.options.seed), u128::from(number));
        let AllocationProblem { costs, sizes, limit_s, .. } = self.problem;
        let is_first = self.population.len() < POPULATION;
        let stages = if is_first {
            self.initial_partition(number as usize, &mut rng)
        } else if self.options.without != Some(Part::Crossover) && rng.random_bool(CROSSOVER_RATE) {
            self.crossover(&mut rng)
        } else {
            self.population[self.tournament(&mut rng)].stages.clone()
        };
        // The first partitions start hotter one by one: some stay near their construction, some do not.
        let temperature = if is_first {
            geometric(FINAL_TEMPERATURE, INITIAL_TEMPERATURE, (number as f64 / (POPULATION - 1) as f64).min(1.0))
        } else {
            geometric(FINAL_TEMPERATURE, CHILD_TEMPERATURE, rng.random())
        };
        let mut partition = Partition::new(costs, &stages, limit_s).with_cache();
        let schedule = Cooling {
            steps: STEPS_PER_NODE * costs.nodes() as u64,
            initial_temperature_s: self.unit_s * temperature,
            final_temperature_s: self.unit_s * FINAL_TEMPERATURE,
        };
        let refined = refine(&mut partition, costs, &self.movable, schedule, &mut rng, budget);
        let mut stages = vec![Vec::new(); sizes.len()];
        for (node, stage) in refined.stage_of.iter().enumerate() {
            stages[*stage as usize].push(node);
        }
        (self.individual(stages), refined.steps)
    }

    /// Keeps the two best within the limit that differ in more than the order of stages and identical nodes.
    fn record_best(&mut self, child: &Individual) {
        if child.scored.replica_s > self.problem.limit_s || self.best.iter().any(|known| known.key == child.key) {
            return;
        }
        let index = self.best.iter().position(|known| child.cost < known.cost).unwrap_or(self.best.len());
        self.best.insert(index, child.clone());
        self.best.truncate(2);
    }

    /// A child that is new replaces the worst individual if it is better.
    fn insert(&mut self, child: Individual) {
        if self.population.iter().any(|other| other.key == child.key) {
            return;
        }
        if self.population.len() < POPULATION {
            self.population.push(child);
            return;
        }
        if let Some(worst) = self.population.iter_mut().max_by(|a, b| a.cost.total_cmp(&b.cost))
            && child.cost < worst.cost
        {
            *worst = child;
        }
    }

    /// An initial partition: the sites in nearest-neighbour order are cut into segments for some stages each, and
    /// within a segment the nodes are distributed over its stages. As many segments as stages give compact stages; a
    /// single segment gives similar ones.
    fn initial_partition(&self, number: usize, rng: &mut Pcg64) -> Vec<Vec<usize>> {
        let AllocationProblem { costs, sizes, sources, .. } = self.problem;
        let mut stages = vec![Vec::new(); sizes.len()];
        if let Some(sources) = sources {
            stages[0] = sources.to_vec();
        }
        let mut order: Vec<usize> = (0..sizes.len()).filter(|s| sources.is_none() || *s > 0).collect();
        order.shuffle(rng);
        let parts = match number {
            0 => 1,
            1 => order.len(),
            _ => rng.random_range(1..=order.len().max(1)),
        };
        let sites = self.sites_by_nearest_neighbour(rng);
        let mut nodes = sites.iter().flatten();
        let each = order.len().div_ceil(parts.max(1)).max(1);
        for part in order.chunks(each) {
            let total: usize = part.iter().map(|s| sizes[*s]).sum();
            let own: Vec<usize> = nodes.by_ref().take(total).copied().collect();
            distribute(&own, part, sizes, costs, &mut stages);
        }
        debug_assert_eq!(costs.nodes(), stages.iter().map(Vec::len).sum::<usize>());
        stages
    }

    /// The movable nodes by site, each site the nearest to the previous one among those left.
    fn sites_by_nearest_neighbour(&self, rng: &mut Pcg64) -> Vec<Vec<usize>> {
        let costs = self.problem.costs;
        let mut nodes_of = vec![Vec::new(); costs.sites()];
        for node in &self.movable {
            nodes_of[costs.site(*node as usize)].push(*node as usize);
        }
        let mut rest: Vec<usize> = (0..costs.sites()).filter(|site| !nodes_of[*site].is_empty()).collect();
        let mut sites = Vec::with_capacity(rest.len());
        let mut at: Option<usize> = None;
        while !rest.is_empty() {
            let index = match at {
                None => rng.random_range(0..rest.len()),
                Some(site) => {
                    let trip = |index: usize| costs.round_trip_s(site, rest[index]);
                    (0..rest.len()).min_by(|a, b| trip(*a).total_cmp(&trip(*b))).unwrap_or(0)
                }
            };
            let site = rest.swap_remove(index);
            sites.push(std::mem::take(&mut nodes_of[site]));
            at = Some(site);
        }
        sites
    }

    /// Binary tournament selection.
    fn tournament(&self, rng: &mut Pcg64) -> usize {
        let [a, b] = [0; 2].map(|_| rng.random_range(0..self.population.len()));
        if self.population[a].cost <= self.population[b].cost { a } else { b }
    }

    /// Inherits some stages from one parent as they are, and the others from those of the second parent that fit best.
    fn crossover(&self, rng: &mut Pcg64) -> Vec<Vec<usize>> {
        let AllocationProblem { costs, sizes, .. } = self.problem;
        let (first, mut second) = (self.tournament(rng), self.tournament(rng));
        if first == second {
            second = (first + rng.random_range(1..self.population.len())) % self.population.len();
        }
        let (mother, father) = (&self.population[first].stages, &self.population[second].stages);
        let mut order: Vec<usize> = (1..sizes.len()).collect();
        order.shuffle(rng);
        let keep_sources = self.problem.sources.is_some() || rng.random_bool(0.5);
        let kept = rng.random_range(1..=order.len().max(1));
        let mut stages = vec![Vec::new(); sizes.len()];
        let mut is_assigned = vec![false; costs.nodes()];
        let mut open = Vec::new();
        for (i, stage) in order.iter().copied().enumerate() {
            if i + 1 < kept { stages[stage].clone_from(&mother[stage]) } else { open.push(stage) }
        }
        if keep_sources {
            stages[0].clone_from(&mother[0]);
        } else {
            open.insert(0, 0);
        }
        for node in stages.iter().flatten() {
            is_assigned[*node] = true;
        }
        let mut givers: Vec<usize> = (0..father.len()).collect();
        for stage in &open {
            let left = |giver: usize| father[giver].iter().filter(|node| !is_assigned[**node]).count();
            let best =
                (0..givers.len()).max_by_key(|i| (left(givers[*i]).min(sizes[*stage]), std::cmp::Reverse(givers[*i])));
            let Some(best) = best else { break };
            let mut nodes: Vec<usize> =
                father[givers.swap_remove(best)].iter().copied().filter(|n| !is_assigned[*n]).collect();
            nodes.shuffle(rng);
            nodes.truncate(sizes[*stage]);
            for node in &nodes {
                is_assigned[*node] = true;
            }
            stages[*stage] = nodes;
        }
        let mut rest: Vec<usize> = (0..costs.nodes()).filter(|node| !is_assigned[*node]).collect();
        rest.shuffle(rng);
        for stage in open {
            while stages[stage].len() < sizes[stage] {
                let Some(node) = rest.pop() else { break };
                stages[stage].push(node);
            }
        }
        stages
    }
}

/// Distributes nodes, grouped by site, over the stages of a segment. Each stage gets of each site in proportion to its
/// size, rounded down; the remainder fills one stage after the other, so that neighbouring sites stay together.
fn distribute(nodes: &[usize], part: &[usize], sizes: &[usize], costs: &Costs, stages: &mut [Vec<usize>]) {
    let total = nodes.len();
    let mut left = Vec::new();
    for same in nodes.chunk_by(|a, b| costs.site(*a) == costs.site(*b)) {
        let mut same_left = same.iter().copied();
        for stage in part {
            stages[*stage].extend(same_left.by_ref().take(sizes[*stage] * same.len() / total));
        }
        left.extend(same_left);
    }
    let mut left = left.into_iter();
    for stage in part {
        let room = sizes[*stage] - stages[*stage].len();
        stages[*stage].extend(left.by_ref().take(room));
    }
}

/// Geometric interpolation from `low` to `high` as `share` goes from 0 to 1.
fn geometric(low: f64, high: f64, share: f64) -> f64 {
    low * (high / low).powf(share)
}

/// Canonical key: equal for partitions that differ only in the order of stages and in identical nodes.
fn key_of(costs: &Costs, stages: &[Vec<usize>]) -> Vec<Vec<usize>> {
    let mut key: Vec<Vec<usize>> =
        stages.iter().map(|members| members.iter().map(|node| costs.class(*node)).collect()).collect();
    for classes in &mut key {
        classes.sort_unstable();
    }
    key.sort_unstable();
    key
}

/// Sum over the stages by how much their diameters exceed the limit.
fn excess_s(costs: &Costs, stages: &[Vec<usize>], limit_s: f64) -> f64 {
    stages.iter().map(|members| (diameter_of(costs, members) - limit_s).max(0.0)).sum()
}
