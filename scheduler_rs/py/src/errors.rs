//! Errors of the core as the exceptions of `skippipe.errors`, with their fields.

use pyo3::exceptions::PyKeyboardInterrupt;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyType};
use skippipe_core::Error;

/// A core error as a Python exception.
pub fn raise(error: &Error) -> PyErr {
    Python::attach(|py| exception(py, error).unwrap_or_else(|broken| broken))
}

fn exception(py: Python<'_>, error: &Error) -> PyResult<PyErr> {
    let fields = PyDict::new(py);
    let (name, reason) = match error {
        Error::Invalid { found, expected, .. } => {
            fields.set_item("key", error.key())?;
            fields.set_item("found", found)?;
            fields.set_item("expected", expected)?;
            ("InputError", String::new())
        }
        Error::Format { reason, position, hint, .. } => {
            fields.set_item("key", error.key())?;
            fields.set_item("position", position)?;
            fields.set_item("hint", hint)?;
            ("InputError", reason.clone())
        }
        Error::Impossible { rule, .. } => {
            fields.set_item("rule", rule)?;
            ("ImpossibleError", error.reason())
        }
        Error::NotFound(_) => ("NoPlanError", error.reason()),
        Error::Deadlock(cycle) => {
            fields.set_item("cycle", cycle.iter().map(ToString::to_string).collect::<Vec<_>>())?;
            ("DeadlockError", error.reason())
        }
        Error::Cancelled => return Ok(PyKeyboardInterrupt::new_err("cancelled")),
    };
    Ok(PyErr::from_value(class(py, name)?.call((reason,), Some(&fields))?))
}

fn class<'py>(py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyType>> {
    static MODULE: PyOnceLock<Py<PyModule>> = PyOnceLock::new();
    let module = MODULE.get_or_try_init(py, || py.import("skippipe.errors").map(Bound::unbind))?;
    Ok(module.bind(py).getattr(name)?.cast_into::<PyType>()?)
}

/// For `?` on results of the core.
pub trait OrRaise<T> {
    /// The value, or the error as a Python exception.
    fn or_raise(self) -> PyResult<T>;
}

impl<T> OrRaise<T> for skippipe_core::Result<T> {
    fn or_raise(self) -> PyResult<T> {
        self.map_err(|error| raise(&error))
    }
}
