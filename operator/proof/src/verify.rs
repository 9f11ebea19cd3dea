//! Whether a run can go on from its head; and if not, from where it could.

pub use dalsegno_model::checkpoint::{Checkpoint, Corruption, LastGood};
use dalsegno_model::{CallFilter, Error, Place, Result, RunRecord, Store};
use dalsegno_protocol::{Boundary, CallState, Policy};

use crate::survey::{Findings, Survey};

/// Verifies the state at the head, and the calls that whoever goes on from it is handed; only where the state cannot be
/// rebuilt is every boundary of the run looked at.
///
/// # Errors
///
/// The store did not answer: nothing may be concluded.
pub async fn checkpoint(store: &dyn Store, run: &RunRecord) -> Result<Checkpoint> {
    // The state goes before the calls are read.
    let detail = match store.state(run.id, None).await.map(|state| state.is_some()) {
        Ok(false) if run.highest_turn > 0 => {
            format!("turn {} was reached, and the run has no head", run.highest_turn)
        }
        Ok(_) => return calls(store, run).await,
        // The head of a run that lives is kept, or a snapshot stands for it.
        Err(Error::Corrupt { detail, .. } | Error::Gone { detail, .. }) => detail,
        Err(error) => return Err(error),
    };
    let findings = survey(store, run).await?;
    let last_good = match findings.last_good.filter(|place| !is_sound_head(run, *place, &findings)) {
        Some(place) => Some(LastGood { place, effects: effects_after(store, run, place).await? }),
        None => None,
    };
    let mut detail = detail;
    for damage in &findings.damage {
        let told = damage.to_string();
        if !detail.contains(&told) {
            detail = format!("{detail}; {told}");
        }
    }
    Ok(Checkpoint::Corrupt(Corruption { detail, last_good }))
}

/// A call outlives every rewind, so that going back mends none of them.
async fn calls(store: &dyn Store, run: &RunRecord) -> Result<Checkpoint> {
    for which in [CallFilter::Pending, CallFilter::OpenTurn] {
        match store.calls(run.id, which).await {
            Ok(_) => {}
            Err(Error::Corrupt { detail, .. }) => {
                return Ok(Checkpoint::Corrupt(Corruption { detail, last_good: None }));
            }
            Err(error) => return Err(error),
        }
    }
    Ok(Checkpoint::Sound)
}

/// Looks at every boundary of a run, undone ones too: a page at a time, whatever its length.
///
/// # Errors
///
/// The store did not answer.
pub async fn survey(store: &dyn Store, run: &RunRecord) -> Result<Findings> {
    let mut survey = Survey::new(run);
    let mut after = None;
    loop {
        let links = store.links(run.id, after).await?;
        let Some(last) = links.last() else { return Ok(survey.end()) };
        after = Some(last.place);
        links.iter().for_each(|link| survey.take(link));
    }
}

/// Whether it is the very head that was found wanting, and nothing that going back to it would mend.
fn is_sound_head(run: &RunRecord, place: Place, findings: &Findings) -> bool {
    let is_head = run.head.as_ref().is_some_and(|head| {
        (head.turn, head.boundary, head.epoch) == (place.turn, place.boundary, place.epoch)
    });
    is_head && findings.damage.iter().all(|damage| damage.place.is_some())
}

/// Calls that may have changed something in turns that going back to this boundary undoes. A turn whose result is undone
/// is one of them.
async fn effects_after(store: &dyn Store, run: &RunRecord, place: Place) -> Result<Vec<String>> {
    let head = run.head.as_ref().map(|head| (head.turn, head.boundary));
    if head == Some((place.turn, place.boundary)) {
        return Ok(Vec::new());
    }
    let first_undone = place.turn + i32::from(place.boundary == Boundary::Result);
    let calls = store.calls(run.id, CallFilter::TouchedSince(first_undone)).await?;
    let effects =
        calls.into_iter().filter(|call| call.policy != Policy::ReadOnly && call.state != CallState::Planned);
    Ok(effects.map(|call| call.id).collect())
}
