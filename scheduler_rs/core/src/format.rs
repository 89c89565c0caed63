//! Reading and writing of the JSON formats: errors that name the location, text that a person can read.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, Visitor, value::MapAccessDeserializer};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use crate::error::{Error, Result, invalid, shown};
use crate::time::LONGEST_S;

/// Bytes of text of a plan's `solver` that are kept. It may hold anything, and a value takes up to 40 times the memory
/// of its text; what this project writes for 10,000 nodes is 60 kB.
const MOST_ENTRIES: usize = 2 << 20;
/// Bytes of text of a plan's `model`.
const MOST_MODEL: usize = 1 << 16;
/// Characters of a message about a file: keys and values of others may be of any length.
const MOST_MESSAGE: usize = 400;
/// How alike a key has to be to one of the format for that to be meant (1: the same).
const ALIKE: f64 = 0.75;

/// Parses `text`, an object that states `format`, naming the key at which it does not fit. Memory stays in proportion
/// to the text: every value goes straight to where it belongs.
///
/// # Errors
/// [`Error::Invalid`] for another format or version, [`Error::Format`] with the key, line and column.
pub fn parse<T: for<'de> Deserialize<'de>>(text: &str, format: &str) -> Result<T> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    read(text).map_err(|error| match stated_format(text) {
        // Another version may have other keys: that it is another one is then the message, not the keys.
        Some(found) if found != format => wrong_format(&found, format, ""),
        _ => error,
    })
}

/// Parses the object under `key` of a file, given alone.
///
/// # Errors
/// [`Error::Format`] naming the key.
pub fn part_from_json<T: for<'de> Deserialize<'de>>(key: &str, text: &str) -> Result<T> {
    serde_json::from_str(text).map_err(|error| Error::Format {
        key: key.to_owned(),
        reason: error.to_string(),
        position: None,
        hint: None,
    })
}

/// Writes such an object alone, with its keys in order.
pub fn part_to_json(part: &impl serde::Serialize) -> String {
    serde_json::to_value(part).unwrap_or_default().to_string()
}

fn read<'de, T: Deserialize<'de>>(text: &'de str) -> Result<T> {
    let mut reader = serde_json::Deserializer::from_str(text);
    let mut track = serde_path_to_error::Track::new();
    let value = object(serde_path_to_error::Deserializer::new(&mut reader, &mut track))
        .map_err(|error| fault(text, &track.path().to_string(), &error))?;
    reader.end().map_err(|error| fault(text, ".", &error))?;
    Ok(value)
}

/// The `format` of an object, where it can be read.
fn stated_format(text: &str) -> Option<String> {
    #[derive(serde::Deserialize)]
    struct Header {
        format: String,
    }
    let header: Header = object(&mut serde_json::Deserializer::from_str(text)).ok()?;
    Some(header.format)
}

/// What is wrong with a text, and where. Serde gives it in words alone.
fn fault(text: &str, path: &str, error: &serde_json::Error) -> Error {
    let position = (error.line(), error.column());
    let whole = error.to_string();
    let reason = whole.strip_suffix(&format!(" at line {} column {}", position.0, position.1)).unwrap_or(&whole);
    let position = Some(position);
    if let Some((found, known)) = unknown_key(reason) {
        let parent = shown(path.strip_suffix(found).unwrap_or(""), MOST_MESSAGE / 2);
        let key = format!("{parent}{}", shown(found, MOST_MESSAGE / 4));
        return Error::Format { key, reason: "unknown key".to_owned(), position, hint: Some(meant(found, &known)) };
    }
    // What the reader was about to read has no name yet.
    let path = path.strip_suffix('?').map_or(path, |parent| parent.strip_suffix('.').unwrap_or("."));
    let key = if path == "." { String::new() } else { shown(path, MOST_MESSAGE / 2) };
    let reason = if error.is_syntax() && reason == "expected value" {
        format!("expected a value, got {}", found_at(text, error.line(), error.column()))
    } else {
        plain(reason)
    };
    Error::Format { key, reason: shown(&reason, MOST_MESSAGE / 2), position, hint: None }
}

