//! `Cluster`, with NumPy arrays in and out.

use pyo3::prelude::*;
use pyo3::types::PyType;
use skippipe_core::cluster::{Cluster as Core, ClusterParts, Links, Node};
use skippipe_core::contention::Contention;
use skippipe_core::error::{Result, invalid};
use skippipe_core::measured::Measured;
use skippipe_core::workload::Workload;

use crate::arrays::{Floats, Integers, Square};
use crate::errors::OrRaise;

/// The machines and the links between them (`skippipe.cluster/1`); always valid.
///
/// Times are seconds for one microbatch and the stage that a node serves, sizes bytes, bandwidths bytes per second. Of N
/// nodes, link matrices have the shape (N, N), row = sender; with `region_of` (R, R) over regions, their diagonal for two
/// nodes of one region. Give either `transfer_s`, or `latency_s` and `bandwidth`: a message of b bytes then takes
/// latency_s + b / bandwidth + overhead_s.
///
/// Args:
///     names: a name for each node.
///     forward_s: seconds of a forward on each node, shape (N,).
///     backward_s: seconds of a backward on each node, shape (N,).
///     loss_s: seconds of head and loss, forward and backward together, on each node, where it is a source, shape (N,).
///     memory: the most microbatches whose activations each node can hold, shape (N,).
///     transfer_s: seconds of a whole message; no `gradient_bytes` then.
///     latency_s: seconds.
///     bandwidth: bytes per second; the diagonal over nodes is ignored.
///     overhead_s: seconds added to every transfer between two different nodes.
///     region_of: region of each node, shape (N,).
///     activation_bytes: bytes of a message, forward or backward.
///     gradient_bytes: bytes that the replicas of each stage all-reduce, one for each stage; empty: not modelled.
///     step_s: seconds of the optimizer step on each node; empty: none.
///     norm_s: seconds of the exchange of the global gradient norm.
///     source: where the figures come from.
///     workload: what the times hold for: a JSON object as text.
///     measured: how the figures were measured: a JSON object as text.
///     processors: a number for what each node computes on, shape (N,): nodes with the same number run one task at a
///         time and exchange messages in no time. None, for one node or for all: on a processor of its own.
///     contention: which messages take turns: "none" of them, those from one processor to another ("link"), or all that a
///         processor sends ("uplink").
///
/// Raises:
///     skippipe.errors.InputError: a value that cannot be used; the message names the key.
///
/// Example:
///     >>> import numpy as np
///     >>> import skippipe
///     >>> cluster = skippipe.Cluster(
///     ...     names=["a", "b"], forward_s=[0.1, 0.2], backward_s=[0.2, 0.4], loss_s=[0.05, 0.1], memory=[4, 4],
///     ...     latency_s=np.full((2, 2), 0.01), bandwidth=np.full((2, 2), 1e8), activation_bytes=1e6,
///     ... )
///     >>> cluster.transfer_matrix()
///     array([[0.  , 0.02],
///            [0.02, 0.  ]])
///     >>> skippipe.Cluster.from_json(cluster.to_json()) == cluster
///     True
#[pyclass(frozen, module = "skippipe", eq)]
#[derive(Clone, PartialEq)]
pub struct Cluster(pub Core);

