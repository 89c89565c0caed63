//! The rules that a plan keeps, and the strategies that switch them.

use serde::{Deserialize, Serialize};

use crate::error::{Result, invalid};
use crate::format::{check_number, optional_objects};
use crate::problem::{MOST_MICROBATCHES, check_index};

/// A set of stages.
pub type StageSet = u128;

/// The set that holds `stage` alone.
#[must_use]
pub fn stage_bit(stage: usize) -> StageSet {
    1 << stage
}

/// How node memory limits a plan (TC1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MemoryRule {
    /// At no time does a node hold more microbatches than it has memory for.
    #[default]
    Held,
    /// At most `memory` routes lead over a node (the reference's stand-in).
    Routes,
    /// No limit.
    Off,
}

impl MemoryRule {
    /// The name in files and on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Held => "held",
            Self::Routes => "routes",
            Self::Off => "off",
        }
    }

    /// # Errors
    /// For an unknown name.
    pub fn from_name(name: &str) -> Result<Self> {
        match name {
            "held" => Ok(Self::Held),
            "routes" => Ok(Self::Routes),
            "off" => Ok(Self::Off),
            _ => invalid("constraints.tc1", format!("{name:?}"), "\"held\", \"routes\" or \"off\""),
        }
    }
}

/// Routes that all visit the same stages.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RouteClass {
    /// The stages, each once; the order says nothing.
    pub stages: Vec<usize>,
    /// How many routes there are of this class.
    pub routes: usize,
}

impl RouteClass {
    /// Its stages as a set.
    #[must_use]
    pub fn stage_set(&self) -> StageSet {
        self.stages.iter().fold(0, |set, stage| set | stage_bit(*stage))
    }
}

/// The rules of a problem; each can be switched off by name.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(from = "RulesFile")]
pub struct Constraints {
    /// Stage 0 is never skipped and comes first.
    pub cc1: bool,
    /// Stages in increasing order but for at most `max_swaps` swaps of neighbours.
    pub cc2: bool,
    /// Stages 1.. lie on equally many routes.
    pub cc3: bool,
    /// Node memory.
    pub tc1: MemoryRule,
    /// Routes and order are chosen knowing that a node runs one task at a time.
    pub tc2: bool,
    /// For CC2.
    pub max_swaps: u32,
    /// Microbatches that share a route, one after the other.
    pub waves: u32,
    /// The most by which a step may pass the furthest stage so far.
    pub max_stage_jump: Option<u32>,
    /// Weights of stages 1..: CC3 shares the visits out in proportion to them, not evenly.
    pub profile: Option<Vec<f64>>,
    /// The stages that the routes visit, in place of CC3, skip ratio and lengths; excludes `profile`.
    pub classes: Option<Vec<RouteClass>>,
}

/// [`Constraints`] as they stand in a file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RulesFile {
    cc1: bool,
    cc2: bool,
    cc3: bool,
    tc1: MemoryRule,
    tc2: bool,
    max_swaps: u32,
    waves: u32,
    #[serde(deserialize_with = "Option::deserialize")] // null, but not absent
    max_stage_jump: Option<u32>,
    #[serde(default)]
    profile: Option<Vec<f64>>,
    #[serde(default, deserialize_with = "optional_objects")]
    classes: Option<Vec<RouteClass>>,
}

impl From<RulesFile> for Constraints {
    fn from(file: RulesFile) -> Self {
        let RulesFile { cc1, cc2, cc3, tc1, tc2, max_swaps, waves, max_stage_jump, profile, classes } = file;
        Self { cc1, cc2, cc3, tc1, tc2, max_swaps, waves, max_stage_jump, profile, classes }
    }
}

/// For each route the stages of its class, class by class; none where there are no classes.
#[must_use]
pub fn class_sets(rules: &Constraints) -> Option<Vec<StageSet>> {
    let classes = rules.classes.as_ref()?;
    Some(classes.iter().flat_map(|class| std::iter::repeat_n(class.stage_set(), class.routes)).collect())
}

impl Default for Constraints {
    fn default() -> Self {
        Self {
            cc1: true,
            cc2: true,
            cc3: true,
            tc1: MemoryRule::Held,
            tc2: true,
            max_swaps: 1,
            waves: 1,
            max_stage_jump: None,
            profile: None,
            classes: None,
        }
    }
}

impl Constraints {
    /// The rule set under which the published figures were made.
    #[must_use]
    pub fn reference() -> Self {
        Self { tc1: MemoryRule::Routes, max_swaps: 2, waves: 2, max_stage_jump: Some(4), ..Self::default() }
    }

