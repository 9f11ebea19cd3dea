//! Waits: the state of each wait must follow from the run's audit.

use std::collections::BTreeMap;

use dalsegno_format::seal::{CallDigests, CallDigestsExt as _};
use dalsegno_model::audit::kind;
use dalsegno_model::read_transaction::StoredWait;
use dalsegno_model::{AuditRow, Digest, RunId};
use dalsegno_protocol::{Boundary, WaitKind, WaitOutcome, WaitState};
use serde::Deserialize;

use super::encoding::Hash;
use super::problem::Problem;

/// Id and opening epoch of a wait.
type Key = (String, i64);

/// The waits of a run according to its audit, in the order of its rows, and the waits that are stored.
#[derive(Clone, Debug, Default)]
pub(super) struct Waits {
    audited: BTreeMap<Key, AuditedWait>,
    stored: BTreeMap<Key, StoredDigests>,
    /// Whether rows of the audit were pruned: then the beginning of a wait may be in no row.
    is_pruned: bool,
    /// Whether payloads and digest keys may be missing, because the run is past its retention or shredded.
    is_over: bool,
}

/// The latest values in the audit.
#[derive(Clone, Debug)]
struct AuditedWait {
    /// `None`: its opening is in no row.
    opened: Option<Opened>,
    undone: bool,
    state: WaitState,
    outcome: Option<WaitOutcome>,
    answer: Option<Digest>,
}

#[derive(Clone, Copy, Debug)]
struct Opened {
    kind: WaitKind,
    at: (i32, Boundary),
    request: Digest,
    proposal_hash: Option<Digest>,
}

/// A wait that is stored.
#[derive(Clone, Debug)]
struct StoredDigests {
    kind: WaitKind,
    at: (i32, Boundary),
    undone: bool,
    state: WaitState,
    outcome: Option<WaitOutcome>,
    proposal_hash: Option<Digest>,
    request: Option<Digests>,
    answer: Option<Digests>,
    is_lost: bool,
    damage: Option<String>,
}

/// The two possible digests of a text: as it is stored now, and as it was stored before its run had a key.
type Digests = [Digest; 2];

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct OpenedDetail {
    wait: String,
    epoch: i64,
    kind: WaitKind,
    turn: i32,
    boundary: Boundary,
    request: Hash,
    proposal_hash: Option<Hash>,
}

#[derive(Deserialize)]
struct AnsweredDetail {
    wait: String,
    epoch: i64,
    outcome: WaitOutcome,
    answer: Option<Hash>,
}

#[derive(Deserialize)]
struct WithdrawnDetail {
    waits: Vec<KeyDetail>,
}

#[derive(Deserialize)]
struct KeyDetail {
    wait: String,
    epoch: i64,
}

#[derive(Deserialize)]
struct RewoundDetail {
    to: Place,
}

#[derive(Deserialize)]
struct Place {
    turn: i32,
    boundary: Boundary,
}

impl Waits {
    /// Adds the next row of the run's audit. A row with an unreadable detail is ignored.
    pub fn add_audit_row(&mut self, row: &AuditRow) {
        match row.kind.as_str() {
            kind::WAIT_OPENED => {
                let Ok(detail) = serde_json::from_str::<OpenedDetail>(&row.detail) else { return };
                self.entry((detail.wait, detail.epoch)).opened = Some(Opened {
                    kind: detail.kind,
                    at: (detail.turn, detail.boundary),
                    request: detail.request.0,
                    proposal_hash: detail.proposal_hash.map(|hash| hash.0),
                });
            }
            kind::WAIT_ANSWERED => {
                let Ok(detail) = serde_json::from_str::<AnsweredDetail>(&row.detail) else { return };
                let wait = self.entry((detail.wait, detail.epoch));
                (wait.state, wait.outcome) = (WaitState::Answered, Some(detail.outcome));
                wait.answer = detail.answer.map(|hash| hash.0);
            }
            kind::WAIT_WITHDRAWN => {
                let Ok(WithdrawnDetail { waits }) = serde_json::from_str(&row.detail) else { return };
                for KeyDetail { wait, epoch } in waits {
                    self.entry((wait, epoch)).state = WaitState::Withdrawn;
                }
            }
            kind::REWOUND => {
                let Ok(RewoundDetail { to: Place { turn, boundary } }) = serde_json::from_str(&row.detail)
                else {
                    return;
                };
                for wait in self.audited.values_mut() {
                    wait.undone |= wait.opened.is_some_and(|opened| opened.at > (turn, boundary));
                }
            }
            kind::PRUNED => self.is_pruned = true,
            other => self.is_over |= [kind::EXPIRED, kind::SHREDDED].contains(&other),
        }
    }

