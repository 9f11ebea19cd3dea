//! The worker opens a wait.

use dalsegno_protocol::{Limits, OnTimeout, WaitKind, WaitOutcome, WaitState};
use serde_json::json;
use sha2::{Digest as _, Sha256};

use super::waits::{answer_by_clock, answer_by_message, update_waits};
use super::worker::has_capability;
use super::{
    Change, Decision, MovedRateLimit, Needs, OutboxEntry, RateLimitQuery, RateLimitQueue, Rows, Transition,
    UnreadQuery, WaitsQuery, text,
};
use crate::db_error::{DbError, DbResult};
use crate::reads::{BoundaryColumn, EnumText, Hash, RunRow, StoredWait, WaitRow};
use dalsegno_format::seal::{AadContext, BodyDigest, CallDigestsExt as _, PayloadCipher};
use dalsegno_format::{codec, header};
use dalsegno_model::audit::{actor, kind};
use dalsegno_model::{Digest, OpenWaitRequest, Result, RunId, WaitAsks, WaitOpened};

/// How long a wait for a rate limit lasts if the provider did not say when it ends. In milliseconds.
const UNKNOWN_RESET_MS: i64 = 60_000;

/// The time between two groups of runs that try a provider again, each twice as large as the one before. In
/// milliseconds.
const RAMP_MS: i64 = 5_000;

/// A run is a probe of a rate limit for so long after its wait for it: what it learns then moves the waits of other runs.
/// In milliseconds.
const PROBE_MS: i64 = 300_000;

/// The runs of a group try within this time. In milliseconds.
const JITTER_MS: u64 = 1_000;

/// [`dalsegno_model::Worker::open_wait`].
pub(crate) struct OpenWait {
    capability: Digest,
    ids: [String; 1],
    digest: BodyDigest,
    bytes: i64,
    asks: WaitAsks,
    deadline_ms: Option<i64>,
    on_timeout: OnTimeout,
    /// The body as it came.
    body: String,
    /// The request, encoded. It is sealed in the transition, since its place has the epoch.
    request: Vec<u8>,
    cipher: PayloadCipher,
}

impl OpenWait {
    pub fn of(request: &OpenWaitRequest, cipher: PayloadCipher) -> Result<Self> {
        let OpenWaitRequest {
            run: _,
            capability,
            ref id,
            digest,
            ref body,
            ref asks,
            deadline_ms,
            on_timeout,
        } = *request;
        Ok(Self {
            capability,
            ids: [text(id)],
            digest: cipher.body(digest),
            bytes: body.get().len() as i64,
            request: codec::encode(stored_request(asks, body.get()).as_bytes()),
            body: body.get().to_owned(),
            asks: asks.clone(),
            deadline_ms,
            on_timeout,
            cipher,
        })
    }

    /// The wait's id, as the only one of a list.
    #[cfg(feature = "sqlite")]
    pub fn ids(&self) -> &[String] {
        &self.ids
    }

    fn id(&self) -> &str {
        &self.ids[0]
    }

    /// The wait that was opened before, or why none is opened.
    fn refuse(
        &self,
        run: &RunRow,
        is_live: bool,
        before: Option<&StoredWait>,
    ) -> DbResult<Option<WaitOpened>> {
        if !has_capability(run, &self.capability) {
            return Ok(Some(WaitOpened::Fenced));
        }
        if !is_live {
            return Ok(Some(WaitOpened::Finished));
        }
        if let Some(before) = before {
            return Ok(Some(if self.digest.matches(&before.row.digest.0) {
                WaitOpened::Wait(Box::new(before.public(&self.cipher)?))
            } else {
                WaitOpened::Invalid(format!(
                    "wait {:?} was opened with another body; give another wait another id",
                    self.id()
                ))
            }));
        }
        Ok(if run.open_waits >= Limits::WAITS as i64 {
            Some(WaitOpened::TooMany)
        } else if run.open_wait_bytes + self.bytes > Limits::OPEN_WAIT_BYTES as i64 {
            Some(WaitOpened::TooLarge)
        } else {
            None
        })
    }

