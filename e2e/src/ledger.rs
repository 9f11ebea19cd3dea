//! A client of the ledger, the external system of the tests. Each tool call of the scripted agent is one entry under
//! the call's idempotency key. A repeated key is counted and has no second effect.

use std::collections::BTreeMap;

use anyhow::Context;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, ListParams};
use kube::{Client, ResourceExt};
use serde::Deserialize;

use crate::http::Request;
use crate::wait::{eventually, secs};
use crate::{Result, install};

/// The ledger, which all tests share.
#[derive(Clone, Debug)]
pub struct Ledger {
    /// The base URL with the pod's IP, which works while the API server is unavailable.
    base: String,
}

/// One side effect.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Entry {
    /// The idempotency key.
    pub key: String,
    /// The turn of the call.
    pub turn: i32,
    /// The attempt that requested it first.
    pub attempt: i32,
    /// What was done.
    pub note: String,
    /// How often it was requested.
    pub deliveries: u32,
    /// The attempts that requested it. Each may have sent several requests if an answer was lost.
    pub attempts: Vec<i32>,
}

/// A note of an agent, for example that it was fenced.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Note {
    /// The attempt that wrote it.
    pub attempt: i32,
    /// The text.
    pub note: String,
}

impl Note {
    /// The turn and the content hash, if the note reports an acknowledged boundary.
    pub fn committed(&self) -> Option<(i32, &str)> {
        let (turn, content_hash) = self.note.strip_prefix("committed ")?.split_once(' ')?;
        Some((turn.parse().ok()?, content_hash))
    }
}

impl Ledger {
    /// Finds the ledger that [`install::set_up`] has installed.
    pub async fn find(client: &Client) -> Result<Self> {
        Self::find_in(client, install::TOOLS_NAMESPACE).await
    }

    /// Finds the ledger in this namespace.
    pub async fn find_in(client: &Client, namespace: &str) -> Result<Self> {
        let ip = eventually("the ledger's pod", secs(30), async || {
            Ok(Some(pod_ip(client, namespace, "ledger").await?))
        })
        .await?;
        Ok(Self { base: format!("http://{ip}:{}", install::LEDGER_PORT) })
    }

    /// The URL for agents.
    pub fn url(&self) -> String {
        format!("http://ledger.{}.svc.cluster.local:{}", install::TOOLS_NAMESPACE, install::LEDGER_PORT)
    }

    /// The side effects of a run (`namespace/name`), by turn.
    pub async fn entries(&self, run: &str) -> Result<Vec<Entry>> {
        let answer = Request::get(format!("{}/entries?run={run}", self.base)).send().await?;
        let mut entries: Vec<Entry> = answer.json().context("reading the ledger")?;
        entries.sort_by_key(|entry| entry.turn);
        Ok(entries)
    }

    /// The notes of a run's agents.
    pub async fn notes(&self, run: &str) -> Result<Vec<Note>> {
        let answer = Request::get(format!("{}/notes?run={run}", self.base)).send().await?;
        answer.json().context("reading the ledger's notes")
    }

    /// The highest turn that had an effect; 0 if none had.
    pub async fn highest_turn(&self, run: &str) -> Result<i32> {
        Ok(self.entries(run).await?.iter().map(|entry| entry.turn).max().unwrap_or(0))
    }

    /// Checks a run: each turn 1..=`turns` had exactly one effect, and no other turn had any. The error lists the other
    /// turns.
    pub async fn expect_turns(&self, run: &str, turns: i32) -> Result {
        let entries = self.entries(run).await?;
        let mut effects: BTreeMap<i32, usize> = (1..=turns).map(|turn| (turn, 0)).collect();
        for entry in &entries {
            *effects.entry(entry.turn).or_default() += 1;
        }
        effects.retain(|turn, count| *count != 1 || *turn > turns);
        anyhow::ensure!(
            effects.is_empty(),
            "each of the {turns} turns of {run} should have one effect; turns with another number: {effects:?}"
        );
        Ok(())
    }
}

/// The turns of a run's last attempt that have no note of their acknowledged boundary. The run's last turn is left out,
/// because a worker may be stopped as soon as it is committed.
pub(crate) fn unreported_turns(entries: &[Entry], notes: &[Note], attempt: i32, turns: i32) -> Vec<i32> {
    let is_reported = |turn: i32| {
        let reports =
            |note: &Note| note.attempt == attempt && note.committed().is_some_and(|it| it.0 == turn);
        notes.iter().any(reports)
    };
    let turns_made = entries.iter().filter(|entry| entry.attempts.contains(&attempt)).map(|entry| entry.turn);
    turns_made.filter(|turn| *turn < turns && !is_reported(*turn)).collect()
}

/// The address of the running pod with this label `app`. Fails if there is none.
pub(crate) async fn pod_ip(client: &Client, namespace: &str, app: &str) -> Result<String> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let pods = pods.list(&ListParams::default().labels(&format!("app={app}"))).await?;
    let ip = pods.into_iter().find_map(|pod| pod.status.clone()?.pod_ip.filter(|_| is_running(&pod)));
    ip.with_context(|| format!("no pod of {app} is running in {namespace}"))
}

fn is_running(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_none()
        && pod.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Running")
        && !pod.name_any().is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note(attempt: i32, note: &str) -> Note {
        Note { attempt, note: note.to_owned() }
    }

    #[test]
    fn a_turn_of_the_last_attempt_without_its_own_note_is_unreported() {
        let entry = |(turn, attempts): (i32, &[i32])| {
            let attempts = attempts.to_vec();
            Entry {
                key: turn.to_string(),
                turn,
                attempt: attempts[0],
                note: String::new(),
                deliveries: 1,
                attempts,
            }
        };
        // Attempt 1 was killed in turn 3. Attempt 2 made turn 3 again, and ended with turn 5, the run's last one.
        let attempts_by_turn: &[(i32, &[i32])] = &[(1, &[1]), (2, &[1]), (3, &[1, 2]), (4, &[2]), (5, &[2])];
        let entries: Vec<Entry> = attempts_by_turn.iter().copied().map(entry).collect();
        let mut notes =
            vec![note(1, "committed 2 sha256:2"), note(1, "committed 3 sha256:3"), note(2, "fenced")];
        assert_eq!(unreported_turns(&entries, &notes, 2, 5), [3, 4]);
        notes.extend([note(2, "committed 3 sha256:3"), note(2, "committed 4 sha256:4")]);
        assert!(unreported_turns(&entries, &notes, 2, 5).is_empty());
    }
}
