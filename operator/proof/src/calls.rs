//! Tool calls: each stands as the rows of the run's audit tell that it came to stand.

use std::collections::BTreeMap;

use dalsegno_format::audit::{self, kind};
use dalsegno_format::seal::{CallDigests, CallDigestsExt as _};
use dalsegno_model::read_transaction::StoredCall;
use dalsegno_model::{AuditRow, Digest, RunId};
use dalsegno_protocol::{CallState, Policy, RawValue};
use serde::Deserialize;

use super::encoding::Hash;
use super::problem::Problem;

/// What is audited and stored of a run's calls, whichever rows come first. Holds their names, and digests of what they hold.
#[derive(Clone, Debug, Default)]
pub(super) struct Calls {
    audited: BTreeMap<String, AuditedCall>,
    stored: BTreeMap<String, StoredDigests>,
    /// Once rows were pruned: which calls only these audited of.
    pruned: Option<PrunedCalls>,
    /// Whether payloads, and what digests were made with, may be gone.
    is_over: bool,
    /// Whether nobody can make digests of them any more.
    are_digests_lost: bool,
}

/// What was audited last; `None`: in no row that is there.
#[derive(Clone, Debug, Default)]
struct AuditedCall {
    turn: Option<i32>,
    touched: Option<i32>,
    attempt: Option<i32>,
    state: Option<CallState>,
    policy: Option<Policy>,
    key: Option<Digest>,
    /// `Some(None)`: it has none.
    arguments: Option<Option<Digest>>,
    result: Option<Option<Digest>>,
}

/// What stands.
#[derive(Clone, Debug)]
struct StoredDigests {
    turn: i32,
    touched: Option<i32>,
    attempt: Option<i32>,
    state: CallState,
    policy: Policy,
    key: Digests,
    arguments: Option<Digests>,
    result: Option<Digests>,
    damage: Option<String>,
}

/// Those that may stand for a text: as it is kept, and as it was kept before its run had a key.
type Digests = [Digest; 2];

/// What a row tells of a call, in the turn that was open. Only one that tells of a new call has its key; then a call without
/// arguments has none.
#[derive(Deserialize)]
struct Detail {
    call: String,
    turn: Option<i32>,
    attempt: Option<i32>,
    policy: Option<Policy>,
    key: Option<Hash>,
    arguments: Option<Hash>,
    result: Option<Hash>,
    outcome: Option<CallState>,
}

/// Calls that no row is left to tell the beginning of: how many, and [`audit::names_digest`].
#[derive(Clone, Copy, Debug, Deserialize)]
struct PrunedCalls {
    count: usize,
    names: Hash,
}

/// What a row says that tells of others that were pruned.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct PruneDetail {
    earlier_calls: PrunedCalls,
}

/// What a row tells of the calls that a boundary planned.
#[derive(Deserialize)]
struct Plan {
    turn: i32,
    calls: Vec<Detail>,
}

impl Calls {
    /// A row of the run's audit is there. One whose words cannot be read tells of nothing.
    pub fn add_audit_row(&mut self, row: &AuditRow) {
        let state = match row.kind.as_str() {
            kind::CLAIMED => Some(CallState::Started),
            kind::COMPLETED => Some(CallState::Completed),
            kind::FAILED => Some(CallState::Failed),
            kind::KEY_REFUSED => Some(CallState::KeyRefused),
            kind::SETTLED => None,
            kind::PLANNED => {
                if let Ok(Plan { turn, calls }) = serde_json::from_str(&row.detail) {
                    let of_turn = |call| Detail { turn: Some(turn), ..call };
                    calls.into_iter().for_each(|call| self.apply(of_turn(call), Some(CallState::Planned)));
                }
                return;
            }
            kind::PRUNED => {
                let pruned = serde_json::from_str(&row.detail).ok();
                self.pruned = pruned.map(|PruneDetail { earlier_calls }| earlier_calls);
                return;
            }
            other => {
                self.is_over |= [kind::EXPIRED, kind::SHREDDED].contains(&other);
                return;
            }
        };
        if let Ok(detail) = serde_json::from_str::<Detail>(&row.detail) {
            let state = state.or(detail.outcome);
            self.apply(detail, state);
        }
    }

    fn apply(&mut self, detail: Detail, state: Option<CallState>) {
        let Detail { call, turn, attempt, policy, key, arguments, result, outcome: _ } = detail;
        let audited = self.audited.entry(call).or_default();
        if key.is_some() || state == Some(CallState::Planned) {
            audited.turn = turn;
        }
        audited.touched = turn;
        audited.attempt = attempt.or(audited.attempt);
        audited.state = state;
        audited.policy = policy.or(audited.policy);
        audited.key = key.map(|hash| hash.0).or(audited.key);
        if key.is_some() || arguments.is_some() {
            audited.arguments = Some(arguments.map(|hash| hash.0));
        }
        if key.is_some() || !matches!(state, Some(CallState::Planned | CallState::Started)) {
            audited.result = Some(result.map(|hash| hash.0));
        }
    }

