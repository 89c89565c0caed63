//! The crate's own verifier: does a plan keep every rule that it states?
//!
//! Written from the rules alone, in seconds and with plain loops; it shares no code with the search or the
//! simulator, so that an error there cannot hide here.

use std::collections::{BTreeMap, BTreeSet};

use crate::contention::Contention;
use crate::error::TaskName;
use crate::plan::{Kind, Microbatch, Plan, Predicted, Task};
use crate::rules::MemoryRule;

/// Seconds by which times may differ from the exact ones.
const TOLERANCE: f64 = 1e-6;
/// By how much shares of the visits may be off.
const ROUNDING: f64 = 1e-9;
/// Tasks of a cycle that are named.
const MOST_NAMED: usize = 12;

/// Every rule that `plan` breaks, in words; empty where it keeps them all.
#[must_use]
pub fn check(plan: &Plan) -> Vec<String> {
    let mut checker = Checker::new(plan);
    checker.allocation();
    if checker.broken.is_empty() {
        checker.identities();
        checker.routes();
        checker.lengths_and_quotas();
        checker.tasks();
        checker.nodes();
        checker.waves();
        checker.prediction();
    }
    checker.broken
}

/// Tasks that wait for each other in a cycle, in words; `None` where the order can be executed. `plan` must keep its
/// rules, which speak of times alone: where these are 0, they hide such a cycle.
///
/// Every task waits for the one before it on its processor, for the one before it of its microbatch, and where it is the
/// first of a wave for the last of the wave before.
#[must_use]
pub fn deadlock(plan: &Plan) -> Option<String> {
    let tasks = &plan.tasks;
    let number: BTreeMap<(usize, Kind, usize), usize> =
        tasks.iter().enumerate().map(|(i, task)| ((task.microbatch, task.kind, task.hop), i)).collect();
    let mut awaited: Vec<Vec<usize>> = vec![Vec::new(); tasks.len()];
    let mut last_on_processor = BTreeMap::new();
    for (i, task) in tasks.iter().enumerate() {
        awaited[i].extend(last_on_processor.insert(plan.cluster.processor_of(task.node), i));
    }
    let mut ends_of_wave = BTreeMap::new();
    for microbatch in &plan.microbatches {
        let hops = 0..microbatch.nodes.len();
        let forward = hops.clone().map(|hop| (microbatch.id, Kind::F, hop));
        let backward = hops.rev().map(|hop| (microbatch.id, Kind::B, hop));
        let chain: Vec<usize> =
            forward.chain([(microbatch.id, Kind::L, 0)]).chain(backward).map(|key| number[&key]).collect();
        for pair in chain.windows(2) {
            awaited[pair[1]].push(pair[0]);
        }
        ends_of_wave.insert((microbatch.route, microbatch.wave), (chain[0], chain[chain.len() - 1]));
    }
    for ((route, wave), (first, _)) in &ends_of_wave {
        if let Some((_, last)) = wave.checked_sub(1).and_then(|before| ends_of_wave.get(&(*route, before))) {
            awaited[*first].push(*last);
        }
    }
    let cycle = find_cycle(&awaited)?;
    let name = |i: &usize| {
        let Task { node, microbatch, kind, hop, .. } = tasks[*i];
        TaskName { microbatch, kind: kind.letter(), hop, node }.to_string()
    };
    let mut names: Vec<String> = cycle.iter().take(MOST_NAMED).map(name).collect();
    if cycle.len() > MOST_NAMED {
        names.push(format!("{} more", cycle.len() - MOST_NAMED));
    }
    names.extend(cycle.first().map(name));
    Some(names.join(" waits for "))
}

struct Checker<'a> {
    plan: &'a Plan,
    /// Stage of each node.
    stage_of: Vec<Option<usize>>,
    broken: Vec<String>,
}

/// Tasks of one microbatch by kind and hop.
type TasksByHop<'a> = BTreeMap<(Kind, usize), &'a Task>;

impl<'a> Checker<'a> {
    fn new(plan: &'a Plan) -> Self {
        Self { plan, stage_of: vec![None; plan.cluster.nodes().len()], broken: Vec::new() }
    }

    fn fail(&mut self, text: String) {
        self.broken.push(text);
    }

    fn present(&self) -> Vec<usize> {
        (0..self.plan.stages.len()).filter(|s| !self.plan.absent_stages.contains(s)).collect()
    }

    fn stage(&self, node: usize) -> usize {
        self.stage_of[node].unwrap_or(usize::MAX)
    }

