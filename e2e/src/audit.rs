//! The API server's audit log: who wrote what to pods and AgentRuns, in which order.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::PathBuf;

use anyhow::Context;
use serde::Deserialize;

use crate::Result;

/// The environment variable with the path of the audit log.
pub const LOG: &str = "DALSEGNO_AUDIT_LOG";

/// The entries of the audit log for one namespace, from some time on.
#[derive(Clone, Debug)]
pub struct AuditLog {
    path: PathBuf,
    from: u64,
    namespace: String,
}

/// One request that changed something or tried to. Dry runs are left out, because they store nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// `create`, `update`, `patch`, `delete`, `deletecollection`.
    pub verb: String,
    /// `pods`, `agentruns`, …
    pub resource: String,
    /// `status`, `eviction`, `binding`, or empty.
    pub subresource: String,
    /// Name of the object; empty for a collection.
    pub name: String,
    /// The user that sent the request.
    pub user: String,
    /// The HTTP status of the response.
    pub code: u16,
    /// When the API server received the request, with microseconds.
    pub at: jiff::Timestamp,
}

impl Entry {
    /// Whether the request succeeded.
    pub fn succeeded(&self) -> bool {
        (200..300).contains(&self.code)
    }
}

impl AuditLog {
    /// The log from now on. Fails if [`LOG`] is not set.
    pub fn from_now(namespace: &str) -> Result<Self> {
        let path: PathBuf = std::env::var_os(LOG)
            .with_context(|| {
                format!("{LOG} is not set: it names the API server's audit log, as `cluster env` prints it")
            })?
            .into();
        let from = std::fs::metadata(&path)
            .with_context(|| format!("reading the audit log {}", path.display()))?
            .len();
        Ok(Self { path, from, namespace: namespace.to_owned() })
    }

    /// All entries of this namespace so far. An entry appears when its request has been answered.
    pub fn entries(&self) -> Result<Vec<Entry>> {
        let mut file = File::open(&self.path).context("opening the audit log")?;
        // A shorter file has been rotated: it contains everything since then.
        let from = if file.metadata()?.len() < self.from { 0 } else { self.from };
        file.seek(SeekFrom::Start(from))?;
        let mut text = String::new();
        file.read_to_string(&mut text)?;
        // The last line may be incomplete.
        let complete = text.rfind('\n').map_or("", |end| &text[..end]);
        Ok(complete.lines().filter_map(|line| parse(line, &self.namespace)).collect())
    }

    /// How often each pod of a run was created, by the pod's name. If the operator dies before the API server answers, the
    /// entry says that the creation failed, although the pod may exist. Then it is assigned to a node.
    pub fn pods_created(&self, run: &str) -> Result<BTreeMap<String, usize>> {
        let (mut created, mut assigned) = (BTreeMap::new(), BTreeMap::new());
        for entry in self.entries()? {
            let counts = match entry.subresource.as_str() {
                "" => &mut created,
                "binding" => &mut assigned,
                _ => continue,
            };
            let is_of_run = entry.resource == "pods" && attempt_of(run, &entry.name).is_some();
            if entry.verb == "create" && entry.succeeded() && is_of_run {
                *counts.entry(entry.name).or_default() += 1;
            }
        }
        for (pod, times) in assigned {
            let created: &mut usize = created.entry(pod).or_default();
            *created = times.max(*created);
        }
        Ok(created)
    }

    /// The names of all pods that were created in the namespace. A pod that was created twice appears twice.
    pub fn all_pods_created(&self) -> Result<Vec<String>> {
        let made = |entry: &Entry| entry.verb == "create" && entry.is_pod() && entry.succeeded();
        Ok(self.entries()?.into_iter().filter(made).map(|entry| entry.name).collect())
    }

    /// The successful requests of the operator's ServiceAccount that changed this AgentRun or its pods.
    pub fn operator_writes(&self, run: &str) -> Result<Vec<Entry>> {
        let operator = format!("system:serviceaccount:{}:", crate::operator::NAMESPACE);
        let mut entries = self.entries()?;
        entries.retain(|entry| {
            let its_own = entry.resource == "agentruns" && entry.name == run;
            let its_pods = entry.resource == "pods" && attempt_of(run, &entry.name).is_some();
            entry.succeeded() && entry.user.starts_with(&operator) && (its_own || its_pods)
        });
        Ok(entries)
    }

