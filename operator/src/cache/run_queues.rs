//! The queues of AgentDefinitions that limit how many of their runs run at the same time.

use std::collections::{BTreeMap, HashMap};
use std::sync::Mutex;

use dalsegno_core::run_queue::{self, Place, QueuedRun};
use dalsegno_crds::Summary;
use jiff::Timestamp;
use kube::runtime::watcher::Event;
use kube::{Resource, ResourceExt};
use serde::Deserialize;

use super::pods::RunKey;
use super::raw_object::RawRun;
use crate::mutex::lock;

/// Number of waiting runs that are woken when a place becomes free. The first ones start. The others show their new
/// position; those behind them show it when they are next looked at.
const WOKEN: usize = 20;

/// All runs that refer to a definition, by the definition.
#[derive(Default)]
pub struct RunQueues(Mutex<Queues>);

#[derive(Default)]
struct Queues {
    by_definition: HashMap<Definition, HashMap<String, QueuedRun>>,
    /// Namespace and name of each run, and its definition, by UID.
    by_uid: HashMap<String, (RunKey, Definition)>,
    /// UIDs that the current relist has shown.
    relisted: Vec<String>,
}

/// Namespace and name of an AgentDefinition.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Definition {
    pub namespace: String,
    pub name: String,
}

impl RunQueues {
    /// The position of the run with this UID in the queue of its definition, from 1. `None`: it may start.
    pub fn position(&self, uid: &str, definition: &Definition, max_concurrent: i32) -> Option<i32> {
        let queues = lock(&self.0);
        run_queue::position(queues.by_definition.get(definition)?.values(), uid, max_concurrent)
    }

    /// All runs that refer to this definition.
    pub fn runs_of(&self, definition: &Definition) -> Vec<RunKey> {
        let queues = lock(&self.0);
        let uids = queues.by_definition.get(definition).into_iter().flat_map(HashMap::keys);
        uids.filter_map(|uid| Some(queues.by_uid.get(uid)?.0.clone())).collect()
    }

    /// Applies an event of the watch. Returns the waiting runs to wake, because a place has become free.
    pub fn apply(&self, event: &Event<RawRun>) -> Vec<RunKey> {
        let mut queues = lock(&self.0);
        match event {
            Event::Init => queues.relisted.clear(),
            Event::InitApply(run) => {
                queues.relisted.extend(run.uid());
                queues.put(run);
            }
            Event::InitDone => {
                let relisted: std::collections::HashSet<_> = queues.relisted.drain(..).collect();
                let gone: Vec<_> =
                    queues.by_uid.keys().filter(|uid| !relisted.contains(*uid)).cloned().collect();
                return gone.iter().flat_map(|uid| queues.remove(uid)).collect();
            }
            Event::Apply(run) => return queues.put(run),
            Event::Delete(run) => return queues.remove(&run.uid().unwrap_or_default()),
        }
        Vec::new()
    }
}

impl Queues {
    fn put(&mut self, run: &RawRun) -> Vec<RunKey> {
        let Some((definition, entry)) = entry_of(run) else { return Vec::new() };
        let key = RunKey { namespace: definition.namespace.clone(), name: run.name_any() };
        self.by_uid.insert(entry.uid.clone(), (key, definition.clone()));
        let place = entry.place;
        let runs = self.by_definition.entry(definition.clone()).or_default();
        let before = runs.insert(entry.uid.clone(), entry);
        let is_freed = place == Place::NotNeeded && before.is_some_and(|it| it.place != Place::NotNeeded);
        if is_freed { self.first_waiting(&definition) } else { Vec::new() }
    }

    fn remove(&mut self, uid: &str) -> Vec<RunKey> {
        let Some((_, definition)) = self.by_uid.remove(uid) else { return Vec::new() };
        let Some(runs) = self.by_definition.get_mut(&definition) else { return Vec::new() };
        let removed = runs.remove(uid);
        if runs.is_empty() {
            self.by_definition.remove(&definition);
        }
        let is_freed = removed.is_some_and(|it| it.place != Place::NotNeeded);
        if is_freed { self.first_waiting(&definition) } else { Vec::new() }
    }

    fn first_waiting(&self, definition: &Definition) -> Vec<RunKey> {
        let runs = self.by_definition.get(definition).into_iter().flat_map(HashMap::values);
        let waiting = runs.filter(|it| it.place == Place::Waiting);
        let sorted: BTreeMap<_, _> = waiting.map(|it| ((it.created, &it.uid), &it.uid)).collect();
        let first = sorted.into_values().take(WOKEN);
        first.filter_map(|uid| Some(self.by_uid.get(uid)?.0.clone())).collect()
    }
}

