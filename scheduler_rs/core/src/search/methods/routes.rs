//! Routes of all tasks as a point of local search: complete, within CC1 to CC3, lengths and TC1 `routes`; every
//! change that is applied keeps them so.

use rand::RngExt;
use rand_pcg::Pcg64;
use smallvec::SmallVec;

use crate::problem::Instance;
use crate::quotas::Quotas;
use crate::route::{Lengths, RouteTask, StageOrder, StageSet, stage_bit};
use crate::rules::MemoryRule;
use crate::search::instance_view::InstanceView;
use crate::search::methods::assignment::least_assignment;
use crate::simulate::MicrobatchRoute;

/// Nodes of one route in order of the forward pass.
pub type Path = SmallVec<[u32; 16]>;

/// The stages of a path.
pub fn stage_set(instance: &Instance, path: &[u32]) -> StageSet {
    path.iter().fold(0, |set, node| set | stage_bit(instance.stage_of[*node as usize]))
}

/// New paths of one or two routes.
pub type Change = SmallVec<[(u32, Path); 2]>;

/// Index of each route's first microbatch among all of them.
pub fn first_microbatches(tasks: &[RouteTask]) -> Vec<usize> {
    tasks.iter().scan(0, |sum, task| Some(std::mem::replace(sum, *sum + task.waves))).collect()
}

/// The microbatches of routes as the simulator takes them.
pub fn microbatches_of_paths(tasks: &[RouteTask], paths: &[Path]) -> Vec<MicrobatchRoute> {
    let mut microbatches = Vec::new();
    for (route, (task, path)) in tasks.iter().zip(paths).enumerate() {
        let (source, class) = (task.source, task.class);
        for wave in 0..task.waves {
            let id = microbatches.len();
            microbatches.push(MicrobatchRoute { id, source, route, wave, class, nodes: path.to_vec() });
        }
    }
    microbatches
}

/// Nodes of each of so many routes.
pub fn paths_of_microbatches(microbatches: &[MicrobatchRoute], routes: usize) -> Vec<Path> {
    let mut paths = vec![Path::new(); routes];
    for microbatch in microbatches {
        paths[microbatch.route] = Path::from_slice(&microbatch.nodes);
    }
    paths
}

/// See the [module](self).
#[derive(Clone, Debug)]
pub struct Routes {
    paths: Vec<Path>,
    /// Routes over each node, in no particular but a repeatable order.
    users: Vec<SmallVec<[u32; 6]>>,
    /// Routes over each stage.
    visits: Vec<usize>,
    /// The fewest and the most routes that each stage may lie on.
    quotas: Quotas,
}

impl Routes {
    /// `paths` must keep the rules.
    #[must_use]
    pub fn new(view: InstanceView<'_>, paths: Vec<Path>) -> Self {
        let mut routes = Self {
            paths: vec![Path::new(); view.tasks.len()],
            users: vec![SmallVec::new(); view.instance.node_count()],
            visits: vec![0; view.instance.stage_count()],
            quotas: Quotas { least: Vec::new(), most: Vec::new() },
        };
        for (route, path) in paths.into_iter().enumerate() {
            routes.set(view, route, path);
        }
        routes.take_quotas(view);
        routes
    }

    /// Nodes of a route.
    #[must_use]
    pub fn path(&self, route: usize) -> &Path {
        &self.paths[route]
    }

    /// Routes over a node.
    #[must_use]
    pub fn users(&self, node: usize) -> &[u32] {
        &self.users[node]
    }

    /// Whether the node has the memory for the routes over it, where that is counted by routes.
    #[must_use]
    pub fn has_room(&self, view: InstanceView<'_>, node: usize) -> bool {
        view.instance.rules.tc1 != MemoryRule::Routes || self.users[node].len() <= view.instance.memory[node] as usize
    }

    /// Takes other paths for all routes; they must keep the rules.
    pub fn replace(&mut self, view: InstanceView<'_>, paths: &[Path]) {
        for (route, path) in paths.iter().enumerate() {
            self.set(view, route, path.clone());
        }
        self.take_quotas(view);
    }

    /// Without CC1 they depend on how many routes visit stage 0.
    fn take_quotas(&mut self, view: InstanceView<'_>) {
        let lengths = Lengths::of(view.instance, view.tasks.len());
        self.quotas = Quotas::of(view.instance, &lengths, self.visits[0]);
    }