#[pymethods]
impl Cluster {
    #[new]
    #[pyo3(signature = (names, forward_s, backward_s, loss_s, memory, *,
        transfer_s=None, latency_s=None, bandwidth=None,
        overhead_s=0.0, region_of=None, activation_bytes=0.0, gradient_bytes=Vec::new(), step_s=Vec::new(), norm_s=0.0, source=None, workload=None, measured=None, processors=None, contention="none"),
        text_signature = "(names, forward_s, backward_s, loss_s, memory, *, transfer_s=None, latency_s=None, bandwidth=None, overhead_s=0.0, region_of=None, activation_bytes=0.0, gradient_bytes=(), step_s=(), norm_s=0.0, source=None, workload=None, measured=None, processors=None, contention='none')")]
    #[expect(clippy::too_many_arguments, reason = "the keys of the file format")]
    #[expect(clippy::needless_pass_by_value, reason = "PyO3 converts arguments by value")]
    fn new(
        names: Vec<String>,
        forward_s: Floats,
        backward_s: Floats,
        loss_s: Floats,
        memory: Vec<i64>,
        transfer_s: Option<Square>,
        latency_s: Option<Square>,
        bandwidth: Option<Square>,
        overhead_s: f64,
        region_of: Option<Vec<i64>>,
        activation_bytes: f64,
        gradient_bytes: Vec<f64>,
        step_s: Vec<f64>,
        norm_s: f64,
        source: Option<String>,
        workload: Option<&str>,
        measured: Option<&str>,
        processors: Option<Vec<Option<i64>>>,
        contention: &str,
    ) -> PyResult<Self> {
        let build = || {
            let workload = workload.map(Workload::from_json).transpose()?;
            let measured = measured.map(Measured::from_json).transpose()?;
            let nodes = nodes(names, &forward_s.0, &backward_s.0, &loss_s.0, &memory)?;
            let links = links(transfer_s, latency_s, bandwidth, overhead_s)?;
            let region_of = region_of
                .map(|regions| regions.iter().enumerate().map(|(i, r)| index(&format!("region_of[{i}]"), *r)).collect())
                .transpose()?;
            let cluster = Core::new(
                ClusterParts {
                    nodes,
                    links,
                    region_of,
                    activation_bytes,
                    gradient_bytes,
                    step_s,
                    norm_s,
                    contention: Contention::from_name(contention)?,
                    source,
                    workload,
                    measured,
                },
                "",
            )?;
            match processors {
                Some(numbers) => cluster.with_processors(&processor_numbers(&numbers)?),
                None => Ok(cluster),
            }
        };
        build().or_raise().map(Self)
    }

    /// Reads `skippipe.cluster/1`. Raises InputError naming the key that does not fit.
    #[staticmethod]
    fn from_json(text: &str) -> PyResult<Self> {
        Core::from_json(text).or_raise().map(Self)
    }

    /// Writes `skippipe.cluster/1`.
    fn to_json(&self) -> String {
        self.0.to_json()
    }

    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> PyResult<(Bound<'py, PyAny>, (Bound<'py, PyType>,))> {
        let read = slf.py().import("operator")?.call_method1("methodcaller", ("from_json", slf.get().to_json()))?;
        Ok((read, (slf.get_type(),)))
    }

    fn __len__(&self) -> usize {
        self.0.nodes().len()
    }

    fn __repr__(&self) -> String {
        format!("Cluster({} nodes)", self.0.nodes().len())
    }

    /// Names of the nodes, by number.
    #[getter]
    fn names(&self) -> Vec<String> {
        self.0.nodes().iter().map(|n| n.name.clone()).collect()
    }

    /// Seconds of a forward on each node, shape (N,).
    #[getter]
    fn forward_s(&self) -> Floats {
        self.column(|n| n.forward_s)
    }

    /// Seconds of a backward on each node, shape (N,).
    #[getter]
    fn backward_s(&self) -> Floats {
        self.column(|n| n.backward_s)
    }

    /// Seconds of head and loss on each node, where it is a source, shape (N,).
    #[getter]
    fn loss_s(&self) -> Floats {
        self.column(|n| n.loss_s)
    }

    /// The most microbatches that each node can hold, shape (N,).
    #[getter]
    fn memory(&self) -> Integers {
        Integers(self.0.nodes().iter().map(|n| i64::from(n.memory)).collect())
    }

    /// The processor of each node by the first node on it, shape (N,): equal numbers run one task at a time and exchange
    /// messages in no time.
    #[getter]
    fn processors(&self) -> Integers {
        Integers((0..self.0.nodes().len()).map(|node| self.0.processor_of(node) as i64).collect())
    }

    /// Whether some nodes share a processor.
    #[getter]
    fn shares_processors(&self) -> bool {
        self.0.shares_processors()
    }

    /// Which messages take turns: none of them ("none"), those from one processor to another ("link"), or all that a
    /// processor sends ("uplink").
    #[getter]
    fn contention(&self) -> &'static str {
        self.0.contention().name()
    }

    /// Region of each node, shape (N,); None where links are given over nodes.
    #[getter]
    fn region_of(&self) -> Option<Integers> {
        self.0.region_of().map(|regions| Integers(regions.iter().map(|r| *r as i64).collect()))
    }

    /// Seconds added to every transfer between two different nodes.
    #[getter]
    fn overhead_s(&self) -> f64 {
        match self.0.links() {
            Links::Transfer(_) => 0.0,
            Links::Rated { overhead_s, .. } => *overhead_s,
        }
    }

    /// Bytes of one message, forward or backward.
    #[getter]
    fn activation_bytes(&self) -> f64 {
        self.0.activation_bytes()
    }

    /// Bytes that the replicas of each stage all-reduce; empty: not modelled.
    #[getter]
    fn gradient_bytes(&self) -> Vec<f64> {
        self.0.gradient_bytes().to_vec()
    }

    /// Seconds of the optimizer step on each node; empty: none.
    #[getter]
    fn step_s(&self) -> Vec<f64> {
        self.0.step_s().to_vec()
    }

    /// Seconds of the exchange of the global gradient norm.
    #[getter]
    fn norm_s(&self) -> f64 {
        self.0.norm_s()
    }

    /// Where the figures come from.
    #[getter]
    fn source(&self) -> Option<String> {
        self.0.source().map(str::to_owned)
    }

    /// What the times hold for, a JSON object as text (keys of plans' `model`, `device`, `node_layers`); None: not known.
    #[getter]
    fn workload(&self) -> Option<String> {
        self.0.workload().map(Workload::to_json)
    }

    /// How the figures were measured, a JSON object as text (the part `measured` of the file); None: not known.
    #[getter]
    fn measured(&self) -> Option<String> {
        self.0.measured().map(Measured::to_json)
    }

    /// The same cluster with other seconds of forward, backward, and head and loss on each node, each of shape (N,).
    #[expect(clippy::needless_pass_by_value, reason = "PyO3 converts arguments by value")]
    fn with_times(&self, forward_s: Floats, backward_s: Floats, loss_s: Floats) -> PyResult<Self> {
        let build = || {
            let names = self.names();
            let memory: Vec<i64> = self.0.nodes().iter().map(|node| i64::from(node.memory)).collect();
            let mut nodes = nodes(names, &forward_s.0, &backward_s.0, &loss_s.0, &memory)?;
            for (node, before) in nodes.iter_mut().zip(self.0.nodes()) {
                node.processor = before.processor;
            }
            Core::new(ClusterParts { nodes, ..self.0.clone().into_parts() }, "")
        };
        build().or_raise().map(Self)
    }

    /// The same cluster where nodes with equal numbers share a processor; None: on one of its own.
    #[expect(clippy::needless_pass_by_value, reason = "PyO3 converts arguments by value")]
    fn with_processors(&self, processors: Vec<Option<i64>>) -> PyResult<Self> {
        let build = || self.0.with_processors(&processor_numbers(&processors)?);
        build().or_raise().map(Self)
    }

    /// The same cluster where messages take turns: none of them ("none"), those from one processor to another ("link"), or
    /// all that a processor sends ("uplink").
    fn with_contention(&self, contention: &str) -> PyResult<Self> {
        let build = || Ok(self.0.clone().with_contention(Contention::from_name(contention)?));
        build().or_raise().map(Self)
    }

    /// Seconds that `size_bytes` (default: one message) take from each node to each other, shape (N, N), row = sender.
    #[pyo3(signature = (size_bytes=None))]
    fn transfer_matrix(&self, size_bytes: Option<f64>) -> PyResult<Square> {
        let bytes = size_bytes.unwrap_or(self.0.activation_bytes());
        if !(bytes.is_finite() && bytes >= 0.0) {
            return invalid("size_bytes", bytes, "a finite number of at least 0").or_raise();
        }
        let n = self.0.nodes().len();
        Ok(Square((0..n).map(|i| (0..n).map(|j| self.0.transfer_s(i, j, bytes)).collect()).collect()))
    }

    /// Seconds that a message takes from each of `senders` to each of `receivers`, shape (senders, receivers).
    #[expect(clippy::needless_pass_by_value, reason = "PyO3 converts arguments by value")]
    fn transfer_times(&self, senders: Vec<i64>, receivers: Vec<i64>) -> PyResult<Square> {
        let (senders, receivers) = (self.members("senders", &senders)?, self.members("receivers", &receivers)?);
        let bytes = self.0.activation_bytes();
        Ok(Square(
            senders.iter().map(|i| receivers.iter().map(|j| self.0.transfer_s(*i, *j, bytes)).collect()).collect(),
        ))
    }

    /// Seconds of the slowest message between two different ones of `nodes`; None where there are no two.
    #[expect(clippy::needless_pass_by_value, reason = "PyO3 converts arguments by value")]
    fn slowest_transfer(&self, nodes: Vec<i64>) -> PyResult<Option<f64>> {
        Ok(self.0.slowest_s(&self.members("nodes", &nodes)?))
    }
}