    /// The current attempt waits for what an earlier one has opened, so the wait is one of its own
    /// ([`dalsegno_model::RunRecord::unattended_wait`]). Not in the audit: the run's row is unchanged.
    fn take_over(&self, change: &mut Change) {
        let attempt = change.row().attempt;
        let is_it = |wait: &&mut WaitRow| wait.id == self.id() && wait.is_open();
        for wait in change.waits_mut().iter_mut().filter(is_it) {
            wait.attempt = attempt;
        }
    }

    /// The new row.
    fn row(&self, run: &RunRow, now: i64, queue: RateLimitQueue) -> WaitRow {
        let longest = Limits::WAIT_SECONDS * 1_000;
        let mut row = WaitRow {
            run: run.id,
            id: self.id().to_owned(),
            epoch: run.epoch,
            ordinal: run.last_wait + 1,
            turn: run.open_turn(),
            boundary: BoundaryColumn(run.next_boundary()),
            undone: false,
            attempt: run.attempt,
            kind: EnumText(self.asks.kind()),
            state: EnumText(WaitState::Open),
            digest: Hash(self.digest.stored),
            bytes: self.bytes,
            deadline_at: self.deadline_ms.map(|ms| now + ms.clamp(0, longest)),
            on_timeout: EnumText(self.on_timeout),
            timed_out_at: None,
            wake_at: None,
            reset_at: None,
            provider: None,
            topic: None,
            proposal_hash: None,
            opened_at: now,
            answered_at: None,
            outcome: None,
            position: None,
        };
        match &self.asks {
            WaitAsks::Approval { proposal_hash, .. } => row.proposal_hash = Some(Hash(*proposal_hash)),
            WaitAsks::Until(time) => row.wake_at = Some(time.as_millisecond().min(now + longest)),
            WaitAsks::Message(topic) => row.topic = topic.as_deref().map(text),
            WaitAsks::RateLimit { provider, reset } => {
                let reset = reset.map_or(now + UNKNOWN_RESET_MS, |reset| reset.as_millisecond());
                let reset = reset.clamp(now, now + Limits::RATE_LIMIT_SECONDS * 1_000);
                row.provider = Some(text(provider));
                row.reset_at = Some(reset);
                row.wake_at = Some(reset + ramp_ms(queue) + jitter_ms(run.id));
            }
        }
        row
    }
}

impl Transition for OpenWait {
    type Answer = WaitOpened;
    const OPERATION: &'static str = "opening a wait";