    fn set(&mut self, view: InstanceView<'_>, route: usize, path: Path) -> Path {
        let old = std::mem::replace(&mut self.paths[route], path);
        for node in &old {
            let users = &mut self.users[*node as usize];
            if let Some(index) = users.iter().position(|r| *r as usize == route) {
                users.swap_remove(index);
            }
            self.visits[view.instance.stage_of[*node as usize]] -= 1;
        }
        for node in &self.paths[route] {
            self.users[*node as usize].push(route as u32);
            self.visits[view.instance.stage_of[*node as usize]] += 1;
        }
        old
    }

    /// Applies a change and gives the one that takes it back; none, and nothing changed, where a rule forbids it.
    pub fn apply(&mut self, view: InstanceView<'_>, change: Change) -> Option<Change> {
        if !change.iter().all(|(_, path)| self.keeps_order(view, path)) {
            return None;
        }
        let back = self.exchange(view, change);
        if back.iter().all(|(route, _)| self.fits(view, *route as usize))
            && self.keeps_quotas(view, &back)
            && self.keeps_classes(view, &back)
        {
            return Some(back);
        }
        self.exchange(view, back);
        None
    }

    /// Takes a change back.
    pub fn undo(&mut self, view: InstanceView<'_>, back: Change) {
        self.exchange(view, back);
    }

    fn exchange(&mut self, view: InstanceView<'_>, change: Change) -> Change {
        change.into_iter().map(|(route, path)| (route, self.set(view, route as usize, path))).collect()
    }

    fn keeps_order(&self, view: InstanceView<'_>, path: &Path) -> bool {
        let rules = &view.instance.rules;
        let stages = path.iter().map(|node| view.instance.stage_of[*node as usize]);
        stages.into_iter().try_fold(StageOrder::start(rules), |order, stage| order.step(stage, rules)).is_some()
    }

    fn fits(&self, view: InstanceView<'_>, route: usize) -> bool {
        self.paths[route].iter().all(|node| self.has_room(view, *node as usize))
    }

    /// Whether the stages of the paths before and after a change still lie on as many routes as they must. Under CC3 the
    /// number of visits of stage 0 stays as it was, so that the quotas do.
    fn keeps_quotas(&self, view: InstanceView<'_>, before: &Change) -> bool {
        let within = |node: &u32| {
            let stage = view.instance.stage_of[*node as usize];
            (self.quotas.least[stage]..=self.quotas.most[stage]).contains(&self.visits[stage])
        };
        before.iter().all(|(route, path)| path.iter().all(within) && self.paths[*route as usize].iter().all(within))
    }

    /// Whether the changed routes are of the same classes as before, whichever of them has which.
    fn keeps_classes(&self, view: InstanceView<'_>, before: &Change) -> bool {
        if view.instance.rules.classes.is_none() {
            return true;
        }
        let sorted = |mut sets: SmallVec<[StageSet; 2]>| {
            sets.sort_unstable();
            sets
        };
        let had = before.iter().map(|(_, path)| stage_set(view.instance, path)).collect();
        let has = before.iter().map(|(route, _)| stage_set(view.instance, &self.paths[*route as usize])).collect();
        sorted(had) == sorted(has)
    }

    /// A random change of `route` and perhaps one other; none where the draw led nowhere.
    #[must_use]
    pub fn propose(&self, view: InstanceView<'_>, route: usize, rng: &mut Pcg64) -> Option<Change> {
        if view.is_forced(route) {
            return None;
        }
        match rng.random_range(0..16) {
            0..5 => self.other_node(view, route, rng),
            5..10 => self.other_stage(view, route, rng),
            10..12 => self.other_order(view, route, rng),
            12..14 => self.cross(view, route, rng),
            14 => self.exchange_segments(view, route, rng),
            _ if view.instance.rules.classes.is_some() => self.exchange_ends(view, route, rng),
            _ => self.exchange_length(view, route, rng),
        }
    }

    fn hop(&self, view: InstanceView<'_>, route: usize, rng: &mut Pcg64) -> Option<usize> {
        let (from, to) = (view.free_from(), self.paths[route].len());
        (from < to).then(|| rng.random_range(from..to))
    }

    /// Another node of the same stage; where it has no room, the two routes exchange nodes.
    fn other_node(&self, view: InstanceView<'_>, route: usize, rng: &mut Pcg64) -> Option<Change> {
        let hop = self.hop(view, route, rng)?;
        let node = self.paths[route][hop];
        let members = &view.instance.members[view.instance.stage_of[node as usize]];
        if members.len() < 2 {
            return None;
        }
        let mut other = members[rng.random_range(0..members.len() - 1)] as u32;
        if other == node {
            other = members[members.len() - 1] as u32;
        }
        let mut path = self.paths[route].clone();
        path[hop] = other;
        let mut change: Change = SmallVec::new();
        change.push((route as u32, path));
        let users = &self.users[other as usize];
        let full = view.instance.rules.tc1 == MemoryRule::Routes
            && users.len() >= view.instance.memory[other as usize] as usize;
        if full || (!users.is_empty() && rng.random_bool(0.3)) {
            let partner = users[rng.random_range(0..users.len())];
            let mut path = self.paths[partner as usize].clone();
            let index = path.iter().position(|n| *n == other)?;
            path[index] = node;
            change.push((partner, path));
        }
        Some(change)
    }

