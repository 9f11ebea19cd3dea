//! The data keys of a store's runs: how an engine stores them, and the cache of this process.

use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use quick_cache::unsync::Cache;

pub use dalsegno_format::keys::{KeyProvider, MountedKeys, Wrapped};
pub(crate) use dalsegno_format::keys::{no_keys, unwrap_failure};
use dalsegno_format::seal::{DataKey, PayloadCipher};
pub use dalsegno_model::Rewrapped;
use dalsegno_model::{Error, Result, RunId};

/// How long a cached data key is used. So after this time no process reads with a data key that was deleted.
const CACHE_TTL: Duration = Duration::from_secs(60);

/// Data keys in one page.
pub(crate) const PAGE_ROWS: i64 = 500;

/// Runs whose data keys are cached: those that were used last.
const CACHE_CAPACITY: usize = 16_384;

/// Time between two removals of expired entries.
const SWEEP_INTERVAL: Duration = Duration::from_secs(15);

/// The database's error if a process without keys writes plain payloads to a run that has a data key. The triggers of
/// both databases raise exactly this text.
pub(crate) const PLAIN_REFUSED: &str = "the run has a data key: nothing plain is added to it";

/// The error if a data key was deleted in another way than by shredding, which is only possible after the run's end.
pub(crate) const DATA_KEY_LOST: &str = "the data key of the run was deleted, although the run is live";

/// The state of a run's data key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum KeyState {
    Wrapped(Wrapped),
    /// It was deleted after the run's end.
    Shredded,
}

/// Reads data keys.
pub(crate) trait KeyReader: Sync {
    /// A run's data key; `None`: it never had one.
    fn data_key(&self, run: RunId) -> impl Future<Output = Result<Option<KeyState>>> + Send;
}

/// A wrapping of a data key, and the one that replaces it.
pub(crate) struct Rewrapping {
    pub old: Wrapped,
    pub new: Wrapped,
}

/// Writes data keys.
pub(crate) trait KeyWriter: KeyReader {
    /// Stores a live run's first data key, and returns the stored one: another process may have been first. `None`: the
    /// run does not exist, or it is over and has no data key.
    fn store_data_key(
        &self,
        run: RunId,
        wrapped: Wrapped,
    ) -> impl Future<Output = Result<Option<KeyState>>> + Send;

    /// One page of data keys, ordered by run, after this run. An empty page is the end.
    fn data_keys(&self, after: RunId) -> impl Future<Output = Result<Vec<(RunId, Wrapped)>>> + Send;

    /// Replaces a wrapping by another, if the old one is still stored.
    fn rewrap(&self, run: RunId, rewrapping: Rewrapping) -> impl Future<Output = Result<()>> + Send;
}

/// A run's cipher for new payloads, and the wrapped data key that it was made from.
///
/// A failover may lose the row of a data key that this process has cached. So on PostgreSQL each statement that stores
/// sealed payloads compares the wrapped key with the stored one, and writes nothing if they differ.
#[derive(Clone, Debug)]
pub(crate) struct WriteCipher {
    cipher: PayloadCipher,
    data_key: Option<Arc<[u8]>>,
}

impl WriteCipher {
    /// Without a data key: nothing is sealed.
    fn plain(cipher: PayloadCipher) -> Self {
        Self { cipher, data_key: None }
    }

    /// The wrapped data key; `None` if nothing is sealed.
    pub fn data_key(&self) -> Option<&Arc<[u8]>> {
        self.data_key.as_ref()
    }

    #[cfg(feature = "sqlite")]
    pub fn into_cipher(self) -> PayloadCipher {
        self.cipher
    }
}

impl Deref for WriteCipher {
    type Target = PayloadCipher;

    fn deref(&self) -> &PayloadCipher {
        &self.cipher
    }
}

/// The ciphers of a store's runs, made from their data keys.
#[derive(Default)]
pub(crate) struct Keys {
    provider: Option<Arc<dyn KeyProvider>>,
    cache: Mutex<CipherCache>,
}

/// Ciphers by run, with the time at which the data key was read.
struct CipherCache {
    ciphers: Cache<RunId, (Instant, WriteCipher)>,
    swept: Option<Instant>,
}

