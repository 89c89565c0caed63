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

/// What the scheduler refuses or fails at.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Error {
    /// A value that cannot be used.
    #[error("{key} is {found}, {expected} is expected")]
    Invalid {
        /// Where the value stands, such as `cluster.nodes[3].memory`.
        key: String,
        /// The value.
        found: String,
        /// What would have been right.
        expected: String,
    },
    /// Text that is not the format it should be.
    #[error("{0}")]
    Format(String),
    /// Proved: no plan can satisfy the rules.
    #[error("no plan exists: {rule} cannot hold: {reason}")]
    Impossible {
        /// The rule, such as `TC1`.
        rule: &'static str,
        /// Why, with the figures.
        reason: String,
    },
    /// Nothing was found within the limit; a plan may exist.
    #[error("no plan found within the limit: {0}")]
    NotFound(String),
    /// Tasks wait for each other in a circle.
    #[error("locked up: {}", cycle_text(.0))]
    Lockup(Vec<TaskName>),
    /// The caller asked to stop.
    #[error("cancelled")]
    Cancelled,
}

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
