//! Parts of the search that can be left out: a study sees what each of them is worth.

use crate::error::{Result, invalid};

/// A part of the search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Routes of the best plan, taken off and placed again.
    Exchange,
    /// Tabu search over the order of the best plan.
    Order,
    /// Conflict-based search in relaxations, for bounds.
    Proof,
    /// The annealing that begins every run with other routes.
    FirstAnnealing,
    /// The annealing that goes on from the best plan.
    SecondAnnealing,
    /// Annealing of complete schedules; without it, routes and priorities are annealed instead.
    ScheduleAnnealing,
    /// Assignment moves of the annealing.
    AssignmentMoves,
    /// Annealing of allocation and routes together.
    JointAnnealing,
    /// Chains that anneal the allocation of few nodes with complete schedules.
    ScheduleChains,
    /// Every allocation of a small cluster planned by itself.
    OneByOne,
    /// `full-routed` from the allocation of straight pipelines.
    StraightPipelines,
    /// The removal of idle nodes from the finished plan.
    IdleNodes,
    /// The local search over allocations.
    Climbing,
    /// Crossover in the genetic clustering.
    Crossover,
    /// Enumeration of few partitions.
    Enumeration,
}

impl Part {
    /// Every part, by name.
    pub const ALL: [(&'static str, Self); 15] = [
        ("exchange", Self::Exchange),
        ("order", Self::Order),
        ("proof", Self::Proof),
        ("first-annealing", Self::FirstAnnealing),
        ("second-annealing", Self::SecondAnnealing),
        ("schedule-annealing", Self::ScheduleAnnealing),
        ("assignment-moves", Self::AssignmentMoves),
        ("joint-annealing", Self::JointAnnealing),
        ("schedule-chains", Self::ScheduleChains),
        ("one-by-one", Self::OneByOne),
        ("straight-pipelines", Self::StraightPipelines),
        ("idle-nodes", Self::IdleNodes),
        ("climbing", Self::Climbing),
        ("crossover", Self::Crossover),
        ("enumeration", Self::Enumeration),
    ];

    /// # Errors
    /// For an unknown name.
    pub fn from_name(name: &str) -> Result<Self> {
        match Self::ALL.iter().find(|(known, _)| *known == name) {
            Some((_, part)) => Ok(*part),
            None => {
                let known: Vec<_> = Self::ALL.iter().map(|(known, _)| *known).collect();
                invalid("without", format!("{name:?}"), format!("one of {}", known.join(", ")))
            }
        }
    }

    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, part)| *part == self).map_or("", |(name, _)| name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_has_its_own_name() {
        for (name, part) in Part::ALL {
            assert_eq!((Part::from_name(name).unwrap(), part.name()), (part, name));
        }
        assert!(Part::from_name("everything").is_err());
    }
}