    fn transfer(&self, i: usize, j: usize) -> f64 {
        self.plan.cluster.transfer_s(i, j, self.plan.cluster.activation_bytes())
    }

    fn allocation(&mut self) {
        for (s, members) in self.plan.stages.iter().enumerate() {
            if members.is_empty() != self.plan.absent_stages.contains(&s) {
                self.fail(format!(
                    "allocation: stage {s} has {} nodes, absent_stages is {:?}",
                    members.len(),
                    self.plan.absent_stages
                ));
            }
            for node in members {
                if let Some(other) = self.stage_of[*node].replace(s) {
                    self.fail(format!("allocation: node {node} serves stages {other} and {s}"));
                }
            }
        }
        let mut absent = BTreeSet::new();
        for node in &self.plan.absent_nodes {
            if let Some(stage) = self.stage_of[*node] {
                self.fail(format!("absent_nodes: node {node} serves stage {stage}"));
            }
            if !absent.insert(*node) {
                self.fail(format!("absent_nodes: node {node} is named twice"));
            }
        }
        // Where a stage was lost, its nodes may stay idle without being named.
        let idle = (0..self.stage_of.len()).find(|node| self.stage_of[*node].is_none() && !absent.contains(node));
        if let (Some(node), true) = (idle, self.plan.absent_stages.is_empty()) {
            self.fail(format!("allocation: node {node} serves no stage and is not in absent_nodes"));
        }
        for (i, microbatch) in self.plan.microbatches.iter().enumerate() {
            if let Some(node) =
                microbatch.nodes.iter().chain([&microbatch.source]).find(|n| self.stage_of[**n].is_none())
            {
                self.broken.push(format!("microbatches[{i}]: node {node} serves no stage"));
            }
        }
    }

    fn identities(&mut self) {
        let mut ids = BTreeSet::new();
        let mut counts: BTreeMap<usize, usize> = BTreeMap::new();
        for microbatch in &self.plan.microbatches {
            if !ids.insert(microbatch.id) {
                self.fail(format!("microbatches: id {} repeats", microbatch.id));
            }
            *counts.entry(microbatch.source).or_default() += 1;
        }
        for (source, said) in &self.plan.microbatches_per_source {
            let found = counts.remove(source).unwrap_or(0);
            if found != *said {
                self.fail(format!(
                    "microbatches_per_source: source {source} starts {found} microbatches, {said} are stated"
                ));
            }
        }
        if let Some((source, found)) = counts.pop_first() {
            self.fail(format!("microbatches_per_source: source {source} starts {found} microbatches, none are stated"));
        }
    }

    fn routes(&mut self) {
        for microbatch in &self.plan.microbatches {
            let name = format!("microbatch {}", microbatch.id);
            let order: Vec<usize> = microbatch.nodes.iter().map(|n| self.stage(*n)).collect();
            if order != microbatch.stages {
                self.fail(format!("{name}: stages are {:?}, its nodes serve {order:?}", microbatch.stages));
            }
            if order.iter().collect::<BTreeSet<_>>().len() != order.len() {
                self.fail(format!("{name}: visits a stage twice: {order:?}"));
            }
            if self.stage(microbatch.source) != 0 {
                self.fail(format!("{name}: its source {} is not in stage 0", microbatch.source));
            }
            self.order_rules(microbatch, &name, &order);
        }
    }

    fn order_rules(&mut self, microbatch: &Microbatch, name: &str, order: &[usize]) {
        let rules = &self.plan.constraints;
        if rules.cc1 && microbatch.nodes[0] != microbatch.source {
            self.broken.push(format!(
                "{name}: CC1: begins at node {}, not at its source {}",
                microbatch.nodes[0], microbatch.source
            ));
        }
        if rules.cc2 {
            match swaps_to_sort(order) {
                Some(swaps) if swaps <= rules.max_swaps as usize => {}
                Some(swaps) => self
                    .broken
                    .push(format!("{name}: CC2: {order:?} needs {swaps} swaps, {} are allowed", rules.max_swaps)),
                None => self.broken.push(format!("{name}: CC2: no swaps of neighbours sort {order:?}")),
            }
        }
        if let Some(jump) = rules.max_stage_jump {
            let mut furthest = 0;
            for stage in order {
                if *stage > furthest + jump as usize {
                    self.broken
                        .push(format!("{name}: jumps from stage {furthest} to {stage}, at most {jump} is allowed"));
                }
                furthest = furthest.max(*stage);
            }
        }
    }

