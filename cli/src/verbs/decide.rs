//! `approve` and `deny`: a person decides about what an agent proposes.

use dalsegno_crds::{
    AgentApproval, ApprovalConditionType as Kind, ApprovalReason, ConditionStatus, Verdict, has_status,
};
use dalsegno_protocol::RawValue;
use kube::ResourceExt as _;
use kube::api::Patch;
use serde_json::{Value, json};

use crate::approvals::{self, condition, is_pending};
use crate::args::{ApproveArgs, DenyArgs};
use crate::confirm::confirm;
use crate::failure::{Exit, Failure, Result};
use crate::output::changed::print_changed;
use crate::output::{Output, print_error};
use crate::proposal;
use crate::session::Session;
use crate::{input, runs};

/// A decision that is being made.
struct Decision<'a> {
    verdict: Verdict,
    reason: &'a str,
    changes: Option<Box<RawValue>>,
    yes: bool,
}

/// Approves, with or without changes.
pub async fn approve(session: &Session, args: &ApproveArgs, output: &mut Output) -> Result {
    let changes = args.changes.as_deref().map(|text| input::json("--changes", text)).transpose()?;
    let verdict = if changes.is_some() { Verdict::Changed } else { Verdict::Approved };
    let decision = Decision { verdict, reason: &args.reason, changes, yes: args.yes };
    let approval = find(session, &args.approval).await?;
    refuse_decided(&approval)?;
    if !output.format.is_document() {
        proposal::print_approval(&approval, output);
    }
    // Nobody approves what they cannot see.
    let checked = proposal::read(session, &approval).await?;
    if !output.format.is_document() {
        checked.print(output);
    }
    decide(session, &approval, decision, output).await
}

/// Denies. A proposal that cannot be read can be denied all the same.
pub async fn deny(session: &Session, args: &DenyArgs, output: &mut Output) -> Result {
    let decision = Decision { verdict: Verdict::Denied, reason: &args.reason, changes: None, yes: args.yes };
    let approval = find(session, &args.approval).await?;
    refuse_decided(&approval)?;
    if !output.format.is_document() {
        proposal::print_approval(&approval, output);
        match proposal::read(session, &approval).await {
            Ok(checked) => checked.print(output),
            Err(failure) => print_error(&format!("The proposal is not shown: {}", failure.what)),
        }
    }
    decide(session, &approval, decision, output).await
}

/// The approval of this name, or the one that the run of this name waits for.
async fn find(session: &Session, name: &str) -> Result<AgentApproval> {
    let found = session.api::<AgentApproval>().get_opt(name).await;
    if let Some(found) = found.map_err(|error| Failure::of_api("reading the AgentApproval", &error))? {
        return Ok(found);
    }
    let options = session.options();
    let mut pending: Vec<_> = approvals::list(session, false).await?;
    pending.retain(|it| it.spec.run_ref.name == name && is_pending(it));
    match pending.len() {
        1 => Ok(pending.remove(0)),
        0 => {
            // Says so if there is no such run either.
            runs::read(session, name).await.map_err(|_| {
                Failure::new(
                    Exit::NotFound,
                    format!(
                        "there is no AgentApproval and no run {name:?} in the namespace {:?}",
                        session.namespace
                    ),
                    "list them with `kubectl dalsegno approvals -A`, and name the namespace with -n",
                )
            })?;
            Err(Failure::new(
                Exit::NotFound,
                format!("the run {name:?} waits for no decision"),
                format!("see what it waits for with `kubectl dalsegno status {name}{options}`"),
            ))
        }
        count => Err(Failure::usage(
            format!("the run {name:?} waits for {count} decisions"),
            format!("name one of them; `kubectl dalsegno approvals {name}{options}` lists them"),
        )),
    }
}

fn refuse_decided(approval: &AgentApproval) -> Result {
    if is_pending(approval) && (approval.spec.decision.is_none() || needs_second(approval)) {
        return Ok(());
    }
    let name = approval.name_any();
    let holds = |kind| condition(approval, kind).filter(|it| has_status(it, ConditionStatus::True));
    let what = match (&approval.spec.decision, holds(Kind::Expired), holds(Kind::Withdrawn)) {
        (_, Some(_), _) => "nobody decided in time".to_owned(),
        (_, _, Some(_)) => "the run does not wait any more".to_owned(),
        (Some(decision), ..) => format!("it was decided before: {} by {}", decision.verdict, decision.by),
        (None, ..) => "it needs no decision".to_owned(),
    };
    Err(Failure::new(
        Exit::Refused,
        format!("{name}: {what}"),
        "list what still waits with `kubectl dalsegno approvals -A`",
    ))
}

/// Whether one person has decided, and another one must.
fn needs_second(approval: &AgentApproval) -> bool {
    let awaits = ApprovalReason::AwaitingSecondDecision.as_str();
    condition(approval, Kind::Pending).is_some_and(|it| it.reason == awaits)
}

async fn decide(
    session: &Session,
    approval: &AgentApproval,
    decision: Decision<'_>,
    output: &mut Output,
) -> Result {
    let name = approval.name_any();
    let verdict = decision.verdict;
    let by = session.user().await?;
    let spec = change(approval, &decision, &by)?;
    if !decision.yes {
        confirm(&format!("{verdict}, as {by}?"), "repeat the command with --yes")?;
    }
    let api = session.api::<AgentApproval>();
    let patched = api.patch(&name, &Session::patch_params(), &Patch::Merge(json!({ "spec": spec }))).await;
    let patched = patched.map_err(|error| Failure::of_api("deciding", &error))?;
    let text = format!(
        "{verdict} by {by}. The operator checks the decision, and gives the run the answer.\n\
         See it:  kubectl get agentapproval {name}{}",
        session.options()
    );
    print_changed(output, &patched, &text)
}

/// The change of the AgentApproval's spec: the decision, or the second one.
fn change(approval: &AgentApproval, decision: &Decision<'_>, by: &str) -> Result<Value> {
    let Decision { verdict, reason, changes, yes: _ } = decision;
    let hash = &approval.spec.proposal_hash;
    if approval.spec.decision.is_some() {
        if changes.is_some() {
            return Err(Failure::usage(
                "a second decision approves or denies the first one, and changes nothing",
                "leave --changes out, or deny it and let the agent ask again",
            ));
        }
        let second = json!({ "verdict": verdict, "proposalHash": hash, "reason": reason, "by": by });
        return Ok(json!({ "secondDecision": second }));
    }
    let mut first = json!({ "verdict": verdict, "proposalHash": hash, "reason": reason, "by": by });
    if let Some(changes) = changes {
        first["changes"] = serde_json::from_str(changes.get()).unwrap_or_default();
    }
    Ok(json!({ "decision": first }))
}
