//! Reading and writing of the JSON formats: errors that name the place, text that a person can read.

use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::error::{Error, Result, invalid};
use crate::time::LONGEST_S;

/// Parses `text`, which states `format`, naming the key at which it does not fit.
///
/// # Errors
/// [`Error::Invalid`] for another format or version, [`Error::Format`] with the key, or with line and column
/// where the text is no JSON.
pub fn parse<T: DeserializeOwned>(text: &str, format: &str) -> Result<T> {
    // What is no JSON at all is told by `read`, with its place.
    if let Ok(value) = serde_json::from_str::<Value>(text) {
        // Another version may have other keys: that it is another one is then the message, not the keys.
        if let Some(Value::String(found)) = value.get("format") {
            check_format(found, format, "")?;
        }
        check_objects(&value)?;
    }
    read(text)
}

/// Keys that hold an object, or a list of objects, wherever they stand in the formats.
const OBJECTS: [&str; 4] = ["cluster", "constraints", "predicted", "solver"];
const LISTS_OF_OBJECTS: [&str; 3] = ["nodes", "microbatches", "tasks"];

/// Serde would also take a list for an object, its fields in order.
fn check_objects(file: &Value) -> Result<()> {
    let no_list = |key: &str, value: &Value| {
        if value.is_array() { invalid(key, "a list", "an object") } else { Ok(()) }
    };
    no_list("the file", file)?;
    for key in OBJECTS {
        no_list(key, &file[key])?;
    }
    for (prefix, parent) in [("", file), ("cluster.", &file["cluster"])] {
        no_list(&format!("{prefix}workload"), &parent["workload"])?;
        for key in LISTS_OF_OBJECTS {
            for (i, item) in parent[key].as_array().into_iter().flatten().enumerate() {
                no_list(&format!("{prefix}{key}[{i}]"), item)?;
            }
        }
    }
    Ok(())
}

fn read<T: DeserializeOwned>(text: &str) -> Result<T> {
    let mut reader = serde_json::Deserializer::from_str(text);
    let value = serde_path_to_error::deserialize(&mut reader).map_err(|error| {
        let path = error.path().to_string();
        let reason = plain(&error.into_inner().to_string());
        Error::Format(if path == "." { reason } else { format!("{path}: {reason}") })
    })?;
    reader.end().map_err(|error| Error::Format(plain(&error.to_string())))?;
    Ok(value)
}

/// Rust's type names mean nothing to a reader of JSON.
fn plain(reason: &str) -> String {
    let mut text = reason.to_owned();
    for (rust, json) in [
        ("expected f64", "expected a number"),
        ("expected usize", "expected a non-negative integer"),
        ("expected u32", "expected a non-negative integer"),
        ("expected u64", "expected a non-negative integer"),
        ("expected a sequence", "expected a list"),
        ("invalid type: sequence", "invalid type: list"),
        ("invalid type: map", "invalid type: object"),
        ("invalid type: unit", "invalid type: null"),
        ("expected a map", "expected an object"),
    ] {
        text = text.replace(rust, json);
    }
    if let Some(start) = text.find("expected struct ") {
        let end = text[start + 16..].find(' ').map_or(text.len(), |i| start + 16 + i);
        text.replace_range(start..end, "expected an object");
    }
    text
}

/// Refuses another format or version.
pub(crate) fn check_format(found: &str, expected: &str, prefix: &str) -> Result<()> {
    if found == expected {
        return Ok(());
    }
    invalid(format!("{prefix}format"), format!("{found:?}"), format!("{expected:?}"))
}

/// Refuses a number that is not finite or lies below `low`.
pub(crate) fn check_number(key: impl FnOnce() -> String, x: f64, low: f64) -> Result<()> {
    if x.is_finite() && x >= low {
        return Ok(());
    }
    let bound = if low == f64::MIN_POSITIVE { "above 0".to_owned() } else { format!("of at least {low}") };
    invalid(key(), x, format!("a finite number {bound}"))
}

/// Refuses a duration in seconds that is negative, not finite or longer than [`LONGEST_S`].
pub(crate) fn check_duration(key: impl FnOnce() -> String, x: f64) -> Result<()> {
    if x.is_finite() && (0.0..=LONGEST_S).contains(&x) {
        return Ok(());
    }
    invalid(key(), x, format!("a number of seconds from 0 to {LONGEST_S:e}"))
}

/// JSON with short values on one line and long ones broken up.
pub(crate) fn pretty(value: &Value) -> String {
    let mut text = String::new();
    write_value(value, 0, &mut text);
    text.push('\n');
    text
}

const WIDTH: usize = 120;

fn write_value(value: &Value, indent: usize, out: &mut String) {
    let compact = value.to_string();
    let (open, close, empty) = match value {
        Value::Array(items) => ('[', ']', items.is_empty()),
        Value::Object(items) => ('{', '}', items.is_empty()),
        _ => (' ', ' ', true),
    };
    // Rows of a matrix stay whole: one row, one line.
    let row = matches!(value, Value::Array(items) if items.iter().all(Value::is_number));
    if empty || row || indent + compact.len() <= WIDTH {
        out.push_str(&compact);
        return;
    }
    out.push(open);
    let inner = indent + 1;
    let mut first = true;
    let mut separate = |out: &mut String| {
        if !std::mem::take(&mut first) {
            out.push(',');
        }
        out.push('\n');
        out.extend(std::iter::repeat_n(' ', inner));
    };
    match value {
        Value::Array(items) => {
            for item in items {
                separate(out);
                write_value(item, inner, out);
            }
        }
        Value::Object(items) => {
            for (key, item) in items {
                separate(out);
                out.push_str(&Value::from(key.as_str()).to_string());
                out.push_str(": ");
                write_value(item, inner, out);
            }
        }
        _ => {}
    }
    out.push('\n');
    out.extend(std::iter::repeat_n(' ', indent));
    out.push(close);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pretty_text_reads_back() {
        let value: Value =
            serde_json::from_str(&format!(r#"{{"a":[{}1.5],"b":{{}},"c":[{{"d":"e\"f"}}]}}"#, "0.1,".repeat(90)))
                .unwrap();
        assert_eq!(serde_json::from_str::<Value>(&pretty(&value)).unwrap(), value);
    }

    #[test]
    fn deep_nesting_is_an_error() {
        let text = "[".repeat(100_000);
        assert!(read::<Value>(&text).is_err());
    }
}
