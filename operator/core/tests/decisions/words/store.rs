//! The store's row.

use dalsegno_core::settings::Settings;
use dalsegno_model::{
    Attempt, AttemptEnd, AttemptState, BeatRow, CallCounts, CancelRow, Cause, Class, Counters, FinishRow,
    HeadRow, Lifecycle, Retention, RunOutcome, RunRecord, Verdict,
};
use dalsegno_protocol::{Boundary, Policy, Usage};
use uuid::Uuid;

use super::ends::{identity, reserved};
use super::{Given, Past, RUN, UID, ago, now};

/// The store's id.
pub const STORE: Uuid = Uuid::from_u128(0x5707e);

/// A run that was just taken up.
pub fn fresh_row() -> RunRecord {
    RunRecord {
        id: Uuid::from_u128(0x0194_0000_0000_7000_8000_0000_0000_0001),
        store_id: STORE,
        now: now(),
        tenant: "namespace-uid".into(),
        namespace: "prod".into(),
        name: RUN.into(),
        object_uid: UID.into(),
        lifecycle: Lifecycle::Live,
        epoch: 1,
        attempt: reserved(1),
        past: Vec::new(),
        head: None,
        highest_turn: 0,
        counters: Counters::default(),
        observed_reset_generation: 0,
        reset_attempt: 0,
        calls: CallCounts::default(),
        usage: Usage::default(),
        cancel: None,
        finish: None,
        deadlines: Settings::resolve(&Default::default(), &Default::default()).deadlines,
        lease_ms: 0,
        beat: BeatRow { last: now(), since: ago(86_400), gap_from: ago(86_400) },
        created_at: ago(3_600),
        retention: Retention::default(),
        dropped_to: None,
    }
}

impl Given {
    /// The row's deadlines are those of the spec.
    pub fn obeyed(mut self) -> Self {
        let settings = Settings::of(&self.run, &self.seen.agent);
        (self.row.deadlines, self.row.retention) = (settings.deadlines, settings.retention);
        self
    }

    // Where the current attempt stands.

    pub fn reserved(mut self, number: i32) -> Self {
        self.row.attempt = Attempt { turn_at_start: self.turn(), ..reserved(number) };
        self
    }

    /// Its pod was recorded 60 s ago and has had a node ever since.
    pub fn created(self, number: i32) -> Self {
        let mut given = self.reserved(number);
        let attempt = &mut given.row.attempt;
        attempt.state = AttemptState::Created;
        attempt.pod_uid = Some(format!("pod-{number}"));
        attempt.pod_name = Some(format!("{RUN}-{number}"));
        attempt.revision = Some("sha256:made-from".into());
        attempt.created_at = Some(ago(60));
        attempt.scheduled_at = Some(ago(60));
        attempt.node = Some("n1".into());
        given
    }

    /// Its worker attached 50 s ago; its image is `a`.
    pub fn attached(self, number: i32) -> Self {
        let mut given = self.created(number).is('a');
        given.row.attempt.state = AttemptState::Attached;
        given.row.attempt.attached_at = Some(ago(50));
        given
    }

    /// The current attempt's image, accepted.
    pub fn is(mut self, image: char) -> Self {
        self.row.attempt.identity = Some(identity(None, image));
        self
    }

    pub fn refused_version(mut self) -> Self {
        let mut refused = identity(None, 'b');
        refused.verdict = Verdict::Refused;
        refused.remark = "the versions differ".into();
        self.row.attempt.identity = Some(refused);
        self
    }

    pub fn allowed_version(mut self) -> Self {
        let mut allowed = identity(None, 'b');
        allowed.verdict = Verdict::Allowed;
        allowed.remark = "the versions differ, and that is allowed".into();
        self.row.attempt.identity = Some(allowed);
        self
    }

    pub fn spent(mut self) -> Self {
        self.row.attempt.spent = true;
        self
    }

    pub fn no_node_yet(mut self) -> Self {
        self.row.attempt.scheduled_at = None;
        self.row.attempt.node = None;
        self
    }

    pub fn attached_ago(mut self, seconds: i64) -> Self {
        self.row.attempt.attached_at = Some(ago(seconds));
        self
    }

    pub fn scheduled(mut self, seconds_ago: i64) -> Self {
        self.row.attempt.scheduled_at = Some(ago(seconds_ago));
        self
    }

    /// The last heartbeat, which binds a lease.
    pub fn heartbeat(mut self, seconds_ago: i64) -> Self {
        self.row.attempt.lease_renewed_at = Some(ago(seconds_ago));
        self
    }

    /// What the worker was told then of its lease.
    pub fn lease(mut self, seconds: i64) -> Self {
        self.row.lease_ms = seconds * 1_000;
        self
    }

    // What was committed, and what became of it.

    /// Turn `turn` was committed 40 s ago by the current attempt if it is attached, else by the one before; by image
    /// `a`, whose template was `sha256:made-from`.
    pub fn head(mut self, turn: i32) -> Self {
        let attached = self.row.attempt.state == AttemptState::Attached;
        let number = self.row.attempt.number;
        self.row.head = Some(HeadRow {
            turn,
            boundary: Boundary::Result,
            epoch: 1,
            attempt: if attached { number } else { number - 1 },
            position: i64::from(turn) * 10,
            content_hash: format!("sha256:{turn:064}"),
            at: ago(40),
            revision: Some("sha256:made-from".into()),
            identity: Some(identity(None, 'a')),
        });
        self.row.highest_turn = turn;
        if !attached {
            self.row.attempt.turn_at_start = turn;
        }
        self
    }

