//! When a deadline of an attempt has expired: one table for readers of a run's record and for the SQL of the deadline
//! poll.
//!
//! An outage of the gateways is not charged to a worker. A deadline expires only while the gateways send heartbeats.
//! The length of each outage is added to every deadline that was running, so a hung worker is found however often the
//! store is unavailable for a moment. After an outage the workers have [`RECONNECT_MS`] to connect again.

use jiff::Timestamp;

use crate::{
    AttemptState, CANCEL_REPORTED_MS, CANCEL_UNREPORTED_MS, Deadline, HEARTBEAT_GAP_MS, HEARTBEATS_PER_LEASE,
    LIMIT_EXIT_MS, RECONNECT_MS, RunRecord,
};

/// A time in the run's row from which a deadline is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClockStart {
    /// A person requested a cancel.
    CancelRequested,
    /// The worker was notified of the cancel.
    CancelTold,
    /// A person suspended the run.
    SuspendRequested,
    /// The worker was notified of the suspend.
    SuspendTold,
    /// A limit of turns, tokens or cost was reached.
    LimitReached,
    /// The active time of the run was used up.
    ActiveTimeEnd,
    /// A heartbeat, or a write after one, renewed the lease.
    LeaseRenewed,
    /// The attempt's pod was scheduled.
    Scheduled,
    /// The attempt's worker attached.
    Attached,
    /// The attempt committed its latest boundary.
    LastBoundary,
}

/// How long a clock runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClockLength {
    /// So many milliseconds.
    Ms(i64),
    /// The heartbeat timeout; but the lease that was granted before, if that one is longer. While the gateway that
    /// renewed it is unavailable it is longer by that time, at most by the time between two heartbeats: the worker has
    /// to connect to another gateway.
    Lease,
    /// The start deadline.
    Start,
    /// The progress deadline.
    Progress,
    /// The time that a worker has to park.
    Suspend,
    /// Twice that time.
    SuspendTwice,
}

/// A clock of a run that is live.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    /// The deadline that has expired once the clock has run its length.
    pub deadline: Deadline,
    /// States of the attempt in which the clock runs.
    pub states: &'static [AttemptState],
    /// The clock runs from the latest of these. It does not run if there is none.
    pub starts: &'static [ClockStart],
    /// How long it runs.
    pub length: ClockLength,
}

const ANY: &[AttemptState] =
    &[AttemptState::Reserved, AttemptState::Created, AttemptState::Attached, AttemptState::Ended];

/// The clocks of all deadlines but [`Deadline::Wake`], in the order of [`Deadline`].
pub const CLOCKS: [Clock; 9] = [
    Clock {
        deadline: Deadline::Cancel,
        states: ANY,
        starts: &[ClockStart::CancelTold],
        length: ClockLength::Ms(CANCEL_REPORTED_MS),
    },
    Clock {
        deadline: Deadline::Cancel,
        states: ANY,
        starts: &[ClockStart::CancelRequested],
        length: ClockLength::Ms(CANCEL_UNREPORTED_MS),
    },
    Clock {
        deadline: Deadline::Suspend,
        states: &[AttemptState::Attached],
        starts: &[ClockStart::SuspendTold],
        length: ClockLength::Suspend,
    },
    Clock {
        deadline: Deadline::Suspend,
        states: &[AttemptState::Attached],
        starts: &[ClockStart::SuspendRequested],
        length: ClockLength::SuspendTwice,
    },
    Clock {
        deadline: Deadline::Limit,
        states: &[AttemptState::Attached],
        starts: &[ClockStart::LimitReached],
        length: ClockLength::Ms(LIMIT_EXIT_MS),
    },
    Clock {
        deadline: Deadline::Limit,
        states: &[AttemptState::Attached],
        starts: &[ClockStart::ActiveTimeEnd],
        length: ClockLength::Ms(LIMIT_EXIT_MS),
    },
    Clock {
        deadline: Deadline::Lease,
        states: &[AttemptState::Attached],
        starts: &[ClockStart::LeaseRenewed],
        length: ClockLength::Lease,
    },
    Clock {
        deadline: Deadline::Start,
        states: &[AttemptState::Reserved, AttemptState::Created],
        starts: &[ClockStart::Scheduled],
        length: ClockLength::Start,
    },
    Clock {
        deadline: Deadline::Progress,
        states: &[AttemptState::Attached],
        starts: &[ClockStart::Attached, ClockStart::LastBoundary],
        length: ClockLength::Progress,
    },
];