    /// Refuses numbers out of range, for so many stages of which some are absent.
    pub(crate) fn check(&self, stages: usize, absent: &[usize]) -> Result<()> {
        if self.waves == 0 {
            return invalid("constraints.waves", 0, "an integer of at least 1");
        }
        if self.max_stage_jump == Some(0) {
            return invalid("constraints.max_stage_jump", 0, "an integer of at least 1, or null");
        }
        if self.profile.is_some() && self.classes.is_some() {
            return invalid("constraints.classes", "a list beside constraints.profile", "one of the two, or none");
        }
        if let Some(weights) = &self.profile {
            check_profile(weights, stages)?;
        }
        self.classes.iter().try_for_each(|classes| self.check_classes(classes, stages, absent))
    }

    fn check_classes(&self, classes: &[RouteClass], stages: usize, absent: &[usize]) -> Result<()> {
        if classes.is_empty() {
            return invalid("constraints.classes", "an empty list", "at least one class, or null");
        }
        for (i, class) in classes.iter().enumerate() {
            let key = format!("constraints.classes[{i}].stages");
            if !(1..=MOST_MICROBATCHES).contains(&class.routes) {
                let expected = format!("an integer of at least 1 and at most {MOST_MICROBATCHES}");
                return invalid(format!("constraints.classes[{i}].routes"), class.routes, expected);
            }
            for (j, stage) in class.stages.iter().enumerate() {
                check_index(|| format!("{key}[{j}]"), *stage, stages)?;
                if absent.contains(stage) {
                    return invalid(format!("{key}[{j}]"), stage, "a stage that is present");
                }
                if class.stages[..j].contains(stage) {
                    return invalid(format!("{key}[{j}]"), stage, "a stage that is named once");
                }
            }
            if self.cc1 && !class.stages.contains(&0) {
                return invalid(key, format!("{:?}", class.stages), "stage 0 among them, as CC1 holds");
            }
            if class.stages.is_empty() {
                return invalid(key, "an empty list", "at least one stage");
            }
        }
        Ok(())
    }
}

fn check_profile(weights: &[f64], stages: usize) -> Result<()> {
    let inner = stages.saturating_sub(1);
    if weights.len() != inner {
        return invalid(
            "constraints.profile",
            format!("a list of {}", weights.len()),
            format!("one weight for each of the {inner} stages but stage 0"),
        );
    }
    weights
        .iter()
        .enumerate()
        .try_for_each(|(i, weight)| check_number(|| format!("constraints.profile[{i}]"), *weight, 0.0))
}

/// What a plan is made by; same sources, microbatches and memory for all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Strategy {
    /// k = 0, one straight pipeline a source, dispatched (DT-FM).
    Full,
    /// k = 0, routed and collision-aware.
    FullRouted,
    /// Routes drawn at random, dispatched.
    RandomSkip,
    /// Routed by travel time alone, dispatched.
    #[serde(rename = "skippipe-no-tc2")]
    SkippipeNoTc2,
    /// Everything.
    Skippipe,
}

impl Strategy {
    /// All, in the order of the documentation.
    pub const ALL: [Self; 5] = [Self::Full, Self::FullRouted, Self::RandomSkip, Self::SkippipeNoTc2, Self::Skippipe];

    /// The name in files and on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::FullRouted => "full-routed",
            Self::RandomSkip => "random-skip",
            Self::SkippipeNoTc2 => "skippipe-no-tc2",
            Self::Skippipe => "skippipe",
        }
    }

    /// # Errors
    /// For an unknown name.
    pub fn from_name(name: &str) -> Result<Self> {
        match Self::ALL.into_iter().find(|s| s.name() == name) {
            Some(strategy) => Ok(strategy),
            None => {
                invalid("strategy", format!("{name:?}"), format!("one of {}", Self::ALL.map(Self::name).join(", ")))
            }
        }
    }

    /// Whether the strategy runs every stage (k = 0).
    #[must_use]
    pub fn is_full(self) -> bool {
        match self {
            Self::Full | Self::FullRouted => true,
            Self::RandomSkip | Self::SkippipeNoTc2 | Self::Skippipe => false,
        }
    }

    /// Whether its routes are drawn, so that a result is the median over draws.
    #[must_use]
    pub fn is_random(self) -> bool {
        match self {
            Self::RandomSkip => true,
            Self::Full | Self::FullRouted | Self::SkippipeNoTc2 | Self::Skippipe => false,
        }
    }

    /// Whether it searches allocation, routes and order together under TC2, so that more time may always help.
    #[must_use]
    pub fn is_joint(self) -> bool {
        match self {
            Self::FullRouted | Self::Skippipe => true,
            Self::Full | Self::RandomSkip | Self::SkippipeNoTc2 => false,
        }
    }

    /// Whether its lower bound holds for the plan's own routes alone: it does not look for the best ones.
    #[must_use]
    pub fn is_bound_by_routes(self) -> bool {
        match self {
            Self::RandomSkip | Self::SkippipeNoTc2 => true,
            Self::Full | Self::FullRouted | Self::Skippipe => false,
        }
    }
}
