//! Routes, priorities and, where that is searched too, the allocation that they are for.

use rand::RngExt;
use rand_pcg::Pcg64;

use crate::allocate::joint::{AllocationScope, Placement};
use crate::error::Result;
use crate::problem::{Instance, NO_STAGE, Problem};
use crate::route::{RouteTask, route_tasks};
use crate::search::instance_view::InstanceView;
use crate::search::methods::routes::Path;
use crate::time::Time;

/// What plans are compared by: the iteration, then the sum of completion times.
pub type Key = (Time, Time);

/// Routes and priorities with the times that they give.
#[derive(Clone, Debug)]
pub struct PrioritisedRoutes {
    /// Nodes of each route.
    pub paths: Vec<Path>,
    /// As [`crate::simulate::Simulator::run_prioritised`] takes them.
    pub priorities: Vec<u32>,
    /// Iteration and sum of completion times.
    pub key: Key,
    /// The allocation, where that was searched too.
    pub allocation: Option<Box<AllocationState>>,
}

/// An allocation as a chain has it: the instance, its routes and their sources, and which node stands where.
#[derive(Clone, Debug)]
pub struct AllocationState {
    pub(super) owned: OwnedInstance,
    pub(super) placement: Placement,
}

impl AllocationState {
    /// An allocation with the routes that are asked of it.
    #[must_use]
    pub fn new(placement: Placement, instance: Instance, tasks: Vec<RouteTask>) -> Self {
        Self { owned: OwnedInstance { instance, tasks }, placement }
    }

    /// The allocation of `problem`, of which the search may change what `scope` says.
    ///
    /// # Errors
    /// As [`Placement::new`].
    pub fn of(problem: &Problem, scope: AllocationScope) -> Result<Self> {
        let placement = Placement::new(problem, scope)?;
        let instance = placement.instance();
        let tasks = route_tasks(&instance);
        Ok(Self::new(placement, instance, tasks))
    }

    /// What routes are made for.
    #[must_use]
    pub fn view(&self) -> InstanceView<'_> {
        self.owned.view()
    }

    /// Two nodes of different stages are exchanged, if they may be.
    pub fn exchange_any(&mut self, rng: &mut Pcg64) {
        let count = self.owned.instance.node_count();
        let (a, b) = (rng.random_range(0..count), rng.random_range(0..count));
        let (left, right) = (self.owned.instance.stage_of[a], self.owned.instance.stage_of[b]);
        let fixed = !self.placement.scope().sources && (left == 0 || right == 0);
        if left == right || fixed || left == NO_STAGE || right == NO_STAGE {
            return;
        }
        let instance = &mut self.owned.instance;
        self.placement.swap(instance, a, b);
        let fits = |position: usize| instance.memory[position] > 0;
        if !fits(a) || !fits(b) || !self.placement.is_close(instance, left) || !self.placement.is_close(instance, right)
        {
            self.placement.swap(instance, a, b);
        }
    }

    /// Which node stands where.
    #[must_use]
    pub fn placement(&self) -> &Placement {
        &self.placement
    }
}

/// What [`InstanceView`] borrows: a chain has its own, since it may change the allocation.
#[derive(Clone, Debug)]
pub(in crate::search::methods) struct OwnedInstance {
    pub instance: Instance,
    pub tasks: Vec<RouteTask>,
}

impl OwnedInstance {
    pub fn view(&self) -> InstanceView<'_> {
        InstanceView { instance: &self.instance, tasks: &self.tasks }
    }
}