/// The key and the keys that are known instead, out of Serde's words.
fn unknown_key(reason: &str) -> Option<(&str, Vec<&str>)> {
    // The known ones hold no backquote, the key may.
    let (found, known) = reason.strip_prefix("unknown field `")?.rsplit_once("`, expected ")?;
    Some((found, known.split('`').skip(1).step_by(2).collect()))
}

fn meant(found: &str, known: &[&str]) -> String {
    let likeness = |key: &&str| strsim::normalized_damerau_levenshtein(found, key);
    let nearest = known.iter().max_by(|a, b| likeness(a).total_cmp(&likeness(b)));
    match nearest.filter(|key| found.len() < 100 && likeness(key) >= ALIKE) {
        Some(key) => format!("did you mean {key}?"),
        None => format!("known are {}", known.join(", ")),
    }
}

/// The word at a position, in quotes.
fn found_at(text: &str, line: usize, column: usize) -> String {
    let rest = text.lines().nth(line.saturating_sub(1)).and_then(|row| row.get(column.saturating_sub(1)..));
    let word: String = rest.unwrap_or("").chars().take_while(|c| !",]}".contains(*c)).take(20).collect();
    if word.is_empty() {
        rest.and_then(|r| r.chars().next()).map_or("nothing".into(), |c| format!("{c:?}"))
    } else {
        format!("{word:?}")
    }
}

struct Fields<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for Fields<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> std::result::Result<T, A::Error> {
        T::deserialize(MapAccessDeserializer::new(map))
    }
}

/// Reads an object. Serde alone would also take a list, the fields in order.
pub(crate) fn object<'de, D: Deserializer<'de>, T: Deserialize<'de>>(reader: D) -> std::result::Result<T, D::Error> {
    reader.deserialize_map(Fields(PhantomData))
}

/// What is read as [`object`] does, within something else.
#[derive(serde::Deserialize)]
#[serde(bound = "T: Deserialize<'de>")]
struct Item<T>(#[serde(deserialize_with = "object")] T);

/// Reads an object, or null.
pub(crate) fn optional_object<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    reader: D,
) -> std::result::Result<Option<T>, D::Error> {
    Ok(Option::<Item<T>>::deserialize(reader)?.map(|item| item.0))
}

/// Reads a list of objects, or null.
pub(crate) fn optional_objects<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    reader: D,
) -> std::result::Result<Option<Vec<T>>, D::Error> {
    Ok(Option::<Vec<Item<T>>>::deserialize(reader)?.map(|items| items.into_iter().map(|item| item.0).collect()))
}

/// Reads a list of objects.
pub(crate) fn objects<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    reader: D,
) -> std::result::Result<Vec<T>, D::Error> {
    Ok(Vec::<Item<T>>::deserialize(reader)?.into_iter().map(|item| item.0).collect())
}

/// Reads counts by number; a number that stands twice is refused.
pub(crate) fn counts<'de, D: Deserializer<'de>>(reader: D) -> std::result::Result<BTreeMap<usize, usize>, D::Error> {
    struct Counts;
    impl<'de> Visitor<'de> for Counts {
        type Value = BTreeMap<usize, usize>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an object")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<Self::Value, A::Error> {
            let mut found = BTreeMap::new();
            while let Some((number, count)) = map.next_entry()? {
                if found.insert(number, count).is_some() {
                    return Err(A::Error::custom(format_args!("duplicate key {number}")));
                }
            }
            Ok(found)
        }
    }
    reader.deserialize_map(Counts)
}

/// Reads any entries. Those that would exceed [`MOST_ENTRIES`] bytes, or that no number or stack can hold, are skipped.
pub(crate) fn entries<'de, D: Deserializer<'de>>(reader: D) -> std::result::Result<Map<String, Value>, D::Error> {
    struct Entries;
    impl<'de> Visitor<'de> for Entries {
        type Value = Map<String, Value>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an object")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<Self::Value, A::Error> {
            let (mut found, mut room) = (Map::new(), MOST_ENTRIES);
            while let Some((key, text)) = map.next_entry::<String, &RawValue>()? {
                let size = key.len() + text.get().len();
                if size <= room
                    && let Ok(value) = serde_json::from_str(text.get())
                {
                    room -= size;
                    found.insert(key, value);
                }
            }
            Ok(found)
        }
    }
    reader.deserialize_map(Entries)
}

