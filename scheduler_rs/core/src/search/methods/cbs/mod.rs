//! Conflict-based search over enumerated candidate paths, with constraint propagation; complete and exact.
//!
//! An agent is one route with all its waves. The two levels are those of conflict-based search (Sharon, Stern, Felner
//! and Sturtevant 2015), in continuous time (Andreychuk, Yakovlev, Surynek, Atzmon and Stern 2022):
//!
//! * The **low level** plans each agent by itself. It does not search: `path_enumeration` lists every node sequence
//!   that can still matter once, and `propagation` schedules each of them within the agent's time windows. Waiting is
//!   free, so the earliest start of every task is optimal for a given path.
//! * The **high level** (`high_level`, `tree`) is a best-first search, or with a suboptimality factor a focal search,
//!   over a constraint tree. `path_selection` picks one path for each agent, `branching` finds the conflicts between
//!   them and the constraints of the children.
//!
//! What sets it apart from CBS in the literature: the domains of *all* agents (`domains`) are narrowed together at
//! every tree node, as in constraint-based scheduling. `disjunctive` is one-machine reasoning, `cumulative` node
//! memory, `cardinality` stage quotas and stage capacity. The lower bound of a tree node is the limit less the slack
//! that propagation finds. Constraints order two tasks or restrict an agent's paths; there are no time windows of
//! "forbidden" starts and no safe intervals. A* over the time dimension and safe intervals (SIPP) is the router of the
//! heuristic methods, not of this search.
//!
//! `primal_heuristic` turns each selection of paths into an execution, judged by the simulator. References and the
//! argument for soundness are in docs/cbs.md.

mod branching;
mod cardinality;
mod cumulative;
mod disjunctive;
mod domains;
mod high_level;
mod interface;
mod model;
mod path_enumeration;
mod path_selection;
mod primal_heuristic;
mod propagation;
mod tree;

use crate::bound::lookahead::Lookahead;
use crate::budget::Budget;

pub use interface::{Answer, ClassDemand, MOST_CLASSES, Solution, Statistics, Subproblem, Termination, VisitDemand};

/// Searches until the tree is exhausted or a limit is reached. `lookahead` belongs to the subproblem's instance and
/// covers paths of at least `demand.long` visits.
///
/// With CC3 and without CC1, a demand cannot say how many routes visit the inner stages, since that depends on how many
/// visit stage 0. Where `demand.total` is given, the numbers of routes that visit the inner stages then differ by at
/// most one.
#[must_use]
pub fn solve(subproblem: &Subproblem<'_>, lookahead: &Lookahead, budget: &Budget) -> Answer {
    high_level::TreeSearch::run(subproblem, lookahead, budget)
}
