//! What a commit, a finish or a heartbeat is answered.

use axum::response::Response;
use dalsegno_protocol::{Boundary, CommitResponse, CommitResult, Flags};
use dalsegno_store::{Asked, Committed, Standing};

use crate::response::{self, Refusal};

/// What a commit or a finish is answered.
pub(crate) fn answer(
    committed: Committed,
    conflict: impl FnOnce(Option<(i32, Boundary)>) -> Refusal,
) -> Result<Response, Refusal> {
    let (result, Standing { head, asked, .. }) = match committed {
        Committed::Ok(standing) => (CommitResult::Ok, standing),
        Committed::Duplicate(standing) => (CommitResult::Duplicate, standing),
        Committed::Conflict { head } => return Err(conflict(head)),
        Committed::Fenced { committed } => return Err(Refusal::fenced_commit(committed)),
        Committed::Finished => return Err(Refusal::finished()),
        Committed::UnsettledCalls => return Err(Refusal::unsettled()),
        Committed::TooLarge => return Err(Refusal::state_too_large()),
        Committed::CallsTooLarge => return Err(Refusal::calls_too_large()),
        Committed::NotFound => return Err(Refusal::no_such_run()),
    };
    response::ok(&CommitResponse { result, head, flags: flags(asked) })
}

/// What a person asks for, as it is told to a worker.
pub(crate) fn flags(asked: Asked) -> Flags {
    Flags { suspend: asked.suspend, cancel: asked.cancel, lease_seconds: seconds(asked.lease_ms) }
}

/// Whole seconds, at least one.
pub(crate) fn seconds(milliseconds: i64) -> u32 {
    u32::try_from(milliseconds / 1_000).unwrap_or_default().max(1)
}