    fn entry(&mut self, key: Key) -> &mut AuditedWait {
        self.audited.entry(key).or_insert(AuditedWait {
            opened: None,
            undone: false,
            state: WaitState::Open,
            outcome: None,
            answer: None,
        })
    }

    /// Adds a wait of the run.
    pub fn add_wait(&mut self, wait: &StoredWait) {
        let StoredWait { facts, boundary, undone, state, outcome, request, answer, digests, damage } = wait;
        let of = |text: &str| [digests.of(text), CallDigests::Plain.of(text)];
        let stored = StoredDigests {
            kind: facts.kind,
            at: (boundary.turn, boundary.boundary),
            undone: *undone,
            state: *state,
            outcome: *outcome,
            proposal_hash: facts.proposal_hash,
            request: request.as_deref().map(|json| of(json.get())),
            answer: answer.as_deref().map(|json| of(json.get())),
            is_lost: *digests == CallDigests::Lost,
            damage: damage.clone(),
        };
        self.stored.insert((facts.id.clone(), facts.epoch), stored);
    }

    /// To be called after the last wait and audit row.
    pub fn end(&self, run: RunId) -> impl Iterator<Item = Problem> {
        let one = move |(id, epoch): &Key, what: &str| {
            Problem::of(run, format!("wait {id:?} of epoch {epoch}"), what)
        };
        let damaged = self.stored.values().filter_map(|stored| stored.damage.clone());
        let damaged = damaged.map(move |what| Problem::of(run, "waits", what));
        let gone = self.audited.keys().filter(|key| !self.stored.contains_key(*key));
        let gone = gone.map(move |key| one(key, "the audit records it, and it is missing"));
        let is_known =
            |key: &Key| self.is_pruned || self.audited.get(key).is_some_and(|it| it.opened.is_some());
        let unaudited = self.stored.keys().filter(move |key| !is_known(key));
        let unaudited = unaudited.map(move |key| one(key, "it exists, and the audit does not record it"));
        let both =
            self.audited.iter().filter_map(|(key, audited)| Some((key, audited, self.stored.get(key)?)));
        let other = both.flat_map(move |(key, audited, stored)| {
            let columns = self.differences(audited, stored);
            columns.map(move |column| one(key, &format!("its {column} is not what the audit says")))
        });
        damaged.chain(gone).chain(unaudited).chain(other)
    }

    fn differences(
        &self,
        audited: &AuditedWait,
        stored: &StoredDigests,
    ) -> impl Iterator<Item = &'static str> + use<> {
        let may_be_gone = self.is_over || stored.damage.is_some();
        let payload = |audited: Option<Digest>, stored: Option<Digests>| match (audited, stored) {
            (None, None) => false,
            (None, Some(_)) => true,
            (Some(_), None) => !may_be_gone,
            (Some(audited), Some(digests)) => !digests.contains(&audited),
        };
        let differs =
            |is: fn(Opened, &StoredDigests) -> bool| audited.opened.is_some_and(|it| is(it, stored));
        let request = audited.opened.map(|opened| opened.request);
        // After a prune the state may have been recorded in a row that is gone.
        let is_state_known = !self.is_pruned || audited.state != WaitState::Open;
        [
            ("kind", differs(|opened, stored| opened.kind != stored.kind)),
            ("turn", differs(|opened, stored| opened.at != stored.at)),
            ("proposal's hash", differs(|opened, stored| opened.proposal_hash != stored.proposal_hash)),
            ("undoing", audited.opened.is_some() && audited.undone != stored.undone),
            ("state", is_state_known && audited.state != stored.state),
            ("outcome", is_state_known && audited.outcome != stored.outcome),
            ("request", request.is_some() && !stored.is_lost && payload(request, stored.request)),
            ("answer", is_state_known && !stored.is_lost && payload(audited.answer, stored.answer)),
        ]
        .into_iter()
        .filter_map(|(what, differs)| differs.then_some(what))
    }
}
