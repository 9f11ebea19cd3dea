//! The admission policies of the chart: whether they are in place.

use std::sync::Mutex;

use dalsegno_core::approvals::PolicyState;
use dalsegno_core::approvals::policies::{ExpectedPolicy, last_change};
use kube::api::{ApiResource, DynamicObject};
use kube::core::GroupVersionKind;
use kube::{Api, Client};

use crate::mutex::lock;

/// The policies that the chart installs, and whether they were in place when they were last checked.
pub struct Policies {
    expected: Vec<ExpectedPolicy>,
    state: Mutex<PolicyState>,
}

impl Policies {
    /// These policies, none of which was checked yet.
    pub fn new(expected: Vec<ExpectedPolicy>) -> Self {
        let state = PolicyState::Missing("the admission policies were not checked yet".to_owned());
        Self { expected, state: state.into() }
    }

    /// Whether they were in place when they were last checked.
    pub fn state(&self) -> PolicyState {
        lock(&self.state).clone()
    }

    /// Checks them now.
    pub async fn check(&self, client: &Client) -> PolicyState {
        let state = self.read(client).await.unwrap_or_else(PolicyState::Missing);
        lock(&self.state).clone_from(&state);
        state
    }

    /// Returns since when they are in place, or which is not.
    async fn read(&self, client: &Client) -> Result<PolicyState, String> {
        let mut since = None;
        for expected in &self.expected {
            let ExpectedPolicy { kind, name, .. } = expected;
            let gvk = GroupVersionKind::gvk("admissionregistration.k8s.io", "v1", kind);
            let api: Api<DynamicObject> = Api::all_with(client.clone(), &ApiResource::from_gvk(&gvk));
            let found =
                api.get_opt(name).await.map_err(|error| format!("{kind} {name} cannot be read: {error}"))?;
            let found = found.ok_or_else(|| format!("{kind} {name} does not exist"))?;
            if found.metadata.deletion_timestamp.is_some() {
                return Err(format!("{kind} {name} is being deleted"));
            }
            if let Some(path) = expected.difference(&found.data["spec"]) {
                return Err(format!("{kind} {name} differs from the chart's at {path}"));
            }
            let changed = last_change(&found.metadata);
            since =
                since.max(Some(changed.ok_or_else(|| format!("{kind} {name} has no time of its creation"))?));
        }
        let none =
            "the operator does not know the admission policies of its chart: DALSEGNO_POLICIES is not set";
        Ok(PolicyState::InPlace { since: since.ok_or(none)? })
    }
}
