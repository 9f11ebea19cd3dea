//! The ledger: the outside world of the stories. Each tool call of the scripted agent is one entry in it, under the
//! call's idempotency key; a key that comes again is counted and takes no second effect.

use std::collections::BTreeMap;

use anyhow::Context;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, ListParams};
use kube::{Client, ResourceExt};
use serde::Deserialize;

use crate::http::Request;
use crate::wait::{eventually, secs};
use crate::{Result, install};

/// The one ledger of all stories.
#[derive(Clone, Debug)]
pub struct Ledger {
    /// By pod IP: the ledger answers while the API server is away.
    base: String,
}

/// One side effect.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Entry {
    /// The idempotency key.
    pub key: String,
    /// The turn whose call it was.
    pub turn: i32,
    /// The attempt that asked for it first.
    pub attempt: i32,
    /// How often it was asked for.
    pub deliveries: u32,
    /// The attempts that asked for it. Each may have asked several times, where an answer was lost.
    pub attempts: Vec<i32>,
}

/// A remark of an agent, such as that it was fenced off.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Note {
    /// The attempt that made it.
    pub attempt: i32,
    /// The remark.
    pub note: String,
}

impl Note {
    /// Turn and content hash of a boundary that its agent was told to stand.
    pub fn committed(&self) -> Option<(i32, &str)> {
        let (turn, content_hash) = self.note.strip_prefix("committed ")?.split_once(' ')?;
        Some((turn.parse().ok()?, content_hash))
    }
}

impl Ledger {
    /// Finds the ledger that the set-up has installed.
    ///
    /// # Errors
    ///
    /// It does not run.
    pub async fn find(client: &Client) -> Result<Self> {
        let pods: Api<Pod> = Api::namespaced(client.clone(), install::TOOLS_NAMESPACE);
        let selector = ListParams::default().labels("app=ledger");
        let ip = eventually("the ledger's pod", secs(30), async || {
            let pods = pods.list(&selector).await?;
            Ok(pods.into_iter().find_map(|pod| pod.status.clone()?.pod_ip.filter(|_| is_running(&pod))))
        })
        .await?;
        Ok(Self { base: format!("http://{ip}:{}", install::LEDGER_PORT) })
    }

    /// Where agents find it.
    pub fn url(&self) -> String {
        format!("http://ledger.{}.svc.cluster.local:{}", install::TOOLS_NAMESPACE, install::LEDGER_PORT)
    }

    /// The side effects of a run (`namespace/name`), by turn.
    ///
    /// # Errors
    ///
    /// The ledger does not answer.
    pub async fn entries(&self, run: &str) -> Result<Vec<Entry>> {
        let answer = Request::get(format!("{}/entries?run={run}", self.base)).send().await?;
        let mut entries: Vec<Entry> = answer.ok().context("reading the ledger")?;
        entries.sort_by_key(|entry| entry.turn);
        Ok(entries)
    }

    /// What a run's agents remarked.
    ///
    /// # Errors
    ///
    /// The ledger does not answer.
    pub async fn notes(&self, run: &str) -> Result<Vec<Note>> {
        let answer = Request::get(format!("{}/notes?run={run}", self.base)).send().await?;
        answer.ok().context("reading the ledger's notes")
    }

    /// The highest turn that had an effect; 0 if none had.
    ///
    /// # Errors
    ///
    /// The ledger does not answer.
    pub async fn turn(&self, run: &str) -> Result<i32> {
        Ok(self.entries(run).await?.iter().map(|entry| entry.turn).max().unwrap_or(0))
    }

    /// Judges a run: each turn 1..=`turns` had exactly one effect, and no other turn had any.
    ///
    /// # Errors
    ///
    /// It is not so; the error tells the turns that are missing or too many.
    pub async fn expect_turns(&self, run: &str, turns: i32) -> Result {
        let entries = self.entries(run).await?;
        let mut effects: BTreeMap<i32, usize> = (1..=turns).map(|turn| (turn, 0)).collect();
        for entry in &entries {
            *effects.entry(entry.turn).or_default() += 1;
        }
        effects.retain(|turn, count| *count != 1 || *turn > turns);
        anyhow::ensure!(
            effects.is_empty(),
            "each of the {turns} turns of {run} should have had one effect; otherwise (turn: effects): {effects:?}"
        );
        Ok(())
    }
}

/// The turns that this attempt, the last one of a run of so many turns, went on from without having told of their
/// boundary. The run's own last turn is none of them: a worker may be stopped once that is committed.
pub(crate) fn unreported_turns(entries: &[Entry], notes: &[Note], attempt: i32, turns: i32) -> Vec<i32> {
    let told = |turn: i32| {
        let of_it = |note: &Note| note.attempt == attempt && note.committed().is_some_and(|it| it.0 == turn);
        notes.iter().any(of_it)
    };
    let made = entries.iter().filter(|entry| entry.attempts.contains(&attempt)).map(|entry| entry.turn);
    made.filter(|turn| *turn < turns && !told(*turn)).collect()
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
    fn an_attempt_that_went_on_from_a_turn_has_told_of_it() {
        let entry = |(turn, attempts): (i32, &[i32])| {
            let attempts = attempts.to_vec();
            Entry { key: turn.to_string(), turn, attempt: attempts[0], deliveries: 1, attempts }
        };
        // Turn 1 was made by an attempt that was killed, turn 3 by both, turn 5 by the last one, which ended with it.
        let made: &[(i32, &[i32])] = &[(1, &[1]), (2, &[1]), (3, &[1, 2]), (4, &[2]), (5, &[2])];
        let entries: Vec<Entry> = made.iter().copied().map(entry).collect();
        let mut notes =
            vec![note(1, "committed 2 sha256:2"), note(1, "committed 3 sha256:3"), note(2, "fenced")];
        assert_equnreported_turns(&&entries, &notes, 2, 5), [3, 4]);
        notes.extend([note(2, "committed 3 sha256:3"), note(2, "committed 4 sha256:4")]);
        assertunreported_turns(&&entries, &notes, 2, 5).is_empty());
    }
}
