//! Everything that can go wrong, in words meant for the person who has to mend it.

use std::fmt;

/// A task's name in messages: microbatch, kind, hop and node, such as `3F1@7`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskName {
    /// Id of the microbatch.
    pub microbatch: usize,
    /// `F`, `L` or `B`.
    pub kind: char,
    /// Position in the route.
    pub hop: usize,
    /// Node that runs it.
    pub node: usize,
}

impl fmt::Display for TaskName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}{}@{}", self.microbatch, self.kind, self.hop, self.node)
    }
}

/// What the scheduler refuses or fails at. Its text is `KEY: REASON` where it speaks of a key, else the reason alone.
#[derive(Debug, Clone, PartialEq)]
pub enum Error {
    /// A value that cannot be used.
    Invalid {
        /// Where the value stands, such as `cluster.nodes[3].memory`.
        key: String,
        /// The value.
        found: String,
        /// What would have been right.
        expected: String,
    },
    /// Text that is not the format it should be.
    Format {
        /// Where in the content; empty: the whole.
        key: String,
        /// What is wrong.
        reason: String,
        /// Line and column, from 1, where they are known.
        position: Option<(usize, usize)>,
        /// What may have been meant.
        hint: Option<String>,
    },
    /// Proved: no plan can satisfy the rules.
    Impossible {
        /// The rule, such as `TC1`.
        rule: &'static str,
        /// Why, with the figures.
        reason: String,
    },
    /// Nothing was found within the limit; a plan may exist.
    NotFound(String),
    /// Tasks wait for each other in a cycle.
    Deadlock(Vec<TaskName>),
    /// The caller asked to stop.
    Cancelled,
}

impl Error {
    /// The key that it speaks of.
    #[must_use]
    pub fn key(&self) -> Option<&str> {
        match self {
            Self::Invalid { key, .. } | Self::Format { key, .. } => {
                Some(key).filter(|key| !key.is_empty()).map(|key| &**key)
            }
            _ => None,
        }
    }

    /// What is wrong, without the key.
    #[must_use]
    pub fn reason(&self) -> String {
        match self {
            Self::Invalid { found, expected, .. } => format!("expected {expected}, got {found}"),
            Self::Format { reason, position, hint, .. } => {
                let location =
                    position.map_or(String::new(), |(line, column)| format!(" at line {line} column {column}"));
                let hint = hint.as_ref().map_or(String::new(), |hint| format!("; {hint}"));
                format!("{reason}{location}{hint}")
            }
            Self::Impossible { rule, reason } => format!("no plan exists: {rule} cannot hold: {reason}"),
            Self::NotFound(reason) => format!("no plan found within the limit: {reason}"),
            Self::Deadlock(cycle) => format!("deadlock: {}", cycle_text(cycle)),
            Self::Cancelled => "cancelled".to_owned(),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.key() {
            Some(key) => write!(f, "{key}: {}", self.reason()),
            None => f.write_str(&self.reason()),
        }
    }
}

impl std::error::Error for Error {}

fn cycle_text(cycle: &[TaskName]) -> String {
    let names: Vec<String> = cycle.iter().chain(cycle.first()).map(ToString::to_string).collect();
    names.join(" waits for ")
}

/// Result of everything that can fail here.
pub type Result<T> = std::result::Result<T, Error>;

/// An [`Error::Invalid`].
pub fn invalid<T>(key: impl Into<String>, found: impl fmt::Display, expected: impl Into<String>) -> Result<T> {
    let found = shown(&found.to_string(), MOST_FOUND);
    Err(Error::Invalid { key: key.into(), found, expected: expected.into() })
}

/// Characters of a value in a message.
const MOST_FOUND: usize = 120;

/// Text of others on one line of a message: at most `most` characters, and none that would break or turn the line.
#[must_use]
pub fn shown(text: &str, most: usize) -> String {
    let mut line = String::new();
    for (i, letter) in text.chars().enumerate() {
        if i == most {
            line.push_str("...");
            break;
        }
        if breaks_lines(letter) { line.extend(letter.escape_default()) } else { line.push(letter) }
    }
    line
}

/// Whether a terminal would not just show this character: controls, ends of lines and paragraphs, changes of the
/// direction of writing, byte order marks.
#[must_use]
pub fn breaks_lines(letter: char) -> bool {
    letter.is_control()
        || matches!(letter, '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{200e}' | '\u{200f}' | '\u{61c}' | '\u{feff}')
}
