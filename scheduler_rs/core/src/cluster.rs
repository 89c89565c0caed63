//! The machines and the links between them: `skippipe.cluster/1`.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::contention::Contention;
use crate::error::{Error, Result, breaks_lines, invalid};
use crate::format::{check_duration, check_format, check_number, objects, optional_object, parse, pretty};
use crate::measured::Measured;
use crate::workload::Workload;

/// Version that this module reads and writes.
pub const FORMAT: &str = "skippipe.cluster/1";

/// One worker. Times are seconds for one microbatch and the stage that the node serves.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Node {
    /// Unique name.
    pub name: String,
    /// Forward through its stage.
    pub forward_s: f64,
    /// Backward through its stage.
    pub backward_s: f64,
    /// Head and loss, forward and backward together, where it is a source.
    pub loss_s: f64,
    /// The most microbatches whose activations it can hold.
    pub memory: u32,
    /// What it computes on: nodes with the same number run one task at a time and exchange messages in no time. None: on
    /// a processor of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub processor: Option<u32>,
}

/// How long a message takes. Matrices are row = sender, over nodes or, with `region_of`, over regions.
#[derive(Clone, Debug, PartialEq)]
pub enum Links {
    /// Only whole transfer times are known, in seconds.
    Transfer(Vec<Vec<f64>>),
    /// `latency_s + bytes / bandwidth + overhead_s`.
    Rated {
        /// Seconds, one way.
        latency_s: Vec<Vec<f64>>,
        /// Bytes per second.
        bandwidth: Vec<Vec<f64>>,
        /// Seconds added to every transfer between two different nodes.
        overhead_s: f64,
    },
}

impl Links {
    /// Seconds for `bytes` from index `i` to index `j` of the matrices.
    fn seconds(&self, i: usize, j: usize, bytes: f64) -> f64 {
        match self {
            Self::Transfer(transfer_s) => transfer_s[i][j],
            Self::Rated { latency_s, bandwidth, overhead_s } => latency_s[i][j] + bytes / bandwidth[i][j] + overhead_s,
        }
    }

    /// Over nodes, the diagonal is ignored; what JSON cannot write must not stand there all the same.
    fn write_diagonal(&mut self) {
        let matrices = match self {
            Self::Transfer(rows) => vec![rows],
            Self::Rated { latency_s, bandwidth, .. } => vec![latency_s, bandwidth],
        };
        for rows in matrices {
            for (i, row) in rows.iter_mut().enumerate() {
                if !row[i].is_finite() {
                    row[i] = 0.0;
                }
            }
        }
    }

    /// Number of rows of the matrices.
    #[must_use]
    pub fn side(&self) -> usize {
        match self {
            Self::Transfer(rows) => rows.len(),
            Self::Rated { latency_s, .. } => latency_s.len(),
        }
    }
}

/// Nodes, links and message sizes; always valid.
#[derive(Clone, Debug, PartialEq)]
pub struct Cluster {
    parts: ClusterParts,
    /// First node on each node's processor.
    processor_of: Vec<usize>,
}

/// The parts of a [`Cluster`].
#[derive(Clone, Debug, PartialEq)]
pub struct ClusterParts {
    /// At least one.
    pub nodes: Vec<Node>,
    /// Over nodes, or over regions where `region_of` is given.
    pub links: Links,
    /// Region of each node.
    pub region_of: Option<Vec<usize>>,
    /// Size of one message, forward or backward.
    pub activation_bytes: f64,
    /// What the replicas of each stage all-reduce; empty: not modelled.
    pub gradient_bytes: Vec<f64>,
    /// Optimizer step of each node in seconds; empty: none.
    pub step_s: Vec<f64>,
    /// Exchange of the global gradient norm, in seconds.
    pub norm_s: f64,
    /// Which messages take turns.
    pub contention: Contention,
    /// Where the figures come from.
    pub source: Option<String>,
    /// What the times hold for; None: not known.
    pub workload: Option<Workload>,
    /// How the figures were measured; None: they were not, or it is not known.
    pub measured: Option<Measured>,
}

