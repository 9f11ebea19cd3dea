//! The data keys of a store's runs: where they are kept, and those that this process remembers.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

pub use dalsegno_format::keys::{KeyProvider, MountedKeys, Wrapped};
pub(crate) use dalsegno_format::keys::{no_keys, unwrap_failure};
use dalsegno_format::seal::{PayloadCipher, random};
pub use dalsegno_model::Rewrapped;
use dalsegno_model::{Error, Result, RunId};

/// A data key that was looked up is not asked for again within this; after it, one that was deleted is gone here too.
const FRESH: Duration = Duration::from_secs(60);

/// Data keys that are listed at a time.
pub(crate) const PAGE_ROWS: i64 = 500;

/// Runs whose data keys are remembered.
const RUNS: usize = 16_384;

/// From one sweep of those that are not fresh any more to the next.
const SWEEP: Duration = Duration::from_secs(15);

/// What a database says to a process without keys that would put plain text beside what is sealed.
pub(crate) const PLAIN_REFUSED: &str = "the run has a data key: nothing plain is added to it";

/// What no shredding leaves behind.
pub(crate) const LOST: &str = "the data key of the run is gone, and the run lives";

/// What stands of a run's data key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    Wrapped(Wrapped),
    /// It was deleted, after the run was over.
    Shredded,
}

/// Where data keys are kept.
pub(crate) trait KeyShelf: Sync {
    /// A run's data key.
    fn data_key(&self, run: RunId) -> impl Future<Output = Result<Option<Standing>>> + Send;
}

/// A shelf that data keys can be put on.
pub(crate) trait KeyKeeper: KeyShelf {
    /// Keeps the first data key of a run that lives. What then stands, which may be another's; `None`: the run is over and
    /// has none, or there is no such run.
    fn keep_data_key(
        &self,
        run: RunId,
        wrapped: Wrapped,
    ) -> impl Future<Output = Result<Option<Standing>>> + Send;

    /// Data keys of runs after this one, in order: some of them, none only after the last.
    fn data_keys(&self, after: RunId) -> impl Future<Output = Result<Vec<(RunId, Wrapped)>>> + Send;

    /// Puts another wrapping in the place of this one, if that still stands.
    fn rewrap(&self, run: RunId, old: Wrapped, new: Wrapped) -> impl Future<Output = Result<()>> + Send;
}

/// The data keys of a store's runs, as far as this process has looked them up.
#[derive(Default)]
pub(crate) struct Keys {
    provider: Option<Arc<dyn KeyProvider>>,
    known: Mutex<Known>,
}

/// Data keys that were looked up.
#[derive(Default)]
struct Known {
    sealings: HashMap<RunId, (Instant, PayloadCipher)>,
    swept: Option<Instant>,
}

impl Known {
    /// One that is fresh.
    fn get(&self, run: RunId, now: Instant) -> Option<PayloadCipher> {
        let (_, sealing) = self.sealings.get(&run).filter(|(since, _)| now - *since < FRESH)?;
        Some(sealing.clone())
    }

    /// Remembers one, while there is room.
    fn put(&mut self, run: RunId, sealing: PayloadCipher, now: Instant) {
        if self.swept.is_none_or(|at| now - at >= SWEEP) {
            self.sealings.retain(|_, (since, _)| now - *since < FRESH);
            self.swept = Some(now);
        }
        if self.sealings.len() < RUNS || self.sealings.contains_key(&run) {
            self.sealings.insert(run, (now, sealing));
        }
    }
}

impl Keys {
    pub fn of(provider: Option<Arc<dyn KeyProvider>>) -> Self {
        Self { provider, known: Mutex::default() }
    }

    /// The same keys with nothing looked up: what one moment tells of a run's data key holds for that moment alone.
    pub fn of_a_moment(&self) -> Self {
        Self::of(self.provider.clone())
    }

    /// How payloads of a run are read. To be asked once they are read: a key may be made meanwhile. `looks_sealed`: whether
    /// any of them does; without keys it is out of reach, or damaged where the run has no data key.
    pub async fn to_read(
        &self,
        shelf: &impl KeyShelf,
        run: RunId,
        looks_sealed: bool,
    ) -> Result<PayloadCipher> {
        let Some(provider) = &self.provider else {
            let is_damaged = looks_sealed && shelf.data_key(run).await?.is_none();
            return Ok(if is_damaged { PayloadCipher::unsealed() } else { PayloadCipher::default() });
        };
        if let Some(known) = self.known(run) {
            return Ok(known);
        }
        match shelf.data_key(run).await? {
            Some(standing) => self.learn(&**provider, run, standing).await,
            None => Ok(PayloadCipher::unsealed()),
        }
    }

    /// How what stands of a run is held to digests that it was written with: not without keys, where it has a data key.
    pub async fn to_prove(&self, shelf: &impl KeyShelf, run: RunId) -> Result<PayloadCipher> {
        if self.provider.is_some() {
            return self.to_read(shelf, run, true).await;
        }
        match shelf.data_key(run).await? {
            None => Ok(PayloadCipher::unsealed()),
            Some(Standing::Shredded) => Ok(PayloadCipher::shredded()),
            Some(Standing::Wrapped(_)) => Err(no_keys()),
        }
    }