    /// Checks every run of the namespace, deleted runs included: no attempt had two pods. If an AgentRun of one name
    /// was created several times, each of its pods may have been created as often.
    pub fn expect_one_pod_per_attempt(&self) -> Result {
        let mut runs = BTreeMap::<String, usize>::new();
        for entry in self.entries()? {
            if entry.resource == "agentruns" && entry.verb == "create" && entry.succeeded() {
                *runs.entry(entry.name).or_default() += 1;
            }
        }
        for (run, made) in runs {
            for (pod, times) in self.pods_created(&run)? {
                anyhow::ensure!(
                    times <= made,
                    "the audit log has {made} creations of run {run} and {times} of its pod {pod}"
                );
            }
        }
        Ok(())
    }

    /// Checks the pods of a run: each of these attempts had one pod, created once, and there was no other pod.
    pub fn expect_pods(&self, run: &str, attempts: impl IntoIterator<Item = i32>) -> Result {
        let expected: BTreeMap<String, usize> =
            attempts.into_iter().map(|attempt| (format!("{run}-{attempt}"), 1)).collect();
        let made = self.pods_created(run)?;
        anyhow::ensure!(
            made == expected,
            "the audit log has these pods of run {run}: {made:?}; expected: {expected:?}"
        );
        Ok(())
    }
}

impl Entry {
    /// Whether the request is for a pod itself, not for its status, eviction or binding.
    pub fn is_pod(&self) -> bool {
        self.resource == "pods" && self.subresource.is_empty()
    }
}

/// The attempt in the name of a pod, if the pod is of this run.
fn attempt_of(run: &str, pod: &str) -> Option<u32> {
    pod.strip_prefix(run)?.strip_prefix('-')?.parse().ok()
}

/// Parses one line of the log. Returns `None` if it is of another namespace or a dry run.
fn parse(line: &str, namespace: &str) -> Option<Entry> {
    // All tests write to the log. This check is cheaper than parsing every line.
    if !line.contains(namespace) {
        return None;
    }
    let line: LogLine = serde_json::from_str(line).ok()?;
    let is_dry_run = line.request_uri.contains("dryRun=All");
    (line.object_ref.namespace == namespace && !is_dry_run).then_some(Entry {
        verb: line.verb,
        resource: line.object_ref.resource,
        subresource: line.object_ref.subresource,
        name: line.object_ref.name,
        user: line.user.username,
        code: line.response_status.code,
        at: line.request_received_timestamp,
    })
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct LogLine {
    verb: String,
    #[serde(rename = "requestURI")]
    request_uri: String,
    user: User,
    object_ref: Reference,
    response_status: Status,
    request_received_timestamp: jiff::Timestamp,
}

#[derive(Deserialize)]
struct User {
    username: String,
}

#[derive(Deserialize)]
struct Reference {
    resource: String,
    #[serde(default)]
    subresource: String,
    #[serde(default)]
    namespace: String,
    #[serde(default)]
    name: String,
}

#[derive(Deserialize)]
struct Status {
    code: u16,
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &str = r#"{"kind":"Event","verb":"create","user":{"username":"system:serviceaccount:dalsegno-system:dalsegno"},
        "requestURI":"/api/v1/namespaces/here/pods?&fieldManager=dalsegno",
        "objectRef":{"resource":"pods","namespace":"here","name":"r-2","apiVersion":"v1"},
        "responseStatus":{"metadata":{},"code":201},"requestReceivedTimestamp":"2026-11-21T08:12:04.642426Z"}"#;

    #[test]
    fn a_line_of_another_namespace_is_ignored() {
        assert!(
            parse(LINE, "here")
                .is_some_and(|entry| entry.is_pod() && entry.succeeded() && entry.name == "r-2")
        );
        assert_eq!(parse(LINE, "her"), None);
    }

    #[test]
    fn a_dry_run_is_ignored() {
        assert_eq!(parse(&LINE.replace("pods?", "pods?&dryRun=All"), "here"), None);
    }

    #[test]
    fn a_pod_is_named_after_its_run_and_attempt() {
        assert_eq!(attempt_of("r", "r-2"), Some(2));
        assert_eq!(attempt_of("r", "r-2-1"), None);
        assert_eq!(attempt_of("r", "ra-2"), None);
    }
}