impl ClusterParts {
    /// Nodes and links alone: messages of no size, and nothing else modelled.
    #[must_use]
    pub fn new(nodes: Vec<Node>, links: Links) -> Self {
        Self {
            nodes,
            links,
            region_of: None,
            activation_bytes: 0.0,
            gradient_bytes: Vec::new(),
            step_s: Vec::new(),
            norm_s: 0.0,
            contention: Contention::None,
            source: None,
            workload: None,
            measured: None,
        }
    }
}

impl Cluster {
    /// Checks the parts.
    ///
    /// # Errors
    /// [`Error::Invalid`] naming the first key that is wrong; `prefix` (such as `cluster.`) stands before it.
    pub fn new(mut parts: ClusterParts, prefix: &str) -> Result<Self> {
        check_nodes(&parts.nodes, prefix)?;
        let n = parts.nodes.len();
        if let Some(regions) = &parts.region_of {
            if regions.len() != n {
                return invalid(
                    format!("{prefix}region_of"),
                    format!("a list of {}", regions.len()),
                    format!("one region for each of the {n} nodes"),
                );
            }
            let side = parts.links.side();
            if let Some((i, r)) = regions.iter().enumerate().find(|(_, r)| **r >= side) {
                return invalid(
                    format!("{prefix}region_of[{i}]"),
                    r,
                    format!("a region in 0..{} (the matrices have {side} rows)", side.saturating_sub(1)),
                );
            }
        }
        check_links(&parts, prefix)?;
        check_number(|| format!("{prefix}activation_bytes"), parts.activation_bytes, 0.0)?;
        if !parts.gradient_bytes.is_empty() && matches!(parts.links, Links::Transfer(_)) {
            return invalid(
                format!("{prefix}gradient_bytes"),
                format!("a list of {}", parts.gradient_bytes.len()),
                "an empty list beside transfer_s (all-reduce needs latency_s and bandwidth)",
            );
        }
        for (s, bytes) in parts.gradient_bytes.iter().enumerate() {
            check_number(|| format!("{prefix}gradient_bytes[{s}]"), *bytes, 0.0)?;
        }
        if !parts.step_s.is_empty() && parts.step_s.len() != n {
            return invalid(
                format!("{prefix}step_s"),
                format!("a list of {}", parts.step_s.len()),
                format!("one time for each of the {n} nodes, or none"),
            );
        }
        for (i, s) in parts.step_s.iter().enumerate() {
            check_duration(|| format!("{prefix}step_s[{i}]"), *s)?;
        }
        check_duration(|| format!("{prefix}norm_s"), parts.norm_s)?;
        if let Some(workload) = &parts.workload {
            workload.check(n, prefix)?;
        }
        if let Some(measured) = &parts.measured {
            measured.check(n, prefix)?;
        }
        if parts.region_of.is_none() {
            parts.links.write_diagonal();
        }
        let stated: Vec<Option<u32>> = parts.nodes.iter().map(|node| node.processor).collect();
        Ok(Self::on_processors_of(parts, &stated))
    }

    /// Nodes with the same number share a processor. What is kept of the numbers is which nodes share: they become the
    /// first node's, and a node that shares with none has none.
    fn on_processors_of(mut parts: ClusterParts, stated: &[Option<u32>]) -> Self {
        let mut first_of: BTreeMap<u32, usize> = BTreeMap::new();
        let first = |(i, number): (usize, &Option<u32>)| number.map_or(i, |n| *first_of.entry(n).or_insert(i));
        let processor_of: Vec<usize> = stated.iter().enumerate().map(first).collect();
        let mut sharing = vec![0; processor_of.len()];
        processor_of.iter().for_each(|first| sharing[*first] += 1);
        for (node, first) in parts.nodes.iter_mut().zip(&processor_of) {
            node.processor = (sharing[*first] > 1).then_some(*first as u32);
        }
        Self { parts, processor_of }
    }

