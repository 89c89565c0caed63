//! What tests of several files share.

pub mod clusters;
pub mod job_shop;
