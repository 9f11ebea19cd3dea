//! Approvals: an agent that the test plays asks, and people decide.

use dalsegno_crds::{AgentApproval, ApprovalConditionType, ApprovalReason, ConditionStatus};
use dalsegno_protocol::{AttachResponse, Code};
use kube::{Client, ResourceExt};
use serde_json::{Value, json};

use crate::http::Response;
use crate::wait::{eventually, secs};
use crate::{Agent, Result, Rights, Run, TestContext, Worker, objects};

/// The rights of a person who decides. The role `dalsegno-approver` of the chart has the same.
pub const APPROVER: Rights<'static> = Rights {
    group: "dalsegno.dev",
    resources: &["agentapprovals"],
    verbs: &["get", "list", "watch", "patch", "update", "approve"],
};

/// Limit for the operator to do something about an approval. After an installation a new AgentApproval waits some seconds.
const LIMIT: std::time::Duration = secs(40);

/// An approval that a run has asked for.
pub struct Asked<'c> {
    ctx: &'c TestContext,
    /// The run.
    pub run: Run<'c>,
    /// Its current worker.
    pub worker: Worker,
    /// Name of the AgentApproval.
    pub name: String,
}

/// The manifest of a run whose pods do not attach: the test plays its workers.
pub fn manifest(ctx: &TestContext, name: &str, spec: Value) -> Value {
    Agent::new(json!({ "neverAttach": true })).spec(spec).manifest(name, &ctx.ledger.url())
}

/// The body of a wait for an approval of a payment.
pub fn payment(cents: i64) -> Value {
    json!({ "kind": "approval", "title": format!("pay {cents} cents"), "summary": "the invoice is due",
            "proposal": { "cents": cents } })
}

impl Worker {
    /// Claims a call that the approval with this id allows.
    pub async fn claim(&self, call: &str, approval: &str) -> Result<Response> {
        let claim = json!({ "claimId": uuid::Uuid::new_v4(), "policy": "retrySameKey", "key": format!("key-{call}"),
                            "approval": approval });
        self.post(&format!("calls/{call}/claim"), claim).await
    }

    /// Claims a call that the approval with this id does not allow: it was not granted.
    pub async fn expect_not_granted(&self, call: &str, approval: &str) -> Result {
        let problem = self.claim(call, approval).await?.problem()?;
        anyhow::ensure!(problem.code == Code::ApprovalNotGranted, "{problem:?}");
        Ok(())
    }
}

impl TestContext {
    /// Attaches as the worker of this attempt of a run.
    pub async fn play(&self, run: &Run<'_>, attempt: i32) -> Result<(Worker, AttachResponse)> {
        let pod = eventually(format!("the pod of attempt {attempt}"), secs(60), async || {
            let pods = run.pods().await?;
            Ok(pods.into_iter().find(|pod| objects::attempt_of(pod) == Some(attempt)))
        })
        .await?;
        let worker = Worker::for_pod(&self.client, &pod).await?;
        let attached = worker.attach_when_ready().await?;
        Ok((worker, attached))
    }

    /// The first worker of a run asks for an approval of this id.
    pub async fn ask<'c>(&'c self, run: Run<'c>, id: &str, body: Value) -> Result<Asked<'c>> {
        let (worker, _) = self.play(&run, 1).await?;
        let answer = worker.post(&format!("waits/{id}"), body).await?;
        anyhow::ensure!(answer.status == 200, "the wait is refused: {answer:?}");
        self.asked(run, worker, id).await
    }

    /// The approval of this id that this worker of a run has asked for.
    pub async fn asked<'c>(&'c self, run: Run<'c>, worker: Worker, id: &str) -> Result<Asked<'c>> {
        let name = self.approval_of(&run.name, id).await?.name_any();
        Ok(Asked { ctx: self, run, worker, name })
    }