    /// It was rewound to here from this turn; event positions never go back.
    pub fn once_at(mut self, turn: i32) -> Self {
        self.row.highest_turn = turn;
        if let Some(head) = &mut self.row.head {
            head.position = i64::from(turn) * 10;
        }
        self
    }

    pub fn committed(mut self, seconds_ago: i64) -> Self {
        self.row.head.as_mut().unwrap().at = ago(seconds_ago);
        self
    }

    /// The head was committed by an agent that declared this version.
    pub fn head_declared(mut self, version: &str) -> Self {
        self.row.head.as_mut().unwrap().identity = Some(identity(Some(version), 'a'));
        self
    }

    /// The head was committed from this template.
    pub fn head_made_from(mut self, revision: &str) -> Self {
        self.row.head.as_mut().unwrap().revision = Some(revision.into());
        self
    }

    /// An earlier attempt; told the latest first.
    pub fn after(mut self, past: Past) -> Self {
        self.row.past.push(past.0);
        self
    }

    pub fn crashes(mut self, total: i32, in_a_row: i32) -> Self {
        self.row.counters.recovery_attempts = total;
        self.row.counters.attempts_without_progress = in_a_row;
        self
    }

    pub fn disruptions(mut self, total: i32, in_a_row: i32) -> Self {
        self.row.counters.disruptions = total;
        self.row.counters.disruptions_without_progress = in_a_row;
        self
    }

    /// A budget was granted: attempts up to `attempt` and these totals are forgiven.
    pub fn reset(mut self, generation: i64, attempt: i32) -> Self {
        let counters = &mut self.row.counters;
        counters.recovery_attempts_base = counters.recovery_attempts;
        counters.disruptions_base = counters.disruptions;
        self.row.observed_reset_generation = generation;
        self.row.reset_attempt = attempt;
        self
    }

    /// So many calls had their key refused.
    pub fn keys_refused(mut self, calls: i64) -> Self {
        self.row.calls.keys_refused = calls;
        self
    }

    /// So many calls of this policy are unsettled.
    pub fn unsettled(mut self, policy: Policy, calls: i64) -> Self {
        self.row.calls.unsettled.insert(policy, calls);
        self
    }

    // How it ends.

    pub fn cancel(mut self, requested: i64, told: Option<i64>) -> Self {
        self.row.cancel = Some(CancelRow { requested_at: ago(requested), told_at: told.map(ago) });
        self
    }

    /// Its worker finished it.
    pub fn finished(mut self, outcome: RunOutcome, seconds_ago: i64) -> Self {
        let (reason, message) = ("Done".into(), "all is said".into());
        let output = Some("{\"answer\": 1.0}".into());
        self.row.finish = Some(FinishRow { outcome, reason, message, output, at: ago(seconds_ago) });
        self.row.lifecycle = Lifecycle::Finished;
        self
    }

    /// The operator ended it.
    pub fn ended_by_operator(self, outcome: RunOutcome, seconds_ago: i64) -> Self {
        let mut given = self.finished(outcome, seconds_ago).ended();
        let finish = given.row.finish.as_mut().unwrap();
        (finish.output, finish.reason) = (None, "RecoveryLoop".into());
        given
    }

    /// Its attempt's end is the run's.
    pub fn cancelled_end(mut self) -> Self {
        self.row.attempt.end.as_mut().unwrap().cause = Cause::Cancelled;
        self
    }

    /// Its worker acknowledged a cancel.
    pub fn acknowledged(self, seconds_ago: i64) -> Self {
        let mut given = self.ended_by_operator(RunOutcome::Cancelled, seconds_ago);
        given.row.finish.as_mut().unwrap().message = String::new();
        given
    }

    /// The current attempt is ended.
    pub fn ended(mut self) -> Self {
        self.row.attempt.state = AttemptState::Ended;
        self.row.attempt.ended_at = Some(now());
        self.row.attempt.end = Some(AttemptEnd {
            cause: Cause::Evicted,
            class: Class::Disruption,
            charged: false,
            progress: true,
            exit_code: Some(143),
            message: "moved on".into(),
        });
        self
    }

    pub fn lifecycle(mut self, lifecycle: Lifecycle) -> Self {
        self.row.lifecycle = lifecycle;
        self
    }

    // When the gateways beat.

    /// Their last beat.
    pub fn last_beat(mut self, seconds_ago: i64) -> Self {
        self.row.beat.last = ago(seconds_ago);
        self
    }

    /// They were silent for a while, and have beaten since.
    pub fn gap(mut self, from: i64, to: i64) -> Self {
        self.row.beat.gap_from = ago(from);
        self.row.beat.since = ago(to);
        self
    }

    fn turn(&self) -> i32 {
        self.row.head.as_ref().map_or(0, |head| head.turn)
    }
}
