//! Calls to the store, with a time-out, retries while the store is unavailable, and a limit on waiting callers.

use std::time::Duration;

use dalsegno_model::Error;
use tokio::time::{Instant, sleep_until, timeout, timeout_at};

use crate::error_chain::error_chain;
use crate::gateway::Gateway;
use crate::response::ApiProblem;

/// The first pause before a retry. Each further pause is twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(50);

/// The longest pause before a retry.
const MAX_PAUSE: Duration = Duration::from_secs(1);

impl Gateway {
    /// Calls the store and returns its answer, or the problem to send to the client. `operation` names the call in
    /// logs.
    ///
    /// If the store cannot be reached, the call is repeated with growing pauses until `store_timeout`. So a call may
    /// run twice; that is safe, because the store recognises a write that it has stored before. There are no retries
    /// once the store has answered no gateway heartbeat for `store_timeout`: then the workers retry, and calls do not
    /// pile up here.
    ///
    /// # Errors
    ///
    /// `UNAVAILABLE` if there was no answer, or if too many calls wait already; the client shall retry. `STORAGE_FULL` if
    /// the store's volume is full; the client shall retry.
    /// `CHECKPOINT_CORRUPT` or `NOT_FOUND` if the data is damaged or deleted; a retry does not help.
    pub(crate) async fn call_with_retry<T, F>(
        &self,
        operation: &'static str,
        call: impl Fn() -> F,
    ) -> Result<T, ApiProblem>
    where
        F: Future<Output = dalsegno_model::Result<T>>,
    {
        let Ok(_permit) = self.store_calls.try_acquire() else {
            self.metrics.store_call_rejected();
            return Err(ApiProblem::too_many_store_calls());
        };
        let deadline = Instant::now() + self.config.store_timeout;
        let mut pause = FIRST_PAUSE;
        loop {
            let error = match self.call_once(deadline, call()).await {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            let retry_at = Instant::now() + pause.mul_f64(rand::random_range(0.5..1.0));
            let is_unavailable = matches!(error, Some(Error::Unavailable { .. }));
            let recently_available = self.last_heartbeat.is_within(self.config.store_timeout);
            if !is_unavailable || retry_at >= deadline || !recently_available {
                return Err(log_failure(operation, error.as_ref()));
            }
            self.metrics.store_call_retried();
            sleep_until(retry_at).await;
            pause = (pause * 2).min(MAX_PAUSE);
        }
    }

    /// Does store calls of a worker that attaches, once few others do. They leave room for the calls of the other workers.
    ///
    /// # Errors
    ///
    /// `UNAVAILABLE` if too many workers attach for `store_timeout`, and the errors of the calls.
    pub(crate) async fn attaching<T>(
        &self,
        calls: impl Future<Output = Result<T, ApiProblem>>,
    ) -> Result<T, ApiProblem> {
        let Ok(Ok(_place)) = timeout(self.config.store_timeout, self.attach_calls.acquire()).await else {
            self.metrics.store_call_rejected();
            return Err(ApiProblem::too_many_store_calls());
        };
        calls.await
    }

    /// Records in the store that this gateway serves; returns the lowest version of the contract among the gateways that
    /// serve, if the store has answered. Not subject to the limit on waiting callers.
    pub(crate) async fn send_heartbeat(&self) -> Option<i32> {
        let deadline = Instant::now() + self.config.store_timeout;
        match self.call_once(deadline, self.store.record_gateway_heartbeat()).await {
            Ok(contract) => Some(contract),
            Err(error) => {
                log_failure("recording the gateway heartbeat", error.as_ref());
                None
            }
        }
    }

    /// One call. The error is `None` if there was no answer before the deadline.
    async fn call_once<T>(
        &self,
        deadline: Instant,
        call: impl Future<Output = dalsegno_model::Result<T>>,
    ) -> Result<T, Option<Error>> {
        match timeout_at(deadline, call).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(error)) => {
                self.metrics.store_call_failed(&error);
                Err(Some(error))
            }
            Err(_) => {
                self.metrics.store_call_timed_out();
                Err(None)
            }
        }
    }
}

/// Logs why a call failed and returns the problem for the client.
fn log_failure(operation: &'static str, error: Option<&Error>) -> ApiProblem {
    match error {
        Some(Error::Gone { .. }) => return ApiProblem::gone(),
        Some(error @ Error::Corrupt { .. }) => {
            tracing::error!(operation, error = error_chain(error), "data in the store is damaged");
            return ApiProblem::corrupt();
        }
        // Without a log line: the store itself reports that its volume is full.
        Some(Error::StorageFull { .. }) => return ApiProblem::storage_full(),
        Some(error) => tracing::warn!(operation, error = error_chain(error), "the store call failed"),
        None => tracing::warn!(operation, "the store call timed out"),
    }
    ApiProblem::store_unavailable()
}
