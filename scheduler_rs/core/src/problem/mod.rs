//! The question that a plan answers ([`Problem`]), and the same in whole nanoseconds ([`Instance`]).

mod instance;
mod statement;

pub(crate) use instance::Machine;
pub use instance::{Instance, MicrobatchClass, NO_STAGE, Source};
pub use statement::{MOST_MICROBATCHES, MOST_STAGES, Problem, check_absent_nodes};
pub(crate) use statement::{check_index, check_skip_ratio, check_stages, impossible};
