//! Reads of the store that several calls share.

use dalsegno_model::{Digest, RunId, RunRecord, Sizes};
use dalsegno_protocol::{Limits, State};
use tokio::sync::{OwnedMutexGuard, SemaphorePermit};
use tokio::time::{Instant, timeout_at};

use crate::extractors::Reader;
use crate::gateway::Gateway;
use crate::limits::shared_limit::{LimitExceeded, LimitOwner};
use crate::limits::state_reads::read_bytes;
use crate::response::ApiProblem;

/// A page may be read until this is dropped.
pub(crate) struct PagePermit<'a> {
    _turn: OwnedMutexGuard<()>,
    _place: SemaphorePermit<'a>,
}

impl Gateway {
    /// Whether this is the capability of the run's current worker, or was when it was last checked. For quota
    /// accounting only, never for authorization.
    pub(crate) async fn is_current_cached(&self, run: RunId, capability: Digest) -> Result<bool, ApiProblem> {
        if self.current_workers.get(&run) == Some(capability) {
            return Ok(true);
        }
        let is_current = self.is_current(run, &capability).await?;
        if is_current {
            self.current_workers.insert(run, capability);
        }
        Ok(is_current)
    }

    async fn is_current(&self, run: RunId, capability: &Digest) -> Result<bool, ApiProblem> {
        self.call_with_retry("checking a capability", || self.store.is_current(run, capability)).await
    }

    /// Refuses a worker that is not the current one. A user was authorized by the API server before.
    pub(crate) async fn authorize_reader(&self, reader: &Reader) -> Result<(), ApiProblem> {
        let Some(capability) = &reader.capability else { return Ok(()) };
        match self.is_current(reader.run, capability).await? {
            true => Ok(()),
            false => Err(ApiProblem::fenced()),
        }
    }

    /// The run's own row.
    pub(crate) async fn run_record(&self, run: RunId) -> Result<RunRecord, ApiProblem> {
        let record = self.call_with_retry("reading a run", || self.store.get_run(run)).await?;
        record.ok_or_else(ApiProblem::no_such_run)
    }

    /// The state after a turn; `None`: at the head.
    pub(crate) async fn state(&self, run: RunId, turn: Option<i32>) -> Result<State, ApiProblem> {
        let state = self.call_with_retry("reading a state", || self.store.state(run, turn)).await?;
        state.ok_or_else(|| ApiProblem::no_such_turn(turn))
    }

    /// Bytes that reading the state after a turn takes; `None`: the state at the head, with the boundaries it is
    /// rebuilt from. The size after an earlier turn is unknown, so it counts as the largest state.
    pub(crate) async fn state_bytes(&self, run: RunId, turn: Option<i32>) -> Result<usize, ApiProblem> {
        Ok(match turn {
            Some(_) => Limits::STATE_BYTES,
            None => read_bytes(&Sizes { calls: 0, ..self.sizes(run).await? }),
        })
    }

    /// As [`Self::state_bytes`], and the bytes of the run's open calls.
    pub(crate) async fn state_and_calls_bytes(
        &self,
        run: RunId,
        turn: Option<i32>,
    ) -> Result<usize, ApiProblem> {
        let sizes = self.sizes(run).await?;
        Ok(read_bytes(&match turn {
            Some(_) => Sizes { state: None, tail: 0, ..sizes },
            None => sizes,
        }))
    }

    /// Waits until this owner reads no other page, and few pages of events and records are being read. So nobody waits
    /// behind more than one page of each other owner.
    pub(crate) async fn page_permit(&self, owner: &LimitOwner) -> Result<PagePermit<'_>, LimitExceeded> {
        let until = Instant::now() + self.config.store_timeout;
        let turn = self.page_turns.acquire(owner, until).await?;
        let place = timeout_at(until, self.page_reads.acquire()).await.ok().and_then(Result::ok);
        Ok(PagePermit { _turn: turn, _place: place.ok_or(LimitExceeded::Total)? })
    }

    async fn sizes(&self, run: RunId) -> Result<Sizes, ApiProblem> {
        self.call_with_retry("reading the size of the head", || self.store.sizes(run)).await
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use async_trait::async_trait;
    use dalsegno_store::sqlite::Sqlite;

    use super::*;
    use crate::authenticator::{AuthError, Authenticator, PodIdentity};
    use crate::config::Config;
    use crate::limits::state_reads::TWO_STATES;

    struct RefuseAll;

    #[async_trait]
    impl Authenticator for RefuseAll {
        async fn review(&self, _: &str) -> Result<PodIdentity, AuthError> {
            Err(AuthError::Refused("no token is valid here".into()))
        }
    }

    async fn gateway() -> Gateway {
        let store = Arc::new(Sqlite::memory().await.unwrap());
        let config = Config { store_timeout: Duration::from_millis(300), ..Config::default() };
        Gateway::new(store, Arc::new(RefuseAll), config)
    }

    #[tokio::test]
    async fn a_state_of_unknown_size_counts_as_the_largest() {
        let gateway = gateway().await;
        for turn in [Some(1), None] {
            let bytes = gateway.state_bytes(RunId::nil(), turn).await.unwrap();
            assert_eq!(bytes, Limits::STATE_BYTES, "{turn:?}");
        }
    }

    #[tokio::test]
    async fn a_resuming_attempt_does_not_wait_for_inspection_reads() {
        let gateway = gateway().await;
        let owner = LimitOwner::Run(RunId::nil());
        let _inspection = gateway.inspection_reads.acquire(&owner, TWO_STATES).await.unwrap();
        assert!(gateway.resume_reads.acquire(&owner, TWO_STATES).await.is_ok());
    }
}
