//! Errors of the core as the exceptions of `skippipe.errors`.

use pyo3::exceptions::PyKeyboardInterrupt;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyType;
use skippipe_core::Error;

/// A core error as a Python exception.
pub fn raise(error: &Error) -> PyErr {
    let name = match error {
        Error::Invalid { .. } | Error::Format(_) => "InputError",
        Error::Impossible { .. } => "ImpossibleError",
        Error::NotFound(_) => "NoPlanError",
        Error::Lockup(_) => "LockupError",
        Error::Cancelled => return PyKeyboardInterrupt::new_err("cancelled"),
    };
    let message = error.to_string();
    Python::attach(|py| match exception(py, name) {
        Ok(class) => PyErr::from_type(class, message),
        Err(broken) => broken,
    })
}

fn exception<'py>(py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyType>> {
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
