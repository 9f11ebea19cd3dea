//! Performs what a decision wants for the approvals of a run: requests to the API server, and reads of the store.

use dalsegno_core::EffectResult;
use dalsegno_core::approvals::four_eyes::{Author, FourEyes};
use dalsegno_core::approvals::{ApprovalEffect, ClosedWait, KnownWait, WaitKey, WhichDecision};
use dalsegno_crds::{AgentApproval, AgentRun, Verdict};
use dalsegno_model::{Answered, Proposal, RefusedDecision, RunId, WaitAnswer};
use dalsegno_protocol::{WaitOutcome, WaitRequest, WaitState};
use jiff::Timestamp;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::{Api, Resource as _, ResourceExt};
use serde_json::json;

use super::context::Context;
use super::error::{Error, Result};
use crate::cache::raw_object::{RawDefinition, RawRun};
use crate::log::error_chain;

/// Performs one effect. A refusal by the API server is a result, not an error: it must not keep the run from its worker.
pub async fn perform(ctx: &Context, run: &AgentRun, effect: ApprovalEffect) -> Result<Option<EffectResult>> {
    match request(ctx, run, effect).await {
        Err(error @ Error::Api { .. }) => {
            let error = error_chain(&error);
            tracing::warn!(error, "an approval will be looked at again");
            Ok(Some(EffectResult::ApprovalFailed(error)))
        }
        result => result,
    }
}

async fn request(ctx: &Context, run: &AgentRun, effect: ApprovalEffect) -> Result<Option<EffectResult>> {
    let api: Api<AgentApproval> = Api::namespaced(ctx.client.clone(), &run.namespace().unwrap_or_default());
    let approval = |name: String, object: Option<AgentApproval>| {
        Ok(Some(EffectResult::Approval(name, object.map(Box::new))))
    };
    match effect {
        ApprovalEffect::ReadWait(id, wait) => read_wait(ctx, id, wait).await,
        ApprovalEffect::ReadApproval(name) => {
            let found = api.get_opt(&name).await.map_err(Error::api("reading an AgentApproval"))?;
            approval(name, found)
        }
        ApprovalEffect::ReadPolicies => {
            Ok(Some(EffectResult::Policies(ctx.policies.check(&ctx.client).await)))
        }
        ApprovalEffect::ReadFourEyes { run: id, since } => four_eyes(ctx, run, id, since).await,
        ApprovalEffect::Create(object) => {
            let name = object.name_any();
            match api.create(&PostParams::default(), &object).await {
                Ok(created) => approval(name, Some(created)),
                Err(kube::Error::Api(status)) if status.is_already_exists() => {
                    let found = api.get_opt(&name).await.map_err(Error::api("reading an AgentApproval"))?;
                    approval(name, found)
                }
                Err(error) => Err(Error::api("creating an AgentApproval")(error)),
            }
        }
        ApprovalEffect::Delete { name, uid } => {
            let params = DeleteParams {
                preconditions: Some(Preconditions { uid: Some(uid), resource_version: None }),
                ..DeleteParams::background()
            };
            match api.delete(&name, &params).await {
                Ok(_) => approval(name, None),
                Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => {
                    approval(name, None)
                }
                Err(error) => Err(Error::api("deleting an AgentApproval")(error)),
            }
        }
        ApprovalEffect::WriteStatus(object) => {
            let name = object.name_any();
            let mut object = *object;
            object.metadata.managed_fields = None;
            match api.replace_status(&name, &PostParams::default(), &object).await {
                Ok(written) => approval(name, Some(written)),
                Err(error) => changed_meanwhile(name, error, "writing the status of an AgentApproval"),
            }
        }
        ApprovalEffect::RefuseDecision { run: id, approval: object, which, reason } => {
            refuse(ctx, id, (&object, which, reason.as_str())).await?;
            let name = object.name_any();
            let removed = match which {
                WhichDecision::First => json!({ "decision": null, "secondDecision": null }),
                WhichDecision::Second => json!({ "secondDecision": null }),
            };
            let change =
                json!({ "metadata": { "resourceVersion": object.resource_version() }, "spec": removed });
            match api.patch(&name, &PatchParams::default(), &Patch::Merge(&change)).await {
                Ok(written) => approval(name, Some(written)),
                Err(error) => changed_meanwhile(name, error, "removing a decision"),
            }
        }
        ApprovalEffect::AnswerWait(id, answer) => answer_wait(ctx, id, &answer).await,
        ApprovalEffect::TimeOutWait(id, WaitKey { id: wait, epoch }) => {
            let row = ctx.store.time_out_wait(id, &wait, epoch).await;
            let row = row.map_err(Error::store("timing out an approval"))?;
            Ok(Some(EffectResult::Row(Box::new(row))))
        }
    }
}

