//! A worker's process attaches to its attempt.

use serde_json::json;

use super::worker::report_signals;
use super::{Change, Decision, Rows, Transition, text};
use crate::db_error::DbResult;
use crate::reads::{EnumText, Hash, RunRow};
use dalsegno_model::audit::{actor, kind};
use dalsegno_model::{Attached, AttemptState, Digest, Lifecycle, RunId, Verdict};

/// [`dalsegno_model::Store::attach`].
#[derive(Clone, Debug)]
pub(crate) struct Attach {
    pub pod_uid: String,
    /// The hash of the process's secret. It becomes the capability when the process attaches.
    pub instance: Digest,
}

/// The decision on an attach.
enum Admission {
    /// The first attach, or a repeated one of the same process.
    Accepted {
        is_first: bool,
    },
    /// Another process is attached already.
    Spent,
    Refused(Attached),
}

impl Attach {
    /// The checks, in the order of [`dalsegno_model::Store::attach`].
    fn admit(&self, run: &RunRow) -> Admission {
        let state = run.attempt_state.0;
        let refused = if run.external {
            Attached::External
        } else if run.pod_uid.as_ref() != Some(&self.pod_uid) {
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

    fn decide(&self, rows: Rows) -> DbResult<Decision<Attached>> {
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
        report_signals(change.run(), now);
        let answer = Attached::Ok(change.record()?);
        Ok(change.decide(answer))
    }

    fn without_run(&self, _: RunId) -> DbResult<Attached> {
        Ok(Attached::NotFound)
    }
}

/// Records that a second process tried to attach. It is recorded once per attempt.
fn spend(change: &mut Change) -> DbResult<()> {
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
