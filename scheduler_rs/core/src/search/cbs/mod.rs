//! Continuous-time conflict-based search: complete, with proof.
//!
//! Each agent, a route with all its waves, is planned by itself under the constraints of a node of the tree. Where
//! the agents' ways collide, the node gets children whose constraints break the conflict and together leave nothing
//! out. What each part rests on stands in docs/planner.md.

mod catalogue;
mod choice;
mod conflict;
mod counting;
mod execution;
mod machine;
mod memory;
mod model;
mod propagate;
mod search;
mod state;
mod tree;

use crate::bound::lookahead::Lookahead;
use crate::budget::Budget;
use crate::problem::Instance;
use crate::route::RouteTask;
use crate::time::Time;

pub use execution::Found;
pub use model::Demand;

/// What is asked.
#[derive(Clone, Copy, Debug)]
pub struct Question<'a> {
    /// Durations as they stand: rounded down for bounds, up for plans.
    pub instance: &'a Instance,
    /// The routes to be found.
    pub tasks: &'a [RouteTask],
    /// How many visits they make together.
    pub demand: &'a Demand,
    /// Only iterations below are looked for (norm and optimizer left out).
    pub limit: Time,
    /// At least 1: the best found is at most so many times the bound when the search ends by itself.
    pub suboptimality: f64,
    /// Ways tried and nodes of the tree after which it ends.
    pub work_limit: u64,
}

/// Why a search ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// Nothing is left to look at: proof.
    Exhausted,
    /// Time, work or memory were over.
    Limit,
}

/// What was found.
#[derive(Clone, Debug)]
pub struct Answer {
    /// No execution takes less than the smaller one of this and the question's limit.
    pub bound: Time,
    /// The best execution below the limit.
    pub best: Option<Found>,
    /// Why the search ended.
    pub ended: Ended,
    /// How it went.
    pub statistics: Statistics,
}

/// What a search did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Nodes of the tree.
    pub nodes: u64,
    /// Places looked at while the ways were listed.
    pub listed: u64,
    /// Ways tried by the low level.
    pub labels: u64,
    /// Branchings on stages over or under their quota.
    pub quota_conflicts: u64,
    /// Branchings on lengths.
    pub length_conflicts: u64,
    /// Branchings on memory.
    pub memory_conflicts: u64,
    /// Branchings on two tasks at a time.
    pub overlap_conflicts: u64,
    /// Branchings on ways that are later together than each by itself.
    pub detours: u64,
    /// Branchings all of whose children cost more.
    pub cardinal: u64,
    /// Constraints that followed without branching, since all others lead nowhere.
    pub implied: u64,
    /// Agents whose way is not their own best, at no cost and with fewer conflicts.
    pub bypasses: u64,
    /// Children with constraints that stand elsewhere in the tree.
    pub duplicates: u64,
    /// Work, best value ([`crate::time::NEVER`]: none yet) and bound whenever one of them changed.
    pub events: Vec<(u64, Time, Time)>,
}

/// Searches until the proof or the first limit. `lookahead` is that of the question's instance, for ways of at least
/// `demand.long` visits.
///
/// With CC3 and without CC1 a demand cannot say how many routes visit the inner stages, since that depends on how many
/// visit stage 0: where `demand.total` is given, the inner stages then lie on numbers of routes that differ by at most
/// one.
#[must_use]
pub fn solve(question: &Question<'_>, lookahead: &Lookahead, budget: &Budget) -> Answer {
    search::Search::run(question, lookahead, budget)
}