/// An AgentApproval that has changed since it was read is looked at by the next reconcile, not by this one.
fn changed_meanwhile(
    name: String,
    error: kube::Error,
    operation: &'static str,
) -> Result<Option<EffectResult>> {
    match error {
        kube::Error::Api(status) if status.is_not_found() => Ok(Some(EffectResult::Approval(name, None))),
        kube::Error::Api(status) if status.is_conflict() => {
            Ok(Some(EffectResult::ApprovalFailed("it has changed since it was read".to_owned())))
        }
        error => Err(Error::api(operation)(error)),
    }
}

async fn answer_wait(ctx: &Context, run: RunId, answer: &WaitAnswer) -> Result<Option<EffectResult>> {
    tracing::info!(wait = answer.id, epoch = answer.epoch, outcome = ?answer.outcome, "answering an approval");
    let answered = ctx.store.answer_wait(run, answer).await.map_err(Error::store("answering an approval"))?;
    let (Answered::Ok(row) | Answered::Duplicate(row) | Answered::NotOpen(row) | Answered::NoSuchWait(row)) =
        answered;
    Ok(Some(EffectResult::Row(row)))
}

/// Records a refused decision in the audit.
async fn refuse(
    ctx: &Context,
    run: RunId,
    (approval, which, reason): (&AgentApproval, WhichDecision, &str),
) -> Result<()> {
    let spec = &approval.spec;
    let by = match which {
        WhichDecision::First => spec.decision.as_ref().map(|it| &it.by),
        WhichDecision::Second => spec.second_decision.as_ref().map(|it| &it.by),
    };
    let refused = RefusedDecision {
        id: spec.wait_id.clone(),
        epoch: spec.epoch,
        by: by.cloned().unwrap_or_default(),
        reason: reason.to_owned(),
    };
    ctx.store.refuse_decision(run, &refused).await.map_err(Error::store("refusing a decision"))?;
    Ok(())
}

async fn read_wait(ctx: &Context, run: RunId, wait: WaitKey) -> Result<Option<EffectResult>> {
    let found = ctx.store.proposal(run, &wait.id, wait.epoch).await;
    let found = found.map_err(Error::store("reading a proposal"))?;
    Ok(Some(EffectResult::Wait(wait, found.map(known_wait))))
}

fn known_wait(proposal: Proposal) -> KnownWait {
    let request = proposal.request.and_then(|it| serde_json::from_str::<WaitRequest>(it.get()).ok());
    let words = request.map(|it| (it.title.unwrap_or_default(), it.summary.unwrap_or_default()));
    let closed = match (proposal.wait.state, proposal.wait.answer.map(|it| it.outcome)) {
        (WaitState::Open, _) => None,
        (WaitState::Answered, Some(WaitOutcome::Approved)) => Some(ClosedWait::Decided(Verdict::Approved)),
        (WaitState::Answered, Some(WaitOutcome::Denied)) => Some(ClosedWait::Decided(Verdict::Denied)),
        (WaitState::Answered, Some(WaitOutcome::Changed)) => Some(ClosedWait::Decided(Verdict::Changed)),
        (WaitState::Answered, Some(WaitOutcome::TimedOut)) => Some(ClosedWait::TimedOut),
        (WaitState::Answered, Some(WaitOutcome::Elapsed | WaitOutcome::Message) | None)
        | (WaitState::Withdrawn, _) => Some(ClosedWait::Withdrawn),
    };
    KnownWait { words, closed }
}

