//! Reviews bearer tokens: caches the verdicts, reviews each token once at a time, and limits the reviews of each peer.
//!
//! A caller is not known before its token is reviewed, so these limits count by peer address. Each peer has few reviews
//! at once. A refused review keeps its place for a pause, so that invented tokens cause fewer reviews. At most half of
//! a peer's places are in a pause: pods behind one address share them, and the others must still be reviewed.
//! Invariant: nobody waits behind more than one peer's share of each other peer.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use dalsegno_model::Digest;
use quick_cache::sync::Cache;
use sha2::{Digest as _, Sha256};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep, timeout_at};

use crate::authenticator::{Access, AuthError, Authenticator, PodIdentity, RunName, User};
use crate::config::Config;
use crate::limits::connections::PeerAddress;
use crate::metrics::{Metrics, TokenReviewOutcome};

/// Verdicts of each kind that are cached. One takes less than 1 KiB.
const VERDICTS: usize = 4_096;

/// Peers whose places are remembered. A peer that is forgotten has its whole share again.
const PEERS: usize = 16_384;

/// Characters of a refusal that are cached and returned.
const REFUSAL_CHARS: usize = 500;

/// Reviews tokens for a gateway.
pub(crate) struct TokenReviews {
    authenticator: Arc<dyn Authenticator>,
    pods: VerdictCache<PodIdentity>,
    users: VerdictCache<User>,
    places: ReviewPlaces,
    timeout: Duration,
    refused_pause: Duration,
    metrics: Metrics,
}

/// Why there is no identity.
#[derive(Debug)]
pub(crate) enum ReviewError {
    /// The token is not valid. The text is for the author of the client.
    Refused(String),
    /// The token's holder lacks the right. The text is for the administrator.
    Denied(String),
    /// The peer's share of reviews, or all of them, were in use until the time-out.
    TooManyReviews,
    /// The authenticator did not answer in time.
    TimedOut,
    /// The authenticator failed.
    Unavailable(AuthError),
}

/// What a review has found, as long as it is cached.
#[derive(Clone)]
enum Verdict<T> {
    Accepted(T),
    Refused(String),
    Denied(String),
}

#[derive(Clone)]
struct CachedVerdict<T> {
    verdict: Verdict<T>,
    until: Instant,
}

impl TokenReviews {
    pub(crate) fn new(authenticator: Arc<dyn Authenticator>, config: &Config, metrics: Metrics) -> Self {
        Self {
            authenticator,
            pods: VerdictCache::new(config),
            users: VerdictCache::new(config),
            places: ReviewPlaces::new(config),
            timeout: config.store_timeout,
            refused_pause: config.refused_review_pause,
            metrics,
        }
    }

    /// The pod to which this token is bound.
    pub(crate) async fn pod(
        &self,
        peer: Option<PeerAddress>,
        token: &str,
    ) -> Result<PodIdentity, ReviewError> {
        let deadline = Instant::now() + self.timeout;
        let review = self.review(peer, deadline, self.authenticator.review(token));
        let key = Sha256::digest(token).into();
        self.answer(timeout_at(deadline, self.pods.get_or_review(key, review)).await)
    }

    /// The user whose token this is, if the user has this access to the run.
    pub(crate) async fn user(
        &self,
        peer: Option<PeerAddress>,
        token: &str,
        (run, access): (&RunName, Access),
    ) -> Result<User, ReviewError> {
        let deadline = Instant::now() + self.timeout;
        let review = self.review(peer, deadline, self.authenticator.authorize(token, run, access));
        let mut hash = Sha256::new();
        for part in [token, &run.namespace, &run.name, access.document, access.verb.name()] {
            // With its length, so that no other five texts have this hash.
            hash.update(part.len().to_be_bytes());
            hash.update(part);
        }
        let key = hash.finalize().into();
        self.answer(timeout_at(deadline, self.users.get_or_review(key, review)).await)
    }

    /// The UID of a namespace, for a user whom the API server has authorized.
    pub(crate) async fn namespace_uid(&self, namespace: &str) -> Result<Option<String>, ReviewError> {
        let read = self.authenticator.namespace_uid(namespace);
        match tokio::time::timeout(self.timeout, read).await {
            Ok(read) => read.map_err(ReviewError::Unavailable),
            Err(_) => Err(ReviewError::TimedOut),
        }
    }

    /// Waits for a place and reviews.
    async fn review<T>(
        &self,
        peer: Option<PeerAddress>,
        deadline: Instant,
        review: impl Future<Output = Result<T, AuthError>>,
    ) -> Result<Verdict<T>, ReviewError> {
        let place = timeout_at(deadline, self.places.acquire(peer)).await;
        let place = place.ok().flatten().ok_or(ReviewError::TooManyReviews)?;
        let reviewed = timeout_at(deadline, review).await;
        let (outcome, verdict) = match reviewed {
            Ok(Ok(identity)) => (TokenReviewOutcome::Accepted, Ok(Verdict::Accepted(identity))),
            Ok(Err(AuthError::Refused(why))) => {
                (TokenReviewOutcome::Refused, Ok(Verdict::Refused(shorten(&why))))
            }
            Ok(Err(AuthError::Denied(why))) => (TokenReviewOutcome::Denied, Ok(Verdict::Denied(why))),
            Ok(Err(error @ AuthError::Unavailable(_))) => {
                (TokenReviewOutcome::Unavailable, Err(ReviewError::Unavailable(error)))
            }
            Err(_) => (TokenReviewOutcome::Unavailable, Err(ReviewError::TimedOut)),
        };
        self.metrics.token_reviewed(outcome);
        if matches!(verdict, Ok(Verdict::Refused(_))) {
            place.keep_for(self.refused_pause);
        }
        verdict
    }