    fn lengths_and_quotas(&mut self) {
        // One microbatch stands for each route: the waves of one must agree, which `waves` checks.
        let routes: BTreeMap<(usize, usize), &Microbatch> =
            self.plan.microbatches.iter().map(|b| ((b.source, b.route), b)).collect();
        let present = self.present();
        let count = routes.len();
        let total: usize = routes.values().map(|b| b.nodes.len()).sum();
        let exact = (count * present.len()) as f64 * (1.0 - self.plan.skip_ratio);
        let wanted = (exact + 0.5 + 1e-6).floor() as usize;
        if total != wanted {
            self.fail(format!("skip ratio: {count} routes make {total} stage visits, {wanted} are expected"));
        }
        if let Some(classes) = &self.plan.constraints.classes {
            let mut expected: BTreeMap<BTreeSet<usize>, usize> = BTreeMap::new();
            let mut found: BTreeMap<BTreeSet<usize>, usize> = BTreeMap::new();
            for class in classes {
                *expected.entry(class.stages.iter().copied().collect()).or_default() += class.routes;
            }
            for microbatch in routes.values() {
                *found.entry(microbatch.nodes.iter().map(|n| self.stage(*n)).collect()).or_default() += 1;
            }
            if found != expected {
                self.fail(format!("classes: the routes visit {found:?}, {expected:?} are expected"));
            }
            return;
        }
        let (low, high) = (wanted / count, wanted.div_ceil(count));
        for microbatch in routes.values() {
            if !(low..=high).contains(&microbatch.nodes.len()) {
                self.fail(format!(
                    "microbatch {}: {} visits, {low} to {high} are expected",
                    microbatch.id,
                    microbatch.nodes.len()
                ));
            }
        }
        if !self.plan.constraints.cc3 {
            return;
        }
        let visits: Vec<usize> = present
            .iter()
            .filter(|s| **s != 0)
            .map(|s| routes.values().flat_map(|b| &b.nodes).filter(|n| self.stage(**n) == *s).count())
            .collect();
        if let Some(weights) = &self.plan.constraints.profile {
            let weights: Vec<f64> = present.iter().filter(|s| **s != 0).map(|s| weights[*s - 1]).collect();
            let shares = shares(&weights, visits.iter().sum(), count);
            if visits.iter().zip(&shares).any(|(visits, share)| (*visits as f64 - share).abs() >= 1.0 - ROUNDING) {
                self.fail(format!("profile: stages 1.. lie on {visits:?} routes, their shares are {shares:.3?}"));
            }
        } else if let (Some(least), Some(most)) = (visits.iter().min(), visits.iter().max())
            && most - least > 1
        {
            self.fail(format!("CC3: stages 1.. lie on {visits:?} routes"));
        }
    }

