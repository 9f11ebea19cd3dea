//! `suspend`, `resume` and `cancel`: the desired state of a run.

use dalsegno_crds::{AgentRun, OperatingMode};
use kube::ResourceExt as _;
use serde_json::json;

use crate::args::{CancelArgs, ChangeArgs, ResumeArgs};
use crate::confirm::confirm;
use crate::failure::{Exit, Failure, Result};
use crate::output::Output;
use crate::output::changed::print_changed;
use crate::runs;
use crate::session::{Session, reason_annotation};

/// Suspends a run.
pub async fn suspend(session: &Session, args: &ChangeArgs, output: &mut Output) -> Result {
    let run = runs::get(session, &args.run).await?;
    runs::refuse_ended(&run)?;
    match run.spec.operating_mode {
        Some(OperatingMode::Cancelled) => return Err(is_cancelled(&args.run, session)),
        Some(OperatingMode::Suspended) => {
            return print_changed(output, &run, &format!("The run {} is suspended already.", args.run));
        }
        Some(OperatingMode::Running) | None => {}
    }
    let run = set(session, args, Some(OperatingMode::Suspended)).await?;
    let text = format!(
        "The run {0} is asked to stop. Its worker stores its turn and parks, or is stopped after suspend.graceSeconds.\n\
         Wait for it:  kubectl dalsegno wait {0}{1} --for Suspended\n\
         Lift it:      kubectl dalsegno resume {0}{1}",
        args.run,
        session.options()
    );
    print_changed(output, &run, &text)
}

/// Lifts a suspend.
pub async fn resume(session: &Session, args: &ResumeArgs, output: &mut Output) -> Result {
    let ResumeArgs { change, message } = args;
    let run = runs::get(session, &change.run).await?;
    runs::refuse_ended(&run)?;
    match run.spec.operating_mode {
        Some(OperatingMode::Cancelled) => return Err(is_cancelled(&change.run, session)),
        Some(OperatingMode::Suspended) => {}
        Some(OperatingMode::Running) | None if message.is_none() => {
            let text = format!("The run {} is not suspended.", change.run);
            return print_changed(output, &run, &text);
        }
        Some(OperatingMode::Running) | None => {}
    }
    if let Some(message) = message {
        super::send::send_resume_message(session, &change.run, message).await?;
    }
    let run = set(session, change, None).await?;
    let text = format!(
        "The suspend of the run {0} is lifted. It goes on at the turn after its checkpoint.\n\
         See it:       kubectl dalsegno status {0}{1}",
        change.run,
        session.options()
    );
    print_changed(output, &run, &text)
}

/// Cancels a run.
pub async fn cancel(session: &Session, args: &CancelArgs, output: &mut Output) -> Result {
    let CancelArgs { change, yes } = args;
    let run = runs::get(session, &change.run).await?;
    runs::refuse_ended(&run)?;
    if run.spec.operating_mode == Some(OperatingMode::Cancelled) {
        return print_changed(output, &run, &format!("The run {} is cancelled already.", change.run));
    }
    if !yes {
        let question = format!("Cancel {}/{} for ever?", session.namespace, run.name_any());
        confirm(&question, "repeat the command with --yes; to stop the run for a while, use `suspend`")?;
    }
    let run = set(session, change, Some(OperatingMode::Cancelled)).await?;
    let text = format!(
        "The run {0} is cancelled. It ends when its worker acknowledges that, or is stopped.\n\
         Wait for it:  kubectl dalsegno wait {0}{1} --for ended",
        change.run,
        session.options()
    );
    print_changed(output, &run, &text)
}

async fn set(session: &Session, change: &ChangeArgs, mode: Option<OperatingMode>) -> Result<AgentRun> {
    let patch =
        json!({ "metadata": reason_annotation(change.reason.as_deref()), "spec": { "operatingMode": mode } });
    runs::patch(session, &change.run, &patch).await
}

fn is_cancelled(name: &str, session: &Session) -> Failure {
    Failure::new(
        Exit::Refused,
        format!("the run {name:?} is cancelled, which is final"),
        format!(
            "start another one from it with `kubectl dalsegno fork {name}{} NEW-NAME`",
            session.options()
        ),
    )
}
