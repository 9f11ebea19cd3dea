//! `dalsegno dev approve` and `deny`: a laptop has no AgentApprovals, so a person answers the wait in the store.

use anyhow::{Context as _, bail};
use dalsegno_model::{Answered, OpenWait, RunRecord, Store, WaitAnswer, WaitDecision};
use dalsegno_protocol::{RawValue, WaitKind, WaitOutcome, WaitRequest, printable};

use super::folder::{find, person};
use crate::config::{DevApproveArgs, DevDecisionArgs};
use crate::output::print_line;

/// Approves, perhaps with changes.
pub async fn approve(DevApproveArgs { decision, changes }: DevApproveArgs) -> anyhow::Result<()> {
    let changes = changes.map(RawValue::from_string).transpose().context("--changes is no JSON")?;
    let outcome = if changes.is_some() { WaitOutcome::Changed } else { WaitOutcome::Approved };
    decide(decision, outcome, changes).await
}

/// Denies.
pub async fn deny(decision: DevDecisionArgs) -> anyhow::Result<()> {
    decide(decision, WaitOutcome::Denied, None).await
}

async fn decide(
    DevDecisionArgs { run, reason, id }: DevDecisionArgs,
    outcome: WaitOutcome,
    changes: Option<Box<RawValue>>,
) -> anyhow::Result<()> {
    let (store, run) = find(&run).await?;
    let open = run.waits.iter().filter(|it| it.kind == WaitKind::Approval);
    let Some(id) = id else {
        for wait in open {
            show(&*store, &run, wait).await?;
        }
        bail!("name the approval to decide, by its id");
    };
    let wait = run.waits.iter().find(|it| it.kind == WaitKind::Approval && it.id == id);
    let wait = wait.with_context(|| format!("the run has no open approval {id:?}"))?;
    show(&*store, &run, wait).await?;
    let decision = WaitDecision { by: person(), reason, changes };
    let answer = WaitAnswer { id: id.clone(), epoch: wait.epoch, outcome, decision };
    match store.answer_wait(run.id, &answer).await.context("answering the approval")? {
        Answered::Ok(_) | Answered::Duplicate(_) => {
            let word = match outcome {
                WaitOutcome::Denied => "denied",
                WaitOutcome::Changed => "approved with changes",
                _ => "approved",
            };
            print_line!("{word}: {id}");
            Ok(())
        }
        Answered::NotOpen(_) | Answered::NoSuchWait(_) => bail!("the approval {id:?} is not open any more"),
    }
}

/// Prints what the agent asks. Its words are printed as its words, without what a terminal would obey.
async fn show(store: &dyn Store, run: &RunRecord, wait: &OpenWait) -> anyhow::Result<()> {
    let proposal = store.proposal(run.id, &wait.id, wait.epoch).await.context("reading the proposal")?;
    let request = proposal.and_then(|it| it.request);
    let request = request.map(|it| serde_json::from_str::<WaitRequest>(it.get())).transpose();
    let Some(request) = request.context("reading the proposal")? else {
        bail!("the proposal of {:?} was deleted", wait.id);
    };
    print_line!("{}: the agent asks: {}", wait.id, printable(&request.title.unwrap_or_default()));
    if let Some(summary) = request.summary {
        print_line!("the agent says: {}", printable(&summary));
    }
    if let Some(proposal) = request.proposal {
        print_line!("proposal: {}", printable(proposal.get()));
    }
    Ok(())
}