    fn needs(&self) -> Needs<'_> {
        let (rate_limit, unread) = match &self.asks {
            WaitAsks::RateLimit { provider, .. } => {
                (Some(RateLimitQuery { provider, probe_ms: PROBE_MS, first_ms: RAMP_MS }), None)
            }
            WaitAsks::Message(topic) => (None, Some(UnreadQuery { topic: topic.as_deref() })),
            WaitAsks::Approval { .. } | WaitAsks::Until(_) => (None, None),
        };
        Needs::Waits(WaitsQuery { ids: &self.ids, rate_limit, unread })
    }

    fn decide(&self, mut rows: Rows) -> DbResult<Decision<WaitOpened>> {
        let (before, queue, unread) = (rows.named_waits.pop(), rows.rate_limit, rows.unread_message);
        let mut change = Change::of(rows);
        if let Some(answer) = self.refuse(change.row(), change.is_live(), before.as_ref())? {
            if matches!(answer, WaitOpened::Wait(_)) {
                self.take_over(&mut change);
            }
            return Ok(change.decide(answer));
        }
        let row = self.row(change.row(), change.now(), queue);
        let request = self.cipher.seal(AadContext::WaitRequest(&row.id, row.epoch), self.request.clone())?;
        let request_digest = self.cipher.wait_digests(&row.id, row.epoch).render(&self.body);
        let mut detail = json!({
            "wait": row.id, "epoch": row.epoch, "kind": row.kind.0, "turn": row.turn,
            "boundary": row.boundary.0, "request": request_digest, "onTimeout": row.on_timeout.0,
        });
        for (name, at) in [("deadlineAt", row.deadline_at), ("wakeAt", row.wake_at)] {
            if let Some(at) = at {
                detail[name] = at.into();
            }
        }
        if let Some(Hash(hash)) = row.proposal_hash {
            detail["proposalHash"] = header::render(&hash).into();
        }
        change.audit(kind::WAIT_OPENED, actor::WORKER, detail);
        if let (Some(provider), Some(reset_at), true) = (&row.provider, row.reset_at, queue.is_probe) {
            let tenant = change.row().tenant.clone();
            change.move_rate_limit(MovedRateLimit { tenant, provider: provider.clone(), reset_at });
        }
        let run = change.run();
        run.last_wait = row.ordinal;
        run.stored_bytes += request.len() as i64;
        if row.kind.0 == WaitKind::Approval {
            change.notify();
            change.notify_people(OutboxEntry::approval_requested(&row)?);
        }
        let (now, id, wake_at) = (change.now(), row.id.clone(), row.wake_at);
        change.open_wait(row, request);
        update_waits(&mut change);
        if wake_at.is_some_and(|at| at <= now) {
            answer_by_clock(&mut change, &id, WaitOutcome::Elapsed);
        }
        if let Some(position) = unread {
            answer_by_message(&mut change, &id, position);
        }
        let Some(row) = change.waits().last().cloned() else {
            return Err(DbError::Corrupt("a new wait is not among the waits of its run".into()));
        };
        let opened = StoredWait { row, answer: None }.public(&self.cipher)?;
        Ok(change.decide(WaitOpened::Wait(Box::new(opened))))
    }

    fn without_run(&self, _: RunId) -> DbResult<WaitOpened> {
        Ok(WaitOpened::NotFound)
    }
}

/// The request as it is stored: the body, and for an approval the salt of its hash.
fn stored_request(asks: &WaitAsks, body: &str) -> String {
    match asks {
        WaitAsks::Approval { salt, .. } => {
            format!("{{\"salt\":\"{:032x}\",\"request\":{body}}}", u128::from_be_bytes(*salt))
        }
        WaitAsks::Until(_) | WaitAsks::Message(_) | WaitAsks::RateLimit { .. } => {
            format!("{{\"request\":{body}}}")
        }
    }
}

/// How long after the end of a rate limit a run tries again, by the runs that wait already: one run tries first, then
/// twice as many in each group. Whoever finds no run that tries first does so itself: a probe that is limited again is the
/// next probe.
fn ramp_ms(queue: RateLimitQueue) -> i64 {
    let before = if queue.first == 0 { 0 } else { queue.others };
    let group = before.max(0).unsigned_abs().saturating_add(1).ilog2();
    RAMP_MS * i64::from(group)
}

/// Less than [`JITTER_MS`], and always the same for one run.
fn jitter_ms(run: RunId) -> i64 {
    let hash = Sha256::digest(run.as_bytes());
    let number = hash.iter().take(8).fold(0, |number, byte| number << 8 | u64::from(*byte));
    i64::try_from(number % JITTER_MS).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_run_tries_a_rate_limit_first_and_then_twice_as_many_in_each_group() {
        let queue = |others: i64| RateLimitQueue { others, first: others.min(1), is_probe: false };
        let groups: Vec<_> = (0..15).map(|others| ramp_ms(queue(others)) / RAMP_MS).collect();
        assert_eq!(groups, [0, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3]);
    }

    #[test]
    fn a_run_that_finds_no_other_that_tries_first_does_so() {
        assert_eq!(ramp_ms(RateLimitQueue { others: 49, first: 0, is_probe: true }), 0);
    }

    #[test]
    fn the_jitter_of_a_run_is_short_and_fixed() {
        for run in (0..100).map(RunId::from_u128) {
            assert!((0..1_000).contains(&jitter_ms(run)));
            assert_eq!(jitter_ms(run), jitter_ms(run));
        }
    }
}