    /// The same machines where nodes with equal numbers share a processor; a node with none has one of its own.
    ///
    /// # Errors
    /// Where there is not one entry for each node.
    pub fn with_processors(&self, processors: &[Option<u32>]) -> Result<Self> {
        let (found, nodes) = (processors.len(), self.parts.nodes.len());
        if found != nodes {
            return invalid("processors", found, format!("an entry for each of the {nodes} nodes"));
        }
        Ok(Self::on_processors_of(self.parts.clone(), processors))
    }

    /// The same machines where messages take turns like this.
    #[must_use]
    pub fn with_contention(mut self, contention: Contention) -> Self {
        self.parts.contention = contention;
        self
    }

    /// What it is made of.
    #[must_use]
    pub fn into_parts(self) -> ClusterParts {
        self.parts
    }

    /// Reads `skippipe.cluster/1`.
    ///
    /// # Errors
    /// [`Error::Format`] or [`Error::Invalid`], naming the key.
    pub fn from_json(text: &str) -> Result<Self> {
        parse::<ClusterFile>(text, FORMAT)?.check("")
    }

    /// Writes `skippipe.cluster/1`.
    #[must_use]
    pub fn to_json(&self) -> String {
        pretty(&serde_json::to_value(self).unwrap_or_default())
    }

    /// All nodes, by number.
    #[must_use]
    pub fn nodes(&self) -> &[Node] {
        &self.parts.nodes
    }

    /// The processor of a node, by the first node on it.
    #[must_use]
    pub fn processor_of(&self, node: usize) -> usize {
        self.processor_of[node]
    }

    /// Whether some nodes share a processor.
    #[must_use]
    pub fn shares_processors(&self) -> bool {
        self.processor_of.iter().enumerate().any(|(node, first)| node != *first)
    }

    /// The links as they were given.
    #[must_use]
    pub fn links(&self) -> &Links {
        &self.parts.links
    }

    /// Region of each node, where the links are given over regions.
    #[must_use]
    pub fn region_of(&self) -> Option<&[usize]> {
        self.parts.region_of.as_deref()
    }

    /// Index into the link matrices for node `i`.
    #[must_use]
    pub fn link_index(&self, i: usize) -> usize {
        self.parts.region_of.as_ref().map_or(i, |regions| regions[i])
    }

    /// Bytes of one message, forward or backward.
    #[must_use]
    pub fn activation_bytes(&self) -> f64 {
        self.parts.activation_bytes
    }

    /// Bytes that the replicas of each stage all-reduce; empty: not modelled.
    #[must_use]
    pub fn gradient_bytes(&self) -> &[f64] {
        &self.parts.gradient_bytes
    }

    /// Optimizer step of each node in seconds; empty: none.
    #[must_use]
    pub fn step_s(&self) -> &[f64] {
        &self.parts.step_s
    }

    /// Exchange of the global gradient norm in seconds.
    #[must_use]
    pub fn norm_s(&self) -> f64 {
        self.parts.norm_s
    }

    /// Which messages take turns.
    #[must_use]
    pub fn contention(&self) -> Contention {
        self.parts.contention
    }

    /// Where the figures come from.
    #[must_use]
    pub fn source(&self) -> Option<&str> {
        self.parts.source.as_deref()
    }

    /// What the times hold for, where that is known.
    #[must_use]
    pub fn workload(&self) -> Option<&Workload> {
        self.parts.workload.as_ref()
    }

    /// How the figures were measured, where that is known.
    #[must_use]
    pub fn measured(&self) -> Option<&Measured> {
        self.parts.measured.as_ref()
    }

    /// The same machines with one node twice as fast: forward, loss and backward take half as long.
    #[must_use]
    pub fn with_faster_node(&self, node: usize) -> Self {
        let mut faster = self.clone();
        let Node { forward_s, backward_s, loss_s, .. } = &mut faster.parts.nodes[node];
        for time in [forward_s, backward_s, loss_s] {
            *time /= 2.0;
        }
        faster
    }

