//! The limits of a run, in its row.

use dalsegno_protocol::Boundary;

use super::RunRow;
use dalsegno_model::{AttemptState, LimitName, LimitTotals, RunLimits, is_near_limit};

impl RunRow {
    /// The limits of the run.
    pub fn limits(&self) -> RunLimits {
        RunLimits {
            turns: self.limit_turns,
            tokens: self.limit_tokens,
            cost_micro_usd: self.limit_cost,
            active_ms: self.limit_active_ms,
        }
    }

    /// Sets the limits of the run. One whose value changes may become near again.
    pub fn set_limits(&mut self, limits: RunLimits) {
        let RunLimits { turns, tokens, cost_micro_usd, active_ms } = limits;
        let old = self.limits();
        for (limit, is_same) in [
            (LimitName::Turns, old.turns == turns),
            (LimitName::Tokens, old.tokens == tokens),
            (LimitName::CostMicroUsd, old.cost_micro_usd == cost_micro_usd),
            (LimitName::ActiveSeconds, old.active_ms == active_ms),
        ] {
            if !is_same {
                self.limits_near &= !limit_bit(limit);
            }
        }
        (self.limit_turns, self.limit_tokens, self.limit_cost) = (turns, tokens, cost_micro_usd);
        self.limit_active_ms = active_ms;
    }

    /// Notes since when a limit of turns, tokens or cost is reached, after the head, the usage or the limits have changed.
    pub fn check_usage_limits(&mut self, now: i64) {
        let head = self.own_head();
        let totals = LimitTotals::new(head, &self.usage(), 0);
        let is_reached = self.limits().is_usage_reached(&totals);
        self.limit_reached_at = is_reached.then(|| self.limit_reached_at.unwrap_or(now));
    }

    /// Turn and boundary of the head. Of a fork only its own turns count.
    fn own_head(&self) -> Option<(i32, Boundary)> {
        let base = self.fork_turn.unwrap_or_default();
        self.head().map(|head| (head.turn - base, head.boundary))
    }

    /// Active time of all attempts, in milliseconds. The current one counts from its attach until it or the run ends.
    pub fn active_ms_at(&self, now: i64) -> i64 {
        let is_attached = self.attempt_state.0 == AttemptState::Attached;
        let until = self.finish_at.map_or(now, |finish| finish.min(now));
        let current = self.attached_at.filter(|_| is_attached).map_or(0, |from| (until - from).max(0));
        self.active_ms.saturating_add(current)
    }

    /// Notes which limits are almost used up. Returns those that were not noted before.
    pub fn note_near_limits(&mut self, now: i64) -> Vec<LimitName> {
        let head = self.own_head();
        let totals = LimitTotals::new(head, &self.usage(), self.active_ms_at(now));
        let near = self.limits().uses(&totals).into_iter().filter(|it| is_near_limit(it.used, it.max));
        let new: Vec<_> =
            near.map(|it| it.limit).filter(|limit| self.limits_near & limit_bit(*limit) == 0).collect();
        self.limits_near |= new.iter().map(|limit| limit_bit(*limit)).sum::<i32>();
        new
    }

    /// Whether any limit is reached.
    pub fn is_limit_reached(&self, now: i64) -> bool {
        let is_time_over = self.limit_active_ms.is_some_and(|limit| self.active_ms_at(now) >= limit);
        self.limit_reached_at.is_some() || is_time_over
    }
}

/// The bit of a limit in the column `limits_near`.
fn limit_bit(limit: LimitName) -> i32 {
    match limit {
        LimitName::Turns => 1,
        LimitName::Tokens => 2,
        LimitName::CostMicroUsd => 4,
        LimitName::ActiveSeconds => 8,
    }
}
