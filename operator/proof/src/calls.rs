//! Tool calls: each stands as the rows of the run's audit tell that it came to stand.

use std::collections::BTreeMap;

use dalsegno_format::audit::{self, kind};
use dalsegno_format::seal::{CallDigests, CallDigestsExt as _};
use dalsegno_model::reading::StoredCall;
use dalsegno_model::{AuditRow, Digest, RunId};
use dalsegno_protocol::{CallState, Policy, RawValue};
use serde::Deserialize;

use super::problem::Problem;
use super::texts::Hash;

/// What is told and seen of a run's calls, whichever rows come first. Holds their names, and digests of what they hold.
#[derive(Clone, Debug, Default)]
pub(super) struct Calls {
    told: BTreeMap<String, Told>,
    seen: BTreeMap<String, Seen>,
    /// Once rows were pruned: which calls only these told of.
    pruned: Option<Earlier>,
    /// Whether payloads, and what digests were made with, may be gone.
    is_over: bool,
    /// Whether nobody can make digests of them any more.
    is_lost: bool,
}

/// What was told last; `None`: in no row that is there.
#[derive(Clone, Debug, Default)]
struct Told {
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
struct Seen {
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
struct Earlier {
    count: usize,
    names: Hash,
}

/// What a row says that tells of others that were pruned.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Pruned {
    earlier_calls: Earlier,
}

/// What a row tells of the calls that a boundary planned.
#[derive(Deserialize)]
struct Plan {
    turn: i32,
    calls: Vec<Detail>,
}

impl Calls {
    /// A row of the run's audit is there. One whose words cannot be read tells of nothing.
    pub fn see_audit(&mut self, row: &AuditRow) {
        let state = match row.kind.as_str() {
            kind::CLAIMED => Some(CallState::Started),
            kind::COMPLETED => Some(CallState::Completed),
            kind::FAILED => Some(CallState::Failed),
            kind::KEY_REFUSED => Some(CallState::KeyRefused),
            kind::SETTLED => None,
            kind::PLANNED => {
                if let Ok(Plan { turn, calls }) = serde_json::from_str(&row.detail) {
                    let of_turn = |call| Detail { turn: Some(turn), ..call };
                    calls.into_iter().for_each(|call| self.tell(of_turn(call), Some(CallState::Planned)));
                }
                return;
            }
            kind::PRUNED => {
                let pruned = serde_json::from_str(&row.detail).ok();
                self.pruned = pruned.map(|Pruned { earlier_calls }| earlier_calls);
                return;
            }
            other => {
                self.is_over |= [kind::EXPIRED, kind::SHREDDED].contains(&other);
                return;
            }
        };
        if let Ok(detail) = serde_json::from_str::<Detail>(&row.detail) {
            let state = state.or(detail.outcome);
            self.tell(detail, state);
        }
    }

    fn tell(&mut self, detail: Detail, state: Option<CallState>) {
        let Detail { call, turn, attempt, policy, key, arguments, result, outcome: _ } = detail;
        let told = self.told.entry(call).or_default();
        if key.is_some() || state == Some(CallState::Planned) {
            told.turn = turn;
        }
        told.touched = turn;
        told.attempt = attempt.or(told.attempt);
        told.state = state;
        told.policy = policy.or(told.policy);
        told.key = key.map(|hash| hash.0).or(told.key);
        if key.is_some() || arguments.is_some() {
            told.arguments = Some(arguments.map(|hash| hash.0));
        }
        if key.is_some() || !matches!(state, Some(CallState::Planned | CallState::Started)) {
            told.result = Some(result.map(|hash| hash.0));
        }
    }

