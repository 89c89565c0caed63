//! Local refinement: simulated annealing by exchanges of two nodes.

use rand::RngExt;
use rand_pcg::Pcg64;

use super::costs::Costs;
use super::partition::Partition;
use crate::budget::Budget;

/// Exchanges between two checks of the budget.
const POLL: u64 = 32;
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
    while best.steps < cooling_schedule.steps {
        if best.steps.is_multiple_of(POLL) && budget.is_over() {
            break;
        }
        best.steps += 1;
        let Some(pair) = propose(partition, costs, movable, rng) else { continue };
        let temperature = cooling_schedule.initial_temperature_s * (cooling * best.steps as f64).exp();
        let most = current - temperature * (1.0 - rng.random::<f64>()).ln();
        let cost = partition.exchange(&pair, most);
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

/// Draws two nodes of different stages to be exchanged; none where the draw failed.
fn propose(partition: &Partition<'_>, costs: &Costs, movable: &[u32], rng: &mut Pcg64) -> Option<[u32; 2]> {
    let first = movable[rng.random_range(0..movable.len())];
    loop {
        let second = movable[rng.random_range(0..movable.len())];
        let differs = partition.stage_of(first) != partition.stage_of(second);
        if differs && costs.class(first as usize) != costs.class(second as usize) {
            return Some([first, second]);
        }
        if rng.random_bool(0.1) {
            return None;
        }
    }
}
