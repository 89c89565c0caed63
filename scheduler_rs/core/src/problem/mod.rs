//! The question that a plan answers ([`Problem`]), and the same in whole nanoseconds ([`Instance`]).

mod instance;
mod statement;

pub(crate) use instance::Machine;
pub use instance::{Instance, MicrobatchClass, NO_STAGE, Source};
pub(crate) use statement::impossible;
pub use statement::{MOST_MICROBATCHES, Problem, check_absent_nodes};
