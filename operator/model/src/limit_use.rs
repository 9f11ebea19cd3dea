//! What a run has used of its limits.

use jiff::Timestamp;

use crate::{AttemptState, HeadRow, LimitTotals, LimitUse, RunRecord};

impl RunRecord {
    /// The limits that are set, and what is used of them now.
    pub fn limit_uses(&self) -> Vec<LimitUse> {
        self.limits.uses(&self.totals(self.now))
    }

    /// The limits that are set, and what was used of them when the last boundary was committed or the last attempt ended,
    /// with what calls have used since. The passing of time alone changes nothing in it, so it needs no write of the status.
    pub fn recorded_limit_uses(&self) -> Vec<LimitUse> {
        let last = self.finish.as_ref().map(|finish| finish.at).max(self.own_boundary().map(|head| head.at));
        self.limits.uses(&self.totals(last.unwrap_or(Timestamp::MIN)))
    }

    /// Whether any limit is reached.
    pub fn is_limit_reached(&self) -> bool {
        self.limit_uses().iter().any(LimitUse::is_reached)
    }

    /// When the active time ends if the current attempt does not. `None`: no worker is attached, or no limit is set.
    pub fn active_time_end(&self) -> Option<Timestamp> {
        let from = self.attempt.attached_at?;
        let left = self.limits.active_ms?.saturating_sub(self.active_ms);
        Some(from.checked_add(jiff::SignedDuration::from_millis(left)).unwrap_or(Timestamp::MAX))
    }

    /// What the run has used until this time.
    fn totals(&self, until: Timestamp) -> LimitTotals {
        let until = self.finish.as_ref().map_or(until, |finish| finish.at.min(until));
        let is_attached = self.attempt.state == AttemptState::Attached;
        let current = self.attempt.attached_at.filter(|_| is_attached).map_or(0, |from| {
            i64::try_from(until.duration_since(from).as_millis()).unwrap_or(i64::MAX).max(0)
        });
        let base = self.fork.as_ref().and_then(|fork| fork.turn).unwrap_or_default();
        let head = self.head.as_ref().map(|head| (head.turn - base, head.boundary));
        LimitTotals::new(head, &self.usage, self.active_ms.saturating_add(current))
    }

    /// The latest boundary, if the current attempt committed it.
    fn own_boundary(&self) -> Option<&HeadRow> {
        self.head.as_ref().filter(|head| head.attempt == self.attempt.number)
    }
}