    /// Another stage instead of one; where quotas forbid that, another route makes the opposite change.
    fn other_stage(&self, view: InstanceView<'_>, route: usize, rng: &mut Pcg64) -> Option<Change> {
        let hop = self.hop(view, route, rng)?;
        let node = self.paths[route][hop];
        let stage_of = &view.instance.stage_of;
        let stage = stage_of[node as usize];
        let target = view.instance.present[rng.random_range(0..view.instance.present.len())];
        let visits = |path: &Path, stage: usize| path.iter().any(|n| stage_of[*n as usize] == stage);
        if target == stage || (target == 0 && view.instance.rules.cc1) || visits(&self.paths[route], target) {
            return None;
        }
        let members = &view.instance.members[target];
        let other = members[rng.random_range(0..members.len())] as u32;
        let mut change: Change = SmallVec::new();
        let users = &self.users[other as usize];
        if !users.is_empty() && rng.random_bool(0.8) {
            let partner = users[rng.random_range(0..users.len())];
            if visits(&self.paths[partner as usize], stage) {
                return None;
            }
            let hop = self.paths[partner as usize].iter().position(|n| *n == other)?;
            change.push((partner, self.moved(view, partner as usize, hop, node, rng)?));
        }
        change.push((route as u32, self.moved(view, route, hop, other, rng)?));
        Some(change)
    }

    /// The path of `route` without its node at `hop`, and with `node` at one of the hops that its stage may take.
    fn moved(&self, view: InstanceView<'_>, route: usize, hop: usize, node: u32, rng: &mut Pcg64) -> Option<Path> {
        let mut path = self.paths[route].clone();
        path.remove(hop);
        self.inserted(view, path, view.tasks[route].source, node, rng)
    }

    /// `path` with `node` at the nearest of its possible hops, sometimes at any of them.
    fn inserted(
        &self,
        view: InstanceView<'_>,
        mut path: Path,
        source: usize,
        node: u32,
        rng: &mut Pcg64,
    ) -> Option<Path> {
        let stage_of = &view.instance.stage_of;
        let (from, to) = (view.free_from(), path.len());
        let hops = if view.instance.rules.cc2 {
            // Where order puts it, or with a neighbour on the other side of it.
            let stage = stage_of[node as usize];
            let hop = path.iter().position(|n| stage_of[*n as usize] > stage).unwrap_or(to);
            hop.saturating_sub(1).max(from)..=(hop + 1).min(to)
        } else {
            from..=to
        };
        let any = rng.random_bool(0.2);
        let cost = |hop: usize, rng: &mut Pcg64| {
            if any { i64::from(rng.random::<u32>()) } else { self.detour(view, &path, source, hop, node) }
        };
        let mut ordered: SmallVec<[(i64, usize); 8]> = hops.map(|hop| (cost(hop, rng), hop)).collect();
        ordered.sort_unstable();
        for (_, hop) in ordered {
            path.insert(hop, node);
            if self.keeps_order(view, &path) {
                return Some(path);
            }
            path.remove(hop);
        }
        None
    }

    /// What a visit of `node` between hops `hop - 1` and `hop` adds to the round trip.
    fn detour(&self, view: InstanceView<'_>, path: &Path, source: usize, hop: usize, node: u32) -> i64 {
        let around = |a: usize, b: usize| view.instance.transfer(a, b) + view.instance.transfer(b, a);
        let before = if hop == 0 { source } else { path[hop - 1] as usize };
        let after = path.get(hop).map_or(source, |n| *n as usize);
        around(before, node as usize) + around(node as usize, after) - around(before, after)
    }

    /// Two neighbours in the other order.
    fn other_order(&self, view: InstanceView<'_>, route: usize, rng: &mut Pcg64) -> Option<Change> {
        let mut path = self.paths[route].clone();
        let from = view.free_from();
        if path.len() < from + 2 {
            return None;
        }
        let hop = rng.random_range(from..path.len() - 1);
        path.swap(hop, hop + 1);
        Some(SmallVec::from_iter([(route as u32, path)]))
    }

