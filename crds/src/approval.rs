//! `AgentApproval`: a proposal of an agent that waits for a person's decision.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::schema;

/// A proposal of an agent that waits for a person's decision.
#[derive(CustomResource, KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "dalsegno.dev",
    version = "v1alpha1",
    kind = "AgentApproval",
    namespaced,
    shortname = "aapp",
    category = "dalsegno",
    doc = "An AgentApproval is a proposal of an agent that waits for a person's decision. The operator creates one for each \
           open approval of a run, and it belongs to the run. A person with the verb `approve` writes spec.decision, once. \
           The proposal itself is in the store.",
    status = "AgentApprovalStatus",
    derive = "PartialEq",
    printcolumn(
        name = "Run",
        type_ = "string",
        json_path = ".spec.runRef.name",
        description = "The AgentRun that waits."
    ),
    printcolumn(
        name = "Turn",
        type_ = "integer",
        json_path = ".spec.turn",
        description = "Turn in which the agent asked."
    ),
    printcolumn(
        name = "Pending",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Pending\")].status",
        description = "Whether a decision is needed."
    ),
    printcolumn(
        name = "Reason",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Pending\")].reason",
        description = "Why, in one word. The conditions explain it."
    ),
    printcolumn(
        name = "Verdict",
        type_ = "string",
        json_path = ".spec.decision.verdict",
        description = "The decision."
    ),
    printcolumn(
        name = "By",
        type_ = "string",
        json_path = ".spec.decision.by",
        description = "Who decided."
    ),
    printcolumn(
        name = "Deadline",
        type_ = "string",
        json_path = ".spec.deadlineTime",
        description = "When the approval times out."
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(
        name = "Title",
        type_ = "string",
        json_path = ".spec.title",
        priority = 1,
        description = "What the agent calls its proposal."
    )
)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new(
        "self.runRef == oldSelf.runRef && self.waitID == oldSelf.waitID && self.epoch == oldSelf.epoch \
         && self.turn == oldSelf.turn && self.proposalHash == oldSelf.proposalHash && self.title == oldSelf.title \
         && self.summary == oldSelf.summary && self.onTimeout == oldSelf.onTimeout && self.fourEyes == oldSelf.fourEyes \
         && has(self.deadlineTime) == has(oldSelf.deadlineTime) \
         && (!has(self.deadlineTime) || self.deadlineTime == oldSelf.deadlineTime)"
    )
        .message("only decision and secondDecision may be written"),
    // `changes` may be any JSON, which CEL cannot compare here. The chart's policy compares the whole decision.
    validation = Rule::new(
        "!has(oldSelf.decision) || !has(self.decision) || (self.decision.verdict == oldSelf.decision.verdict \
         && self.decision.proposalHash == oldSelf.decision.proposalHash && self.decision.by == oldSelf.decision.by \
         && self.decision.reason == oldSelf.decision.reason)"
    )
        .message("a decision cannot be changed")
        .field_path(".decision"),
    validation = Rule::new(
        "!has(oldSelf.secondDecision) || !has(self.secondDecision) || self.secondDecision == oldSelf.secondDecision"
    )
        .message("a second decision cannot be changed")
        .field_path(".secondDecision"),
    validation = Rule::new("!has(self.decision) || self.decision.proposalHash == self.proposalHash")
        .message("decision.proposalHash must be the proposalHash of this approval: decide about this proposal")
        .field_path(".decision.proposalHash"),
    validation = Rule::new("!has(self.secondDecision) || self.secondDecision.proposalHash == self.proposalHash")
        .message("secondDecision.proposalHash must be the proposalHash of this approval: decide about this proposal")
        .field_path(".secondDecision.proposalHash"),
    validation = Rule::new("!has(self.secondDecision) || has(self.decision)")
        .message("a second decision confirms or denies a first one: write decision first")
        .field_path(".secondDecision"),
    validation = Rule::new(
        "!has(self.secondDecision) || !has(self.decision) || self.secondDecision.by != self.decision.by"
    )
        .message("the second decision must be by another person than the first one")
        .field_path(".secondDecision.by")
)]
pub struct AgentApprovalSpec {
    /// The AgentRun that waits.
    pub run_ref: RunRef,

    /// Id of the wait, which the agent chose.
    #[serde(rename = "waitID")]
    #[schemars(length(min = 1, max = 128))]
    pub wait_id: String,

    /// Epoch in which the agent asked. After a rewind the same id may name another proposal, in a later epoch.
    #[schemars(range(min = 0, max = 9_007_199_254_740_991_i64))]
    pub epoch: i64,

