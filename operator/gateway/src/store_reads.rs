//! Reads of the store that several calls share.

use dalsegno_protocol::{Code, Limits, State};
use dalsegno_store::{Digest, RunId, RunRecord, Sizes};

use crate::extractors::Reader;
use crate::gateway::Gateway;
use crate::limits::state_reads;
use crate::response::Refusal;

impl Gateway {
    /// Whether this worker is its run's current one, or was when it was judged last: nothing may rest on it but whose share it
    /// takes.
    pub(crate) async fn was_current(&self, run: RunId, capability: Digest) -> Result<bool, Refusal> {
        if self.judged.get(&run) == Some(capability) {
            return Ok(true);
        }
        let is_current = self.ask("judging a capability", || self.store.is_current(run, &capability)).await?;
        if is_current {
            self.judged.insert(run, capability);
        }
        Ok(is_current)
    }

    /// The state after a turn, or at the head.
    pub(crate) async fn state(&self, run: RunId, turn: Option<i32>) -> Result<Option<State>, Refusal> {
        self.ask("reading the state", || self.store.state(run, turn)).await
    }

    /// Bytes of the state after a turn, or at the head with the boundaries it is made of. Of an earlier turn nobody knows how
    /// large it is: as many as the largest has.
    pub(crate) async fn state_bytes(&self, run: RunId, turn: Option<i32>) -> Result<usize, Refusal> {
        Ok(match turn {
            Some(_) => Limits::STATE_BYTES,
            None => state_reads::bytes(&Sizes { calls: 0, ..self.sizes(run).await? }),
        })
    }

    /// The same with the run's open calls.
    pub(crate) async fn bytes_with_calls(&self, run: RunId, turn: Option<i32>) -> Result<usize, Refusal> {
        let sizes = self.sizes(run).await?;
        Ok(state_reads::bytes(&match turn {
            Some(_) => Sizes { state: None, tail: 0, ..sizes },
            None => sizes,
        }))
    }

    async fn sizes(&self, run: RunId) -> Result<Sizes, Refusal> {
        self.ask("asking how large the head is", || self.store.sizes(run)).await
    }
}

/// The run's own row.
pub(crate) async fn row(gateway: &Gateway, reader: &Reader) -> Result<RunRecord, Refusal> {
    let run = gateway.ask("looking up a run", || gateway.store.get_run(reader.run)).await?;
    run.ok_or_else(Refusal::no_such_run)
}

/// Refuses whoever may not read: of workers only that of the current attempt may. A person was judged by the API server.
pub(crate) async fn judge(gateway: &Gateway, reader: &Reader) -> Result<(), Refusal> {
    let Some(capability) = &reader.capability else { return Ok(()) };
    let judged = || gateway.store.is_current(reader.run, capability);
    match gateway.ask("judging a capability", judged).await? {
        true => Ok(()),
        false => Err(Refusal::fenced()),
    }
}

/// There is no such turn; `None`: there is none at all.
pub(crate) fn nothing(turn: Option<i32>) -> Refusal {
    Refusal::new(
        Code::NotFound,
        match turn {
            None => "nothing is committed yet: the run begins at turn 1 with no state".to_owned(),
            Some(turn) => format!("turn {turn} is not committed"),
        },
    )
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
    use crate::limits::shared_limit::Who;
    use crate::limits::state_reads::TWO_STATES;

    struct Nobody;

    #[async_trait]
    impl Authenticator for Nobody {
        async fn review(&self, _: &str) -> Result<PodIdentity, AuthError> {
            Err(AuthError::Refused("nobody is known here".into()))
        }
    }

    /// It does not wait for long.
    async fn gateway() -> Gateway {
        let store = Arc::new(Sqlite::memory().await.unwrap());
        let config = Config { store_deadline: Duration::from_millis(300), ..Config::default() };
        Gateway::new(store, Arc::new(Nobody), config)
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
    async fn an_attempt_that_goes_on_waits_for_nobody_who_looks() {
        let gateway = gateway().await;
        let run = Who::Run(RunId::nil());
        let _looking = gateway.states.take(&run, TWO_STATES).await.unwrap();
        assert!(gateway.resumes.take(&run, TWO_STATES).await.is_ok());
    }
}