    /// The identity of a verdict. `Err(_)`: the wait for a review of the same token took too long.
    fn answer<T, E>(
        &self,
        verdict: Result<Result<(Verdict<T>, Source), ReviewError>, E>,
    ) -> Result<T, ReviewError> {
        let answer = match verdict.unwrap_or(Err(ReviewError::TooManyReviews)) {
            Ok((verdict, source)) => {
                if source == Source::Cache {
                    self.metrics.token_reviewed(TokenReviewOutcome::Cached);
                }
                match verdict {
                    Verdict::Accepted(identity) => Ok(identity),
                    Verdict::Refused(why) => Err(ReviewError::Refused(why)),
                    Verdict::Denied(why) => Err(ReviewError::Denied(why)),
                }
            }
            Err(error) => Err(error),
        };
        if matches!(answer, Err(ReviewError::TooManyReviews)) {
            self.metrics.token_reviewed(TokenReviewOutcome::Rejected);
        }
        answer
    }
}

fn shorten(text: &str) -> String {
    text.chars().take(REFUSAL_CHARS).collect()
}

/// Where a verdict comes from.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Source {
    Review,
    /// The cache, or a review of the same token that was under way.
    Cache,
}

/// Verdicts by the hash of what was reviewed. No token is kept.
struct VerdictCache<T> {
    verdicts: Cache<Digest, CachedVerdict<T>>,
    accepted_ttl: Duration,
    refused_ttl: Duration,
}

impl<T: Clone> VerdictCache<T> {
    fn new(config: &Config) -> Self {
        Self {
            verdicts: Cache::new(VERDICTS),
            accepted_ttl: config.accepted_token_ttl,
            refused_ttl: config.refused_token_ttl,
        }
    }

    /// The cached verdict, or that of `review`. Of several callers with one key, one reviews and the others wait for it. If
    /// it fails or is dropped, the next one reviews.
    async fn get_or_review(
        &self,
        key: Digest,
        review: impl Future<Output = Result<Verdict<T>, ReviewError>>,
    ) -> Result<(Verdict<T>, Source), ReviewError> {
        loop {
            let guard = match self.verdicts.get_value_or_guard_async(&key).await {
                Ok(cached) if cached.is_valid() => return Ok((cached.verdict, Source::Cache)),
                Ok(_) => {
                    self.verdicts.remove_if(&key, |cached| !cached.is_valid());
                    continue;
                }
                Err(guard) => guard,
            };
            let verdict = review.await?;
            let ttl = match verdict {
                Verdict::Accepted(_) => self.accepted_ttl,
                Verdict::Refused(_) | Verdict::Denied(_) => self.refused_ttl,
            };
            // Fails only if the entry was removed meanwhile; then the verdict is not cached.
            let _ = guard.insert(CachedVerdict { verdict: verdict.clone(), until: Instant::now() + ttl });
            return Ok((verdict, Source::Review));
        }
    }
}

impl<T> CachedVerdict<T> {
    fn is_valid(&self) -> bool {
        Instant::now() < self.until
    }
}

/// The reviews that may be under way at once, in all and for each peer.
struct ReviewPlaces {
    total: Arc<Semaphore>,
    per_peer: usize,
    peers: Cache<Option<PeerAddress>, PeerPlaces>,
}

/// The places of one peer.
#[derive(Clone)]
struct PeerPlaces {
    reviews: Arc<Semaphore>,
    /// How many of them may be in a pause at once.
    pauses: Arc<Semaphore>,
}

/// A review may be under way until this is dropped.
struct ReviewPlace {
    of_peer: OwnedSemaphorePermit,
    pauses_of_peer: Arc<Semaphore>,
    _of_total: OwnedSemaphorePermit,
}

impl ReviewPlaces {
    fn new(config: &Config) -> Self {
        Self {
            total: Arc::new(Semaphore::new(config.max_token_reviews)),
            per_peer: config.max_token_reviews_per_peer,
            peers: Cache::new(PEERS),
        }
    }

    /// Waits for a place: first of the peer, then of all. `None` only if a semaphore was closed, which never happens.
    async fn acquire(&self, peer: Option<PeerAddress>) -> Option<ReviewPlace> {
        let new = || Ok::<_, Infallible>(PeerPlaces::new(self.per_peer));
        let Ok(PeerPlaces { reviews, pauses }) = self.peers.get_or_insert_with(&peer, new);
        let of_peer = reviews.acquire_owned().await.ok()?;
        let of_total = self.total.clone().acquire_owned().await.ok()?;
        Some(ReviewPlace { of_peer, pauses_of_peer: pauses, _of_total: of_total })
    }
}

impl PeerPlaces {
    /// So many places. Half of them, and never all, may be in a pause.
    fn new(places: usize) -> Self {
        Self { reviews: Arc::new(Semaphore::new(places)), pauses: Arc::new(Semaphore::new(places / 2)) }
    }
}

impl ReviewPlace {
    /// Frees the place among all at once, and that of the peer after a pause; at once if as many of the peer's places
    /// as may be are in a pause.
    fn keep_for(self, pause: Duration) {
        let Self { of_peer, pauses_of_peer, _of_total } = self;
        let Ok(pausing) = pauses_of_peer.try_acquire_owned() else { return };
        tokio::spawn(async move {
            sleep(pause).await;
            drop((of_peer, pausing));
        });
    }
}
