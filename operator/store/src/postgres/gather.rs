//! Commits of many runs become few statements.
//!
//! What a statement costs to set up it costs once, however many boundaries it judges. A commit that comes while a lane is
//! free goes at once; those that come while all are busy go together as soon as one is free.
//!
//! # Guarantees
//!
//! - In one statement each boundary is of another run. A run whose row is locked is passed over and goes alone beside the
//!   lanes, so that nobody waits for another run's lock.
//! - Where the database refuses a statement, each of its boundaries goes alone.
//! - Whoever gives up takes nothing of the others along.

use std::collections::{HashSet, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};

use sqlx::Row as _;
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use super::commit::{More, Proposed, alone, ruling, together};
use super::pool::{DEADLINE, Pool, is_the_statements};
use crate::db_error::{DbError, DbResult};
use crate::{Committed, RunId};

/// Statements under way at once.
const LANES: usize = 2;

/// Boundaries in one statement.
const BATCH: usize = 32;

/// Gathers commits of small boundaries that bring no calls, no records and no finish.
#[derive(Debug)]
pub(super) struct Gather {
    pool: Arc<Pool>,
    lanes: Arc<Semaphore>,
    waiting: Mutex<VecDeque<Waiting>>,
}

struct Waiting {
    proposed: Proposed,
    answer: oneshot::Sender<Answer>,
}

/// What becomes of one that waits.
enum Answer {
    Said(DbResult<Option<Committed>>),
    /// It goes alone, from where it came.
    Alone(Box<Proposed>),
}

impl fmt::Debug for Waiting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Waiting")
    }
}

impl Waiting {
    fn tell(self, said: DbResult<Option<Committed>>) {
        // Who has given up needs no answer.
        let _ = self.answer.send(Answer::Said(said));
    }

    /// The lane goes on with others. One that was given up goes no further.
    fn leave(self) {
        let _ = self.answer.send(Answer::Alone(Box::new(self.proposed)));
    }
}

impl Gather {
    pub fn new(pool: Arc<Pool>) -> Arc<Self> {
        Arc::new(Self { pool, lanes: Arc::new(Semaphore::new(LANES)), waiting: Mutex::default() })
    }

    /// `None`: it is the next boundary, but as a patch it cannot stand on this head.
    pub async fn commit(self: &Arc<Self>, proposed: Proposed) -> DbResult<Option<Committed>> {
        let said = async {
            match self.enter(proposed) {
                Ok((lane, proposed)) => self.at_once(lane, &proposed).await,
                Err(answered) => match answered.await.map_err(DbError::unavailable)? {
                    Answer::Said(said) => said,
                    Answer::Alone(proposed) => self.alone(&proposed).await,
                },
            }
        };
        tokio::time::timeout(DEADLINE, said)
            .await
            .unwrap_or_else(|elapsed| Err(DbError::unavailable(elapsed)))
    }

    /// A lane that is free, or else where the answer will come from.
    fn enter(self: &Arc<Self>, proposed: Proposed) -> Result<(Lane, Proposed), oneshot::Receiver<Answer>> {
        let mut waiting = self.waiting();
        if let Ok(permit) = Arc::clone(&self.lanes).try_acquire_owned() {
            return Ok((Lane { gather: Arc::clone(self), permit: Some(permit) }, proposed));
        }
        let (answer, answered) = oneshot::channel();
        waiting.push_back(Waiting { proposed, answer });
        Err(answered)
    }

    /// Nobody waits that could go along, and no other task need be woken.
    async fn at_once(&self, lane: Lane, proposed: &Proposed) -> DbResult<Option<Committed>> {
        let said = self.pool.optional(together(&[proposed])).await;
        drop(lane);
        match said {
            Ok(Some(row)) => ruling(&row),
            Ok(None) => self.alone(proposed).await,
            Err(fault) if is_the_statements(&fault) => self.alone(proposed).await,
            Err(fault) => Err(fault),
        }
    }

    async fn send(&self, batch: Vec<Waiting>) {
        let all: Vec<_> = batch.iter().map(|one| &one.proposed).collect();
        match self.pool.all(together(&all)).await {
            Ok(rows) => {
                for one in batch {
                    let run = one.proposed.run;
                    match rows.iter().find(|row| row.try_get::<RunId, _>("run").is_ok_and(|id| id == run)) {
                        Some(row) => one.tell(ruling(row)),
                        None => one.leave(),
                    }
                }
            }
            Err(fault) if is_the_statements(&fault) => {
                tracing::debug!(
                    boundaries = batch.len(),
                    "a statement was refused: each of its boundaries goes alone"
                );
                batch.into_iter().for_each(Waiting::leave);
            }
            Err(fault) => batch.into_iter().for_each(|one| one.tell(Err(fault.clone()))),
        }
    }

    async fn alone(&self, proposed: &Proposed) -> DbResult<Option<Committed>> {
        let row = self.pool.of(proposed.run).optional(alone(proposed, More::default())).await?;
        row.as_ref().map_or(Ok(Some(Committed::NotFound)), ruling)
    }

    fn waiting(&self) -> MutexGuard<'_, VecDeque<Waiting>> {
        self.waiting.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// The right to have a statement under way. Whoever is done with it, or gives up, leaves it to those that wait.
struct Lane {
    gather: Arc<Gather>,
    permit: Option<OwnedSemaphorePermit>,
}

impl Drop for Lane {
    fn drop(&mut self) {
        let batch = {
            let mut waiting = self.gather.waiting();
            let batch = next(&mut waiting);
            if batch.is_empty() {
                // While nobody can come and find it taken.
                self.permit = None;
                return;
            }
            batch
        };
        // Without a runtime nobody hears an answer any more.
        let Ok(runtime) = Handle::try_current() else { return };
        let lane = Self { gather: Arc::clone(&self.gather), permit: self.permit.take() };
        runtime.spawn(async move {
            lane.gather.send(batch).await;
            drop(lane);
        });
    }
}

/// Those that have waited longest and may go together. Who has given up is passed over.
fn next(waiting: &mut VecDeque<Waiting>) -> Vec<Waiting> {
    let (mut batch, mut later) = (Vec::new(), Vec::new());
    let mut runs = HashSet::new();
    while batch.len() < BATCH
        && let Some(one) = waiting.pop_front()
    {
        if one.answer.is_closed() {
            continue;
        }
        if runs.insert(one.proposed.run) { batch.push(one) } else { later.push(one) }
    }
    later.into_iter().rev().for_each(|one| waiting.push_front(one));
    batch
}
