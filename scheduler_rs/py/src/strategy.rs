//! What is known of strategies by their names.

use pyo3::prelude::*;
use skippipe_core::rules::Strategy;

use crate::errors::OrRaise;

/// The names of all strategies, in the order of the documentation.
#[pyfunction]
pub fn strategies() -> Vec<&'static str> {
    Strategy::ALL.map(Strategy::name).to_vec()
}

/// Whether a strategy runs every stage. Raises InputError for an unknown name.
#[pyfunction]
pub fn is_full(strategy: &str) -> PyResult<bool> {
    Ok(Strategy::from_name(strategy).or_raise()?.is_full())
}

/// Whether a strategy draws its routes, so that its result is the median over draws. Raises InputError for an unknown
/// name.
#[pyfunction]
pub fn is_random(strategy: &str) -> PyResult<bool> {
    Ok(Strategy::from_name(strategy).or_raise()?.is_random())
}

/// Whether a strategy searches allocation, routes and order together, so that more time may always help. Raises
/// InputError for an unknown name.
#[pyfunction]
pub fn is_joint(strategy: &str) -> PyResult<bool> {
    Ok(Strategy::from_name(strategy).or_raise()?.is_joint())
}
