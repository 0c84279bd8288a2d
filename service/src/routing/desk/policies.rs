//! The policies of a desk: one of each name that was ever asked for, so that each remembers by itself. All of them hear everything.

use crate::routing::policy::{News, Policy, PolicyName};
use crate::routing::request::Request;
use crate::routing::trace::Trace;
use crate::routing::view::{Branch, Pick, View};
use rand::Rng;

/// The policies.
pub(super) struct Policies {
    there: Vec<Box<dyn Policy>>,
}

impl Policies {
    pub fn new() -> Self {
        Self { there: PolicyName::ALL.into_iter().map(policy).collect() }
    }

    /// The policy of this name.
    pub fn get(&mut self, name: PolicyName) -> &mut dyn Policy {
        self.there[name as usize].as_mut()
    }

    /// Tells every policy.
    pub fn news(&mut self, view: &View<'_>, news: News<'_>) {
        for policy in &mut self.there {
            policy.news(view, view.now, news);
        }
    }
}

/// A new policy of this name.
fn policy(name: PolicyName) -> Box<dyn Policy> {
    name.policy().unwrap_or_else(|| Box::new(Fewest { name }))
}

/// The fewest requests in flight; among several the first.
struct Fewest {
    name: PolicyName,
}

impl Policy for Fewest {
    fn name(&self) -> PolicyName {
        self.name
    }

    fn pick(&mut self, view: &View<'_>, _: &Request<'_>, _: &mut dyn Rng, _: &mut Trace) -> Option<Pick> {
        let slot = view.candidates.iter().copied().min_by_key(|slot| view.columns.in_flight[*slot as usize])?;
        Some(Pick::new(slot, Branch::MinWait))
    }
}
