//! A worker's process takes its attempt.

use serde_json::json;

use super::worker::tell_cancel;
use super::{Change, Decision, Rows, Transition, text};
use crate::audit::{actor, kind};
use crate::fault::Work;
use crate::reads::{EnumText, Hash, RunRow};
use crate::{Attached, AttemptState, Digest, Lifecycle, RunId, Verdict};

/// [`crate::Store::attach`].
#[derive(Clone, Debug)]
pub(crate) struct Attach {
    pub pod_uid: String,
    /// Hash of the process's secret: the capability, once it has attached.
    pub instance: Digest,
}

/// What becomes of an attach.
enum Admission {
    /// First, or again by the same instance.
    Accepted {
        is_first: bool,
    },
    /// Another process came under the attempt's number.
    Spent,
    Refused(Attached),
}

impl Attach {
    /// In the order of [`crate::Store::attach`].
    fn admit(&self, run: &RunRow) -> Admission {
        let state = run.attempt_state.0;
        let refused = if run.pod_uid.as_ref() != Some(&self.pod_uid) {
            if state == AttemptState::Reserved { Attached::NotRecorded } else { Attached::Fenced }
        } else if run.lifecycle.0 == Lifecycle::Finished {
            Attached::Finished
        } else if run.lifecycle.0 != Lifecycle::Live || state == AttemptState::Ended {
            Attached::Fenced
        } else {
            match (run.verdict.map(|verdict| verdict.0), run.capability) {
                (None, _) => Attached::VersionPending,
                (Some(Verdict::Refused), _) => {
                    Attached::VersionIncompatible(run.remark.clone().unwrap_or_default())
                }
                (Some(Verdict::Accepted | Verdict::Allowed), None) => {
                    return Admission::Accepted { is_first: true };
                }
                (Some(_), Some(Hash(attached))) if attached == self.instance => {
                    return Admission::Accepted { is_first: false };
                }
                (Some(_), Some(_)) => return Admission::Spent,
            }
        };
        Admission::Refused(refused)
    }
}

impl Transition for Attach {
    type Answer = Attached;
    const OPERATION: &'static str = "attaching a worker";

    fn decide(&self, rows: Rows) -> Work<Decision<Attached>> {
        let mut change = Change::of(rows);
        let now = change.now();
        match self.admit(change.row()) {
            Admission::Refused(answer) => return Ok(change.decide(answer)),
            Admission::Spent => {
                spend(&mut change)?;
                return Ok(change.decide(Attached::Spent));
            }
            Admission::Accepted { is_first: false } => {}
            Admission::Accepted { is_first: true } => {
                let run = change.run();
                run.attempt_state = EnumText(AttemptState::Attached);
                run.attached_at = Some(now);
                run.capability = Some(Hash(self.instance));
                let attempt = change.attempt()?;
                attempt.state = EnumText(AttemptState::Attached);
                attempt.attached_at = Some(now);
                let detail = json!({ "attempt": attempt.number, "podUID": text(&self.pod_uid) });
                change.notify();
                change.audit(kind::ATTACHED, actor::WORKER, detail);
            }
        }
        tell_cancel(change.run(), now);
        let answer = Attached::Ok(change.record()?);
        Ok(change.decide(answer))
    }

    fn without_run(&self, _: RunId) -> Work<Attached> {
        Ok(Attached::NotFound)
    }
}

/// Recorded once.
fn spend(change: &mut Change) -> Work<()> {
    if change.row().spent {
        return Ok(());
    }
    change.run().spent = true;
    let attempt = change.attempt()?;
    attempt.spent = true;
    let detail = json!({ "attempt": attempt.number });
    change.notify();
    change.audit(kind::SPENT, actor::WORKER, detail);
    Ok(())
}
