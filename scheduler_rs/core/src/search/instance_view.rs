//! What routes are made for.

use crate::problem::Instance;
use crate::route::RouteTask;

/// What routes are made for: the nodes and their links, and the routes asked for. Both change where the allocation is
/// searched too, so nothing here holds on to them.
#[derive(Clone, Copy, Debug)]
pub struct InstanceView<'g> {
    /// Nodes, links and rules.
    pub instance: &'g Instance,
    /// One for each route.
    pub tasks: &'g [RouteTask],
}

impl InstanceView<'_> {
    /// First hop of a path that a change may touch.
    #[must_use]
    pub fn free_from(self) -> usize {
        usize::from(self.instance.rules.cc1)
    }

    /// Whether the route is not to be chosen.
    #[must_use]
    pub fn is_forced(self, route: usize) -> bool {
        self.instance.classes[self.tasks[route].class].forced.is_some()
    }
}
