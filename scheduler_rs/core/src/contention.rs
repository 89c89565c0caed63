//! Messages that take turns on a link.

use serde::{Deserialize, Serialize};

use crate::problem::Instance;
use crate::time::Time;

/// Which messages take turns: those of one group leave one after the other, each once the bytes of the one before are
/// gone, in the order in which their sender computes them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Contention {
    /// None: they do not disturb each other.
    #[default]
    None,
    /// Those from one processor to another.
    Link,
    /// All that one processor sends.
    Uplink,
}

/// When links are free again, in the course of one simulation.
#[derive(Clone, Debug, Default)]
pub(crate) struct Channels {
    free: Vec<Time>,
}

impl Channels {
    /// All links are free.
    pub fn reset(&mut self, instance: &Instance) {
        let count = match instance.contention() {
            Contention::None => 0,
            Contention::Link => instance.node_count() * instance.node_count(),
            Contention::Uplink => instance.node_count(),
        };
        self.free.clear();
        self.free.resize(count, 0);
    }

    /// When a message arrives that is computed at `now`. Messages of one sender come in the order of its tasks.
    #[inline]
    pub fn deliver(&mut self, instance: &Instance, from: usize, to: usize, travel: Time, now: Time) -> Time {
        if self.free.is_empty() || travel == 0 {
            return now + travel;
        }
        let (sender, receiver) = (instance.processor(from), instance.processor(to));
        let channel = match instance.contention() {
            Contention::Link => sender * instance.node_count() + receiver,
            _ => sender,
        };
        let begin = now.max(self.free[channel]);
        self.free[channel] = begin + instance.occupied(from, to);
        begin + travel
    }
}
