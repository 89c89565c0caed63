//! What the times of a cluster hold for: a model, its microbatches, and the layers that each node served.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::error::{Result, invalid};
use crate::format::{part_from_json, part_to_json};

/// The part `workload` of a cluster. What is not known is absent, never 0.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Workload {
    /// Hash of the model's configuration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_sha256: Option<String>,
    /// Hidden size.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hidden: Option<u64>,
    /// Decoder layers of the whole model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layers: Option<u64>,
    /// Sequences of a microbatch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub microbatch_size: Option<u64>,
    /// Tokens of a sequence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sequence: Option<u64>,
    /// Type of the numbers in messages.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wire_dtype: Option<String>,
    /// What the stages were timed on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// Decoder layers that the times of each node hold for; empty: not known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub node_layers: Vec<Option<u64>>,
    /// Nodes whose times are those of stage 0, embedding included; None: not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sources: Option<Vec<usize>>,
}

impl Workload {
    /// Reads a JSON object of this part alone.
    ///
    /// # Errors
    /// [`crate::Error::Format`] naming the key.
    pub fn from_json(text: &str) -> Result<Self> {
        part_from_json("workload", text)
    }

    /// Writes a JSON object of this part alone.
    #[must_use]
    pub fn to_json(&self) -> String {
        part_to_json(self)
    }

    /// Refuses numbers of 0, and layers that are not those of `nodes` nodes; `prefix` stands before the keys.
    ///
    /// # Errors
    /// [`crate::Error::Invalid`] naming the key.
    pub fn check(&self, nodes: usize, prefix: &str) -> Result<()> {
        for (key, value) in [
            ("hidden", self.hidden),
            ("layers", self.layers),
            ("microbatch_size", self.microbatch_size),
            ("sequence", self.sequence),
        ] {
            if value == Some(0) {
                return invalid(format!("{prefix}workload.{key}"), 0, "an integer of at least 1");
            }
        }
        if !self.node_layers.is_empty() && self.node_layers.len() != nodes {
            return invalid(
                format!("{prefix}workload.node_layers"),
                format!("a list of {}", self.node_layers.len()),
                format!("one number for each of the {nodes} nodes, or none"),
            );
        }
        if let Some(source) = self.sources.iter().flatten().find(|source| **source >= nodes) {
            return invalid(format!("{prefix}workload.sources"), source, format!("numbers in 0..{}", nodes - 1));
        }
        match self.node_layers.iter().position(|layers| *layers == Some(0)) {
            Some(i) => invalid(format!("{prefix}workload.node_layers[{i}]"), 0, "an integer of at least 1, or null"),
            None => Ok(()),
        }
    }

    /// The part `model` of a plan for this workload; null where any of it is not known.
    #[must_use]
    pub fn model(&self) -> Value {
        let (Some(config_sha256), Some(hidden), Some(layers)) = (&self.config_sha256, self.hidden, self.layers) else {
            return Value::Null;
        };
        let (Some(microbatch_size), Some(sequence), Some(wire_dtype)) =
            (self.microbatch_size, self.sequence, &self.wire_dtype)
        else {
            return Value::Null;
        };
        json!({
            "config_sha256": config_sha256, "hidden": hidden, "layers": layers,
            "microbatch_size": microbatch_size, "sequence": sequence, "wire_dtype": wire_dtype,
        })
    }
}
