//! Objects of ours as unparsed JSON, which every reconcile parses anew. Typed objects take three times the memory, and
//! thousands of runs are idle. Compare kube's `DeserializeGuard`.
//!
//! *Guarantees:* an object that cannot be parsed stops no other. An input or a template may be nested as deep as the API
//! server stores it, deeper than a recursive parser can go. So spec and status are taken as raw text, both in a list and in
//! a watch.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::marker::PhantomData;

use dalsegno_crds::{AgentApproval, AgentDefinition, AgentRun};
use dalsegno_protocol::nesting::deeper_than;
use kube::Resource;
use kube::api::ObjectMeta;
use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer, Serialize, Serializer, ser};
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Value, json};

/// Deepest object that is parsed, in levels. Managed fields nest a few levels deeper than the fields they describe, and
/// serde_json parses at most 127 levels.
const MAX_DEPTH: usize = 96;

/// An unparsed AgentRun.
pub type RawRun = RawObject<AgentRun>;

/// An unparsed AgentApproval.
pub type RawApproval = RawObject<AgentApproval>;

/// An unparsed AgentDefinition.
pub type RawDefinition = RawObject<AgentDefinition>;

/// An object whose metadata is parsed and whose other fields are not.
#[derive(Clone, Debug)]
pub struct RawObject<K> {
    metadata: ObjectMeta,
    /// All fields but the metadata, as JSON.
    rest: Box<str>,
    kind: PhantomData<fn() -> K>,
}

/// The fields of an object as the API server sends it.
#[derive(Deserialize, Serialize)]
struct RawFields {
    #[serde(skip_serializing)]
    metadata: Box<RawValue>,
    spec: Option<Box<RawValue>>,
    status: Option<Box<RawValue>>,
}

impl<K: Resource + DeserializeOwned> RawObject<K> {
    /// Parses the object.
    ///
    /// # Errors
    ///
    /// It does not match the type, for example because it was stored under an older schema; or it is nested too deeply.
    pub fn parse(&self) -> serde_json::Result<K> {
        if deeper_than(MAX_DEPTH, self.rest.as_bytes()).is_some() {
            return Err(serde_json::Error::custom(format!("it is nested deeper than {MAX_DEPTH} levels")));
        }
        // Through a `Value`, so that errors name no line and column: those would refer to the JSON in this cache.
        let mut object: Value = serde_json::from_str(&self.rest)?;
        object["metadata"] = json!({});
        let mut object: K = serde_json::from_value(object)?;
        object.meta_mut().clone_from(&self.metadata);
        Ok(object)
    }
}

impl<K> RawObject<K> {
    /// Parses only the fields of this type, without the metadata. `None` if they cannot be parsed.
    pub fn part<T: DeserializeOwned>(&self) -> Option<T> {
        serde_json::from_str(&self.rest).ok()
    }

    /// Drops the two fields that may be too deep and are not needed: the managed fields, and the output of a worker.
    fn from_fields(mut fields: RawFields) -> serde_json::Result<Self> {
        fields.status = fields.status.map(|it| limit_depth(it, &["result", "output"]));
        Ok(Self {
            rest: serde_json::to_string(&fields)?.into(),
            metadata: serde_json::from_str(limit_depth(fields.metadata, &["managedFields"]).get())?,
            kind: PhantomData,
        })
    }
}

/// Removes the field at this path if the object is too deep to be parsed.
fn limit_depth(object: Box<RawValue>, path: &[&str]) -> Box<RawValue> {
    match deeper_than(MAX_DEPTH, object.get().as_bytes()) {
        Some(_) => without(&object, path).unwrap_or(object),
        None => object,
    }
}

/// The object without the field at this path. Parses only the objects on the path.
fn without(object: &RawValue, path: &[&str]) -> Option<Box<RawValue>> {
    let (first, rest) = path.split_first()?;
    let mut fields: BTreeMap<String, Box<RawValue>> = serde_json::from_str(object.get()).ok()?;
    let field = fields.remove(*first)?;
    if let Some(left) = without(&field, rest) {
        fields.insert((*first).to_owned(), left);
    }
    to_raw_value(&fields).ok()
}

/// As the API server sent it, without the fields that were dropped.
impl<K> Serialize for RawObject<K> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut fields: BTreeMap<&str, Box<RawValue>> =
            serde_json::from_str(&self.rest).map_err(ser::Error::custom)?;
        fields.insert("metadata", to_raw_value(&self.metadata).map_err(ser::Error::custom)?);
        fields.serialize(serializer)
    }
}

impl<'de, K> Deserialize<'de> for RawObject<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::from_fields(RawFields::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}

impl<K: Resource> Resource for RawObject<K> {
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
    #![allow(clippy::unwrap_used, reason = "a panic fails the test")]

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

    fn raw(object: &Value) -> RawRun {
        serde_json::from_str(&object.to_string()).unwrap()
    }

    #[test]
    fn a_raw_object_parses_as_the_object_that_was_sent() {
        let agent = json!({ "template": { "spec": { "containers": [{ "name": "agent", "image": "i" }] } } });
        for spec in [
            json!({ "agent": agent, "input": { "task": [1, 2.5, "\u{e9}"] } }),
            json!({ "agentRef": { "name": "nightly" }, "operatingMode": "Cancelled" }),
        ] {
            let sent = sent(spec);
            let typed: AgentRun = serde_json::from_value(sent.clone()).unwrap();
            let first = raw(&sent);
            let again: RawRun = serde_json::from_str(&serde_json::to_string(&first).unwrap()).unwrap();
            assert_eq!([first, again].map(|it| it.parse().unwrap()), [typed.clone(), typed]);
        }
    }

    #[test]
    fn a_run_without_a_status_can_be_parsed() {
        let mut sent = sent(json!({ "agentRef": { "name": "nightly" } }));
        sent.as_object_mut().unwrap().remove("status");
        assert_eq!(raw(&sent).parse().unwrap().status, None);
    }

    #[test]
    fn an_object_that_cannot_be_parsed_still_has_its_metadata_and_the_error() {
        let run = raw(&sent(json!({ "agentRef": 7 })));
        assert_eq!((run.meta().name.as_deref(), run.meta().generation), (Some("nightly"), Some(2)));
        let why = run.parse().unwrap_err().to_string();
        assert!(why.contains("integer `7`") && !why.contains("line"), "{why}");
    }
}