    /// The same machines with the link from one index of the matrices to another twice as fast: half the latency and
    /// twice the bandwidth, or half the transfer time. `overhead_s` is no matter of the link.
    #[must_use]
    pub fn with_faster_link(&self, from: usize, to: usize) -> Self {
        let mut faster = self.clone();
        match &mut faster.parts.links {
            Links::Transfer(rows) => rows[from][to] /= 2.0,
            Links::Rated { latency_s, bandwidth, .. } => {
                latency_s[from][to] /= 2.0;
                bandwidth[from][to] = (2.0 * bandwidth[from][to]).min(f64::MAX);
            }
        }
        faster
    }

    /// Seconds that `bytes` take from node `i` to node `j`; 0 within a processor.
    #[must_use]
    pub fn transfer_s(&self, i: usize, j: usize, bytes: f64) -> f64 {
        if self.processor_of[i] == self.processor_of[j] { 0.0 } else { self.link_s(i, j, bytes) }
    }

    /// The same over the link, whether or not the two share a processor; 0 for `i == j`.
    #[must_use]
    pub fn link_s(&self, i: usize, j: usize, bytes: f64) -> f64 {
        if i == j { 0.0 } else { self.parts.links.seconds(self.link_index(i), self.link_index(j), bytes) }
    }

    /// Seconds of the slowest message between two different nodes of `members`, `None` where there are no two. Without
    /// the matrix over nodes: where links are given over regions, their pairs are few.
    #[must_use]
    pub fn slowest_s(&self, members: &[usize]) -> Option<f64> {
        let mut sharing: BTreeMap<usize, usize> = BTreeMap::new();
        for node in members {
            *sharing.entry(self.link_index(*node)).or_default() += 1;
        }
        let pairs = sharing
            .iter()
            .flat_map(|(i, count)| sharing.keys().filter(move |j| i != *j || *count > 1).map(move |j| (*i, *j)));
        pairs.map(|(i, j)| self.parts.links.seconds(i, j, self.parts.activation_bytes)).reduce(f64::max)
    }

    /// Seconds of the ring all-reduce of `stage` over `members` in that order: `2 (r - 1)` steps, each as
    /// long as its slowest edge with `gradient_bytes / r`.
    #[must_use]
    pub fn allreduce_s(&self, stage: usize, members: &[usize]) -> f64 {
        self.parts.gradient_bytes.get(stage).map_or(0.0, |bytes| self.ring_s(*bytes, members))
    }

    /// The ring of an all-reduce over `members` in that order: those of one processor sum what they have among themselves,
    /// and are one in the ring, in place of the first.
    #[must_use]
    pub fn ring(&self, members: &[usize]) -> Vec<usize> {
        let mut seen = rustc_hash::FxHashSet::default();
        members.iter().copied().filter(|node| seen.insert(self.processor_of[*node])).collect()
    }

    /// Seconds of a ring all-reduce of `bytes` over `members` in that order, by [`Cluster::ring`].
    #[must_use]
    pub fn ring_s(&self, bytes: f64, members: &[usize]) -> f64 {
        let members = self.ring(members);
        let r = members.len();
        if r < 2 {
            return 0.0;
        }
        let slowest =
            (0..r).map(|i| self.transfer_s(members[i], members[(i + 1) % r], bytes / r as f64)).fold(0.0, f64::max);
        2.0 * (r - 1) as f64 * slowest
    }
}