    fn by_microbatch(&self) -> BTreeMap<usize, TasksByHop<'a>> {
        let mut by_microbatch: BTreeMap<usize, TasksByHop> = BTreeMap::new();
        for task in &self.plan.tasks {
            by_microbatch.entry(task.microbatch).or_default().insert((task.kind, task.hop), task);
        }
        by_microbatch
    }

    fn tasks(&mut self) {
        let mut seen = BTreeSet::new();
        for task in &self.plan.tasks {
            let name = format!("{}{}{}", task.microbatch, task.kind.letter(), task.hop);
            if !seen.insert((task.microbatch, task.kind, task.hop)) {
                self.fail(format!("task {name}: occurs twice"));
            }
            let node = &self.plan.cluster.nodes()[task.node];
            let length = match task.kind {
                Kind::F => node.forward_s,
                Kind::L => node.loss_s,
                Kind::B => node.backward_s,
            };
            let lasts = task.end_s - task.start_s;
            if task.end_s < task.start_s || (lasts - length).abs() > TOLERANCE {
                self.fail(format!("task {name}: lasts {lasts} s, node {} needs {length} s", task.node));
            }
        }
        let by_microbatch = self.by_microbatch();
        let departures = self.departures();
        for microbatch in &self.plan.microbatches {
            self.chain(microbatch, by_microbatch.get(&microbatch.id), &departures);
        }
    }

    /// When the message with the input of each task leaves: where messages take turns, after those that its sender computed
    /// before it and that go over the same link.
    fn departures(&self) -> BTreeMap<(usize, Kind, usize), f64> {
        let cluster = &self.plan.cluster;
        let by_id: BTreeMap<usize, &Microbatch> = self.plan.microbatches.iter().map(|b| (b.id, b)).collect();
        let mut departures = BTreeMap::new();
        let mut free: BTreeMap<(usize, Option<usize>), f64> = BTreeMap::new();
        for task in &self.plan.tasks {
            let Some(Microbatch { source, nodes, .. }) = by_id.get(&task.microbatch) else { continue };
            let next = match (task.kind, task.hop) {
                (Kind::F, hop) if hop + 1 < nodes.len() => Some((Kind::F, hop + 1, nodes[hop + 1])),
                (Kind::F, _) => Some((Kind::L, 0, *source)),
                (Kind::L, _) => nodes.last().map(|last| (Kind::B, nodes.len() - 1, *last)),
                (Kind::B, 0) => None,
                (Kind::B, hop) => nodes.get(hop - 1).map(|node| (Kind::B, hop - 1, *node)),
            };
            let Some((kind, hop, receiver)) = next else { continue };
            let (from, to) = (cluster.processor_of(task.node), cluster.processor_of(receiver));
            let link = match cluster.contention() {
                Contention::Link => Some((from, Some(to))),
                Contention::Uplink => Some((from, None)),
                Contention::None => None,
            };
            let mut leaves = task.end_s;
            if let Some(link) = link.filter(|_| from != to) {
                let free = free.entry(link).or_default();
                leaves = leaves.max(*free);
                *free = leaves + self.transfer(task.node, receiver) - cluster.transfer_s(task.node, receiver, 0.0);
            }
            departures.insert((task.microbatch, kind, hop), leaves);
        }
        departures
    }

    /// The tasks of one microbatch, in the order of its round trip.
    fn chain(
        &mut self,
        microbatch: &Microbatch,
        tasks: Option<&TasksByHop>,
        departures: &BTreeMap<(usize, Kind, usize), f64>,
    ) {
        let hops = microbatch.nodes.len();
        let round_trip: Vec<(Kind, usize, usize)> = (0..hops)
            .map(|h| (Kind::F, h, microbatch.nodes[h]))
            .chain([(Kind::L, 0, microbatch.source)])
            .chain((0..hops).rev().map(|h| (Kind::B, h, microbatch.nodes[h])))
            .collect();
        let expected: BTreeSet<(Kind, usize)> = round_trip.iter().map(|(kind, hop, _)| (*kind, *hop)).collect();
        let Some(tasks) = tasks.filter(|t| t.keys().copied().collect::<BTreeSet<_>>() == expected) else {
            self.fail(format!("microbatch {}: its tasks are not F and B once a hop and L once", microbatch.id));
            return;
        };
        let mut previous = microbatch.source;
        for (kind, hop, node) in round_trip {
            let task = tasks[&(kind, hop)];
            let name = format!("task {}{}{hop}", microbatch.id, kind.letter());
            if task.node != node {
                self.fail(format!("{name}: runs on node {}, its route says {node}", task.node));
            }
            let leaves = departures.get(&(microbatch.id, kind, hop)).copied().unwrap_or(0.0);
            let arrives = leaves + self.transfer(previous, node);
            if task.start_s < arrives - TOLERANCE {
                self.fail(format!("{name}: starts at {} s, its input arrives at {arrives} s", task.start_s));
            }
            previous = node;
        }
    }

    fn nodes(&mut self) {
        let mut by_node: BTreeMap<usize, Vec<&Task>> = BTreeMap::new();
        let mut by_processor: BTreeMap<usize, Vec<&Task>> = BTreeMap::new();
        for task in &self.plan.tasks {
            by_node.entry(task.node).or_default().push(task);
            let tasks = by_processor.entry(self.plan.cluster.processor_of(task.node)).or_default();
            if tasks.last().is_some_and(|last| task.start_s < last.start_s) {
                self.broken.push(format!("node {}: its tasks are not listed in order of their start", task.node));
            }
            tasks.push(task);
        }
        for tasks in by_processor.values_mut() {
            tasks.sort_by(|a, b| a.start_s.total_cmp(&b.start_s).then(a.end_s.total_cmp(&b.end_s)));
            for pair in tasks.windows(2) {
                if pair[1].start_s < pair[0].end_s - TOLERANCE {
                    let (node, other) = (pair[1].node, pair[0].node);
                    let on =
                        if node == other { String::new() } else { format!(" (node {other} shares its processor)") };
                    self.broken.push(format!("TC2: node {node} runs two tasks at {} s{on}", pair[1].start_s));
                }
            }
        }
        let memory = self.plan.constraints.tc1;
        if memory == MemoryRule::Held {
            for (node, tasks) in &by_node {
                self.held(*node, tasks);
            }
        }
        if memory == MemoryRule::Routes {
            let routes: BTreeSet<(usize, &[usize])> =
                self.plan.microbatches.iter().map(|b| (b.route, b.nodes.as_slice())).collect();
            for node in 0..self.stage_of.len() {
                let carried = routes.iter().filter(|(_, nodes)| nodes.contains(&node)).count();
                let memory = self.plan.cluster.nodes()[node].memory as usize;
                if carried > memory {
                    self.fail(format!("TC1: {carried} routes lead over node {node}, its memory is {memory}"));
                }
            }
        }
    }

    /// A microbatch is held from the start of its forward to the end of its backward.
    fn held(&mut self, node: usize, tasks: &[&Task]) {
        let mut events: Vec<(f64, i64)> = tasks
            .iter()
            .filter_map(|task| match task.kind {
                Kind::F => Some((task.start_s, 1)),
                Kind::B => Some((task.end_s - TOLERANCE, -1)),
                Kind::L => None,
            })
            .collect();
        events.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        let (mut held, mut most) = (0, 0);
        for (_, change) in events {
            held += change;
            most = most.max(held);
        }
        let memory = i64::from(self.plan.cluster.nodes()[node].memory);
        if most > memory {
            self.fail(format!("TC1: node {node} holds {most} microbatches, its memory is {memory}"));
        }
    }

    fn waves(&mut self) {
        let limit = self.plan.constraints.waves as usize;
        let by_microbatch = self.by_microbatch();
        let mut routes: BTreeMap<usize, Vec<&Microbatch>> = BTreeMap::new();
        for microbatch in &self.plan.microbatches {
            routes.entry(microbatch.route).or_default().push(microbatch);
        }
        for (route, mut members) in routes {
            members.sort_by_key(|b| b.wave);
            if members.len() > limit {
                self.fail(format!("route {route}: {} microbatches share it, waves is {limit}", members.len()));
            }
            for (a, b) in members.iter().zip(members.iter().skip(1)) {
                if a.source != b.source {
                    self.fail(format!("route {route}: used by sources {} and {}", a.source, b.source));
                }
                if a.nodes != b.nodes {
                    self.fail(format!("route {route}: its waves take different paths"));
                }
                if a.wave == b.wave {
                    self.fail(format!("route {route}: wave {} repeats", a.wave));
                }
                let task = |microbatch: &Microbatch, kind| {
                    by_microbatch.get(&microbatch.id).and_then(|tasks| tasks.get(&(kind, 0)))
                };
                // Without CC1 the source may be elsewhere: home, and out again.
                let way = a.nodes.first().map_or(0.0, |&n| self.transfer(n, a.source) + self.transfer(a.source, n));
                if let (Some(last), Some(first)) = (task(a, Kind::B), task(b, Kind::F))
                    && first.start_s < last.end_s + way - TOLERANCE
                {
                    self.fail(format!("route {route}: wave {} starts before wave {} is complete", b.wave, a.wave));
                }
            }
            if let Some(microbatch) = members.iter().find(|b| b.wave >= limit) {
                self.fail(format!("route {route}: wave {} is not below waves = {limit}", microbatch.wave));
            }
        }
    }

    fn prediction(&mut self) {
        let plan = self.plan;
        let reduce: Vec<f64> =
            plan.stages.iter().enumerate().map(|(s, members)| plan.cluster.allreduce_s(s, members)).collect();
        let by_id: BTreeMap<usize, &Microbatch> = plan.microbatches.iter().map(|b| (b.id, b)).collect();
        let mut last_backward = vec![0.0_f64; plan.stages.len()];
        let mut pipeline = 0.0_f64;
        for task in plan.tasks.iter().filter(|t| t.kind == Kind::B) {
            let stage = self.stage(task.node);
            if stage < last_backward.len() {
                last_backward[stage] = last_backward[stage].max(task.end_s);
            }
            if let (0, Some(microbatch)) = (task.hop, by_id.get(&task.microbatch)) {
                pipeline = pipeline.max(task.end_s + self.transfer(microbatch.nodes[0], microbatch.source));
            }
        }
        let step = plan.cluster.step_s().iter().copied().fold(0.0, f64::max);
        let reduced = last_backward.iter().zip(&reduce).map(|(a, b)| a + b).fold(pipeline, f64::max);
        let iteration = reduced + plan.cluster.norm_s() + step;
        let said = &plan.predicted;
        for (key, stated, found) in
            [("iteration_s", said.iteration_s, iteration), ("pipeline_s", said.pipeline_s, pipeline)]
        {
            if (stated - found).abs() > 1e-5 * found.max(1.0) {
                self.fail(format!("predicted.{key} is {stated}, the tasks give {found}"));
            }
        }
        for (s, (stated, found)) in said.allreduce_s.iter().zip(&reduce).enumerate() {
            if (stated - found).abs() > 1e-6 * found.max(1.0) {
                self.fail(format!("predicted.allreduce_s[{s}] is {stated}, the ring takes {found}"));
            }
        }
        let bound = said.lower_bound_s;
        if bound > iteration * (1.0 + 1e-9) {
            self.fail(format!("predicted.lower_bound_s {bound} lies above the iteration {iteration}"));
        }
        let gap = Predicted::gap_of(iteration, bound);
        if bound > 0.0 && (said.gap - gap).abs() > 1e-6 {
            self.fail(format!("predicted.gap is {}, bound and tasks give {gap}", said.gap));
        }
        let optimal = plan.solver.optimal == Some(true);
        if optimal && iteration > bound * (1.0 + 1e-9) {
            self.fail(format!("solver.optimal is true, but the iteration {iteration} lies above the bound {bound}"));
        }
    }
}

