//! The question: which plan for this cluster, allocation and rules.

use crate::cluster::Cluster;
use crate::error::{Error, Result, invalid};
use crate::rules::Constraints;
use crate::time::{LONGEST_S, NEVER};

/// A question that a plan answers; always consistent.
#[derive(Clone, Debug, PartialEq)]
pub struct Problem {
    cluster: Cluster,
    stages: Vec<Vec<usize>>,
    absent_stages: Vec<usize>,
    microbatches: Vec<usize>,
    skip_ratio: f64,
    constraints: Constraints,
    layers: Vec<usize>,
}

impl Problem {
    /// `stages` are the nodes of each stage; `microbatches` are for the nodes of stage 0 in that order;
    /// `absent_stages` are served by nobody and visited by no route. Nodes of no stage are absent: they run nothing and
    /// take no part in an all-reduce; [`check_absent_nodes`] holds them against those that are meant to be.
    ///
    /// # Errors
    /// [`Error::Invalid`] naming the key that does not fit.
    pub fn new(
        cluster: Cluster,
        stages: Vec<Vec<usize>>,
        absent_stages: Vec<usize>,
        microbatches: Vec<usize>,
        skip_ratio: f64,
        constraints: Constraints,
    ) -> Result<Self> {
        check_stages(&cluster, &stages, &absent_stages)?;
        constraints.check(stages.len(), &absent_stages)?;
        check_members(&cluster, &stages, &absent_stages)?;
        let present = stages.len() - absent_stages.len();
        let skip_ratio = ratio_of_classes(&constraints, &microbatches, present, skip_ratio)?;
        check_skip_ratio(skip_ratio, stages.len())?;
        if skip_ratio > (present as f64 - 1.0) / present as f64 + 1e-9 {
            return invalid(
                "skip_ratio",
                skip_ratio,
                format!("a ratio that leaves every route a stage: {present} stages are present"),
            );
        }
        if microbatches.len() != stages[0].len() {
            return invalid(
                "microbatches",
                format!("a list of {}", microbatches.len()),
                format!("one count for each of the {} nodes of stage 0", stages[0].len()),
            );
        }
        let total = microbatches.iter().copied().fold(0, usize::saturating_add);
        if total == 0 || total > MOST_MICROBATCHES {
            return invalid(
                "microbatches",
                format!("{total} in all"),
                format!("1 to {MOST_MICROBATCHES} microbatches in all"),
            );
        }
        let problem =
            Self { cluster, stages, absent_stages, microbatches, skip_ratio, constraints, layers: Vec::new() };
        problem.check_horizon(total)?;
        Ok(problem)
    }

    /// The same question with other rules or another ratio.
    ///
    /// # Errors
    /// As [`Problem::new`].
    pub fn with(&self, skip_ratio: f64, constraints: Constraints) -> Result<Self> {
        Self::new(
            self.cluster.clone(),
            self.stages.clone(),
            self.absent_stages.clone(),
            self.microbatches.clone(),
            skip_ratio,
            constraints,
        )?
        .with_layers(self.layers.clone())
    }

    /// The same question for other nodes in the stages.
    ///
    /// # Errors
    /// As [`Problem::new`].
    pub(crate) fn reallocated(&self, stages: Vec<Vec<usize>>) -> Result<Self> {
        Self::new(
            self.cluster.clone(),
            stages,
            self.absent_stages.clone(),
            self.microbatches.clone(),
            self.skip_ratio,
            self.constraints.clone(),
        )?
        .with_layers(self.layers.clone())
    }

    /// The same question with the decoder layers of each stage known.
    ///
    /// # Errors
    /// Where there is not one count for each stage (or none at all).
    pub fn with_layers(self, layers: Vec<usize>) -> Result<Self> {
        if !layers.is_empty() && layers.len() != self.stages.len() {
            return invalid(
                "layers",
                format!("a list of {}", layers.len()),
                format!("one count for each of the {} stages, or none", self.stages.len()),
            );
        }
        Ok(Self { layers, ..self })
    }