fn check_nodes(nodes: &[Node], prefix: &str) -> Result<()> {
    if nodes.is_empty() {
        return invalid(format!("{prefix}nodes"), "an empty list", "at least one node");
    }
    let mut seen = rustc_hash::FxHashMap::default();
    for (i, node) in nodes.iter().enumerate() {
        if node.name.is_empty() {
            return invalid(format!("{prefix}nodes[{i}].name"), "empty", "a name");
        }
        if node.name.contains(breaks_lines) {
            return invalid(
                format!("{prefix}nodes[{i}].name"),
                format!("{:?}", node.name),
                "a name without control characters",
            );
        }
        if let Some(other) = seen.insert(node.name.as_str(), i) {
            return invalid(
                format!("{prefix}nodes[{i}].name"),
                format!("{:?}", node.name),
                format!("a name of its own (nodes[{other}] has it already)"),
            );
        }
        check_duration(|| format!("{prefix}nodes[{i}].forward_s"), node.forward_s)?;
        check_duration(|| format!("{prefix}nodes[{i}].backward_s"), node.backward_s)?;
        check_duration(|| format!("{prefix}nodes[{i}].loss_s"), node.loss_s)?;
        if node.memory == 0 {
            return invalid(format!("{prefix}nodes[{i}].memory"), 0, "an integer of at least 1");
        }
    }
    Ok(())
}

fn check_links(parts: &ClusterParts, prefix: &str) -> Result<()> {
    let side = if parts.region_of.is_some() { parts.links.side() } else { parts.nodes.len() };
    let of_what = if parts.region_of.is_some() { "regions" } else { "nodes" };
    let shape = |key: &str, rows: &[Vec<f64>]| {
        if rows.len() != side {
            return invalid(
                format!("{prefix}{key}"),
                format!("a matrix of {} rows", rows.len()),
                format!("{side} x {side} over the {of_what}"),
            );
        }
        match rows.iter().enumerate().find(|(_, row)| row.len() != side) {
            Some((i, row)) => invalid(
                format!("{prefix}{key}[{i}]"),
                format!("a row of {}", row.len()),
                format!("{side} entries, one for each of the {of_what}"),
            ),
            None => Ok(()),
        }
    };
    // Without regions the diagonal is a node's link to itself, which nothing uses.
    let off_diagonal = || {
        let all = parts.region_of.is_some();
        (0..side).flat_map(move |i| (0..side).filter(move |j| all || i != *j).map(move |j| (i, j)))
    };
    match &parts.links {
        Links::Transfer(rows) => {
            shape("transfer_s", rows)?;
            for (i, j) in off_diagonal() {
                check_duration(|| format!("{prefix}transfer_s[{i}][{j}]"), rows[i][j])?;
            }
        }
        Links::Rated { latency_s, bandwidth, overhead_s } => {
            shape("latency_s", latency_s)?;
            shape("bandwidth", bandwidth)?;
            check_duration(|| format!("{prefix}overhead_s"), *overhead_s)?;
            let largest = parts.gradient_bytes.iter().copied().fold(parts.activation_bytes, f64::max);
            for (i, j) in off_diagonal() {
                check_duration(|| format!("{prefix}latency_s[{i}][{j}]"), latency_s[i][j])?;
                check_number(|| format!("{prefix}bandwidth[{i}][{j}]"), bandwidth[i][j], f64::MIN_POSITIVE)?;
                if largest.is_finite() && largest >= 0.0 {
                    check_duration(
                        || {
                            format!(
                                "{prefix}bandwidth[{i}][{j}] = {:e}: the time for {largest:e} bytes",
                                bandwidth[i][j]
                            )
                        },
                        parts.links.seconds(i, j, largest),
                    )?;
                }
            }
        }
    }
    Ok(())
}

