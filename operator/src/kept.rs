//! Objects of ours as they are kept: as JSON, which every reconcile reads anew. Thousands of runs idle, and typed they take
//! three times as much.
//!
//! *Guarantees:* an object that cannot be read stops no other. An input or a template may be nested as deep as the API
//! server stores it, and no parser that recurses goes there: so spec and status are taken as the text that came, in a list
//! of objects and from a watch.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::marker::PhantomData;

use dalsegno_crds::{AgentDefinition, AgentRun};
use dalsegno_protocol::nesting::deeper_than;
use kube::Resource;
use kube::api::ObjectMeta;
use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer, Serialize, Serializer, ser};
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Value, json};

/// Levels to which an object is read. The managed fields nest some deeper than what they tell of, and of an answer that
/// has them no more than 127 are read.
const DEPTH: usize = 96;

/// An AgentRun as the watch gives it.
pub type Run = Kept<AgentRun>;

/// An AgentDefinition as the watch gives it.
pub type Definition = Kept<AgentDefinition>;

/// An object as the watch gives it.
#[derive(Clone, Debug)]
pub struct Kept<K> {
    metadata: ObjectMeta,
    /// All but the metadata.
    rest: Box<str>,
    kind: PhantomData<fn() -> K>,
}

/// What the API server sends, as far as it is kept.
#[derive(Deserialize, Serialize)]
struct Sent {
    #[serde(skip_serializing)]
    metadata: Box<RawValue>,
    spec: Option<Box<RawValue>>,
    status: Option<Box<RawValue>>,
}

impl<K: Resource + DeserializeOwned> Kept<K> {
    /// The object.
    ///
    /// # Errors
    ///
    /// It is not what this version reads, as when it was stored under an older schema, or too deep.
    pub fn read(&self) -> serde_json::Result<K> {
        if deeper_than(DEPTH, self.rest.as_bytes()).is_some() {
            return Err(serde_json::Error::custom(format!("it is nested deeper than {DEPTH} levels")));
        }
        // By way of values: the error then tells of no line and column, which would be those of the JSON kept here.
        let mut object: Value = serde_json::from_str(&self.rest)?;
        object["metadata"] = json!({});
        let mut object: K = serde_json::from_value(object)?;
        object.meta_mut().clone_from(&self.metadata);
        Ok(object)
    }
}

impl<K> Kept<K> {
    /// Leaves out what is of no use and may be too deep: who manages which field, and the output of a worker.
    fn of(mut sent: Sent) -> serde_json::Result<Self> {
        sent.status = sent.status.map(|it| shallow(it, &["result", "output"]));
        Ok(Self {
            rest: serde_json::to_string(&sent)?.into(),
            metadata: serde_json::from_str(shallow(sent.metadata, &["managedFields"]).get())?,
            kind: PhantomData,
        })
    }
}

/// An object as it is; if it is too deep to be read, without what is at this path.
fn shallow(object: Box<RawValue>, path: &[&str]) -> Box<RawValue> {
    match deeper_than(DEPTH, object.get().as_bytes()) {
        Some(_) => without(&object, path).unwrap_or(object),
        None => object,
    }
}

/// Reads no more than the objects on the path.
fn without(object: &RawValue, path: &[&str]) -> Option<Box<RawValue>> {
    let (first, rest) = path.split_first()?;
    let mut fields: BTreeMap<String, Box<RawValue>> = serde_json::from_str(object.get()).ok()?;
    let field = fields.remove(*first)?;
    if let Some(left) = without(&field, rest) {
        fields.insert((*first).to_owned(), left);
    }
    to_raw_value(&fields).ok()
}

/// As it was sent, but for what was left out.
impl<K> Serialize for Kept<K> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut fields: BTreeMap<&str, Box<RawValue>> =
            serde_json::from_str(&self.rest).map_err(ser::Error::custom)?;
        fields.insert("metadata", to_raw_value(&self.metadata).map_err(ser::Error::custom)?);
        fields.serialize(serializer)
    }
}

impl<'de, K> Deserialize<'de> for Kept<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::of(Sent::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}

impl<K: Resource> Resource for Kept<K> {
    type DynamicType = K::DynamicType;
    type Scope = K::Scope;

    fn kind(dt: &K::DynamicType) -> Cow<'_, str> {
        K::kind(dt)
    }

    fn group(dt: &K::DynamicType) -> Cow<'_, str> {
        K::group(dt)
    }

    fn version(dt: &K::DynamicType) -> Cow<'_, str> {
        K::version(dt)
    }

    fn plural(dt: &K::DynamicType) -> Cow<'_, str> {
        K::plural(dt)
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
            let once = kept(&sent);
            let again: Run = serde_json::from_str(&serde_json::to_string(&once).unwrap()).unwrap();
            assert_eq!([once, again].map(|it| it.read().unwrap()), [typed.clone(), typed]);
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
