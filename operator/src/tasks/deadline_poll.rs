//! The deadline poll: one query a second for all runs. It finds expired deadlines, transitions and moved heads, none of
//! which a watch of the API server shows. A quiet run costs no write.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use dalsegno_core::decide::RECHECK_INTERVAL;
use dalsegno_model::{Changed, DeadlinePoll, Expired, ObjectKey, PollSince, TRANSITION_OVERLAP};
use jiff::Timestamp;
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use super::progress_mirror::ProgressMirror;
use crate::cache::pods::RunKey;
use crate::controller::context::Context;
use crate::log::error_chain;

/// Interval between two polls.
const INTERVAL: Duration = Duration::from_secs(1);

/// Polls until `stop`. A run with an expired deadline or a transition is enqueued at once; a run whose head moved, at the
/// pace of the [`ProgressMirror`]. An expired deadline without a consequence, as while the run is held, enqueues the run
/// again only slowly.
pub async fn run(ctx: Arc<Context>, stop: CancellationToken) {
    ctx.metrics.start_deadline_polls();
    let mut ticks = interval(INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut state = PollState::default();
    let mut since = PollSince::last_poll(Timestamp::now());
    while stop.run_until_cancelled(ticks.tick()).await.is_some() {
        match ctx.store.poll_deadlines(since).await {
            Ok(poll) => {
                since = PollSince::last_poll(poll.now);
                ctx.metrics.count_deadline_poll(true);
                state.apply(&ctx, poll);
            }
            Err(error) => {
                ctx.metrics.count_deadline_poll(false);
                tracing::warn!(error = error_chain(&error), "the store could not be polled for deadlines");
            }
        }
    }
}

/// Results of earlier polls.
#[derive(Default)]
struct PollState {
    /// When each expired deadline last enqueued its run.
    expired: HashMap<Expired, Timestamp>,
    /// The last transition for which each run was enqueued.
    transitions: HashMap<ObjectKey, Timestamp>,
    /// Heads that moved.
    mirror: ProgressMirror,
}

impl PollState {
    fn apply(&mut self, ctx: &Context, poll: DeadlinePoll) {
        let DeadlinePoll { now, store_id: _, expired, changed, active } = poll;
        // The reconcile checks the deadline again, on a row that may have a later heartbeat.
        let before = std::mem::take(&mut self.expired);
        for expired in expired {
            let recent =
                before.get(&expired).filter(|at| now.duration_since(**at).unsigned_abs() < RECHECK_INTERVAL);
            if recent.is_none() {
                enqueue(ctx, &expired.object);
            }
            self.expired.insert(expired, *recent.unwrap_or(&now));
        }
        // Polls overlap: a transition is in many of them, and is remembered for longer than that.
        self.transitions.retain(|_, at| now.duration_since(*at) < TRANSITION_OVERLAP * 4);
        for Changed { object, transition, head_moved, transition_at } in changed {
            if transition && self.transitions.insert(object.clone(), transition_at) != Some(transition_at) {
                enqueue(ctx, &object);
            } else if head_moved {
                self.mirror.insert(object);
            }
        }
        ctx.metrics.set_active_runs(active);
        self.mirror.take_due(active).iter().for_each(|object| enqueue(ctx, object));
    }
}

fn enqueue(ctx: &Context, object: &ObjectKey) {
    ctx.enqueue(&RunKey { namespace: object.namespace.clone(), name: object.name.clone() });
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a panic fails the test")]

    use dalsegno_model::Deadline;

    use super::*;
    use crate::test_context::{TestContext, render_metrics};

    #[tokio::test]
    async fn the_leader_counts_deadline_polls_from_0_and_a_standby_has_no_series() {
        let store = Arc::new(dalsegno_store::sqlite::Sqlite::memory().await.unwrap());
        let ctx = TestContext::new(store, vec![]).ctx;
        assert!(!render_metrics(&ctx.metrics).contains("deadline_polls_total{"));
        let stop = CancellationToken::new();
        stop.cancel();
        run(ctx.clone(), stop).await;
        let text = render_metrics(&ctx.metrics);
        assert!(text.contains("deadline_polls_total{outcome=\"ok\"} 0\n"), "{text}");
    }

    #[tokio::test]
    async fn a_transition_enqueues_its_run_once_although_it_is_in_many_polls() {
        let store = Arc::new(dalsegno_store::sqlite::Sqlite::memory().await.unwrap());
        let mut ctx = TestContext::new(store, vec![]).ctx;
        let (queue, mut queued) = tokio::sync::mpsc::unbounded_channel();
        Arc::get_mut(&mut ctx).unwrap().queue = queue;
        let mut state = PollState::default();
        let mut enqueued = |second: i64, at: i64| {
            // A new mirror gives at once what is put into it. Here that is nothing, since no head has moved.
            state.mirror = ProgressMirror::default();
            let changed = Changed {
                object: ObjectKey { namespace: "shop".into(), name: "nightly".into(), uid: "uid-1".into() },
                transition: true,
                head_moved: false,
                transition_at: Timestamp::from_second(at).unwrap(),
            };
            let now = Timestamp::from_second(second).unwrap();
            let store_id = Default::default();
            state.apply(
                &ctx,
                DeadlinePoll { now, store_id, expired: vec![], changed: vec![changed], active: 0 },
            );
            std::iter::from_fn(|| queued.try_recv().ok()).count()
        };
        assert_eq!(enqueued(0, 0), 1);
        assert_eq!([enqueued(1, 0), enqueued(30, 0), enqueued(31, 0)], [0; 3]);
        assert_eq!(enqueued(32, 12), 1, "a later transition that became visible late");
    }

    #[tokio::test]
    async fn the_second_of_two_timers_within_a_second_enqueues_the_run_too() {
        let store = Arc::new(dalsegno_store::sqlite::Sqlite::memory().await.unwrap());
        let mut ctx = TestContext::new(store, vec![]).ctx;
        let (queue, mut queued) = tokio::sync::mpsc::unbounded_channel();
        Arc::get_mut(&mut ctx).unwrap().queue = queue;
        let mut state = PollState::default();
        let mut enqueued = |second: i64, wake_at_ms: i64| {
            let wake = Expired {
                object: ObjectKey { namespace: "shop".into(), name: "nightly".into(), uid: "uid-1".into() },
                attempt: 1,
                deadline: Deadline::Wake,
                wake_at: Timestamp::from_millisecond(wake_at_ms).ok(),
            };
            let (now, store_id) = (Timestamp::from_second(second).unwrap(), Default::default());
            state
                .apply(&ctx, DeadlinePoll { now, store_id, expired: vec![wake], changed: vec![], active: 0 });
            std::iter::from_fn(|| queued.try_recv().ok()).count()
        };
        assert_eq!([enqueued(1, 900), enqueued(2, 1_100), enqueued(3, 1_100)], [1, 1, 0]);
    }

    #[tokio::test]
    async fn an_expired_deadline_without_consequence_enqueues_its_run_once_and_then_slowly() {
        let store = Arc::new(dalsegno_store::sqlite::Sqlite::memory().await.unwrap());
        let mut ctx = TestContext::new(store, vec![]).ctx;
        let (queue, mut queued) = tokio::sync::mpsc::unbounded_channel();
        Arc::get_mut(&mut ctx).unwrap().queue = queue;
        let mut state = PollState::default();
        let mut enqueued = |second: i64, expired: &[(&str, i32, Deadline)]| {
            let expired = expired.iter().map(|(name, attempt, deadline)| Expired {
                object: ObjectKey { namespace: "shop".into(), name: (*name).into(), uid: "uid-1".into() },
                attempt: *attempt,
                deadline: *deadline,
                wake_at: None,
            });
            let now = Timestamp::from_second(second).unwrap();
            let store_id = Default::default();
            state.apply(
                &ctx,
                DeadlinePoll { now, store_id, expired: expired.collect(), changed: vec![], active: 0 },
            );
            std::iter::from_fn(|| queued.try_recv().ok()).map(|it| it.name).collect::<Vec<_>>()
        };
        let lease = ("nightly", 1, Deadline::Lease);
        assert_eq!(enqueued(0, &[lease]), ["nightly"]);
        assert_eq!(enqueued(1, &[lease, ("other", 1, Deadline::Lease)]), ["other"]);
        assert_eq!(enqueued(59, &[lease]), [""; 0]);
        assert_eq!(enqueued(60, &[lease]), ["nightly"]);
        assert_eq!(enqueued(61, &[("nightly", 1, Deadline::Progress)]), ["nightly"], "another deadline");
        assert_eq!(enqueued(62, &[("nightly", 2, Deadline::Progress)]), ["nightly"], "another attempt");
        assert_eq!(enqueued(63, &[]), [""; 0]);
        assert_eq!(
            enqueued(64, &[("nightly", 2, Deadline::Progress)]),
            ["nightly"],
            "it was not expired in between"
        );
    }
}
