//! Which node or link to make faster first.

use crate::cluster::Cluster;
use crate::error::Result;
use crate::explain::{Explanation, Part};
use crate::problem::Instance;
use crate::simulate::{Dispatch, Replay, Simulator};
use crate::time::{Rounding, seconds};

/// A machine or a link that could be made twice as fast.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Upgrade {
    /// A node: forward, loss and backward take half as long.
    Node(usize),
    /// One direction of a link, sender and receiver by their index in the link matrices (nodes, or regions where the
    /// cluster has those): half the latency, twice the bandwidth.
    Link(usize, usize),
    /// Both directions, the lower index first.
    Both(usize, usize),
}

impl Upgrade {
    /// The cluster with this upgrade.
    #[must_use]
    pub fn of(self, cluster: &Cluster) -> Cluster {
        match self {
            Self::Node(node) => cluster.with_faster_node(node),
            Self::Link(from, to) => cluster.with_faster_link(from, to),
            Self::Both(one, other) => cluster.with_faster_link(one, other).with_faster_link(other, one),
        }
    }
}

/// What an upgrade makes of a plan with its routes unchanged.
#[derive(Clone, Debug, PartialEq)]
pub struct Gain {
    /// What is upgraded.
    pub upgrade: Upgrade,
    /// Seconds of the iteration, the order of every node kept.
    pub iteration_s: f64,
    /// Seconds of the iteration in the order of the dispatch rule, where that is shorter.
    pub dispatched_s: Option<f64>,
}

/// The upgrades that can shorten the iteration of an explained plan with its order kept, best first. Those are on
/// its critical path: all else leaves that path as long as it is.
///
/// # Errors
/// As [`crate::simulate::resimulate`].
pub fn gains(explanation: &Explanation) -> Result<Vec<Gain>> {
    let plan = &explanation.plan;
    let problem = plan.problem()?;
    let replay = Replay::new(plan, &plan.instance()?)?;
    let mut gains = Vec::new();
    for upgrade in candidates(explanation) {
        let faster = problem.on_faster(upgrade.of(&plan.cluster));
        let instance = Instance::new(&faster, Rounding::Up);
        let mut simulator = Simulator::new(&instance);
        let kept = replay.run(&mut simulator, Dispatch::Planned).map_err(|deadlock| simulator.error_of(&deadlock))?;
        // Where the dispatch rule deadlocks, it has no iteration.
        let ruled = replay.run(&mut simulator, Dispatch::Rule).ok().filter(|ruled| ruled.iteration < kept.iteration);
        let iteration_s = seconds(kept.iteration);
        if iteration_s < plan.predicted.iteration_s {
            gains.push(Gain { upgrade, iteration_s, dispatched_s: ruled.map(|ruled| seconds(ruled.iteration)) });
        }
    }
    gains.sort_by(|a, b| a.iteration_s.total_cmp(&b.iteration_s).then(a.upgrade.cmp(&b.upgrade)));
    Ok(gains)
}

/// Nodes and links on the critical path.
fn candidates(explanation: &Explanation) -> Vec<Upgrade> {
    let plan = &explanation.plan;
    let mut found = Vec::new();
    let mut link = |from: usize, to: usize| {
        let (from, to) = (plan.cluster.link_index(from), plan.cluster.link_index(to));
        found.push(Upgrade::Link(from, to));
        if from != to {
            found.push(Upgrade::Both(from.min(to), from.max(to)));
        }
    };
    for segment in &explanation.critical {
        match segment.part {
            Part::Transfer(from, to) => link(from, to),
            Part::AllReduce(stage) => {
                let ring = plan.cluster.ring(&plan.stages[stage]);
                for (i, from) in ring.iter().enumerate() {
                    link(*from, ring[(i + 1) % ring.len()]);
                }
            }
            _ => {}
        }
    }
    found.extend(explanation.critical.iter().filter_map(|segment| match segment.part {
        Part::Task(task) => Some(Upgrade::Node(plan.tasks[task].node)),
        _ => None,
    }));
    found.sort_unstable();
    found.dedup();
    found
}
