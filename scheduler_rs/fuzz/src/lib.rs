//! Changes of JSON texts that keep them JSON, beside libFuzzer's own changes of bytes.

use libfuzzer_sys::fuzzer_mutate;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64;
use serde_json::{Value, json};

/// Changes a text in place: every second time one of its values, otherwise its bytes. Gives the new length.
pub fn mutate(data: &mut [u8], size: usize, max_size: usize, seed: u32) -> usize {
    let mut rng = Pcg64::seed_from_u64(u64::from(seed));
    let changed = if rng.random_bool(0.5) { changed_value(&data[..size], &mut rng) } else { None };
    match changed {
        Some(text) if text.len() <= max_size => {
            data[..text.len()].copy_from_slice(text.as_bytes());
            text.len()
        }
        _ => fuzzer_mutate(data, size, max_size),
    }
}

fn changed_value(text: &[u8], rng: &mut Pcg64) -> Option<String> {
    let mut value: Value = serde_json::from_slice(text).ok()?;
    for _ in 0..rng.random_range(1..=3) {
        let mut places = Vec::new();
        collect(&value, String::new(), &mut places);
        let (place, other) = (places.choose(rng)?, places.choose(rng)?);
        let copy = value.pointer(other)?.clone();
        change(value.pointer_mut(place)?, copy, rng);
    }
    serde_json::to_string(&value).ok()
}

/// JSON pointers to a value and all that it holds.
fn collect(value: &Value, place: String, places: &mut Vec<String>) {
    match value {
        Value::Array(items) => {
            items.iter().enumerate().for_each(|(i, item)| collect(item, format!("{place}/{i}"), places));
        }
        Value::Object(entries) => entries.iter().for_each(|(key, item)| {
            collect(item, format!("{place}/{}", key.replace('~', "~0").replace('/', "~1")), places);
        }),
        _ => {}
    }
    places.push(place);
}

fn change(value: &mut Value, other: Value, rng: &mut Pcg64) {
    match (rng.random_range(0..6), &mut *value) {
        (0, _) => *value = other,
        (1, Value::Array(items)) if !items.is_empty() => {
            items.remove(rng.random_range(0..items.len()));
        }
        (2, Value::Array(items)) if !items.is_empty() => items.push(items[rng.random_range(0..items.len())].clone()),
        (1, Value::Object(entries)) if !entries.is_empty() => {
            let key = entries.keys().nth(rng.random_range(0..entries.len())).cloned().unwrap_or_default();
            entries.remove(&key);
        }
        (3 | 4, Value::Number(number)) => *value = near(number, rng),
        _ => *value = strange(rng),
    }
}

/// A number beside another one.
fn near(number: &serde_json::Number, rng: &mut Pcg64) -> Value {
    match number.as_i64() {
        Some(whole) => json!(whole.saturating_add(rng.random_range(-2..=2))),
        None => json!(number.as_f64().unwrap_or(0.0) * rng.random_range(-0.5..2.0)),
    }
}

fn strange(rng: &mut Pcg64) -> Value {
    let values = [
        json!(null),
        json!(true),
        json!(0),
        json!(1),
        json!(-1),
        json!(0.5),
        json!(-0.0),
        json!(1e-300),
        json!(1e18),
        json!(1e300),
        json!(u32::MAX),
        json!(u64::MAX),
        json!(i64::MIN),
        json!([]),
        json!({}),
        json!([[]]),
        json!(""),
        json!("n0"),
        json!("full"),
        json!("skippipe.plan/1"),
    ];
    values.choose(rng).cloned().unwrap_or_default()
}
