//! AgentRuns as they are kept: as JSON, which every reconcile reads anew. Thousands of them idle, and typed they take
//! three times as much.

use std::borrow::Cow;

use dalsegno_crds::{AgentRun, AgentRunSpec, AgentRunStatus};
use k8s_openapi::NamespaceResourceScope;
use kube::Resource;
use kube::api::ObjectMeta;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

/// An AgentRun as the watch gives it. One that cannot be read stops no other.
#[derive(Clone, Debug)]
pub struct Run {
    metadata: ObjectMeta,
    /// All but the metadata: a [`Rest`], if it can be read.
    rest: Box<str>,
}

#[derive(Deserialize)]
struct Rest {
    spec: AgentRunSpec,
    status: Option<AgentRunStatus>,
}

/// What the API server sends, as far as it is kept.
#[derive(Deserialize, Serialize)]
struct Sent {
    #[serde(skip_serializing)]
    metadata: ObjectMeta,
    #[serde(default)]
    spec: Value,
    #[serde(default)]
    status: Value,
}

impl Run {
    /// The AgentRun.
    ///
    /// # Errors
    ///
    /// It is not what this version reads, as when it was stored under an older schema.
    pub fn read(&self) -> serde_json::Result<AgentRun> {
        // By way of values: the error then tells of no line and column, which would be those of the JSON kept here.
        let Rest { spec, status } = serde_json::from_value(serde_json::from_str(&self.rest)?)?;
        Ok(AgentRun { metadata: self.metadata.clone(), spec, status })
    }
}

impl<'de> Deserialize<'de> for Run {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let sent = Sent::deserialize(deserializer)?;
        let rest = serde_json::to_string(&sent).map_err(serde::de::Error::custom)?;
        Ok(Self { metadata: sent.metadata, rest: rest.into() })
    }
}

impl Resource for Run {
    type DynamicType = ();
    type Scope = NamespaceResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        AgentRun::kind(&())
    }

    fn group((): &()) -> Cow<'_, str> {
        AgentRun::group(&())
    }

    fn version((): &()) -> Cow<'_, str> {
        AgentRun::version(&())
    }

    fn plural((): &()) -> Cow<'_, str> {
        AgentRun::plural(&())
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a case that cannot go on has failed")]

    use serde_json::json;

    use super::*;

    fn sent(spec: Value) -> Value {
        json!({
            "apiVersion": "dalsegno.dev/v1alpha1",
            "kind": "AgentRun",
            "metadata": { "name": "nightly", "namespace": "shop", "uid": "uid-1", "resourceVersion": "7",
                          "generation": 2, "finalizers": ["dalsegno.dev/fence"], "labels": { "team": "night" } },
            "spec": spec,
            "status": { "summary": "Running", "reason": "UnderControl", "attempt": { "number": 3 } },
        })
    }

    fn kept(object: &Value) -> Run {
        serde_json::from_str(&object.to_string()).unwrap()
    }

    #[test]
    fn what_is_kept_reads_as_what_was_sent() {
        let agent = json!({ "template": { "spec": { "containers": [{ "name": "agent", "image": "i" }] } } });
        for spec in [
            json!({ "agent": agent, "input": { "task": [1, 2.5, "\u{e9}"] } }),
            json!({ "agentRef": { "name": "nightly" }, "operatingMode": "Cancelled" }),
        ] {
            let sent = sent(spec);
            let typed: AgentRun = serde_json::from_value(sent.clone()).unwrap();
            assert_eq!(kept(&sent).read().unwrap(), typed);
        }
    }

    #[test]
    fn a_run_that_has_no_status_yet_can_be_read() {
        let mut sent = sent(json!({ "agentRef": { "name": "nightly" } }));
        sent.as_object_mut().unwrap().remove("status");
        assert_eq!(kept(&sent).read().unwrap().status, None);
    }

    #[test]
    fn of_one_that_cannot_be_read_it_is_known_whose_it_is_and_why() {
        let run = kept(&sent(json!({ "agentRef": 7 })));
        assert_eq!((run.meta().name.as_deref(), run.meta().generation), (Some("nightly"), Some(2)));
        let why = run.read().unwrap_err().to_string();
        assert!(why.contains("integer `7`") && !why.contains("line"), "{why}");
    }
}
