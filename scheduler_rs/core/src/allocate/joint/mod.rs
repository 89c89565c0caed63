//! The allocation together with routes and order, by the simulated iteration.

mod bound;
mod seats;

pub use bound::lower_bound;
pub use seats::{AllocationScope, Seats};