    /// The same question on a cluster of the same nodes and links, none of them slower; messages may take turns there.
    pub(crate) fn on_faster(&self, cluster: Cluster) -> Self {
        Self { cluster, ..self.clone() }
    }

    /// Decoder layers of each stage; empty: not known.
    #[must_use]
    pub fn layers(&self) -> &[usize] {
        &self.layers
    }

    /// The cluster.
    #[must_use]
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// Nodes of each stage.
    #[must_use]
    pub fn stages(&self) -> &[Vec<usize>] {
        &self.stages
    }

    /// Stages that no node serves.
    #[must_use]
    pub fn absent_stages(&self) -> &[usize] {
        &self.absent_stages
    }

    /// Nodes that serve no stage, in ascending order.
    #[must_use]
    pub fn absent_nodes(&self) -> Vec<usize> {
        let mut serves = vec![false; self.cluster.nodes().len()];
        self.stages.iter().flatten().for_each(|node| serves[*node] = true);
        (0..serves.len()).filter(|node| !serves[*node]).collect()
    }

    /// Microbatches of an iteration, of all sources together.
    #[must_use]
    pub fn microbatch_count(&self) -> usize {
        self.microbatches.iter().sum()
    }

    /// Microbatches of each node of stage 0, in their order.
    #[must_use]
    pub fn microbatches(&self) -> &[usize] {
        &self.microbatches
    }

    /// Share of stage visits left out.
    #[must_use]
    pub fn skip_ratio(&self) -> f64 {
        self.skip_ratio
    }

    /// The rules.
    #[must_use]
    pub fn constraints(&self) -> &Constraints {
        &self.constraints
    }

    /// A plan that runs everything one after another takes less than this; it must fit the clock.
    fn check_horizon(&self, total: usize) -> Result<()> {
        let nodes = self.cluster.nodes();
        let slowest = nodes.iter().map(|n| n.forward_s + n.backward_s + n.loss_s).fold(0.0, f64::max);
        let all: Vec<usize> = (0..nodes.len()).collect();
        let longest = self.cluster.slowest_s(&all).unwrap_or(0.0);
        let reduce = self.stages.iter().enumerate().map(|(s, m)| self.cluster.allreduce_s(s, m)).fold(0.0, f64::max);
        let serial = total as f64 * self.stages.len() as f64 * (slowest + 4.0 * longest) + reduce;
        let most = NEVER as f64 / 8e9;
        if serial < most && longest <= LONGEST_S {
            return Ok(());
        }
        invalid(
            "cluster",
            format!("so slow that the iteration could take {serial:e} s"),
            format!("less than {most:e} s"),
        )
    }
}

/// The share of the visits that classes leave out, which has to be the one that is stated; without classes that one.
/// Classes have to be of as many routes as there are.
fn ratio_of_classes(rules: &Constraints, microbatches: &[usize], present: usize, stated: f64) -> Result<f64> {
    let Some(classes) = &rules.classes else { return Ok(stated) };
    let lots = microbatches.iter().map(|count| count.div_ceil(rules.waves as usize));
    let routes = lots.fold(0, usize::saturating_add);
    let found: usize = classes.iter().map(|class| class.routes).sum();
    if found != routes {
        return invalid(
            "constraints.classes",
            format!("{found} routes in all"),
            format!("{routes} routes in all, which the microbatches take"),
        );
    }
    let visits: usize = classes.iter().map(|class| class.routes * class.stages.len()).sum();
    let left_out = 1.0 - visits as f64 / (routes * present) as f64;
    if (left_out - stated).abs() > 1e-6 {
        return invalid("skip_ratio", stated, format!("{left_out:.6}, the share that constraints.classes leave out"));
    }
    Ok(left_out)
}

/// The most microbatches of one iteration; far above what the search can use.
pub const MOST_MICROBATCHES: usize = 20_000;

