//! The reconcile of a run: observe, decide, act.

use std::time::Duration;

use dalsegno_core::{ObservedStore, decide};
use dalsegno_crds::AgentRun;
use jiff::Timestamp;

use super::act::{ActOutcome, act};
use super::error::{Error, Result};
use super::worker_runtime::WorkerRuntime;
use crate::log::error_chain;

/// Limit of rounds. A decision converges in far fewer: create, record, identify, end, reserve, create, record. Thirty pod
/// names in a row that deleted runs still have need sixty.
const MAX_ROUNDS: usize = 80;

/// Observes, decides and acts, until acting brings no new facts. Returns when to reconcile again if nothing happens before.
pub async fn reconcile(run: &AgentRun, runtime: &impl WorkerRuntime) -> Result<Option<Duration>> {
    let mut observed = runtime.observe(run).await?;
    let mut events = Vec::new();
    for _ in 0..MAX_ROUNDS {
        let decision = decide(run, &observed, Timestamp::now());
        match act(runtime, run, decision, &mut events).await {
            Ok(ActOutcome::NewFacts(facts)) => {
                facts.into_iter().for_each(|fact| observed.apply(fact));
                if observed.must_observe_again() {
                    observed = runtime.observe(run).await?;
                }
            }
            Ok(ActOutcome::Converged { requeue }) => {
                if let ObservedStore::Found(row) = &observed.store {
                    runtime.converged(row);
                }
                return Ok(requeue);
            }
            // A store that can be read but not written, as on a full disk, counts as unavailable: the run waits for it.
            Err(error) if error.is_store_unavailable() => {
                runtime.store_unavailable(&error);
                observed.store = ObservedStore::Unknown(error_chain(&error));
            }
            Err(error) => return Err(error),
        }
    }
    Err(Error::DidNotConverge(MAX_ROUNDS))
}
