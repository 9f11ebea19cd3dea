//! States that are read: so many bytes in all, and one reading at a time for each.

use std::convert::Infallible;
use std::sync::Arc;

use dalsegno_protocol::Limits;
use dalsegno_store::{RunId, Sizes};
use quick_cache::sync::Cache;
use tokio::sync::{Mutex, OwnedMutexGuard, OwnedSemaphorePermit};
use tokio::time::{Instant, timeout_at};

use crate::budget::{Full, Who};
use crate::gateway::Gateway;
use crate::refusal::Refusal;
use crate::room::{self, Room};

/// How many are remembered who have read. Who is forgotten may read twice at once.
const READERS: usize = 16_384;

/// Room for states, in the order in which it is asked for. Who has some waits for more outside of this queue: whoever asks
/// once waits for one reading of each of the others, and no more.
pub(crate) struct Readings {
    room: Room,
    turns: Cache<Who, Arc<Mutex<()>>>,
}

/// Room that is taken until this is dropped.
#[derive(Debug)]
pub(crate) struct Reading {
    _turn: OwnedMutexGuard<()>,
    _bytes: OwnedSemaphorePermit,
}

impl Default for Readings {
    fn default() -> Self {
        Self { room: Room::default(), turns: Cache::new(READERS) }
    }
}

impl Readings {
    /// What all readings share.
    pub fn room(&self) -> &Room {
        &self.room
    }

    /// Takes so many bytes once they are free.
    async fn take(&self, who: &Who, bytes: usize, until: Instant) -> Result<Reading, Full> {
        let Ok(turn) = self.turns.get_or_insert_with(who, || Ok::<_, Infallible>(Arc::default()));
        let turn = timeout_at(until, turn.lock_owned()).await.map_err(|_| Full::Share)?;
        let bytes = timeout_at(until, self.room.take_bytes(bytes)).await;
        Ok(Reading { _turn: turn, _bytes: bytes.ok().flatten().ok_or(Full::Whole)? })
    }
}

impl Gateway {
    /// Room among these for so many bytes: whoever reads a state holds it several times over.
    pub(crate) async fn room(&self, among: &Readings, who: &Who, bytes: usize) -> Result<Reading, Refusal> {
        let until = Instant::now() + self.config.store_deadline;
        Ok(among.take(who, bytes, until).await?)
    }

    /// Bytes of the state after a turn, or at the head with the boundaries it is made of. Of an earlier turn nobody knows how
    /// large it is: as many as the largest has.
    pub(crate) async fn state_bytes(&self, run: RunId, turn: Option<i32>) -> Result<usize, Refusal> {
        Ok(match turn {
            Some(_) => Limits::STATE_BYTES,
            None => room::bytes(&Sizes { calls: 0, ..self.sizes(run).await? }),
        })
    }

    /// The same with the run's open calls.
    pub(crate) async fn bytes_with_calls(&self, run: RunId, turn: Option<i32>) -> Result<usize, Refusal> {
        let sizes = self.sizes(run).await?;
        Ok(room::bytes(&match turn {
            Some(_) => Sizes { state: None, tail: 0, ..sizes },
            None => sizes,
        }))
    }

    async fn sizes(&self, run: RunId) -> Result<Sizes, Refusal> {
        self.ask("asking how large the head is", || self.store.sizes(run)).await
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use async_trait::async_trait;
    use dalsegno_protocol::Code;
    use dalsegno_store::sqlite::Sqlite;

    use super::*;
    use crate::room::{SMALL, TWO_STATES};
    use crate::{AuthError, Authenticator, Config, PodIdentity};

    const ONE: Who = Who::Run(RunId::from_u128(1));
    const OTHER: Who = Who::Run(RunId::from_u128(2));

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
    async fn two_of_the_largest_states_are_read_at_once_and_the_next_waits_for_room() {
        let gateway = gateway().await;
        let run = RunId::nil();
        for turn in [Some(1), None] {
            let bytes = gateway.state_bytes(run, turn).await.unwrap();
            assert_eq!(bytes, Limits::STATE_BYTES, "how large it is at {turn:?} nobody knows");
        }
        let room = async |who, bytes| gateway.room(&gateway.states, &Who::Person(who), bytes).await;
        let room = async |bytes| room(format!("{}", uuid::Uuid::new_v4()), bytes).await;
        let first = room(Limits::STATE_BYTES).await.unwrap();
        let _second = room(Limits::STATE_BYTES).await.unwrap();
        assert_eq!(room(SMALL + 1).await.unwrap_err().0.code, Code::Unavailable);
        assert!(room(SMALL).await.is_ok(), "a small one waits for none of them");
        drop(first);
        assert!(room(TWO_STATES).await.is_err());
        assert!(room(Limits::STATE_BYTES).await.is_ok());
    }

    #[tokio::test]
    async fn whoever_reads_waits_for_the_next_reading_where_nobody_else_does() {
        let gateway = gateway().await;
        let room = async |who| gateway.room(&gateway.states, who, Limits::STATE_BYTES).await;
        let first = room(&ONE).await.unwrap();
        assert_eq!(room(&ONE).await.unwrap_err().0.code, Code::TooManyRequests);
        let (second, other) = tokio::join!(room(&ONE), async {
            let other = room(&OTHER).await.map(drop);
            drop(first);
            other
        });
        assert!(second.is_ok() && other.is_ok(), "{second:?} {other:?}");
    }

    #[tokio::test]
    async fn an_attempt_that_goes_on_waits_for_nobody_who_looks() {
        let gateway = gateway().await;
        let _looking = gateway.room(&gateway.states, &ONE, TWO_STATES).await.unwrap();
        assert!(gateway.room(&gateway.resumes, &ONE, TWO_STATES).await.is_ok());
    }
}