    /// How payloads of a run are written: sealed, as soon as there are keys. One round trip where it is not known yet. Without
    /// keys they are plain, which the database refuses of a run that has a data key.
    pub async fn to_write(&self, shelf: &impl KeyKeeper, run: RunId) -> Result<PayloadCipher> {
        let Some(provider) = &self.provider else { return Ok(PayloadCipher::default()) };
        if let Some(known) = self.known(run) {
            return Ok(known);
        }
        let wrapped = provider.wrap(run, &random()?).await?;
        match shelf.keep_data_key(run, wrapped).await? {
            Some(standing) => self.learn(&**provider, run, standing).await,
            // The run is over and was never sealed, or is not there: what it is told rests on plain digests.
            None => Ok(PayloadCipher::unsealed()),
        }
    }

    /// As [`Self::to_write`], of what is made of payloads that stand: nothing plain is put beside what is sealed.
    pub async fn to_keep(&self, shelf: &impl KeyKeeper, run: RunId) -> Result<PayloadCipher> {
        self.may_tell_apart(shelf, run).await?;
        self.to_write(shelf, run).await
    }

    /// Whether a process may say that a body is another than the one that stands: not without keys, where the run has a
    /// data key, since it cannot make the digest that stands there.
    pub async fn may_tell_apart(&self, shelf: &impl KeyShelf, run: RunId) -> Result<()> {
        match &self.provider {
            None if shelf.data_key(run).await?.is_some() => Err(no_keys()),
            _ => Ok(()),
        }
    }

    /// Wraps by the current key every data key that another one wraps. One that cannot be unwrapped stops no other.
    pub async fn rewrap(&self, shelf: &impl KeyKeeper) -> Result<Rewrapped> {
        let provider = self.provider.as_deref().ok_or_else(no_keys)?;
        let current = provider.current().await?;
        let (mut after, mut done) = (RunId::nil(), Rewrapped::default());
        loop {
            let page = shelf.data_keys(after).await?;
            let Some((last, _)) = page.last() else { return Ok(done) };
            after = *last;
            for (run, old) in page.into_iter().filter(|(_, wrapped)| wrapped.key_id != current) {
                let data_key = match provider.unwrap(run, &old).await {
                    Ok(data_key) => data_key,
                    Err(error @ (Error::Corrupt { .. } | Error::Unfit(_))) => {
                        done.failed.push((run, error));
                        continue;
                    }
                    Err(error) => return Err(error),
                };
                shelf.rewrap(run, old, provider.wrap(run, &data_key).await?).await?;
                done.count += 1;
            }
        }
    }

    async fn learn(
        &self,
        provider: &dyn KeyProvider,
        run: RunId,
        standing: Standing,
    ) -> Result<PayloadCipher> {
        let sealing = match standing {
            Standing::Shredded => PayloadCipher::shredded(),
            Standing::Wrapped(wrapped) => PayloadCipher::under(run, &provider.unwrap(run, &wrapped).await?)?,
        };
        self.lock().put(run, sealing.clone(), Instant::now());
        Ok(sealing)
    }

    fn known(&self, run: RunId) -> Option<PayloadCipher> {
        self.lock().get(run, Instant::now())
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A run's data key may have been deleted by this process.
    pub fn forget(&self, run: RunId) {
        self.lock().sealings.remove(&run);
    }
}

impl std::fmt::Debug for Keys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.provider.is_some() { "Keys" } else { "no keys" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_data_key_is_asked_for_again_a_minute_later_and_swept_a_little_after() {
        let (mut known, start) = (Known::default(), Instant::now());
        let after = |seconds| start + Duration::from_secs(seconds);
        let put = |known: &mut Known, run, seconds| {
            known.put(RunId::from_u128(run), PayloadCipher::unsealed(), after(seconds));
        };
        put(&mut known, 1, 0);
        assert!(known.get(RunId::from_u128(1), after(59)).is_some());
        assert!(known.get(RunId::from_u128(1), after(60)).is_none());
        put(&mut known, 2, 50);
        put(&mut known, 3, 64);
        assert_eq!(known.sealings.len(), 3, "nothing is swept so soon after");
        put(&mut known, 4, 65);
        assert_eq!(known.sealings.len(), 3, "the first one is gone");
        assert!(known.get(RunId::from_u128(2), after(65)).is_some());
    }

    #[test]
    fn no_more_are_remembered_than_there_is_room_for_and_old_ones_make_room() {
        let (mut known, start) = (Known::default(), Instant::now());
        for run in 0..=RUNS as u128 {
            known.put(RunId::from_u128(run), PayloadCipher::unsealed(), start);
        }
        let last = RunId::from_u128(RUNS as u128);
        assert_eq!((known.sealings.len(), known.get(last, start).is_some()), (RUNS, false));
        let later = start + FRESH;
        known.put(last, PayloadCipher::unsealed(), later);
        assert_eq!((known.sealings.len(), known.get(last, later).is_some()), (1, true));
    }
}
