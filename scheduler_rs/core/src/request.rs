//! The question that a plan answers: a first allocation, what may be changed of it, and how to search.

use crate::allocate::joint::AllocationScope;
use crate::allocate::{self, Allocated, allocate};
use crate::budget::Budget;
use crate::cluster::Cluster;
use crate::error::{Result, invalid};
use crate::part::Part;
use crate::problem::Problem;
use crate::rules::{Constraints, Strategy};

/// What is asked of [`crate::plan()`].
#[derive(Clone, Debug)]
pub struct PlanRequest {
    /// Cluster, rules, skip ratio and microbatches, with the allocation that comes first.
    pub first: FirstAllocation,
    /// What the search may change of that allocation; none: it stands.
    pub scope: Option<AllocationScope>,
    /// How to search.
    pub options: Options,
}

impl PlanRequest {
    /// Plans for the allocation of `problem`, which stands.
    #[must_use]
    pub fn given(problem: Problem, options: Options) -> Self {
        Self { first: FirstAllocation::Given(problem), scope: None, options }
    }
}

/// Where an allocation comes from, before any plan is made for it.
#[derive(Clone, Debug, PartialEq)]
pub enum FirstAllocation {
    /// It is the problem's.
    Given(Problem),
    /// The surrogate's best one.
    Surrogate(UnallocatedProblem),
}

impl FirstAllocation {
    /// The problem; of one without allocation, all but its stages.
    #[must_use]
    pub fn problem(&self) -> &Problem {
        match self {
            Self::Given(problem) => problem,
            Self::Surrogate(open) => &open.problem,
        }
    }

    /// The same question with other rules or another ratio.
    ///
    /// # Errors
    /// As [`Problem::new`].
    pub fn with(&self, skip_ratio: f64, constraints: Constraints) -> Result<Self> {
        let problem = self.problem().with(skip_ratio, constraints)?;
        Ok(match self {
            Self::Given(_) => Self::Given(problem),
            Self::Surrogate(open) => Self::Surrogate(UnallocatedProblem { problem, request: open.request.clone() }),
        })
    }
}

/// A problem whose allocation is still to be found; always consistent.
#[derive(Clone, Debug, PartialEq)]
pub struct UnallocatedProblem {
    /// With nodes assigned to the stages in order of number, which stands in for the allocation.
    problem: Problem,
    request: allocate::Request,
}

impl UnallocatedProblem {
    /// `request` says what to allocate; `microbatches` are for the nodes of stage 0, in the order of its `sources` where
    /// those are fixed; `layers` are the decoder layers of each stage (none: not known).
    ///
    /// # Errors
    /// [`crate::Error::Invalid`] naming the key that does not fit.
    pub fn new(
        cluster: Cluster,
        request: allocate::Request,
        microbatches: Vec<usize>,
        skip_ratio: f64,
        constraints: Constraints,
        layers: Vec<usize>,
    ) -> Result<Self> {
        allocate::check(&cluster, &request)?;
        let mut nodes = 0..cluster.nodes().len();
        let stages = request.sizes.iter().map(|size| nodes.by_ref().take(*size).collect()).collect();
        let problem = Problem::new(cluster, stages, Vec::new(), microbatches, skip_ratio, constraints)?;
        Ok(Self { problem: problem.with_layers(layers)?, request })
    }

    /// What is to be allocated.
    #[must_use]
    pub fn request(&self) -> &allocate::Request {
        &self.request
    }

    /// The problem on the best allocation by the surrogate that is found within `budget`, and what the surrogate says.
    ///
    /// # Errors
    /// As [`allocate()`].
    pub fn allocate(&self, options: allocate::Options, budget: &Budget) -> Result<(Problem, Allocated)> {
        let found = allocate(self.problem.cluster(), &self.request, options, budget)?;
        let mut stages = found.best.stages.clone();
        // Microbatches may be given source by source, so the order in which the sources were given stands.
        if let Some(sources) = &self.request.sources {
            stages[0].clone_from(sources);
        }
        Ok((self.problem.reallocated(stages)?, found))
    }
}

/// How to search.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// What to plan by.
    pub strategy: Strategy,
    /// Same seed and work limit: same plan, whatever the number of threads.
    pub seed: u64,
    /// At least 1.
    pub threads: usize,
    /// How plans are looked for.
    pub method: Method,
    /// With [`Method::Cbs`], at least 1: a plan that takes at most so many times the bound will do.
    pub suboptimality: f64,
    /// A part that is left out, for a study of what it is worth.
    pub without: Option<Part>,
}

impl Options {
    /// Everything there is, on one thread.
    #[must_use]
    pub fn new(strategy: Strategy, seed: u64) -> Self {
        Self { strategy, seed, threads: 1, method: Method::Auto, suboptimality: 1.0, without: None }
    }

    /// Whether a part of the search is used.
    #[must_use]
    pub fn has(&self, part: Part) -> bool {
        self.without != Some(part)
    }
}

/// How plans are looked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Method {
    /// Everything there is, side by side.
    #[default]
    Auto,
    /// Conflict-based search alone, until the proof.
    Cbs,
}

impl Method {
    /// # Errors
    /// For an unknown name.
    pub fn from_name(name: &str) -> Result<Self> {
        match name {
            "auto" => Ok(Self::Auto),
            "cbs" => Ok(Self::Cbs),
            _ => invalid("method", format!("{name:?}"), "\"auto\" or \"cbs\""),
        }
    }
}
