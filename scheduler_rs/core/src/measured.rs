//! How the figures of a measured cluster came about, and what turns them into those of stages with other layers.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::{Result, invalid};
use crate::format::{check_duration, check_number, part_from_json, part_to_json};

/// The part `measured` of a cluster, as `skippipe measure` writes it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Measured {
    /// By node.
    pub nodes: Vec<MeasuredNode>,
    /// Bytes of gradients of one decoder layer.
    pub layer_gradient_bytes: f64,
    /// Bytes of gradients that only stage 0 has: of embedding, final norm and head.
    pub head_gradient_bytes: f64,
    /// Links, by row = sender.
    pub links: MeasuredLinks,
}

/// One node. Times are medians; a spread is the difference of the quartiles.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MeasuredNode {
    /// Seconds that one more decoder layer adds to a forward.
    pub layer_forward_s: f64,
    /// The same for a backward.
    pub layer_backward_s: f64,
    /// The same for an optimizer step.
    pub layer_step_s: f64,
    /// Spread of the forward of the timed stage, in seconds.
    pub forward_spread_s: f64,
    /// Spread of its backward, in seconds.
    pub backward_spread_s: f64,
    /// Spread of head and loss, in seconds.
    pub loss_spread_s: f64,
    /// Forwards that were timed, and as many backwards.
    pub samples: u64,
    /// Decoder layers of the timed stages.
    pub timed_layers: Vec<u64>,
    /// Bytes that a microbatch holds from its forward to its backward, without any layer.
    pub held_bytes: f64,
    /// What each decoder layer adds to them.
    pub layer_held_bytes: f64,
    /// Bytes of weights, gradients and optimizer state of one decoder layer.
    pub layer_state_bytes: f64,
    /// Bytes that are taken whatever the layers: of embedding, head and loss, and of messages.
    pub fixed_bytes: f64,
    /// Bytes of the node's memory.
    pub memory_bytes: f64,
}

/// What is known of the links beside latency and bandwidth; empty matrices: nothing.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MeasuredLinks {
    /// Spread of the latency, in seconds.
    pub latency_spread_s: Vec<Vec<f64>>,
    /// Spread of the time of a message of the real size, in seconds; 0 where fewer than two were timed.
    pub message_spread_s: Vec<Vec<f64>>,
    /// Messages of the real size that were timed; 0: their time is extrapolated from shorter ones.
    pub messages: Vec<Vec<u64>>,
}

impl Measured {
    /// Reads a JSON object of this part alone.
    ///
    /// # Errors
    /// [`crate::Error::Format`] naming the key.
    pub fn from_json(text: &str) -> Result<Self> {
        part_from_json("measured", text)
    }

    /// Writes a JSON object of this part alone.
    #[must_use]
    pub fn to_json(&self) -> String {
        part_to_json(self)
    }

    /// Refuses negative figures, and figures of another number of nodes; `prefix` stands before the keys.
    ///
    /// # Errors
    /// [`crate::Error::Invalid`] naming the key.
    pub fn check(&self, nodes: usize, prefix: &str) -> Result<()> {
        let prefix = format!("{prefix}measured.");
        if self.nodes.len() != nodes {
            let found = format!("a list of {}", self.nodes.len());
            return invalid(format!("{prefix}nodes"), found, format!("one entry for each of the {nodes} nodes"));
        }
        check_number(|| format!("{prefix}layer_gradient_bytes"), self.layer_gradient_bytes, 0.0)?;
        check_number(|| format!("{prefix}head_gradient_bytes"), self.head_gradient_bytes, 0.0)?;
        for (i, node) in self.nodes.iter().enumerate() {
            node.check(&format!("{prefix}nodes[{i}]."))?;
        }
        self.links.check(nodes, &format!("{prefix}links."))
    }
}

impl MeasuredNode {
    fn check(&self, prefix: &str) -> Result<()> {
        let figures = serde_json::to_value(self).unwrap_or_default();
        for (key, value) in figures.as_object().into_iter().flatten() {
            if let Value::Number(number) = value {
                let found = number.as_f64().unwrap_or(f64::NAN);
                let key = || format!("{prefix}{key}");
                if key().ends_with("_s") { check_duration(key, found)? } else { check_number(key, found, 0.0)? }
            }
        }
        Ok(())
    }
}

impl MeasuredLinks {
    fn check(&self, nodes: usize, prefix: &str) -> Result<()> {
        for (key, rows) in [("latency_spread_s", &self.latency_spread_s), ("message_spread_s", &self.message_spread_s)]
        {
            check_square(&format!("{prefix}{key}"), rows, nodes)?;
            for (i, j, x) in
                rows.iter().enumerate().flat_map(|(i, row)| row.iter().enumerate().map(move |(j, x)| (i, j, x)))
            {
                check_duration(|| format!("{prefix}{key}[{i}][{j}]"), *x)?;
            }
        }
        check_square(&format!("{prefix}messages"), &self.messages, nodes)
    }
}

fn check_square<T>(key: &str, rows: &[Vec<T>], nodes: usize) -> Result<()> {
    if rows.is_empty() || (rows.len() == nodes && rows.iter().all(|row| row.len() == nodes)) {
        return Ok(());
    }
    invalid(key, format!("{} rows", rows.len()), format!("{nodes} rows of {nodes} numbers, or none"))
}
