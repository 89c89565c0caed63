//! The methods that make a plan for one allocation, side by side.

pub(super) mod annealing;
mod assignment;
pub(super) mod constructed;
pub(super) mod prioritised;
pub(super) mod proof;
pub(super) mod routes;
pub(super) mod sampling;
pub(super) mod schedule_annealing;
pub(super) mod straight_pipelines;
pub mod tabu;
