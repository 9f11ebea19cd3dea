//! Commits: `POST turns/{n}/plan`, `POST turns/{n}`, `POST finish`.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;
use uuid::Uuid;

use crate::{Flags, Head, Limits, PLAIN, ParkRequest, Payload, PlannedCall, RecordOp, bounded};

/// Which boundary of a turn. Ordered: a plan comes before its result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Boundary {
    /// Before the turn's tools run; optional. Makes the turn's calls and their keys durable.
    Plan,
    /// The end of the turn.
    Result,
}

/// The body of a commit. To retry, send the same bytes again until an answer comes.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CommitRequest {
    /// Made once per boundary; a retry sends the same one.
    pub commit_id: Uuid,
    /// The full state as one JSON value; replaces all channels. Excludes `channels`. With neither, the state does not
    /// change. `null` is a value like any other.
    #[serde(default, deserialize_with = "even_null", skip_serializing_if = "Option::is_none")]
    pub state: Option<Box<RawValue>>,
    /// Changes of single channels.
    #[serde(default, deserialize_with = "channels", skip_serializing_if = "Option::is_none")]
    pub channels: Option<ChannelOps>,
    /// Events in order, for people. They are stored and never interpreted.
    #[serde(
        default,
        deserialize_with = "bounded::list::<{ Limits::EVENTS }, _, _>",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub events: Vec<Box<RawValue>>,
    /// Calls that the turn will make. Only in a plan.
    #[serde(
        default,
        deserialize_with = "bounded::list::<{ Limits::CALLS }, _, _>",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub calls: Vec<PlannedCall>,
    /// Ids of the calls that this attempt has started and that have no outcome yet. Without it a commit is refused while
    /// such a call has the policy `probe` or `ask`. A finish is refused even with it.
    #[serde(
        default,
        deserialize_with = "bounded::list::<{ Limits::CALLS }, _, _>",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub open_calls: Vec<String>,
    /// Changes of records. They are committed with the boundary or not at all.
    #[serde(
        default,
        deserialize_with = "bounded::list::<{ Limits::RECORDS }, _, _>",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub records: Vec<RecordOp>,
    /// Positions of the messages that this boundary takes: they belong to it, and are not returned by `GET inbox` again
    /// unless a rewind undoes the boundary.
    #[serde(
        default,
        deserialize_with = "bounded::list::<{ Limits::MESSAGES }, _, _>",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub inbox: Vec<i64>,
    /// Usage of this boundary alone.
    #[serde(default, skip_serializing_if = "Usage::is_zero")]
    pub usage: Usage,
    /// Why the boundary was committed: a [`crate::Trigger`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trigger: Option<String>,
    /// Ends the run, or parks it, together with this commit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<Outcome>,
}

/// Tells a `null` that was sent from an absent field.
fn even_null<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Box<RawValue>>, D::Error> {
    Box::<RawValue>::deserialize(from).map(Some)
}

/// Accepts only an object, within the limits of a boundary. The derived `Deserialize` of [`ChannelOps`] also accepts an
/// array of its fields, and has no limits, because it reads stored operations too.
fn channels<'de, D: Deserializer<'de>>(from: D) -> Result<Option<ChannelOps>, D::Error> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase", deny_unknown_fields, remote = "ChannelOps")]
    struct Bounded {
        #[serde(default)]
        full: bool,
        #[serde(default, deserialize_with = "bounded::list::<{ Limits::CHANNELS }, _, _>")]
        remove: Vec<String>,
        #[serde(default, deserialize_with = "bounded::map::<{ Limits::CHANNELS }, _, _>")]
        truncate: BTreeMap<String, u32>,
        #[serde(default, deserialize_with = "bounded::map::<{ Limits::CHANNELS }, _, _>")]
        set: BTreeMap<String, Payload>,
        #[serde(default, deserialize_with = "bounded::lists")]
        append: BTreeMap<String, Vec<Payload>>,
    }

    struct Object;

    impl<'de> Visitor<'de> for Object {
        type Value = Option<ChannelOps>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an object of channel operations")
        }

        fn visit_unit<E>(self) -> Result<Self::Value, E> {
            Ok(None)
        }

        fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
            Bounded::deserialize(MapAccessDeserializer::new(map)).map(Some)
        }
    }

    from.deserialize_any(Object)
}

/// Changes of channels, applied in the order `remove`, `truncate`, `set`, `append`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ChannelOps {
    /// The operations are the full state: every channel that `set` and `append` do not name is removed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub full: bool,
    /// Channels to remove.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub remove: Vec<String>,
    /// Lists to cut to at most this many items. Must not name a channel that `remove` or `full` removes.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub truncate: BTreeMap<String, u32>,
    /// Values to replace.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub set: BTreeMap<String, Payload>,
    /// Items to append to lists. A value of the same name is replaced by a new list.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub append: BTreeMap<String, Vec<Payload>>,
}

impl ChannelOps {
    /// A full state: the channel [`PLAIN`] and no other.
    pub fn whole(state: Payload) -> Self {
        Self { full: true, set: BTreeMap::from([(PLAIN.to_owned(), state)]), ..Self::default() }
    }
}

/// What models and tools used: of one boundary in a commit, of one call in its `complete`, and the sum of all of them in a
/// run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Usage {
    /// Tokens read by models.
    pub tokens_in: i64,
    /// Tokens written by models.
    pub tokens_out: i64,
    /// Tool calls made.
    pub tool_calls: i64,
    /// Cost in millionths of a US dollar.
    #[serde(rename = "costMicroUSD")]
    pub cost_micro_usd: i64,
}

impl Usage {
    /// Whether all amounts are zero.
    pub fn is_zero(&self) -> bool {
        *self == Self::default()
    }
}

/// How a boundary ends the run, or the attempt.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Outcome {
    /// The run is finished.
    Finish(Finish),
    /// The attempt is over, and the run waits. Never [`crate::ParkResult::Ready`]: an answer that is already there
    /// wakes the run at once.
    Park(ParkRequest),
}

/// How the agent ends its run.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Finish {
    /// Whether the agent reached its goal.
    pub outcome: FinishOutcome,
    /// One CamelCase word, such as `GoalReached`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// For people; at most 1 KiB. It is stored as [`crate::printable`] returns it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// The result, shown in the AgentRun's status: JSON of at most 4 KiB and 64 levels.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<Box<RawValue>>,
}

/// Whether an agent reached its goal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FinishOutcome {
    /// It reached its goal.
    Succeeded,
    /// It did not reach its goal, and further attempts would not help.
    Failed,
}

/// `POST finish`: ends the run without a new state.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct FinishRequest {
    /// Made once; a retry sends the same one.
    pub commit_id: Uuid,
    /// How the run ended.
    pub finish: Finish,
}

/// The answer to a commit or a finish that is stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CommitResponse {
    /// `ok`, or `duplicate` if the same bytes were committed before.
    pub result: CommitResult,
    /// The head after the call; absent only after the finish of a run without a committed boundary.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub head: Option<Head>,
    /// What a person has requested.
    #[serde(flatten)]
    pub flags: Flags,
}

/// Whether a commit was new.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CommitResult {
    /// Committed by this call.
    Ok,
    /// Committed by this call, and the attempt is over: exit.
    Parked,
    /// The same bytes were committed before.
    Duplicate,
}

/// The answer to `complete`, `settle` and `cancelled`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Acknowledgement {
    /// `ok`, or `duplicate` if the same was stored before. For `cancelled` always `ok`.
    pub result: CommitResult,
}