impl Cluster {
    /// Numbers of nodes that there are.
    fn members(&self, key: &str, nodes: &[i64]) -> PyResult<Vec<usize>> {
        let count = self.0.nodes().len();
        let member = |(i, node): (usize, &i64)| match usize::try_from(*node) {
            Ok(number) if number < count => Ok(number),
            _ => invalid(format!("{key}[{i}]"), node, format!("a number in 0..{}", count - 1)),
        };
        nodes.iter().enumerate().map(member).collect::<Result<_>>().or_raise()
    }

    fn column(&self, value: impl Fn(&Node) -> f64) -> Floats {
        Floats(self.0.nodes().iter().map(value).collect())
    }
}

/// A number that has to be an index or a count; Python's integers may be negative.
pub fn index(key: &str, found: i64) -> Result<usize> {
    match usize::try_from(found) {
        Ok(number) => Ok(number),
        Err(_) => invalid(key, found, "an integer of at least 0"),
    }
}

/// Numbers of processors as they were given.
pub fn processor_numbers(found: &[Option<i64>]) -> Result<Vec<Option<u32>>> {
    let number = |(i, number): (usize, &Option<i64>)| match number.map(u32::try_from) {
        None => Ok(None),
        Some(Ok(number)) => Ok(Some(number)),
        Some(Err(_)) => invalid(format!("processors[{i}]"), number.unwrap_or(0), "an integer from 0 to 4294967295"),
    };
    found.iter().enumerate().map(number).collect()
}

