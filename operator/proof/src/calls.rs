//! Tool calls: the state of each call must follow from the run's audit.

use std::collections::BTreeMap;

use dalsegno_format::audit::{self, kind};
use dalsegno_format::seal::{CallDigests, CallDigestsExt as _};
use dalsegno_model::read_transaction::StoredCall;
use dalsegno_model::{AuditRow, Digest, RunId};
use dalsegno_protocol::{CallState, Policy, RawValue, Usage};
use serde::Deserialize;

use super::encoding::Hash;
use super::problem::Problem;

/// The calls of a run according to its audit, and the calls that are stored, added in any order. Holds the calls' ids
/// and digests of their contents.
#[derive(Clone, Debug, Default)]
pub(super) struct Calls {
    audited: BTreeMap<String, AuditedCall>,
    stored: BTreeMap<String, StoredDigests>,
    /// The calls that only pruned rows recorded, if rows were pruned.
    pruned: Option<PrunedCalls>,
    /// Whether payloads and digest keys may be missing, because the run is past its retention or shredded.
    is_over: bool,
    /// Whether digests cannot be computed any more.
    are_digests_lost: bool,
}

/// The latest values in the audit; `None` if no row contains the value.
#[derive(Clone, Debug, Default)]
struct AuditedCall {
    turn: Option<i32>,
    touched: Option<i32>,
    attempt: Option<i32>,
    state: Option<CallState>,
    policy: Option<Policy>,
    key: Option<Digest>,
    /// `Some(None)` if the call has no arguments.
    arguments: Option<Option<Digest>>,
    result: Option<Option<Digest>>,
    /// `Some(None)` if no claim has named the tool.
    tool: Option<Option<String>>,
    usage: Option<Usage>,
}

/// A call that is stored.
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
    tool: Option<String>,
    usage: Usage,
    damage: Option<String>,
}

/// The two possible digests of a text: as it is stored now, and as it was stored before its run had a key.
type Digests = [Digest; 2];

/// A call in an audit row, and the turn that was open. Only the first row of a call has its key; if that row has no
/// arguments, the call has none. The tool is in the row of the claim that first named it, the usage in that of the end.
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
    tool: Option<String>,
    usage: Option<Usage>,
}

/// Calls whose beginning is in no remaining row: their number, and [`audit::names_digest`] of their ids.
#[derive(Clone, Copy, Debug, Deserialize)]
struct PrunedCalls {
    count: usize,
    names: Hash,
}

/// The detail of a row that records a prune.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct PruneDetail {
    earlier_calls: PrunedCalls,
}

/// The detail of a row that records planned calls.
#[derive(Deserialize)]
struct Plan {
    turn: i32,
    calls: Vec<Detail>,
}

impl Calls {
    /// Adds a row of the run's audit. A row with an unreadable detail is ignored.
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
        let Detail { call, turn, attempt, policy, key, arguments, result, outcome: _, tool, usage } = detail;
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
        if key.is_some() || tool.is_some() {
            audited.tool = Some(tool);
        }
        if key.is_some() || usage.is_some() {
            audited.usage = Some(usage.unwrap_or_default());
        }
    }

    /// Adds a call of the run.
    pub fn add_call(&mut self, stored: &StoredCall) {
        let StoredCall { ordinal: _, call, attempt, touched, usage, digests, damage } = stored;
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
            tool: call.tool.clone(),
            usage: *usage,
            damage: damage.clone(),
        };
        self.are_digests_lost |= *digests == CallDigests::Lost;
        self.stored.insert(call.id.clone(), stored);
    }

    /// To be called after the last call and audit row: whether the digests of calls cannot be computed any more, and
    /// the audit does not say why.
    pub fn lost_digests(&self, run: RunId) -> Option<Problem> {
        let what =
            "the run's data key is gone, and the audit does not say that it was shredded or has expired";
        (self.are_digests_lost && !self.is_over).then(|| Problem::of(run, "calls", what))
    }

    /// To be called after the last call and audit row.
    pub fn end(&self, run: RunId) -> impl Iterator<Item = Problem> {
        let damaged = self.stored.values().filter_map(|stored| stored.damage.clone());
        let damaged = damaged.map(move |what| Problem::of(run, "calls", what));
        let one = move |id: &str, what: String| Problem::of(run, format!("call {id:?}"), what);
        let gone = self.audited.keys().filter(|id| !self.stored.contains_key(*id));
        let gone = gone.map(move |id| one(id, "the audit records it, and it is missing".into()));
        let (unaudited, earlier) = self.unaudited();
        let unaudited =
            unaudited.map(move |id| one(id, "it exists, and the audit does not record it".into()));
        let earlier = earlier.map(|what| Problem::of(run, "calls", what));
        let both = self.audited.iter().filter_map(|(id, audited)| Some((id, audited, self.stored.get(id)?)));
        let other = both.flat_map(move |(id, audited, stored)| {
            let columns = self.differences(audited, stored);
            columns.map(move |column| one(id, format!("its {column} is not what the audit says")))
        });
        damaged.chain(gone).chain(unaudited).chain(earlier).chain(other)
    }

    /// Calls whose beginning is in no row. If rows were pruned, whether these are the calls that the pruned rows
    /// recorded.
    fn unaudited(&self) -> (impl Iterator<Item = &str>, Option<&'static str>) {
        let is_audited = |id: &str| self.audited.get(id).is_some_and(|audited| audited.key.is_some());
        let unaudited: Vec<_> = self.stored.keys().map(String::as_str).filter(|id| !is_audited(id)).collect();
        let Some(PrunedCalls { count, names }) = self.pruned else { return (unaudited.into_iter(), None) };
        let same = (unaudited.len(), audit::names_digest(unaudited.into_iter())) == (count, names.0);
        let what = "calls of pruned rows are missing, or there are calls that no row records";
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
        let is_comparable = !self.are_digests_lost;
        let is_attempt_known = audited.attempt.is_some() || audited.state == Some(CallState::Planned);
        let is_turn_other = audited.turn.is_some_and(|turn| turn != stored.turn);
        let is_last_turn_other =
            audited.touched.zip(stored.touched).is_some_and(|(audited, stored)| audited != stored);
        [
            ("turn", is_turn_other),
            // For a call that nobody has claimed the two are the same.
            ("last turn", is_last_turn_other && !is_turn_other),
            ("attempt", is_attempt_known && audited.attempt != stored.attempt),
            ("state", audited.state.is_some_and(|state| state != stored.state)),
            ("tool", audited.tool.as_ref().is_some_and(|tool| *tool != stored.tool)),
            ("usage", audited.usage.is_some_and(|usage| usage != stored.usage)),
            ("policy", audited.policy.is_some_and(|policy| policy != stored.policy)),
            ("key", is_comparable && audited.key.is_some_and(|key| !stored.key.contains(&key))),
            ("arguments", is_comparable && payload(audited.arguments, stored.arguments)),
            ("result", is_comparable && payload(audited.result, stored.result)),
        ]
        .into_iter()
        .filter_map(|(what, differs)| differs.then_some(what))
    }
}