    /// Turn in which the agent asked.
    #[schemars(range(min = 0, max = 1_000_000))]
    pub turn: i32,

    /// SHA-256 of the title, the summary and the proposal, with a random salt that only readers of the proposal know. A
    /// decision names it, so that it counts for this proposal only.
    #[schemars(length(min = 71, max = 71), regex(pattern = r"^sha256:[0-9a-f]{64}$"))]
    pub proposal_hash: String,

    /// What the agent calls its proposal. The agent's own words.
    #[schemars(length(max = 128))]
    pub title: String,

    /// What the agent says about its proposal. The agent's own words: compare them with the proposal itself.
    #[schemars(length(max = 2_048))]
    pub summary: String,

    /// When the approval times out, by the store's clock. Absent: never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::time")]
    pub deadline_time: Option<Time>,

    /// What happens if nobody has decided at the deadline. `Answer`: the agent reads that the time is over, which is no
    /// denial. `Hold`: the run is held, and a decision lifts the hold. `Fail`: the run fails.
    pub on_timeout: OnTimeout,

    /// Whether nobody may decide who created the run, wrote its agent or sent it a message.
    pub four_eyes: bool,

    /// The decision. Written once, by a person with the verb `approve` on this object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decision: Option<ApprovalDecision>,

    /// Confirms or denies the decision, with `fourEyes`, where the creator of the run or the author of its agent is not a
    /// proven person, as with GitOps. Written once, by another person with the verb `approve`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub second_decision: Option<SecondDecision>,
}

/// A reference to the AgentRun that waits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RunRef {
    /// Name of the AgentRun, in the same namespace.
    #[schemars(length(min = 1, max = 52))]
    pub name: String,

    /// UID of the AgentRun.
    #[schemars(length(min = 1, max = 64))]
    pub uid: String,
}

/// A person's decision.
#[derive(KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("(self.verdict == 'Changed') == has(dyn(self).changes)")
        .message("changes belong to the verdict Changed, which needs them")
)]
pub struct ApprovalDecision {
    /// `Approved`: the agent may do as proposed. `Denied`: it may not. `Changed`: it may do as proposed, with `changes`.
    pub verdict: Verdict,

    /// The approval's own `proposalHash`.
    #[schemars(length(min = 71, max = 71))]
    pub proposal_hash: String,

    /// Why. The agent reads it.
    #[schemars(length(max = 1_024))]
    pub reason: String,

    /// How the proposal is changed: any JSON value of at most 16 KiB. The agent reads it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::any_json")]
    pub changes: Option<Value>,

    /// The name of the user who decides, as the API server knows it.
    #[schemars(length(min = 1, max = 256))]
    pub by: String,
}

/// A second person's decision about the first one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SecondDecision {
    /// `Approved`: the first decision takes effect, with its changes. `Denied`: the proposal is denied.
    pub verdict: SecondVerdict,

    /// The approval's own `proposalHash`.
    #[schemars(length(min = 71, max = 71))]
    pub proposal_hash: String,

    /// Why. The agent reads it if the proposal is denied.
    #[schemars(length(max = 1_024))]
    pub reason: String,

    /// The name of the user who decides, as the API server knows it.
    #[schemars(length(min = 1, max = 256))]
    pub by: String,
}

string_enum! {
    /// What a person decided.
    pub enum Verdict {
        /// The agent may do as proposed.
        Approved,
        /// The agent may not.
        Denied,
        /// The agent may do as proposed, with changes.
        Changed,
    }
}

string_enum! {
    /// What a second person decided about the first decision.
    pub enum SecondVerdict {
        /// The first decision takes effect.
        Approved,
        /// The proposal is denied.
        Denied,
    }
}

string_enum! {
    /// What happens if nobody has decided at the deadline.
    pub enum OnTimeout {
        /// The agent reads that the time is over.
        Answer,
        /// The run is held.
        Hold,
        /// The run fails.
        Fail,
    }
}

/// What became of an approval.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AgentApprovalStatus {
    /// The conditions of the approval, each with its reason. `Pending`: a decision is needed. `Decided`: a decision was
    /// made that counts. `Applied`: the run has the answer. `Expired` (nobody decided in time) and `Withdrawn` (the run
    /// does not wait any more) are present only while they are True.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,

    /// When the decision was made that counts, by the API server's clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::time")]
    pub decided_time: Option<Time>,
}
