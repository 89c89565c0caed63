//! Cluster files: what is written reads back, and every number that cannot be is refused by its key.
#![allow(clippy::unwrap_used, clippy::panic)]

#[path = "common/clusters.rs"]
mod clusters;
#[path = "common/problems.rs"]
mod problems;

use problems::cluster;
use proptest::prelude::*;
use serde_json::{Value, json};
use skippipe_core::cluster::{Cluster, ClusterParts, Links};
use skippipe_core::measured::{Measured, MeasuredLinks, MeasuredNode};
use skippipe_core::workload::Workload;

fn workload(nodes: usize, count: u64) -> Workload {
    Workload {
        config_sha256: Some("0".repeat(64)),
        hidden: Some(count),
        layers: Some(2 * count),
        node_layers: (0..nodes).map(|i| (i % 2 == 0).then_some(count)).collect(),
        sources: Some(vec![0]),
        ..Workload::default()
    }
}

fn measured(nodes: usize, number: f64) -> Measured {
    let node = MeasuredNode {
        layer_forward_s: number,
        samples: 3,
        timed_layers: vec![1, 2],
        memory_bytes: 1e9 * number,
        ..MeasuredNode::default()
    };
    let links = MeasuredLinks { messages: vec![vec![1; nodes]; nodes], ..MeasuredLinks::default() };
    Measured { nodes: vec![node; nodes], layer_gradient_bytes: 1e6 * number, head_gradient_bytes: 0.0, links }
}

prop_compose! {
    /// Clusters of all kinds: links over regions or whole transfer times, with or without workload and measurements.
    fn clusters_of_all_kinds()(
        n in 3_usize..7,
        numbers in prop::collection::vec(0.0_f64..1.0, 40),
        stages in 0_usize..4,
        is_rated in any::<bool>(),
        is_measured in any::<bool>(),
        count in 1_u64..100,
    ) -> Cluster {
        let mut parts: ClusterParts = cluster(n, stages, &numbers).into_parts();
        if !is_rated {
            parts.region_of = None;
            parts.gradient_bytes = vec![];
            parts.links = Links::Transfer(clusters::matrix(n, |i, j| numbers[(i * n + j) % 40]));
        }
        if is_measured {
            parts.source = Some(format!("measured {count}"));
            parts.workload = Some(workload(n, count));
            parts.measured = Some(measured(n, numbers[0]));
        }
        Cluster::new(parts, "").unwrap()
    }
}

/// Paths of all numbers of a value, as messages write them.
fn numbers_of(value: &Value, path: &str) -> Vec<String> {
    let at = |key: &str| if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") };
    match value {
        Value::Number(_) => vec![path.to_owned()],
        Value::Object(fields) => fields.iter().flat_map(|(key, value)| numbers_of(value, &at(key))).collect(),
        Value::Array(items) => {
            items.iter().enumerate().flat_map(|(i, value)| numbers_of(value, &format!("{path}[{i}]"))).collect()
        }
        _ => vec![],
    }
}

fn pointer(path: &str) -> String {
    format!("/{}", path.replace(['.', '['], "/").replace(']', ""))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn clusters_read_back(cluster in clusters_of_all_kinds()) {
        let text = cluster.to_json();
        prop_assert_eq!(&Cluster::from_json(&text).unwrap(), &cluster);
        prop_assert_eq!(Cluster::from_json(&text).unwrap().to_json(), text);
        prop_assert_eq!(&Cluster::new(cluster.clone().into_parts(), "").unwrap(), &cluster);
        if let Some(workload) = cluster.workload() {
            prop_assert_eq!(&Workload::from_json(&workload.to_json()).unwrap(), workload);
        }
        if let Some(measured) = cluster.measured() {
            prop_assert_eq!(&Measured::from_json(&measured.to_json()).unwrap(), measured);
        }
    }

    /// Nothing here may be negative, text, or absent from a list that has one entry for each node.
    #[test]
    fn numbers_that_cannot_be_are_refused_by_key(cluster in clusters_of_all_kinds(), draw in 0_usize..1000) {
        let value: Value = serde_json::from_str(&cluster.to_json()).unwrap();
        let all = numbers_of(&value, "");
        let path = &all[draw % all.len()];
        for wrong in [json!(-1), json!("1")] {
            let mut other = value.clone();
            *other.pointer_mut(&pointer(path)).unwrap() = wrong.clone();
            match Cluster::from_json(&other.to_string()) {
                Err(error) => {
                    let key = error.key().unwrap_or_default();
                    prop_assert!(path.starts_with(key) && !key.is_empty(), "{path} = {wrong}: {error}");
                }
                // Over nodes, the diagonal is no link.
                Ok(read) => prop_assert!(wrong == json!(-1) && is_of_diagonal(path), "{path} = {wrong}: {read:?}"),
            }
        }
        let mut other = value;
        other["nodes"][0].as_object_mut().unwrap().remove("memory");
        let error = Cluster::from_json(&other.to_string()).unwrap_err();
        prop_assert_eq!(error.key(), Some("nodes[0]"));
    }
}

fn is_of_diagonal(path: &str) -> bool {
    let indices: Vec<&str> = path.split(['[', ']']).filter(|part| part.parse::<usize>().is_ok()).collect();
    indices.len() == 2 && indices[0] == indices[1]
}

#[test]
fn a_model_is_known_only_as_a_whole() {
    let mut all = Workload {
        microbatch_size: Some(1),
        sequence: Some(2),
        wire_dtype: Some("float32".to_owned()),
        ..workload(3, 4)
    };
    let model = all.model();
    assert_eq!((&model["hidden"], &model["layers"], &model["sequence"]), (&json!(4), &json!(8), &json!(2)));
    all.sequence = None;
    assert_eq!(all.model(), Value::Null);
}
