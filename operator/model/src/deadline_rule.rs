//! When a deadline of an attempt has expired: one table for readers of a run's record and for the SQL of the deadline
//! poll.
//!
//! An outage of the gateways is not charged to a worker. A deadline expires only while the gateways send their
//! heartbeat. After an outage, every clock that started earlier begins again with its full length.

use jiff::Timestamp;

use crate::{AttemptState, CANCEL_REPORTED_MS, CANCEL_UNREPORTED_MS, Deadline, HEARTBEAT_GAP_MS, RunRecord};

/// A time in the run's row from which a deadline is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClockStart {
    /// A person requested a cancel.
    CancelRequested,
    /// The worker was notified of the cancel.
    CancelTold,
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
    /// The heartbeat timeout; but the lease that was granted before, if that one is longer.
    Lease,
    /// The start deadline.
    Start,
    /// The progress deadline.
    Progress,
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

/// The clocks of all deadlines, in the order of [`Deadline`].
pub const CLOCKS: [Clock; 5] = [
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
        CLOCKS.iter().filter(|clock| clock.deadline == deadline).any(|clock| {
            let start = clock.starts.iter().filter_map(|start| self.clock_start(*start)).max();
            clock.states.contains(&self.attempt.state)
                && start.is_some_and(|start| self.has_elapsed(start, self.clock_length(clock.length)))
        })
    }

    /// Whether more than `ms` milliseconds have passed since `from`, without an outage of the gateways in between.
    pub fn has_elapsed(&self, from: Timestamp, ms: i64) -> bool {
        let gateways_beat = millis(self.beat.last, self.now).abs() <= HEARTBEAT_GAP_MS;
        gateways_beat && millis(from.max(self.beat.since), self.now) > ms
    }

    fn clock_start(&self, start: ClockStart) -> Option<Timestamp> {
        let Self { attempt, cancel, head, .. } = self;
        match start {
            ClockStart::CancelRequested => cancel.as_ref().map(|cancel| cancel.requested_at),
            ClockStart::CancelTold => cancel.as_ref()?.told_at,
            ClockStart::LeaseRenewed => attempt.lease_renewed_at,
            ClockStart::Scheduled => attempt.scheduled_at,
            ClockStart::Attached => attempt.attached_at,
            ClockStart::LastBoundary => {
                head.as_ref().filter(|head| head.attempt == attempt.number).map(|head| head.at)
            }
        }
    }

    fn clock_length(&self, length: ClockLength) -> i64 {
        match length {
            ClockLength::Ms(ms) => ms,
            ClockLength::Lease => self.deadlines.heartbeat_ms.max(self.lease_ms),
            ClockLength::Start => self.deadlines.start_ms,
            ClockLength::Progress => self.deadlines.progress_ms,
        }
    }
}

fn millis(from: Timestamp, to: Timestamp) -> i64 {
    i64::try_from(to.duration_since(from).as_millis()).unwrap_or(i64::MAX)
}