    /// A call of the run is there.
    pub fn see(&mut self, stored: &StoredCall) {
        let StoredCall { ordinal: _, call, attempt, touched, digests, damage } = stored;
        let of = |text: &str| [digests.of(text), CallDigests::Plain.of(text)];
        let payload = |json: &Option<Box<RawValue>>| json.as_deref().map(|json| of(json.get()));
        let seen = Seen {
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
        self.is_lost |= *digests == CallDigests::Lost;
        self.seen.insert(call.id.clone(), seen);
    }

    /// After the last call and row: that nobody can make digests of the calls any more, where nothing says why.
    pub fn lost(&self, run: RunId) -> Option<Problem> {
        let what =
            "the run's data key is gone, and the audit does not say that it was shredded or has expired";
        (self.is_lost && !self.is_over).then(|| Problem::of(run, "calls", what))
    }

    /// After the last call and row.
    pub fn end(&self, run: RunId) -> impl Iterator<Item = Problem> {
        let damaged = self.seen.values().filter_map(|seen| seen.damage.clone());
        let damaged = damaged.map(move |what| Problem::of(run, "calls", what));
        let one = move |id: &str, what: String| Problem::of(run, format!("call {id:?}"), what);
        let gone = self.told.keys().filter(|id| !self.seen.contains_key(*id));
        let gone = gone.map(move |id| one(id, "the audit tells of it, and it is not there".into()));
        let (untold, earlier) = self.untold();
        let untold = untold.map(move |id| one(id, "it is there, and the audit does not tell of it".into()));
        let earlier = earlier.map(|what| Problem::of(run, "calls", what));
        let both = self.told.iter().filter_map(|(id, told)| Some((id, told, self.seen.get(id)?)));
        let other = both.flat_map(move |(id, told, seen)| {
            let columns = self.differences(told, seen);
            columns.map(move |column| one(id, format!("its {column} is not what the audit says")))
        });
        damaged.chain(gone).chain(untold).chain(earlier).chain(other)
    }

    /// Calls that no row tells the beginning of; or, once rows were pruned, whether they are those that the rows told of.
    fn untold(&self) -> (impl Iterator<Item = &str>, Option<&'static str>) {
        let is_told = |id: &str| self.told.get(id).is_some_and(|told| told.key.is_some());
        let untold: Vec<_> = self.seen.keys().map(String::as_str).filter(|id| !is_told(id)).collect();
        let Some(Earlier { count, names }) = self.pruned else { return (untold.into_iter(), None) };
        let same = (untold.len(), audit::names_digest(untold.into_iter())) == (count, names.0);
        let what = "of those that pruned rows told of some are not there, or some are that nobody told of";
        (Vec::new().into_iter(), (!same).then_some(what))
    }

    fn differences(&self, told: &Told, seen: &Seen) -> impl Iterator<Item = &'static str> + use<> {
        let may_be_gone = self.is_over || seen.damage.is_some();
        let payload = |told: Option<Option<Digest>>, seen: Option<Digests>| match (told, seen) {
            (None, _) | (Some(None), None) => false,
            (Some(None), Some(_)) => true,
            (Some(Some(_)), None) => !may_be_gone,
            (Some(Some(told)), Some(seen)) => !seen.contains(&told),
        };
        let judged = !self.is_lost;
        let is_attempt_known = told.attempt.is_some() || told.state == Some(CallState::Planned);
        let is_turn_other = told.turn.is_some_and(|turn| turn != seen.turn);
        let is_last_turn_other = told.touched.zip(seen.touched).is_some_and(|(told, seen)| told != seen);
        [
            ("turn", is_turn_other),
            // Of a call that nobody has claimed it is the same.
            ("last turn", is_last_turn_other && !is_turn_other),
            ("attempt", is_attempt_known && told.attempt != seen.attempt),
            ("state", told.state.is_some_and(|state| state != seen.state)),
            ("policy", told.policy.is_some_and(|policy| policy != seen.policy)),
            ("key", judged && told.key.is_some_and(|key| !seen.key.contains(&key))),
            ("arguments", judged && payload(told.arguments, seen.arguments)),
            ("result", judged && payload(told.result, seen.result)),
        ]
        .into_iter()
        .filter_map(|(what, differs)| differs.then_some(what))
    }
}
