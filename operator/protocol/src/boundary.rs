//! Commits: `POST turns/{n}/plan`, `POST turns/{n}`, `POST finish`.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;
use uuid::Uuid;

use crate::{Flags, Head, Limits, PLAIN, Payload, PlannedCall, RecordOp, bounded};

/// Which boundary of a turn. Ordered: a plan comes before its result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Boundary {
    /// Before the turn's tools run; optional. It makes the turn's calls and their keys durable.
    Plan,
    /// The turn's end.
    Result,
}

/// The body of a commit. Send the same bytes again until an answer comes.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CommitRequest {
    /// Made once per boundary; the retry carries the same one.
    pub commit_id: Uuid,
    /// The whole state as one JSON value: replaces everything. Exclusive with `channels`; with neither, the state
    /// stays as it was. `null` is a value like any other.
    #[serde(default, deserialize_with = "even_null", skip_serializing_if = "Option::is_none")]
    pub state: Option<Box<RawValue>>,
    /// What changed, channel by channel.
    #[serde(default, deserialize_with = "channels", skip_serializing_if = "Option::is_none")]
    pub channels: Option<ChannelOps>,
    /// What happened, in order, for people; stored and never interpreted.
    #[serde(
        default,
        deserialize_with = "bounded::list::<{ Limits::EVENTS }, _, _>",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub events: Vec<Box<RawValue>>,
    /// Calls that the turn will make (plan boundary).
    #[serde(
        default,
        deserialize_with = "bounded::list::<{ Limits::CALLS }, _, _>",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub calls: Vec<PlannedCall>,
    /// Records that change with the boundary, all of them or none.
    #[serde(
        default,
        deserialize_with = "bounded::list::<{ Limits::RECORDS }, _, _>",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub records: Vec<RecordOp>,
    /// What this boundary spent.
    #[serde(default, skip_serializing_if = "Usage::is_zero")]
    pub usage: Usage,
    /// Why the boundary was committed, if the agent wants to say (`TASK_END`, `GUARD_EVAL`, …).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trigger: Option<String>,
    /// Ends the run in the same statement.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<Outcome>,
}

/// Keeps a `null` that was sent apart from nothing sent.
fn even_null<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Box<RawValue>>, D::Error> {
    Box::<RawValue>::deserialize(from).map(Some)
}

/// Takes an object alone, and no more of each than a boundary may have: a derived reader takes an array of its fields too, and
/// what was kept is read however much it is.
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
    /// This is the full state: every channel not named in `set` or `append` is gone.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub full: bool,
    /// Channels that go.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub remove: Vec<String>,
    /// Lists cut to at most this many items; none that `remove` or `full` takes away.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub truncate: BTreeMap<String, u32>,
    /// Values replaced.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub set: BTreeMap<String, Payload>,
    /// Items added to the end of lists; a value of that name gives way to a new list.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub append: BTreeMap<String, Vec<Payload>>,
}

impl ChannelOps {
    /// A whole state: the one channel [`PLAIN`], and nothing else.
    pub fn whole(state: Payload) -> Self {
        Self { full: true, set: BTreeMap::from([(PLAIN.to_owned(), state)]), ..Self::default() }
    }
}

/// What was spent. Of one boundary in a commit; the sum over all committed boundaries in a run.
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
    /// Whether nothing was spent.
    pub fn is_zero(&self) -> bool {
        *self == Self::default()
    }
}

/// How a boundary ends the run.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Outcome {
    /// The run is over.
    Finish(Finish),
}

/// The end of a run, in the agent's words.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Finish {
    /// Whether the agent reached its goal.
    pub outcome: FinishOutcome,
    /// One CamelCase word, such as `GoalReached`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// For people; at most 1 KiB, of which [`crate::printable`] makes what is kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// The result; at most 4 KiB of JSON, and 64 levels of it, shown in the AgentRun's status.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<Box<RawValue>>,
}

/// Whether an agent reached its goal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FinishOutcome {
    /// It did.
    Succeeded,
    /// It did not, and more attempts would not help.
    Failed,
}

/// `POST finish`: ends the run where there is no new state to commit.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct FinishRequest {
    /// Made once; the retry carries the same one.
    pub commit_id: Uuid,
    /// How it ended.
    pub finish: Finish,
}

/// The answer to a commit or a finish that stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CommitResponse {
    /// `ok`, or `duplicate` where these very bytes were committed before.
    pub result: CommitResult,
    /// The head after it; absent only after a finish of a run that never committed a boundary.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub head: Option<Head>,
    /// What a person asks for meanwhile.
    #[serde(flatten)]
    pub flags: Flags,
}

/// Whether a commit was new.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CommitResult {
    /// Committed now.
    Ok,
    /// Committed before, with the same bytes.
    Duplicate,
}

/// The answer to `complete`, `settle` and `cancelled`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Acknowledgement {
    /// `ok`, or `duplicate` where it was stored before and is the same. A cancel is always `ok`.
    pub result: CommitResult,
}
