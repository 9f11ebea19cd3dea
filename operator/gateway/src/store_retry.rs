//! How the store is asked: again while it is away, no longer than the caller waits, and by no more callers at once than it
//! can answer.

use std::time::Duration;

use dalsegno_store::Error;
use tokio::time::{Instant, sleep_until, timeout_at};

use crate::error_chain::chain;
use crate::gateway::Gateway;
use crate::response::Refusal;

/// First and longest pause before the store is asked again.
const PAUSE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

impl Gateway {
    /// Asks the store. Whatever fails without an answer is a refusal that says to send the same bytes again; what is damaged
    /// or gone is another one, for no retry brings it back.
    ///
    /// A call that could not reach the store is made again within the deadline, with pauses that grow: each of them may be
    /// made twice, since a write knows its own bytes again. Once the store has answered no beat for as long as a caller waits,
    /// this is left to the workers, so that calls do not pile up before a store that is gone.
    pub(crate) async fn ask<T, F>(&self, doing: &'static str, call: impl Fn() -> F) -> Result<T, Refusal>
    where
        F: Future<Output = dalsegno_store::Result<T>>,
    {
        let Ok(_place) = self.askers.try_acquire() else {
            self.metrics.store_crowded();
            return Err(Refusal::crowded());
        };
        let deadline = Instant::now() + self.config.store_deadline;
        let mut pause = PAUSE.0;
        loop {
            let error = match self.once(deadline, call()).await {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            let again = Instant::now() + pause.mul_f64(rand::random_range(0.5..1.0));
            let is_away = matches!(error, Some(Error::Unavailable { .. }));
            if !is_away || again >= deadline || !self.last_beat.is_within(self.config.store_deadline) {
                return Err(give_up(doing, error.as_ref()));
            }
            self.metrics.store_asked_again();
            sleep_until(again).await;
            pause = (pause * 2).min(PAUSE.1);
        }
    }

    /// Tells the store that this gateway serves, whoever else waits for it; answers whether it has heard.
    pub(crate) async fn tell_beat(&self) -> bool {
        let deadline = Instant::now() + self.config.store_deadline;
        match self.once(deadline, self.store.beat()).await {
            Ok(()) => true,
            Err(error) => {
                give_up("beating", error.as_ref());
                false
            }
        }
    }

    /// Makes a call once. The error is `None` if there was no answer in time.
    async fn once<T>(
        &self,
        deadline: Instant,
        call: impl Future<Output = dalsegno_store::Result<T>>,
    ) -> Result<T, Option<Error>> {
        match timeout_at(deadline, call).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(error)) => {
                self.metrics.store_failed(&error);
                Err(Some(error))
            }
            Err(_) => {
                self.metrics.store_silent();
                Err(None)
            }
        }
    }
}

fn give_up(doing: &'static str, error: Option<&Error>) -> Refusal {
    match error {
        Some(Error::Gone { .. }) => return Refusal::gone(),
        Some(error @ Error::Corrupt { .. }) => {
            tracing::error!(doing, error = chain(error), "something in the store is damaged");
            return Refusal::corrupt();
        }
        Some(error) => tracing::warn!(doing, error = chain(error), "the store failed"),
        None => tracing::warn!(doing, "the store did not answer in time"),
    }
    Refusal::store_away()
}
