//! The policies of a desk: one of each name, so that each remembers by itself. All of them hear everything.

use crate::routing::policy::{News, Policy, PolicyName};
use crate::routing::view::View;

/// The policies.
pub(super) struct Policies {
    there: Vec<Box<dyn Policy>>,
}

impl Policies {
    pub fn new() -> Self {
        Self { there: PolicyName::ALL.into_iter().map(PolicyName::policy).collect() }
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