/// Who must not decide alone. The stamps are read live: a cache may lack the last change.
async fn four_eyes(
    ctx: &Context,
    run: &AgentRun,
    id: RunId,
    since: Timestamp,
) -> Result<Option<EffectResult>> {
    let namespace = run.namespace().unwrap_or_default();
    let runs: Api<RawRun> = Api::namespaced(ctx.client.clone(), &namespace);
    let live = runs.get_opt(&run.name_any()).await.map_err(Error::api("reading the AgentRun"))?;
    let live = live.filter(|it| it.uid() == run.uid());
    let unknown = |what: &str| Author::Unknown(format!("{what} does not exist"));
    let creator =
        live.as_ref().map_or_else(|| unknown("the AgentRun"), |it| Author::of_run(it.meta(), since));
    // Of an agent that cannot be parsed, no attempt is known to have run the template.
    let (agent, current) = match &run.spec.agent_ref {
        None => live.as_ref().map_or_else(
            || (unknown("the AgentRun"), None),
            |it| {
                let author = Author::of_inline_agent(it.meta(), since);
                (author, it.parse().ok().and_then(|it| it.spec.agent).map(Box::new))
            },
        ),
        Some(reference) => {
            let definitions: Api<RawDefinition> = Api::namespaced(ctx.client.clone(), &namespace);
            let found = definitions.get_opt(&reference.name).await;
            let found = found.map_err(Error::api("reading the AgentDefinition"))?;
            found.map_or_else(
                || (unknown("the AgentDefinition"), None),
                |it| {
                    let author = Author::of_definition(it.meta(), since);
                    (author, it.parse().ok().map(|it| Box::new(it.spec.agent)))
                },
            )
        }
    };
    let messages = ctx.store.message_authors(id).await.map_err(Error::store("reading who sent messages"))?;
    Ok(Some(EffectResult::FourEyes(FourEyes { creator, agent, current, messages })))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a panic fails the test")]

    use std::sync::Arc;

    use dalsegno_store::sqlite::Sqlite;

    use super::*;
    use crate::test_context::{TestContext, create_run};

    #[tokio::test]
    async fn who_sent_messages_is_no_fact_while_the_store_is_unavailable() {
        let store = Arc::new(Sqlite::memory().await.unwrap());
        let id = create_run(&*store, "nightly").await;
        let template = json!({ "spec": { "containers": [{ "name": "agent", "image": "agent" }] } });
        let object = json!({
            "apiVersion": "dalsegno.dev/v1alpha1", "kind": "AgentRun", "spec": { "agent": { "template": template } },
            "metadata": { "name": "nightly", "namespace": "shop", "uid": "u", "generation": 1,
                          "creationTimestamp": "2026-05-02T00:00:00Z",
                          "annotations": { "dalsegno.dev/created-by": "alice", "dalsegno.dev/spec-by": "1 ann" } },
        });
        let ctx = TestContext::new(store.clone(), vec![object.clone()]).ctx;
        let run: AgentRun = serde_json::from_value(object).unwrap();
        let read = async || {
            let since = "2026-05-01T00:00:00Z".parse().unwrap();
            perform(&ctx, &run, ApprovalEffect::ReadFourEyes { run: id, since }).await
        };
        let Some(EffectResult::FourEyes(facts)) = read().await.unwrap() else { panic!() };
        let user = |name: &str| Author::User(name.into());
        assert_eq!((facts.creator, facts.agent, facts.messages), (user("alice"), user("ann"), Vec::new()));
        assert_eq!(facts.current.as_deref(), run.spec.agent.as_ref());
        store.close().await;
        let error = read().await.unwrap_err();
        assert!(matches!(error, Error::Store { .. }), "{error:?}");
    }
}