/// Reads what a plan says of its model: any value, but not of any size.
pub(crate) fn model<'de, D: Deserializer<'de>>(reader: D) -> std::result::Result<Value, D::Error> {
    let text = <&RawValue>::deserialize(reader)?.get();
    if text.len() > MOST_MODEL {
        return Err(D::Error::custom(format_args!("expected at most {MOST_MODEL} bytes, got {}", text.len())));
    }
    serde_json::from_str(text).map_err(D::Error::custom)
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
        ("expected unit", "expected null"),
        ("expected ident", "expected a value"),
        ("duplicate field", "duplicate key"),
        ("EOF while parsing", "the text ends within"),
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
    if found == expected { Ok(()) } else { Err(wrong_format(found, expected, prefix)) }
}

fn wrong_format(found: &str, expected: &str, prefix: &str) -> Error {
    Error::Invalid {
        key: format!("{prefix}format"),
        found: shown(&format!("{found:?}"), MOST_MESSAGE / 4),
        expected: format!("{expected:?}"),
    }
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
    fn faults_are_named_with_their_location() {
        #[derive(Debug, serde::Deserialize)]
        #[serde(deny_unknown_fields)]
        #[expect(dead_code, reason = "only read")]
        struct Inner {
            forward_s: f64,
            #[serde(default)]
            name: String,
        }
        #[derive(Debug, serde::Deserialize)]
        #[serde(deny_unknown_fields)]
        #[expect(dead_code, reason = "only read")]
        struct Outer {
            #[serde(deserialize_with = "objects")]
            nodes: Vec<Inner>,
        }
        for (text, expected) in [
            (
                "{\n \"nodes\": [{\"forwards_s\": 1}]}",
                "nodes[0].forwards_s: unknown key at line 2 column 24; did you mean forward_s?",
            ),
            ("{\"a\\n\": 1}", "a\\n: unknown key at line 1 column 6; known are nodes"),
            ("{\"nodes\": [[1, \"x\"]]}", "nodes[0]: invalid type: list, expected an object at line 1 column 11"),
            (
                "{\"nodes\": [{\"forward_s\": NaN}]}",
                "nodes[0].forward_s: expected a value, got \"NaN\" at line 1 column 26",
            ),
            (
                "{\"nodes\": [{\"forward_s\": 1, \"forward_s\": 1}]}",
                "nodes[0]: duplicate key `forward_s` at line 1 column 39",
            ),
            ("{\"nodes\": [", "nodes: the text ends within a list at line 1 column 11"),
            ("", "the text ends within a value at line 1 column 0"),
            ("{\"nodes\": []} {}", "trailing characters at line 1 column 15"),
        ] {
            assert_eq!(read::<Outer>(text).unwrap_err().to_string(), expected);
        }
    }

    #[test]
    fn values_of_any_length_make_short_messages() {
        for text in
            [format!("{{\"{}\": []}}", "x".repeat(10_000)), format!("{{\"format\": [\"{}\"]}}", "x".repeat(10_000))]
        {
            let length = read::<BTreeMap<String, f64>>(&text).unwrap_err().to_string().len();
            assert!(length < 1000, "{length} bytes");
        }
    }

    #[test]
    fn entries_of_any_size_are_read_in_bounds() {
        #[derive(serde::Deserialize)]
        struct Part {
            #[serde(deserialize_with = "entries")]
            solver: Map<String, Value>,
        }
        let long = "[".to_owned() + &"0,".repeat(MOST_ENTRIES / 2) + "0]";
        let deep = "[".repeat(1000) + &"]".repeat(1000);
        let text = format!(
            "{{\"solver\": {{\"seed\": 3, \"long\": {long}, \"deep\": {deep}, \"much\": 1e999, \"work\": 7}}}}"
        );
        let part: Part = read(&text).unwrap();
        assert_eq!(Value::Object(part.solver), serde_json::json!({"seed": 3, "work": 7}));
    }

    #[test]
    fn deep_nesting_is_an_error() {
        for text in ["[".repeat(100_000), "{\"a\":".repeat(100_000), format!("{{\"a\": {}", "[".repeat(100_000))] {
            assert!(read::<BTreeMap<String, Value>>(&text).is_err());
        }
    }
}
