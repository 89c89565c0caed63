//! Local refinement: simulated annealing by cyclic exchanges of two or three nodes.

use rand::RngExt;
use rand_pcg::Pcg64;

use super::costs::Costs;
use super::matching::SiteCount;
use super::partition::Partition;
use crate::budget::Budget;
use crate::part::Part;

/// Exchanges between two checks of the budget.
const POLL: u64 = 32;
/// Fraction of exchanges that start at a critical node.
const CRITICAL_SHARE: f64 = 0.5;
/// Fraction of these that address the largest diameter, not the tour.
const DIAMETER_SHARE: f64 = 0.4;
/// Fraction of exchanges that move three nodes.
const THREE_CYCLE_SHARE: f64 = 0.25;
/// Accepted exchanges between two improvements of the tour.
const TOUR_INTERVAL: u32 = 50;

/// Geometric cooling schedule.
#[derive(Clone, Copy, Debug)]
pub struct Cooling {
    /// Exchanges to try.
    pub steps: u64,
    /// Temperature at the start, in seconds of cost.
    pub initial_temperature_s: f64,
    /// Temperature at the end, in seconds of cost.
    pub final_temperature_s: f64,
    /// A part that is left out.
    pub without: Option<Part>,
}

/// The best partition of a refinement.
#[derive(Clone, Debug)]
pub struct Refined {
    /// Stage of each node.
    pub stage_of: Vec<u32>,
    /// Its cost with the tour of that time, in seconds.
    pub cost: f64,
    /// Exchanges tried.
    pub steps: u64,
}

/// Anneals the partition; only `movable` nodes change stages.
pub fn refine(
    partition: &mut Partition<'_>,
    costs: &Costs,
    movable: &[u32],
    cooling_schedule: Cooling,
    rng: &mut Pcg64,
    budget: &Budget,
) -> Refined {
    let mut best = Refined { stage_of: stages_of(partition, costs), cost: partition.terms().cost(), steps: 0 };
    if movable.is_empty() || partition.members().len() < 2 {
        return best;
    }
    let mut current = best.cost;
    let cooling = (cooling_schedule.final_temperature_s / cooling_schedule.initial_temperature_s).ln()
        / cooling_schedule.steps.max(1) as f64;
    let mut accepted = 0;
    let mut cycle = Vec::with_capacity(3);
    while best.steps < cooling_schedule.steps {
        if best.steps.is_multiple_of(POLL) && budget.is_over() {
            break;
        }
        best.steps += 1;
        cycle.clear();
        if !propose(partition, costs, movable, cooling_schedule.without, rng, &mut cycle) {
            continue;
        }
        let temperature = cooling_schedule.initial_temperature_s * (cooling * best.steps as f64).exp();
        let most = current - temperature * (1.0 - rng.random::<f64>()).ln();
        let cost = partition.exchange(&cycle, most);
        if cost > most {
            partition.undo();
            continue;
        }
        current = cost;
        accepted += 1;
        if accepted % TOUR_INTERVAL == 0 {
            current = partition.improve_tour();
        }
        if current < best.cost {
            best.cost = current;
            best.stage_of = stages_of(partition, costs);
        }
    }
    best
}

fn stages_of(partition: &Partition<'_>, costs: &Costs) -> Vec<u32> {
    (0..costs.nodes() as u32).map(|node| partition.stage_of(node) as u32).collect()
}

/// Draws a cycle; false where the draw failed.
fn propose(
    partition: &Partition<'_>,
    costs: &Costs,
    movable: &[u32],
    without: Option<Part>,
    rng: &mut Pcg64,
    cycle: &mut Vec<u32>,
) -> bool {
    let has = |part: Part| without != Some(part);
    let any = |rng: &mut Pcg64| movable[rng.random_range(0..movable.len())];
    let first = if has(Part::CriticalNodes) && rng.random_bool(CRITICAL_SHARE) {
        critical_node(partition, costs, rng)
    } else {
        any(rng)
    };
    cycle.push(first);
    let count = if partition.members().len() > 2 && has(Part::ThreeCycles) && rng.random_bool(THREE_CYCLE_SHARE) {
        3
    } else {
        2
    };
    while cycle.len() < count {
        let next = any(rng);
        let differs = |node: &u32| partition.stage_of(*node) != partition.stage_of(next);
        if cycle.iter().all(differs) && costs.class(next as usize) != costs.class(cycle[cycle.len() - 1] as usize) {
            cycle.push(next);
        } else if rng.random_bool(0.1) {
            return false;
        }
    }
    movable.len() == costs.nodes() || cycle.iter().all(|n| movable.binary_search(n).is_ok())
}

/// A node at an end of the longest transfer within a stage, or one far from a neighbouring stage of the tour.
fn critical_node(partition: &Partition<'_>, costs: &Costs, rng: &mut Pcg64) -> u32 {
    let (stage, site) = if rng.random_bool(DIAMETER_SHARE) {
        let spread = partition.replica_s();
        let stage = (0..spread.len()).max_by(|a, b| spread[*a].total_cmp(&spread[*b])).unwrap_or(0);
        let sites = partition.sites(stage);
        let reach = |(a, count): &SiteCount| {
            let others = sites.iter().filter(|(b, _)| a != b || *count > 1);
            others.map(|(b, _)| costs.apart_s(*a as usize, *b as usize)).fold(0.0, f64::max)
        };
        (stage, pick_greatest(sites, reach, rng))
    } else {
        let order = partition.order();
        let i = rng.random_range(0..order.len());
        let (a, b) = (order[i], order[(i + 1) % order.len()]);
        let (a, b) = if rng.random_bool(0.5) { (a, b) } else { (b, a) };
        let nearest = |(site, _): &SiteCount| {
            let trips = partition.sites(b).iter().map(|(other, _)| costs.round_trip_s(*site as usize, *other as usize));
            trips.fold(f64::INFINITY, f64::min)
        };
        (a, pick_greatest(partition.sites(a), nearest, rng))
    };
    let nodes = &partition.members()[stage];
    let start = rng.random_range(0..nodes.len());
    let mut turned = nodes[start..].iter().chain(&nodes[..start]).copied();
    turned.find(|node| costs.site(*node as usize) as u32 == site).unwrap_or(nodes[start])
}

/// The site with the greatest value; ties are broken at random.
fn pick_greatest(sites: &[SiteCount], value: impl Fn(&SiteCount) -> f64, rng: &mut Pcg64) -> u32 {
    let mut best = (f64::NEG_INFINITY, 0, 0);
    for alike in sites {
        let here = value(alike);
        if here > best.0 {
            best = (here, alike.0, 1);
        } else if here == best.0 {
            // Reservoir sampling: each tie is kept with equal probability.
            best.2 += 1;
            if rng.random_range(0..best.2) == 0 {
                best.1 = alike.0;
            }
        }
    }
    best.1
}