/// Numbers that wait for each other in a cycle, each for the next; `awaited[i]` is what `i` waits for.
fn find_cycle(awaited: &[Vec<usize>]) -> Option<Vec<usize>> {
    let mut waiting: Vec<Vec<usize>> = vec![Vec::new(); awaited.len()];
    for (i, others) in awaited.iter().enumerate() {
        others.iter().for_each(|other| waiting[*other].push(i));
    }
    let mut open: Vec<usize> = awaited.iter().map(Vec::len).collect();
    let mut ready: Vec<usize> = (0..open.len()).filter(|i| open[*i] == 0).collect();
    while let Some(done) = ready.pop() {
        for i in &waiting[done] {
            open[*i] -= 1;
            if open[*i] == 0 {
                ready.push(*i);
            }
        }
    }
    // Whatever is left waits for something that is left.
    let mut walk = vec![open.iter().position(|count| *count > 0)?];
    let mut step_of = BTreeMap::new();
    while let Some(last) = walk.last().copied() {
        if let Some(start) = step_of.insert(last, walk.len() - 1) {
            walk.pop();
            return Some(walk.split_off(start));
        }
        walk.extend(awaited[last].iter().find(|other| open[**other] > 0));
    }
    None
}

/// Shares of `visits` in proportion to weights, none above `routes`: the least factor for the weights that shares out all
/// visits, found by trying which stages are at the limit, those with the greatest weights first.
fn shares(weights: &[f64], visits: usize, routes: usize) -> Vec<f64> {
    let mut order: Vec<usize> = (0..weights.len()).collect();
    order.sort_by(|a, b| weights[*b].total_cmp(&weights[*a]));
    // Their sum might be too large for a number.
    let greatest = weights.iter().copied().fold(f64::MIN_POSITIVE, f64::max);
    let weights: Vec<f64> = weights.iter().map(|weight| weight / greatest).collect();
    let routes = routes as f64;
    for full in 0..=order.len() {
        let (at_limit, below) = order.split_at(full);
        let sum: f64 = below.iter().map(|i| weights[*i]).sum();
        let left = visits as f64 - full as f64 * routes;
        let factor = if sum > 0.0 { left / sum } else { 0.0 };
        if below.iter().all(|i| weights[*i] * factor <= routes + ROUNDING) {
            let share = |i: usize| if at_limit.contains(&i) { routes } else { weights[i] * factor };
            return (0..weights.len()).map(share).collect();
        }
    }
    vec![routes; weights.len()]
}

/// Number of disjoint swaps of neighbours, each of two stages that differ by one, that sort `order`.
fn swaps_to_sort(order: &[usize]) -> Option<usize> {
    let (mut sorted, mut swaps, mut i) = (order.to_vec(), 0, 0);
    while i + 1 < sorted.len() {
        if sorted[i] == sorted[i + 1] + 1 {
            sorted.swap(i, i + 1);
            swaps += 1;
            i += 1;
        }
        i += 1;
    }
    sorted.windows(2).all(|w| w[0] < w[1]).then_some(swaps)
}