fn check_members(cluster: &Cluster, stages: &[Vec<usize>], absent: &[usize]) -> Result<()> {
    let n = cluster.nodes().len();
    let mut serves = vec![None; n];
    for (s, members) in stages.iter().enumerate() {
        if members.is_empty() != absent.contains(&s) {
            let expected = if members.is_empty() {
                "at least one node, or the stage in absent_stages"
            } else {
                "no node, since absent_stages names the stage"
            };
            return invalid(format!("stages[{s}]"), format!("{members:?}"), expected);
        }
        for (i, node) in members.iter().enumerate() {
            if let Some(other) = serves[*node].replace(s) {
                return invalid(
                    format!("stages[{s}][{i}]"),
                    node,
                    format!("a node that serves no other stage (stage {other} has it)"),
                );
            }
        }
    }
    Ok(())
}

/// Whether `absent_nodes` are the nodes that serve no stage of `problem`, each once. Where a stage was lost, those that
/// served it need not be named.
///
/// # Errors
/// [`Error::Invalid`] naming the key.
pub fn check_absent_nodes(problem: &Problem, absent_nodes: &[usize]) -> Result<()> {
    let names = |node: usize| format!("{node} ({:?})", problem.cluster.nodes()[node].name);
    let unserving = problem.absent_nodes();
    for (i, node) in absent_nodes.iter().enumerate() {
        if absent_nodes[..i].contains(node) || !unserving.contains(node) {
            return invalid(format!("absent_nodes[{i}]"), node, "a node that serves no stage, named once");
        }
    }
    match unserving.into_iter().find(|node| !absent_nodes.contains(node)) {
        Some(node) if problem.absent_stages.is_empty() => {
            invalid("stages", format!("without node {}", names(node)), "every node in exactly one stage")
        }
        _ => Ok(()),
    }
}

/// [`Error::Impossible`] with the figures.
pub(crate) fn impossible<T>(rule: &'static str, reason: String) -> Result<T> {
    Err(Error::Impossible { rule, reason })
}

/// The most stages that are accepted; stage sets are bit masks.
pub const MOST_STAGES: usize = 128;

/// Numbers in range, sizes that fit; not whether the stages are a partition.
pub(crate) fn check_stages(cluster: &Cluster, stages: &[Vec<usize>], absent: &[usize]) -> Result<()> {
    let s_count = stages.len();
    if !(1..=MOST_STAGES).contains(&s_count) {
        return invalid("stages", format!("a list of {s_count}"), format!("1 to {MOST_STAGES} stages"));
    }
    for (s, members) in stages.iter().enumerate() {
        for (i, node) in members.iter().enumerate() {
            check_index(|| format!("stages[{s}][{i}]"), *node, cluster.nodes().len())?;
        }
    }
    for (i, stage) in absent.iter().enumerate() {
        if !(1..s_count).contains(stage) {
            return invalid(format!("absent_stages[{i}]"), stage, format!("a stage in 1..{}", s_count - 1));
        }
    }
    let gradients = cluster.gradient_bytes().len();
    if gradients != 0 && gradients != s_count {
        return invalid(
            "cluster.gradient_bytes",
            format!("a list of {gradients}"),
            format!("one size for each of the {s_count} stages, or none"),
        );
    }
    Ok(())
}

pub(crate) fn check_skip_ratio(k: f64, s_count: usize) -> Result<()> {
    let most = (s_count as f64 - 1.0) / s_count as f64;
    if k.is_finite() && k >= 0.0 && k <= most + 1e-9 {
        return Ok(());
    }
    invalid(
        "skip_ratio",
        k,
        format!(
            "a number from 0 to {most:.6} (stage 0 always stays, so {s_count} stages can leave out {} of {s_count})",
            s_count - 1
        ),
    )
}

/// A number below `count`, as a list has them.
pub(crate) fn check_index(key: impl FnOnce() -> String, found: usize, count: usize) -> Result<()> {
    if found < count { Ok(()) } else { invalid(key(), found, format!("a number in 0..{}", count - 1)) }
}