fn nodes(names: Vec<String>, forward: &[f64], backward: &[f64], loss: &[f64], memory: &[i64]) -> Result<Vec<Node>> {
    let n = names.len();
    for (key, count) in
        [("forward_s", forward.len()), ("backward_s", backward.len()), ("loss_s", loss.len()), ("memory", memory.len())]
    {
        if count != n {
            return invalid(key, format!("a list of {count}"), format!("one value for each of the {n} names"));
        }
    }
    names
        .into_iter()
        .enumerate()
        .map(|(i, name)| {
            let Ok(room) = u32::try_from(memory[i]) else {
                return invalid(format!("nodes[{i}].memory"), memory[i], "an integer from 1 to 4294967295");
            };
            Ok(Node {
                name,
                forward_s: forward[i],
                backward_s: backward[i],
                loss_s: loss[i],
                memory: room,
                processor: None,
            })
        })
        .collect()
}

fn links(
    transfer_s: Option<Square>,
    latency_s: Option<Square>,
    bandwidth: Option<Square>,
    overhead_s: f64,
) -> Result<Links> {
    match (transfer_s, latency_s, bandwidth) {
        (Some(transfer_s), None, None) => Ok(Links::Transfer(transfer_s.0)),
        (None, Some(latency_s), Some(bandwidth)) => {
            Ok(Links::Rated { latency_s: latency_s.0, bandwidth: bandwidth.0, overhead_s })
        }
        _ => invalid("links", "not given in one of the two ways", "transfer_s alone, or latency_s and bandwidth"),
    }
}