    /// A call of the run is there.
    pub fn add_call(&mut self, stored: &StoredCall) {
        let StoredCall { ordinal: _, call, attempt, touched, digests, damage } = stored;
        let of = |text: &str| [digests.of(text), CallDigests::Plain.of(text)];
        let payload = |json: &Option<Box<RawValue>>| json.as_deref().map(|json| of(json.get()));
        let stored = StoredDigests {
            turn: call.turn,
            touched: *touched,
            attempt: *attempt,
            state: call.state,
            policy: call.policy,
            key: of(&call.key),
            arguments: payload(&call.arguments),
            result: payload(&call.result),
            damage: damage.clone(),
        };
        self.are_digests_lost |= *digests == CallDigests::Lost;
        self.stored.insert(call.id.clone(), stored);
    }

    /// After the last call and row: that nobody can make digests of the calls any more, where nothing says why.
    pub fn lost(&self, run: RunId) -> Option<Problem> {
        let what =
            "the run's data key is gone, and the audit does not say that it was shredded or has expired";
        (self.are_digests_lost && !self.is_over).then(|| Problem::of(run, "calls", what))
    }

    /// After the last call and row.
    pub fn end(&self, run: RunId) -> impl Iterator<Item = Problem> {
        let damaged = self.stored.values().filter_map(|stored| stored.damage.clone());
        let damaged = damaged.map(move |what| Problem::of(run, "calls", what));
        let one = move |id: &str, what: String| Problem::of(run, format!("call {id:?}"), what);
        let gone = self.audited.keys().filter(|id| !self.stored.contains_key(*id));
        let gone = gone.map(move |id| one(id, "the audit tells of it, and it is not there".into()));
        let (unaudited, earlier) = self.unaudited();
        let unaudited =
            unaudited.map(move |id| one(id, "it is there, and the audit does not tell of it".into()));
        let earlier = earlier.map(|what| Problem::of(run, "calls", what));
        let both = self.audited.iter().filter_map(|(id, audited)| Some((id, audited, self.stored.get(id)?)));
        let other = both.flat_map(move |(id, audited, stored)| {
            let columns = self.differences(audited, stored);
            columns.map(move |column| one(id, format!("its {column} is not what the audit says")))
        });
        damaged.chain(gone).chain(unaudited).chain(earlier).chain(other)
    }

    /// Calls that no row tells the beginning of; or, once rows were pruned, whether they are those that the rows audited of.
    fn unaudited(&self) -> (impl Iterator<Item = &str>, Option<&'static str>) {
        let is_audited = |id: &str| self.audited.get(id).is_some_and(|audited| audited.key.is_some());
        let unaudited: Vec<_> = self.stored.keys().map(String::as_str).filter(|id| !is_audited(id)).collect();
        let Some(PrunedCalls { count, names }) = self.pruned else { return (unaudited.into_iter(), None) };
        let same = (unaudited.len(), audit::names_digest(unaudited.into_iter())) == (count, names.0);
        let what = "of those that pruned rows told of some are not there, or some are that nobody told of";
        (Vec::new().into_iter(), (!same).then_some(what))
    }

    fn differences(
        &self,
        audited: &AuditedCall,
        stored: &StoredDigests,
    ) -> impl Iterator<Item = &'static str> + use<> {
        let may_be_gone = self.is_over || stored.damage.is_some();
        let payload = |audited: Option<Option<Digest>>, stored: Option<Digests>| match (audited, stored) {
            (None, _) | (Some(None), None) => false,
            (Some(None), Some(_)) => true,
            (Some(Some(_)), None) => !may_be_gone,
            (Some(Some(audited)), Some(stored)) => !stored.contains(&audited),
        };
        let judged = !self.are_digests_lost;
        let is_attempt_known = audited.attempt.is_some() || audited.state == Some(CallState::Planned);
        let is_turn_other = audited.turn.is_some_and(|turn| turn != stored.turn);
        let is_last_turn_other =
            audited.touched.zip(stored.touched).is_some_and(|(audited, stored)| audited != stored);
        [
            ("turn", is_turn_other),
            // Of a call that nobody has claimed it is the same.
            ("last turn", is_last_turn_other && !is_turn_other),
            ("attempt", is_attempt_known && audited.attempt != stored.attempt),
            ("state", audited.state.is_some_and(|state| state != stored.state)),
            ("policy", audited.policy.is_some_and(|policy| policy != stored.policy)),
            ("key", judged && audited.key.is_some_and(|key| !stored.key.contains(&key))),
            ("arguments", judged && payload(audited.arguments, stored.arguments)),
            ("result", judged && payload(audited.result, stored.result)),
        ]
        .into_iter()
        .filter_map(|(what, differs)| differs.then_some(what))
    }
}
