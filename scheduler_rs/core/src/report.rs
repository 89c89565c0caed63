//! What a search reports of itself: the part `solver` of a plan.

use serde::de::{DeserializeOwned, Deserializer, Error};
use serde::ser::{SerializeMap, Serializer};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Number, Value};

use crate::allocate::Allocated;
use crate::format::entries;

/// Reads the report in a plan of any origin, in bounded memory.
pub(crate) fn report<'de, D: Deserializer<'de>>(reader: D) -> Result<SearchReport, D::Error> {
    let entries = entries(reader)?;
    if let Some(optimal) = entries.get("optimal").filter(|optimal| !optimal.is_boolean()) {
        return Err(D::Error::custom(format_args!("optimal: expected true or false, got {optimal}")));
    }
    SearchReport::deserialize(Value::Object(entries)).map_err(D::Error::custom)
}

/// The report of a search. Plans may come from elsewhere: what is unknown or of another form counts as absent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SearchReport {
    /// Seconds that the search took.
    #[serde(deserialize_with = "lenient", skip_serializing_if = "Option::is_none")]
    pub wall_s: Option<f64>,
    /// Seed of every random choice.
    #[serde(deserialize_with = "lenient", skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
    /// Threads that it had.
    #[serde(deserialize_with = "lenient", skip_serializing_if = "Option::is_none")]
    pub threads: Option<usize>,
    /// Whether the plan is proved to be the best for its allocation and rules.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub optimal: Option<bool>,
    /// Whether somebody ended the search early.
    #[serde(deserialize_with = "lenient", skip_serializing_if = "is_false")]
    pub interrupted: bool,
    /// Search steps.
    #[serde(deserialize_with = "lenient", skip_serializing_if = "Option::is_none")]
    pub work: Option<u64>,
    /// Rounds of the search for routes and order.
    #[serde(deserialize_with = "lenient", skip_serializing_if = "Option::is_none")]
    pub rounds: Option<u64>,
    /// Draws of routes or straight pipelines.
    #[serde(deserialize_with = "lenient", skip_serializing_if = "Option::is_none")]
    pub attempts: Option<u64>,
    /// Plans and bounds as they were found.
    #[serde(deserialize_with = "events", skip_serializing_if = "Vec::is_empty")]
    pub events: Vec<SearchEvent>,
    /// Counts of the search for routes and order.
    #[serde(skip_serializing_if = "Statistics::is_empty")]
    pub statistics: Statistics,
    /// How the allocation was found, where it was searched by the iteration.
    #[serde(deserialize_with = "lenient", skip_serializing_if = "Option::is_none")]
    pub allocation: Option<AllocationReport>,
    /// The allocation that the surrogate found before, where it was asked.
    #[serde(deserialize_with = "lenient", skip_serializing_if = "Option::is_none")]
    pub surrogate: Option<Allocated>,
    /// What others have written.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

impl SearchReport {
    /// Search steps, 0 where they are not known.
    #[must_use]
    pub fn work(&self) -> u64 {
        self.work.unwrap_or(0)
    }

    /// What no allocation beats, as far as that is known; in seconds.
    #[must_use]
    pub fn bound_of_all_s(&self) -> f64 {
        self.allocation.as_ref().map_or(0.0, |allocation| allocation.lower_bound_s)
    }
}

/// Best plan and best bound from a moment of a search on: `[elapsed_s, work, upper_s or null, lower_s]`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(from = "EventRow", into = "EventRow")]
pub struct SearchEvent {
    /// Seconds since the search began.
    pub elapsed_s: f64,
    /// Search steps done.
    pub work: u64,
    /// Iteration of the best plan in seconds; none as long as there is no plan.
    pub upper_s: Option<f64>,
    /// Lower bound in seconds; 0 tells nothing.
    pub lower_s: f64,
}

type EventRow = (f64, u64, Option<f64>, Option<f64>);

impl From<EventRow> for SearchEvent {
    fn from((elapsed_s, work, upper_s, lower_s): EventRow) -> Self {
        Self { elapsed_s, work, upper_s, lower_s: lower_s.unwrap_or(0.0) }
    }
}

impl From<SearchEvent> for EventRow {
    fn from(event: SearchEvent) -> Self {
        (event.elapsed_s, event.work, event.upper_s, Some(event.lower_s))
    }
}

/// Numbers by name, in order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Statistics(pub Vec<(String, Number)>);

impl Statistics {
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Serialize for Statistics {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (name, number) in &self.0 {
            map.serialize_entry(name, number)?;
        }
        map.end()
    }
}

impl<'de> Deserialize<'de> for Statistics {
    fn deserialize<D: Deserializer<'de>>(reader: D) -> Result<Self, D::Error> {
        let Value::Object(entries) = Value::deserialize(reader)? else { return Ok(Self::default()) };
        let number = |(name, value): (String, Value)| match value {
            Value::Number(number) => Some((name, number)),
            _ => None,
        };
        Ok(Self(entries.into_iter().filter_map(number).collect()))
    }
}

/// How the search for an allocation by the iteration went.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct AllocationReport {
    /// Iteration on the first allocation, in seconds.
    pub start_s: Option<f64>,
    /// The best plan of another allocation.
    pub runner_up: Option<RunnerUp>,
    /// Rounds of the search.
    pub rounds: u64,
    /// Search steps.
    pub work: u64,
    /// No allocation that was allowed takes less, in seconds.
    pub lower_bound_s: f64,
    /// Whether every allocation was looked at by itself.
    pub planned_one_by_one: bool,
    /// What each absent node would cost.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub left_out: Vec<LeftOut>,
}

/// An allocation, and the iteration of its best plan.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunnerUp {
    /// Nodes of each stage.
    pub stages: Vec<Vec<usize>>,
    /// In seconds.
    pub iteration_s: f64,
}

/// What an absent node would cost in the stage where it costs least, routes and order being the same.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LeftOut {
    /// The node.
    pub node: usize,
    /// The stage.
    pub stage: usize,
    /// All-reduce of the stage with the node, in seconds.
    pub allreduce_s: f64,
    /// All-reduce of the stage without it, in seconds.
    pub allreduce_without_s: f64,
    /// Iteration with the node, in seconds.
    pub iteration_s: f64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "Serde hands fields over by reference")]
fn is_false(flag: &bool) -> bool {
    !flag
}

/// Nothing where a value is of another form.
fn lenient<'de, D: Deserializer<'de>, T: DeserializeOwned + Default>(reader: D) -> Result<T, D::Error> {
    Ok(T::deserialize(Value::deserialize(reader)?).unwrap_or_default())
}

/// Events in the order of their time and work; none at all where they are not.
fn events<'de, D: Deserializer<'de>>(reader: D) -> Result<Vec<SearchEvent>, D::Error> {
    let events: Vec<SearchEvent> = lenient(reader)?;
    let is_time = |event: &SearchEvent| {
        event.elapsed_s >= 0.0 && event.lower_s >= 0.0 && event.upper_s.is_none_or(|upper_s| upper_s >= 0.0)
    };
    let follows = |pair: &[SearchEvent]| pair[0].elapsed_s <= pair[1].elapsed_s && pair[0].work <= pair[1].work;
    let is_valid = events.iter().all(is_time) && events.windows(2).all(follows);
    Ok(if is_valid { events } else { Vec::new() })
}