    /// Approves what the run asks for with this wait, as this user, who has [`APPROVER`].
    pub async fn approve(&self, user: &str, run: &Run<'_>, wait: &str) -> Result {
        let approval = self.approval_of(&run.name, wait).await?;
        let decision = json!({ "verdict": "Approved", "proposalHash": approval.spec.proposal_hash,
                               "reason": "it is due", "by": user });
        let change = json!({ "spec": { "decision": decision } });
        let client = self.as_user(user).await?;
        objects::patch::<AgentApproval>(&client, &self.namespace, &approval.name_any(), &change).await?;
        Ok(())
    }

    /// Waits for the AgentApproval of a wait. If a rewind has undone an earlier wait of this id, the later one's.
    pub async fn approval_of(&self, run: &str, wait: &str) -> Result<AgentApproval> {
        eventually(format!("the AgentApproval of wait {wait} of run {run}"), LIMIT, async || {
            let all = self.api::<AgentApproval>().list(&Default::default()).await?.items;
            let of_wait = |it: &AgentApproval| (&*it.spec.run_ref.name, &*it.spec.wait_id) == (run, wait);
            Ok(all.into_iter().filter(of_wait).max_by_key(|it| it.spec.epoch))
        })
        .await
    }
}

impl Asked<'_> {
    /// The AgentApproval.
    pub async fn object(&self) -> Result<AgentApproval> {
        Ok(self.ctx.api().get(&self.name).await?)
    }

    /// Waits until the condition of this type is True with this reason.
    pub async fn wait_for(
        &self,
        kind: ApprovalConditionType,
        reason: ApprovalReason,
    ) -> Result<AgentApproval> {
        let what = format!("AgentApproval {} to be {kind}: {reason}", self.name);
        let found = eventually(what, LIMIT, async || {
            let object = self.object().await?;
            let conditions = object.status.iter().flat_map(|it| &it.conditions);
            let is_met = conditions.into_iter().any(|it| {
                (&*it.type_, &*it.status, &*it.reason)
                    == (kind.as_str(), ConditionStatus::True.as_str(), reason.as_str())
            });
            Ok(is_met.then_some(object))
        });
        match found.await {
            Ok(object) => Ok(object),
            Err(error) => Err(error.context(serde_yaml::to_string(&self.object().await?)?)),
        }
    }

    /// Waits until a decision was removed for this reason, with this text in its message.
    pub async fn expect_removed(&self, reason: ApprovalReason, why: &str) -> Result {
        let what = format!("a decision on AgentApproval {} to be removed: {reason}: {why}", self.name);
        let found = eventually(what, LIMIT, async || {
            let object = self.object().await?;
            let conditions = object.status.iter().flat_map(|it| &it.conditions);
            let says_why = conditions.into_iter().any(|it| {
                it.type_ == ApprovalConditionType::Pending.as_str()
                    && it.reason == reason.as_str()
                    && it.message.contains(why)
            });
            Ok((says_why && object.spec.decision.is_none()).then_some(()))
        });
        match found.await {
            Ok(()) => Ok(()),
            Err(error) => Err(error.context(serde_yaml::to_string(&self.object().await?)?)),
        }
    }

    /// The worker parks on its waits.
    pub async fn park(&self, on: &[&str]) -> Result {
        let body = json!({ "parkId": uuid::Uuid::new_v4(), "on": on });
        let answer = self.worker.post("park", body).await?;
        anyhow::ensure!(answer.body.contains("parked"), "not parked: {answer:?}");
        Ok(())
    }

    /// Writes a decision about this approval, as this client's user. `change` is merged over it.
    pub async fn decide(&self, user: &Client, by: &str, change: Value) -> kube::Result<()> {
        let hash = self.object().await.map_or_else(|_| String::new(), |it| it.spec.proposal_hash);
        let decision =
            json!({ "verdict": "Approved", "proposalHash": hash, "reason": "it is due", "by": by });
        let mut spec = json!({ "decision": decision });
        objects::merge(&mut spec, &change);
        self.patch(user, spec).await
    }

    /// Changes the spec of the AgentApproval, as this client's user.
    pub async fn patch(&self, user: &Client, spec: Value) -> kube::Result<()> {
        let change = json!({ "spec": spec });
        objects::patch::<AgentApproval>(user, &self.ctx.namespace, &self.name, &change).await.map(drop)
    }
}