impl Default for CipherCache {
    fn default() -> Self {
        Self { ciphers: Cache::new(CACHE_CAPACITY), swept: None }
    }
}

impl CipherCache {
    /// The run's cipher, unless it has expired.
    fn get(&self, run: RunId, now: Instant) -> Option<WriteCipher> {
        let (_, cipher) = self.ciphers.get(&run).filter(|(since, _)| now - *since < CACHE_TTL)?;
        Some(cipher.clone())
    }

    /// Adds a cipher. If the cache is full, one that was not used for long is evicted.
    fn put(&mut self, run: RunId, cipher: WriteCipher, now: Instant) {
        if self.swept.is_none_or(|at| now - at >= SWEEP_INTERVAL) {
            self.ciphers.retain(|_, (since, _)| now - *since < CACHE_TTL);
            self.swept = Some(now);
        }
        self.ciphers.insert(run, (now, cipher));
    }
}

impl Keys {
    pub fn of(provider: Option<Arc<dyn KeyProvider>>) -> Self {
        Self { provider, cache: Mutex::default() }
    }

    /// The same keys with an empty cache of their own, for a read transaction: a data key that it sees is valid for its
    /// snapshot only.
    pub fn without_cache(&self) -> Self {
        Self::of(self.provider.clone())
    }

    /// The cipher that opens a run's payloads. Call it after the payloads were read, since a data key may be made
    /// meanwhile. `looks_sealed`: whether any of the payloads does. Without keys, sealed payloads are unreadable; if
    /// the run has no data key either, they are damaged.
    pub async fn cipher_to_read(
        &self,
        reader: &impl KeyReader,
        run: RunId,
        looks_sealed: bool,
    ) -> Result<PayloadCipher> {
        let Some(provider) = &self.provider else {
            let is_damaged = looks_sealed && reader.data_key(run).await?.is_none();
            return Ok(if is_damaged { PayloadCipher::unsealed() } else { PayloadCipher::default() });
        };
        if let Some(cached) = self.cached(run) {
            return Ok(cached.cipher);
        }
        match reader.data_key(run).await? {
            Some(key) => Ok(self.unwrap_and_cache(&**provider, run, key).await?.cipher),
            None => Ok(PayloadCipher::unsealed()),
        }
    }

    /// The cipher that verifies a run's payloads against their digests. Error without keys, if the run has a data key.
    pub async fn cipher_to_verify(&self, reader: &impl KeyReader, run: RunId) -> Result<PayloadCipher> {
        if self.provider.is_some() {
            return self.cipher_to_read(reader, run, true).await;
        }
        match reader.data_key(run).await? {
            None => Ok(PayloadCipher::unsealed()),
            Some(KeyState::Shredded) => Ok(PayloadCipher::shredded()),
            Some(KeyState::Wrapped(_)) => Err(no_keys()),
        }
    }

    /// The cipher for new payloads of a run. With keys they are sealed, and the run gets a data key if it has none:
    /// one round trip, unless it is cached. Without keys they are plain, and the database refuses them if the run has
    /// a data key.
    pub async fn cipher_to_write(&self, writer: &impl KeyWriter, run: RunId) -> Result<WriteCipher> {
        let Some(provider) = &self.provider else {
            return Ok(WriteCipher::plain(PayloadCipher::default()));
        };
        if let Some(cached) = self.cached(run) {
            return Ok(cached);
        }
        let wrapped = provider.wrap(run, &DataKey::random()?).await?;
        match writer.store_data_key(run, wrapped).await? {
            Some(key) => self.unwrap_and_cache(&**provider, run, key).await,
            // The run does not exist, or it is over and was never sealed. The answer to the worker uses plain digests.
            None => Ok(WriteCipher::plain(PayloadCipher::unsealed())),
        }
    }

    /// As [`Self::cipher_to_write`], for a snapshot of stored payloads. Error without keys, if the run has a data key:
    /// what was sealed must not be stored plain.
    pub async fn cipher_to_snapshot(&self, writer: &impl KeyWriter, run: RunId) -> Result<WriteCipher> {
        self.ensure_comparable(writer, run).await?;
        self.cipher_to_write(writer, run).await
    }

