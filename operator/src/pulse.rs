//! The pulse: one query a second for all runs, for what no watch tells.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use dalsegno_store::{Changed, ObjectKey, Pulse};
use jiff::{SignedDuration, Timestamp};
use tokio::time::{Instant, MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use crate::context::Context;
use crate::pods::RunKey;

/// How often the store is asked.
const PERIOD: Duration = Duration::from_secs(1);
/// Statements that were under way when the last answer was made may show this much later.
const MARGIN: SignedDuration = SignedDuration::from_secs(3);
/// Progress is mirrored at most this often…
const MIRROR: Duration = Duration::from_secs(10);
/// …and at most for this many runs a second.
const MIRRORS_PER_SECOND: i64 = 20;

/// Asks until told to stop. Deadlines that ran out and transitions wake their runs at once, heads that moved wake
/// theirs at the mirror's pace.
pub async fn follow(ctx: Arc<Context>, stop: CancellationToken) {
    let mut ticks = interval(PERIOD);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut mirror = Mirror::default();
    let mut told = HashMap::new();
    let mut since = Timestamp::now() - MARGIN;
    while stop.run_until_cancelled(ticks.tick()).await.is_some() {
        match ctx.store.pulse(since).await {
            Ok(pulse) => {
                since = pulse.now - MARGIN;
                ctx.metrics.pulse(true);
                take(&ctx, pulse, &mut told, &mut mirror);
            }
            Err(error) => {
                ctx.metrics.pulse(false);
                tracing::warn!(
                    error = crate::telemetry::chain(&error),
                    "the store could not be asked for its pulse"
                );
            }
        }
    }
}

/// Heads that moved and are not mirrored yet.
#[derive(Default)]
struct Mirror {
    moved: HashSet<ObjectKey>,
    last: Option<Instant>,
}

fn take(ctx: &Context, pulse: Pulse, told: &mut HashMap<ObjectKey, Timestamp>, mirror: &mut Mirror) {
    let Pulse { now, store_id: _, expired, changed, active } = pulse;
    // Whether it is so is judged by the row that is read then: a late heartbeat may stand in it.
    for expired in expired {
        wake(ctx, &expired.object);
    }
    // Two answers overlap by the margin: a transition that was told before is no news.
    told.retain(|_, at| now.duration_since(*at) < MARGIN * 4);
    for Changed { object, transition, transition_at } in changed {
        if !transition {
            mirror.moved.insert(object);
        } else if told.insert(object.clone(), transition_at) != Some(transition_at) {
            wake(ctx, &object);
        } else {
            mirror.moved.insert(object);
        }
    }
    ctx.metrics.active(active);
    let pace =
        MIRROR.max(Duration::from_secs(u64::try_from(active / MIRRORS_PER_SECOND).unwrap_or_default()));
    if mirror.last.is_none_or(|last| last.elapsed() >= pace) {
        mirror.last = Some(Instant::now());
        for object in mirror.moved.drain() {
            wake(ctx, &object);
        }
    }
}

fn wake(ctx: &Context, object: &ObjectKey) {
    ctx.look_at(&RunKey { namespace: object.namespace.clone(), name: object.name.clone() });
}
