//! Messages that take turns on a link.

use serde::{Deserialize, Serialize};

use crate::error::{Result, invalid};
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

impl Contention {
    /// Every kind, by name.
    pub const ALL: [(&'static str, Self); 3] = [("none", Self::None), ("link", Self::Link), ("uplink", Self::Uplink)];

    /// # Errors
    /// For an unknown name.
    pub fn from_name(name: &str) -> Result<Self> {
        match Self::ALL.iter().find(|(known, _)| *known == name) {
            Some((_, contention)) => Ok(*contention),
            None => invalid("contention", name, "none, link or uplink"),
        }
    }

    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, kind)| *kind == self).map_or("", |(name, _)| name)
    }

    /// Whether messages do not disturb each other.
    #[must_use]
    pub fn is_none(&self) -> bool {
        *self == Self::None
    }
}

/// A message that takes its turn, with the tasks of its sender for order.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Message {
    channel: u32,
    occupied: Time,
}

impl Message {
    /// The one from one node to another; none where it disturbs no other.
    #[inline]
    pub fn of(instance: &Instance, from: usize, to: usize) -> Option<Self> {
        let (sender, receiver) = (instance.processor(from), instance.processor(to));
        let channel = match instance.contention() {
            Contention::None => return None,
            _ if sender == receiver => return None,
            Contention::Link => sender * instance.node_count() + receiver,
            Contention::Uplink => sender,
        };
        Some(Self { channel: channel as u32, occupied: instance.occupied(from, to) })
    }

    /// Whether the two wait for each other.
    pub fn disturbs(self, other: Self) -> bool {
        self.channel == other.channel
    }
}

/// When links are free again, in the course of one simulation.
#[derive(Clone, Debug, Default)]
pub(crate) struct Channels {
    free: Vec<Time>,
    /// Those that are not free from the beginning, so that there may be many.
    used: Vec<u32>,
}

impl Channels {
    /// All links are free.
    pub fn reset(&mut self, instance: &Instance) {
        let count = match instance.contention() {
            Contention::None => 0,
            Contention::Link => instance.node_count() * instance.node_count(),
            Contention::Uplink => instance.node_count(),
        };
        self.clear();
        self.free.resize(count, 0);
    }

    /// All links are free, of the same instance as before.
    pub fn clear(&mut self) {
        for channel in self.used.drain(..) {
            self.free[channel as usize] = 0;
        }
    }

    /// When a message leaves that is computed at `now`. Those of one sender come in the order of its tasks.
    #[inline]
    pub fn leave(&mut self, message: Option<Message>, now: Time) -> Time {
        let Some(Message { channel, occupied }) = message else { return now };
        let free = &mut self.free[channel as usize];
        if *free == 0 {
            self.used.push(channel);
        }
        let begin = now.max(*free);
        *free = begin + occupied;
        begin
    }

    /// When a message arrives that is computed at `now` and travels so long.
    #[inline]
    pub fn deliver(&mut self, instance: &Instance, from: usize, to: usize, travel: Time, now: Time) -> Time {
        self.leave(Message::of(instance, from, to), now) + travel
    }
}