    /// Error without keys, if the run has a data key: then this process cannot make the stored digests, so it must not
    /// report that a body differs from the stored one.
    pub async fn ensure_comparable(&self, reader: &impl KeyReader, run: RunId) -> Result<()> {
        match &self.provider {
            None if reader.data_key(run).await?.is_some() => Err(no_keys()),
            _ => Ok(()),
        }
    }

    /// Wraps with the current key every data key that is wrapped with another. One that cannot be unwrapped is
    /// reported, and the others are still rewrapped.
    pub async fn rewrap(&self, writer: &impl KeyWriter) -> Result<Rewrapped> {
        let provider = self.provider.as_deref().ok_or_else(no_keys)?;
        let current = provider.current().await?;
        let (mut after, mut done) = (RunId::nil(), Rewrapped::default());
        loop {
            let page = writer.data_keys(after).await?;
            let Some((last, _)) = page.last() else { return Ok(done) };
            after = *last;
            for (run, old) in page.into_iter().filter(|(_, wrapped)| wrapped.key_id != current) {
                let data_key = match provider.unwrap(run, &old).await {
                    Ok(data_key) => data_key,
                    Err(error @ (Error::Corrupt { .. } | Error::Unusable(_))) => {
                        done.failed.push((run, error));
                        continue;
                    }
                    Err(error) => return Err(error),
                };
                let new = provider.wrap(run, &data_key).await?;
                writer.rewrap(run, Rewrapping { old, new }).await?;
                done.count += 1;
            }
        }
    }

    async fn unwrap_and_cache(
        &self,
        provider: &dyn KeyProvider,
        run: RunId,
        key: KeyState,
    ) -> Result<WriteCipher> {
        let cipher = match key {
            KeyState::Shredded => WriteCipher::plain(PayloadCipher::shredded()),
            KeyState::Wrapped(wrapped) => WriteCipher {
                cipher: PayloadCipher::under(run, &provider.unwrap(run, &wrapped).await?)?,
                data_key: Some(wrapped.bytes.into()),
            },
        };
        self.lock().put(run, cipher.clone(), Instant::now());
        Ok(cipher)
    }

    fn cached(&self, run: RunId) -> Option<WriteCipher> {
        self.lock().get(run, Instant::now())
    }

    fn lock(&self) -> MutexGuard<'_, CipherCache> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes a run's cipher from the cache. To be called after this process may have deleted its data key, or has
    /// found that another one is stored.
    pub fn forget(&self, run: RunId) -> bool {
        self.lock().ciphers.remove(&run).is_some()
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

    fn cipher() -> WriteCipher {
        WriteCipher::plain(PayloadCipher::unsealed())
    }

    #[test]
    fn a_cached_data_key_expires_after_a_minute_and_is_removed_by_a_later_sweep() {
        let (mut cache, start) = (CipherCache::default(), Instant::now());
        let after = |seconds| start + Duration::from_secs(seconds);
        let put = |cache: &mut CipherCache, run, seconds| {
            cache.put(RunId::from_u128(run), cipher(), after(seconds));
        };
        put(&mut cache, 1, 0);
        assert!(cache.get(RunId::from_u128(1), after(59)).is_some());
        assert!(cache.get(RunId::from_u128(1), after(60)).is_none());
        put(&mut cache, 2, 50);
        put(&mut cache, 3, 64);
        assert_eq!(cache.ciphers.len(), 3, "the next sweep is not due");
        put(&mut cache, 4, 65);
        assert_eq!(cache.ciphers.len(), 3, "the first one was removed");
        assert!(cache.get(RunId::from_u128(2), after(65)).is_some());
    }

    #[test]
    fn a_full_cache_holds_the_keys_that_were_used_last() {
        let (mut cache, now) = (CipherCache::default(), Instant::now());
        let runs = 3 * CACHE_CAPACITY as u128;
        for run in 0..runs {
            let run = RunId::from_u128(run);
            cache.put(run, cipher(), now);
            assert!(cache.get(run, now).is_some(), "the newest run is cached, however full the cache is");
        }
        assert!(cache.ciphers.len() <= CACHE_CAPACITY, "{}", cache.ciphers.len());
        assert!(cache.ciphers.len() > CACHE_CAPACITY / 2, "{}", cache.ciphers.len());
    }
}
