//! The methods that make a plan for one allocation, side by side.
//!
//! `prioritised` places routes one after the other; `annealing` changes routes and priorities, `schedule_annealing`
//! complete schedules; [`tabu`] the order for given routes; `proof` runs conflict-based search
//! ([`crate::search::methods::cbs`]) for bounds. `constructed` has the strategies whose plan follows from an allocation. `sampling`
//! and `straight_pipelines` make first routes, `routes` and `assignment` the moves that both annealings share.

pub(super) mod annealing;
mod assignment;
pub mod cbs;
pub(super) mod constructed;
pub(super) mod prioritised;
pub(super) mod proof;
pub(super) mod routes;
pub(super) mod sampling;
pub(super) mod schedule_annealing;
pub(super) mod straight_pipelines;
pub mod tabu;
