//! NumPy arrays in and out, under types that the stubs can name.

use std::convert::Infallible;

use numpy::{AllowTypeChange, PyArray1, PyArray2, PyArrayLike1, PyArrayLike2};
use pyo3::inspect::PyStaticExpr;
use pyo3::prelude::*;
use pyo3::type_hint_identifier;
use pyo3::type_hint_subscript;

/// In: anything that NumPy makes an array of shape (N,) of. Out: `NDArray[float64]`.
pub struct Floats(pub Vec<f64>);

/// `NDArray[int64]` of shape (N,).
pub struct Integers(pub Vec<i64>);

/// In: anything that NumPy makes a matrix of. Out: `NDArray[float64]` of shape (N, N).
pub struct Square(pub Vec<Vec<f64>>);

const FLOATS: PyStaticExpr =
    type_hint_subscript!(type_hint_identifier!("numpy.typing", "NDArray"), type_hint_identifier!("numpy", "float64"));
const INTEGERS: PyStaticExpr =
    type_hint_subscript!(type_hint_identifier!("numpy.typing", "NDArray"), type_hint_identifier!("numpy", "int64"));

impl<'py> IntoPyObject<'py> for Floats {
    type Target = PyArray1<f64>;
    type Output = Bound<'py, PyArray1<f64>>;
    type Error = Infallible;
    const OUTPUT_TYPE: PyStaticExpr = FLOATS;

    fn into_pyobject(self, py: Python<'py>) -> Result<Self::Output, Infallible> {
        Ok(PyArray1::from_vec(py, self.0))
    }
}

impl<'py> IntoPyObject<'py> for Integers {
    type Target = PyArray1<i64>;
    type Output = Bound<'py, PyArray1<i64>>;
    type Error = Infallible;
    const OUTPUT_TYPE: PyStaticExpr = INTEGERS;

    fn into_pyobject(self, py: Python<'py>) -> Result<Self::Output, Infallible> {
        Ok(PyArray1::from_vec(py, self.0))
    }
}

impl<'py> IntoPyObject<'py> for Square {
    type Target = PyArray2<f64>;
    type Output = Bound<'py, PyArray2<f64>>;
    type Error = PyErr;
    const OUTPUT_TYPE: PyStaticExpr = FLOATS;

    fn into_pyobject(self, py: Python<'py>) -> PyResult<Self::Output> {
        Ok(PyArray2::from_vec2(py, &self.0)?)
    }
}

const ARRAY_LIKE: PyStaticExpr = type_hint_identifier!("numpy.typing", "ArrayLike");

impl<'a, 'py> FromPyObject<'a, 'py> for Floats {
    type Error = PyErr;
    const INPUT_TYPE: PyStaticExpr = ARRAY_LIKE;

    fn extract(object: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        let array: PyArrayLike1<'py, f64, AllowTypeChange> = object.extract()?;
        Ok(Self(array.as_array().to_vec()))
    }
}

impl<'a, 'py> FromPyObject<'a, 'py> for Square {
    type Error = PyErr;
    const INPUT_TYPE: PyStaticExpr = ARRAY_LIKE;

    fn extract(object: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        let matrix: PyArrayLike2<'py, f64, AllowTypeChange> = object.extract()?;
        Ok(Self(matrix.as_array().rows().into_iter().map(|row| row.to_vec()).collect()))
    }
}