/// `skippipe.cluster/1` as it stands in a file.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ClusterFile {
    format: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    source: Option<String>,
    #[serde(deserialize_with = "objects")]
    nodes: Vec<Node>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    region_of: Option<Vec<usize>>,
    #[serde(default, deserialize_with = "not_null", skip_serializing_if = "Option::is_none")]
    transfer_s: Option<Vec<Vec<f64>>>,
    #[serde(default, deserialize_with = "not_null", skip_serializing_if = "Option::is_none")]
    latency_s: Option<Vec<Vec<f64>>>,
    #[serde(default, deserialize_with = "not_null", skip_serializing_if = "Option::is_none")]
    bandwidth: Option<Vec<Vec<f64>>>,
    #[serde(default, deserialize_with = "not_null", skip_serializing_if = "Option::is_none")]
    overhead_s: Option<f64>,
    #[serde(default, deserialize_with = "not_null", skip_serializing_if = "Option::is_none")]
    activation_bytes: Option<f64>,
    #[serde(default)]
    gradient_bytes: Vec<f64>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    step_s: Vec<f64>,
    #[serde(default)]
    norm_s: f64,
    #[serde(default, skip_serializing_if = "Contention::is_none")]
    contention: Contention,
    #[serde(default, deserialize_with = "optional_object", skip_serializing_if = "Option::is_none")]
    workload: Option<Workload>,
    #[serde(default, deserialize_with = "optional_object", skip_serializing_if = "Option::is_none")]
    measured: Option<Measured>,
}

/// A key may be absent, but not null.
fn not_null<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
) -> std::result::Result<Option<T>, D::Error> {
    T::deserialize(deserializer).map(Some)
}

impl ClusterFile {
    pub(crate) fn check(self, prefix: &str) -> Result<Cluster> {
        check_format(&self.format, FORMAT, prefix)?;
        let missing = |key: &str| {
            let reason = "missing: a cluster needs transfer_s, or latency_s, bandwidth and activation_bytes".to_owned();
            Error::Format { key: format!("{prefix}{key}"), reason, position: None, hint: None }
        };
        let links = match (self.transfer_s, self.latency_s, self.bandwidth) {
            (Some(_), Some(_), _) | (Some(_), _, Some(_)) => {
                return invalid(
                    format!("{prefix}transfer_s"),
                    "given beside latency_s or bandwidth",
                    "one way or the other to give the links",
                );
            }
            (Some(transfer_s), None, None) => Links::Transfer(transfer_s),
            (None, latency_s, bandwidth) => Links::Rated {
                latency_s: latency_s.ok_or_else(|| missing("latency_s"))?,
                bandwidth: bandwidth.ok_or_else(|| missing("bandwidth"))?,
                overhead_s: self.overhead_s.unwrap_or(0.0),
            },
        };
        let activation_bytes = match (self.activation_bytes, &links) {
            (Some(bytes), _) => bytes,
            (None, Links::Transfer(_)) => 0.0,
            (None, Links::Rated { .. }) => return Err(missing("activation_bytes")),
        };
        let parts = ClusterParts {
            nodes: self.nodes,
            links,
            region_of: self.region_of,
            activation_bytes,
            gradient_bytes: self.gradient_bytes,
            step_s: self.step_s,
            norm_s: self.norm_s,
            contention: self.contention,
            source: self.source,
            workload: self.workload,
            measured: self.measured,
        };
        Cluster::new(parts, prefix)
    }
}

impl Serialize for Cluster {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        ClusterFile::from(self).serialize(serializer)
    }
}

impl From<&Cluster> for ClusterFile {
    fn from(Cluster { parts, .. }: &Cluster) -> Self {
        let mut file = Self {
            format: FORMAT.to_owned(),
            source: parts.source.clone(),
            nodes: parts.nodes.clone(),
            region_of: parts.region_of.clone(),
            transfer_s: None,
            latency_s: None,
            bandwidth: None,
            overhead_s: None,
            activation_bytes: Some(parts.activation_bytes),
            gradient_bytes: parts.gradient_bytes.clone(),
            step_s: parts.step_s.clone(),
            norm_s: parts.norm_s,
            contention: parts.contention,
            workload: parts.workload.clone(),
            measured: parts.measured.clone(),
        };
        match &parts.links {
            Links::Transfer(rows) => file.transfer_s = Some(rows.clone()),
            Links::Rated { latency_s, bandwidth, overhead_s } => {
                file.latency_s = Some(latency_s.clone());
                file.bandwidth = Some(bandwidth.clone());
                file.overhead_s = Some(*overhead_s);
            }
        }
        file
    }
}
