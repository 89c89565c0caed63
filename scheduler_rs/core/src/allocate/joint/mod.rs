//! The allocation together with routes and order, by the simulated iteration.

mod bound;
mod placement;

pub use bound::lower_bound;
pub use placement::{AllocationScope, Placement};