/// The fields of a run that its place depends on.
#[derive(Deserialize)]
struct QueueFields {
    spec: SpecFields,
    #[serde(default)]
    status: Option<StatusFields>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct SpecFields {
    agent_ref: Option<NameField>,
}

#[derive(Deserialize)]
struct NameField {
    name: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct StatusFields {
    summary: Option<Summary>,
    attempt: Option<AttemptFields>,
    completion_time: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct AttemptFields {
    number: i32,
    pod_name: Option<String>,
}

/// `None` if the run has an inline agent or is invalid.
fn entry_of(run: &RawRun) -> Option<(Definition, QueuedRun)> {
    let fields: QueueFields = run.part()?;
    let definition = Definition { namespace: run.namespace()?, name: fields.spec.agent_ref?.name };
    let created = run.creation_timestamp().map_or(Timestamp::UNIX_EPOCH, |it| it.0);
    let is_deleted = run.meta().deletion_timestamp.is_some();
    let place = match fields.status {
        _ if is_deleted => Place::NotNeeded,
        Some(status)
            if status.completion_time.is_some()
                || matches!(status.summary, Some(Summary::Held | Summary::Suspended | Summary::Waiting)) =>
        {
            Place::NotNeeded
        }
        Some(StatusFields { attempt: Some(attempt), .. })
            if attempt.pod_name.is_some() || attempt.number > 1 =>
        {
            Place::Taken
        }
        _ => Place::Waiting,
    };
    Some((definition, QueuedRun { uid: run.uid()?, created, place }))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// A run that was created in this second of a minute.
    fn run(name: &str, second: i32, status: &Value) -> RawRun {
        serde_json::from_value(json!({
            "apiVersion": "dalsegno.dev/v1alpha1", "kind": "AgentRun", "status": status,
            "spec": { "agentRef": { "name": "triage" } },
            "metadata": { "name": name, "namespace": "shop", "uid": name,
                          "creationTimestamp": format!("2026-05-01T00:00:{second:02}Z") },
        }))
        .expect("a run")
    }

    fn triage() -> Definition {
        Definition { namespace: "shop".into(), name: "triage".into() }
    }

    fn key(name: &str) -> RunKey {
        RunKey { namespace: "shop".into(), name: name.into() }
    }

    #[test]
    fn a_definition_has_exactly_the_runs_that_refer_to_it() {
        let other = |name: &str, namespace: &str, definition: &str| -> RawRun {
            serde_json::from_value(json!({
                "apiVersion": "dalsegno.dev/v1alpha1", "kind": "AgentRun",
                "spec": { "agentRef": { "name": definition } },
                "metadata": { "name": name, "namespace": namespace, "uid": format!("{namespace}/{name}") },
            }))
            .expect("a run")
        };
        let queues = RunQueues::default();
        queues.apply(&Event::Apply(run("first", 1, &Value::Null)));
        queues.apply(&Event::Apply(run("second", 2, &json!({ "summary": "Held" }))));
        queues.apply(&Event::Apply(other("third", "shop", "writer")));
        queues.apply(&Event::Apply(other("fourth", "elsewhere", "triage")));
        let mut found = queues.runs_of(&triage());
        found.sort_by_key(|it| it.name.clone());
        assert_eq!(found, [key("first"), key("second")]);
        queues.apply(&Event::Delete(run("first", 1, &Value::Null)));
        assert_eq!(queues.runs_of(&triage()), [key("second")]);
        assert_eq!(queues.runs_of(&Definition { name: "none".into(), ..triage() }), []);
    }

    #[test]
    fn the_oldest_waiting_runs_are_woken_when_a_run_ends_is_held_is_suspended_or_is_deleted() {
        let running = json!({ "summary": "Running", "attempt": { "number": 1, "podName": "p" } });
        for end in [
            Event::Apply(run("first", 1, &json!({ "completionTime": "2026-05-01T00:01:00Z" }))),
            Event::Apply(run("first", 1, &json!({ "summary": "Held", "attempt": { "number": 1 } }))),
            Event::Apply(run("first", 1, &json!({ "summary": "Suspended", "attempt": { "number": 2 } }))),
            Event::Delete(run("first", 1, &running)),
        ] {
            let queues = RunQueues::default();
            assert!(queues.apply(&Event::Apply(run("first", 1, &running))).is_empty());
            assert!(queues.apply(&Event::Apply(run("third", 3, &Value::Null))).is_empty());
            assert!(queues.apply(&Event::Apply(run("second", 2, &Value::Null))).is_empty());
            let position = |name: &str| queues.position(name, &triage(), 1);
            assert_eq!([position("first"), position("second"), position("third")], [None, Some(1), Some(2)]);
            assert_eq!(queues.apply(&end), [key("second"), key("third")]);
            assert_eq!([position("second"), position("third")], [None, Some(1)]);
        }
    }

    #[test]
    fn a_run_that_a_relist_does_not_show_is_gone() {
        let queues = RunQueues::default();
        let waiting = |name: &str| run(name, 1, &Value::Null);
        queues.apply(&Event::Apply(waiting("a")));
        queues.apply(&Event::Apply(waiting("b")));
        assert_eq!(queues.position("b", &triage(), 1), Some(1));
        queues.apply(&Event::Init);
        queues.apply(&Event::InitApply(waiting("b")));
        assert_eq!(queues.apply(&Event::InitDone), [key("b")]);
        assert_eq!(queues.position("b", &triage(), 1), None);
    }
}
