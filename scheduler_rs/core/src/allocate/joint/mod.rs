//! The allocation together with routes and order, by the simulated iteration.

mod seats;

pub use seats::{Freedom, Seats};
