//! Whether a run can continue from its head, and if not, from which boundary it could.

pub use dalsegno_model::checkpoint::{Checkpoint, CheckpointCorruption, LastGood};
use dalsegno_model::{BoundaryId, CallFilter, Error, Result, RunRecord, Store};
use dalsegno_protocol::{Boundary, CallState, Policy};

use crate::integrity_scan::{IntegrityScan, ScanReport};

/// Verifies the state at the head, and the calls that the next attempt receives. Every boundary of the run is read
/// only if the state cannot be rebuilt.
///
/// # Errors
///
/// The store did not respond: nothing is known.
pub async fn checkpoint(store: &dyn Store, run: &RunRecord) -> Result<Checkpoint> {
    // The state is dropped from memory before the calls are read.
    let detail = match store.state(run.id, None).await.map(|state| state.is_some()) {
        Ok(false) if run.highest_turn > 0 => {
            format!("turn {} was reached, and the run has no head", run.highest_turn)
        }
        Ok(_) => return calls(store, run).await,
        // A live run always has its head, or a snapshot of it, so a missing state means corruption.
        Err(Error::Corrupt { detail, .. } | Error::Gone { detail, .. }) => detail,
        Err(error) => return Err(error),
    };
    let findings = scan(store, run).await?;
    let last_good =
        match findings.last_good.filter(|boundary_id| !is_valid_head(run, *boundary_id, &findings)) {
            Some(boundary_id) => Some(LastGood {
                boundary: boundary_id,
                effects: effects_after(store, run, boundary_id).await?,
            }),
            None => None,
        };
    let mut detail = detail;
    for damage in &findings.damage {
        let reported = damage.to_string();
        if !detail.contains(&reported) {
            detail = format!("{detail}; {reported}");
        }
    }
    Ok(Checkpoint::Corrupt(CheckpointCorruption { detail, last_good }))
}

/// Calls survive every rewind, so a rewind does not repair them.
async fn calls(store: &dyn Store, run: &RunRecord) -> Result<Checkpoint> {
    for which in [CallFilter::Pending, CallFilter::OpenTurn] {
        match store.calls(run.id, which).await {
            Ok(_) => {}
            Err(Error::Corrupt { detail, .. }) => {
                return Ok(Checkpoint::Corrupt(CheckpointCorruption { detail, last_good: None }));
            }
            Err(error) => return Err(error),
        }
    }
    Ok(Checkpoint::Valid)
}

/// Scans every boundary of a run, undone ones too, one page at a time.
///
/// # Errors
///
/// The store did not respond.
pub async fn scan(store: &dyn Store, run: &RunRecord) -> Result<ScanReport> {
    let mut scan = IntegrityScan::new(run);
    let mut after = None;
    loop {
        let links = store.check_boundaries(run.id, after).await?;
        let Some(last) = links.last() else { return Ok(scan.end()) };
        after = Some(last.id);
        links.iter().for_each(|link| scan.add(link));
    }
}

/// Whether this is the head itself, which has failed the check, and a rewind to it would repair nothing.
fn is_valid_head(run: &RunRecord, boundary_id: BoundaryId, findings: &ScanReport) -> bool {
    let is_head = run.head.as_ref().is_some_and(|head| {
        (head.turn, head.boundary, head.epoch) == (boundary_id.turn, boundary_id.boundary, boundary_id.epoch)
    });
    is_head && findings.damage.iter().all(|damage| damage.boundary.is_some())
}

/// Calls that may have changed something in the turns that a rewind to this boundary undoes. A turn whose result is
/// undone is one of these turns.
async fn effects_after(store: &dyn Store, run: &RunRecord, boundary_id: BoundaryId) -> Result<Vec<String>> {
    let head = run.head.as_ref().map(|head| (head.turn, head.boundary));
    if head == Some((boundary_id.turn, boundary_id.boundary)) {
        return Ok(Vec::new());
    }
    let first_undone = boundary_id.turn + i32::from(boundary_id.boundary == Boundary::Result);
    let calls = store.calls(run.id, CallFilter::TouchedSince(first_undone)).await?;
    let effects =
        calls.into_iter().filter(|call| call.policy != Policy::ReadOnly && call.state != CallState::Planned);
    Ok(effects.map(|call| call.id).collect())
}
