//! The API server's audit log as a judge: who wrote what to pods and AgentRuns, in which order.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::PathBuf;

use anyhow::Context;
use serde::Deserialize;

use crate::Result;

/// Name of the environment variable with the path of the audit log.
pub const LOG: &str = "DALSEGNO_AUDIT_LOG";

/// The audit log from some point on, for one namespace.
#[derive(Clone, Debug)]
pub struct AuditLog {
    path: PathBuf,
    from: u64,
    namespace: String,
}

/// One request that changed something (or tried to). A dry run stores nothing, and is none.
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
    /// Who asked.
    pub user: String,
    /// The HTTP status of the answer.
    pub code: u16,
    /// When the request came, RFC 3339 with microseconds.
    pub at: jiff::Timestamp,
}

impl Entry {
    /// Whether the request was carried out.
    pub fn succeeded(&self) -> bool {
        (200..300).contains(&self.code)
    }
}

impl AuditLog {
    /// The log from now on.
    ///
    /// # Errors
    ///
    /// [`LOG`] is not set, or the log cannot be read.
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

    /// Everything so far that concerns this namespace. A request is there once it has been answered.
    ///
    /// # Errors
    ///
    /// The log cannot be read.
    pub fn entries(&self) -> Result<Vec<Entry>> {
        let mut file = File::open(&self.path).context("opening the audit log")?;
        // Shorter than before: it was rotated, and what came since is all in the new file.
        let from = if file.metadata()?.len() < self.from { 0 } else { self.from };
        file.seek(SeekFrom::Start(from))?;
        let mut text = String::new();
        file.read_to_string(&mut text)?;
        // The last line may be half written.
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        Ok(whole.lines().filter_map(|line| parse(line, &self.namespace)).collect())
    }

    /// Pods of a run that were ever made, by name, with how often.
    ///
    /// # Errors
    ///
    /// The log cannot be read.
    pub fn pods_created(&self, run: &str) -> Result<BTreeMap<String, usize>> {
        let mut made = BTreeMap::new();
        for entry in self.entries()? {
            if entry.verb == "create"
                && entry.is_pod()
                && entry.succeeded()
                && attempt_of(run, &entry.name).is_some()
            {
                *made.entry(entry.name).or_default() += 1;
            }
        }
        Ok(made)
    }

    /// Names of all pods that were ever made in the namespace, one for each time.
    ///
    /// # Errors
    ///
    /// The log cannot be read.
    pub fn all_pods_created(&self) -> Result<Vec<String>> {
        let made = |entry: &Entry| entry.verb == "create" && entry.is_pod() && entry.succeeded();
        Ok(self.entries()?.into_iter().filter(made).map(|entry| entry.name).collect())
    }

    /// Requests of the operator's ServiceAccount that changed this AgentRun or its pods, and were carried out.
    ///
    /// # Errors
    ///
    /// The log cannot be read.
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

    /// Judges every run of the namespace, also those that are gone: no attempt had two pods.
    ///
    /// # Errors
    ///
    /// A pod was made more often than an AgentRun of the name.
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
                    "the audit log saw {made} runs {run}, and pod {pod} made {times} times"
                );
            }
        }
        Ok(())
    }

    /// Judges a run by its pods: each of these attempts had one, made once, and there was no other.
    ///
    /// # Errors
    ///
    /// It is not so; the error lists the pods that were made.
    pub fn expect_pods(&self, run: &str, attempts: impl IntoIterator<Item = i32>) -> Result {
        let expected: BTreeMap<String, usize> =
            attempts.into_iter().map(|attempt| (format!("{run}-{attempt}"), 1)).collect();
        let made = self.pods_created(run)?;
        anyhow::ensure!(
            made == expected,
            "the audit log saw the pods {made:?} of run {run}; expected were {expected:?}"
        );
        Ok(())
    }
}

impl Entry {
    /// Whether it is about a pod itself, not its status, eviction or binding.
    pub fn is_pod(&self) -> bool {
        self.resource == "pods" && self.subresource.is_empty()
    }
}

/// The attempt that a pod of this name would have in this run.
fn attempt_of(run: &str, pod: &str) -> Option<u32> {
    pod.strip_prefix(run)?.strip_prefix('-')?.parse().ok()
}

/// One line of the log, if it concerns this namespace.
fn parse(line: &str, namespace: &str) -> Option<Entry> {
    // Cheaper than parsing every line of a log that all stories write to.
    if !line.contains(namespace) {
        return None;
    }
    let line: Line = serde_json::from_str(line).ok()?;
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
struct Line {
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
    fn a_line_of_another_namespace_is_left_out() {
        assert!(
            parse(LINE, "here").is_some_and(|entry| entry.is_pod() && entry.succeeded() && entry.name == "r-2")
        );
        assert_eq!(parse(LINE, "her"), None);
    }

    #[test]
    fn a_dry_run_is_no_write() {
        assert_eq!(parse(&LINE.replace("pods?", "pods?&dryRun=All"), "here"), None);
    }

    #[test]
    fn a_pod_belongs_to_the_run_whose_name_and_a_number_it_bears() {
        assert_eq!(attempt_of("r", "r-2"), Some(2));
        assert_eq!(attempt_of("r", "r-2-1"), None);
        assert_eq!(attempt_of("r", "ra-2"), None);
    }
}