impl RunRecord {
    /// Whether this deadline had expired when the record was read.
    pub fn is_expired(&self, deadline: Deadline) -> bool {
        if deadline == Deadline::Wake {
            return self.wake_at.is_some_and(|at| at <= self.now);
        }
        CLOCKS.iter().filter(|clock| clock.deadline == deadline).any(|clock| {
            let start = clock.starts.iter().filter_map(|start| self.clock_start(*start)).max();
            clock.states.contains(&self.attempt.state)
                && start.is_some_and(|start| self.has_elapsed(start, self.clock_length(clock.length)))
        })
    }

    /// Whether more than `ms` milliseconds have passed since `from`. Outages of the gateways do not count, and the
    /// workers have had time to connect again after the last one.
    pub fn has_elapsed(&self, from: Timestamp, ms: i64) -> bool {
        let gateways_beat = millis(self.beat.last, self.now).abs() <= HEARTBEAT_GAP_MS;
        gateways_beat
            && millis(from, self.now) - self.outage_ms(from) > ms
            && millis(self.beat.since, self.now) > ms.min(RECONNECT_MS)
    }

    /// How long the gateways were unavailable since `from`, in milliseconds.
    fn outage_ms(&self, from: Timestamp) -> i64 {
        self.outages.iter().map(|outage| millis(outage.from.max(from), outage.to).max(0)).sum()
    }

    fn clock_start(&self, start: ClockStart) -> Option<Timestamp> {
        let Self { attempt, cancel, suspend, head, .. } = self;
        match start {
            ClockStart::CancelRequested => cancel.as_ref().map(|cancel| cancel.requested_at),
            ClockStart::CancelTold => cancel.as_ref()?.told_at,
            ClockStart::SuspendRequested => suspend.as_ref().map(|suspend| suspend.requested_at),
            ClockStart::SuspendTold => suspend.as_ref()?.told_at,
            ClockStart::LimitReached => self.limit_reached_at,
            ClockStart::ActiveTimeEnd => self.active_time_end(),
            ClockStart::LeaseRenewed => attempt.lease_renewed_at,
            ClockStart::Scheduled => attempt.scheduled_at,
            ClockStart::Attached => attempt.attached_at,
            ClockStart::LastBoundary => {
                head.as_ref().filter(|head| head.attempt == attempt.number).map(|head| head.at)
            }
        }
    }

    /// How long the gateway that last renewed the lease was unavailable since then, in milliseconds.
    pub fn lease_gateway_outage_ms(&self) -> i64 {
        let (Some(gateway), Some(renewed)) = (self.lease_gateway, self.attempt.lease_renewed_at) else {
            return 0;
        };
        if millis(gateway.last, self.now) > HEARTBEAT_GAP_MS {
            millis(gateway.last.max(renewed), self.now)
        } else if gateway.since > renewed {
            millis(gateway.gap_from.max(renewed), gateway.since)
        } else {
            0
        }
    }

    fn clock_length(&self, length: ClockLength) -> i64 {
        match length {
            ClockLength::Ms(ms) => ms,
            ClockLength::Lease => {
                let lease = self.deadlines.heartbeat_ms.max(self.lease_ms);
                lease + self.lease_gateway_outage_ms().min(lease / HEARTBEATS_PER_LEASE)
            }
            ClockLength::Start => self.deadlines.start_ms,
            ClockLength::Progress => self.deadlines.progress_ms,
            ClockLength::Suspend => self.deadlines.suspend_ms,
            ClockLength::SuspendTwice => self.deadlines.suspend_ms.saturating_mul(2),
        }
    }
}

fn millis(from: Timestamp, to: Timestamp) -> i64 {
    i64::try_from(to.duration_since(from).as_millis()).unwrap_or(i64::MAX)
}