    /// Two routes go on as the other one did.
    fn cross(&self, view: InstanceView<'_>, route: usize, rng: &mut Pcg64) -> Option<Change> {
        let other = rng.random_range(0..self.paths.len());
        let (own, its) = (&self.paths[route], &self.paths[other]);
        if other == route || own.len() != its.len() || view.is_forced(other) {
            return None;
        }
        let hop = self.hop(view, route, rng)?;
        let join = |a: &Path, b: &Path| a[..hop].iter().chain(&b[hop..]).copied().collect::<Path>();
        Some(SmallVec::from_iter([(route as u32, join(own, its)), (other as u32, join(its, own))]))
    }

    /// One stage's nodes and those of all stages beyond, exchanged: as [`Routes::cross`], by stage rather than hop.
    fn exchange_segments(&self, view: InstanceView<'_>, route: usize, rng: &mut Pcg64) -> Option<Change> {
        let other = rng.random_range(0..self.paths.len());
        let (own, its) = (&self.paths[route], &self.paths[other]);
        if other == route || view.is_forced(other) {
            return None;
        }
        let (a, b) = (self.hop(view, route, rng)?, self.hop(view, other, rng)?);
        let last = (own.len() - a).min(its.len() - b);
        let count = rng.random_range(1..=last);
        let (mut left, mut right) = (own.clone(), its.clone());
        for i in 0..count {
            std::mem::swap(&mut left[a + i], &mut right[b + i]);
        }
        Some(SmallVec::from_iter([(route as u32, left), (other as u32, right)]))
    }

    /// Two routes exchange all that they visit from some stage on, and with it their classes.
    fn exchange_ends(&self, view: InstanceView<'_>, route: usize, rng: &mut Pcg64) -> Option<Change> {
        let other = rng.random_range(0..self.paths.len());
        if other == route || view.is_forced(other) {
            return None;
        }
        let stage = view.instance.present[rng.random_range(0..view.instance.present.len())];
        let split = |path: &Path| {
            let from = view.free_from();
            path[from..]
                .iter()
                .position(|n| view.instance.stage_of[*n as usize] >= stage)
                .map_or(path.len(), |i| from + i)
        };
        let (own, its) = (&self.paths[route], &self.paths[other]);
        let (a, b) = (split(own), split(its));
        let left: Path = own[..a].iter().chain(&its[b..]).copied().collect();
        let right: Path = its[..b].iter().chain(&own[a..]).copied().collect();
        let is_path =
            |path: &Path| !path.is_empty() && stage_set(view.instance, path).count_ones() as usize == path.len();
        (is_path(&left) && is_path(&right)).then(|| SmallVec::from_iter([(route as u32, left), (other as u32, right)]))
    }

    /// A visit goes from a long route to a short one.
    fn exchange_length(&self, view: InstanceView<'_>, route: usize, rng: &mut Pcg64) -> Option<Change> {
        let other = rng.random_range(0..self.paths.len());
        if view.is_forced(other) {
            return None;
        }
        let (long, short) =
            if self.paths[route].len() > self.paths[other].len() { (route, other) } else { (other, route) };
        if self.paths[long].len() != self.paths[short].len() + 1 {
            return None;
        }
        let hop = self.hop(view, long, rng)?;
        let mut less = self.paths[long].clone();
        let node = less.remove(hop);
        let more = self.inserted(view, self.paths[short].clone(), view.tasks[short].source, node, rng)?;
        Some(SmallVec::from_iter([(long as u32, less), (short as u32, more)]))
    }

    /// The parts of some routes between two positions, reassigned to them so that the sum of `cost` is least; all these
    /// routes must be as long as each other. None where nothing changes.
    #[must_use]
    pub fn reassign(
        &self,
        view: InstanceView<'_>,
        chosen: &[usize],
        from: usize,
        to: usize,
        cost: impl Fn(usize, &Path) -> f64,
    ) -> Option<Change> {
        let n = chosen.len();
        let mut costs = vec![f64::INFINITY; n * n];
        let reassigned = |i: usize, j: usize| {
            let mut path = self.paths[chosen[i]].clone();
            path[from..to].copy_from_slice(&self.paths[chosen[j]][from..to]);
            path
        };
        for i in 0..n {
            for j in 0..n {
                let path = reassigned(i, j);
                if i == j || self.keeps_order(view, &path) {
                    costs[i * n + j] = cost(chosen[i], &path);
                }
            }
        }
        let columns = least_assignment(n, &costs);
        let moved = columns.iter().enumerate().filter(|(i, j)| i != *j);
        let change: Change = moved.map(|(i, j)| (chosen[i] as u32, reassigned(i, *j))).collect();
        (!change.is_empty()).then_some(change)
    }
}
