//! Runs that begin as a fork of another run.

use dalsegno_crds::{AgentRun, Reason};
use dalsegno_model::{ForkRefusal, ForkRequest, ParentRun};

use crate::attribution::{self, Request};
use crate::recovery::Hold;
use crate::rewind::{calls, describe_turns, list};

/// The fork that the spec asks for. The schema lets through exactly one of the two names.
pub(crate) fn requested(run: &AgentRun) -> Option<ForkRequest> {
    let from = run.spec.resume_from.as_ref()?;
    let by_name = from.run_name.clone().map(ParentRun::Name);
    Some(ForkRequest {
        parent: by_name.or_else(|| from.run_uid.clone().map(ParentRun::ObjectUid))?,
        turn: from.turn,
        accept_effects: from.accept_effects.clone(),
        requested_by: attribution::of(&run.metadata, Request::Fork, attribution::observed(run)),
    })
}

/// The hold of a fork that cannot go on.
pub(crate) fn hold(refusal: &ForkRefusal) -> Hold {
    let message = match refusal {
        ForkRefusal::NoSuchRun => {
            "the store has no run of this namespace that spec.resumeFrom names".to_owned()
        }
        ForkRefusal::TurnNotAvailable(turns) => {
            format!("the turn to begin after is not available; {}", describe_turns(turns))
        }
        ForkRefusal::Effects(effects) => format!(
            "{} of later turns of the other run may have changed something, and the fork would make them again: {}",
            calls(effects),
            list(effects)
        ),
        ForkRefusal::Unreadable(detail) => format!("the other run cannot be read: {detail}"),
    };
    Hold::new(Reason::ForkRefused, message)
}
