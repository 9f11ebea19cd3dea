//! Limits of a run over all its attempts.

use dalsegno_protocol::{Boundary, Usage};
use serde::{Deserialize, Serialize};

/// How long a worker has to exit once a limit of its run is reached. In milliseconds.
pub const LIMIT_EXIT_MS: i64 = 30_000;

/// One limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum LimitName {
    /// Ended turns of the live branch. A plan ends no turn.
    #[serde(rename = "turns")]
    Turns,
    /// Tokens to and from models, of all committed boundaries and ended calls.
    #[serde(rename = "tokens")]
    Tokens,
    /// Cost in millionths of a US dollar, of all committed boundaries and ended calls.
    #[serde(rename = "costMicroUSD")]
    CostMicroUsd,
    /// Time from the attach to the end of an attempt, of all attempts.
    #[serde(rename = "activeSeconds")]
    ActiveSeconds,
}

impl LimitName {
    /// Every limit.
    pub const ALL: &'static [Self] = &[Self::Turns, Self::Tokens, Self::CostMicroUsd, Self::ActiveSeconds];

    /// The name of its field in `spec.limits`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Turns => "turns",
            Self::Tokens => "tokens",
            Self::CostMicroUsd => "costMicroUSD",
            Self::ActiveSeconds => "activeSeconds",
        }
    }
}

/// The limits of a run. `None`: no limit. 0 allows nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RunLimits {
    /// Most ended turns.
    pub turns: Option<i64>,
    /// Most tokens, to and from models together.
    pub tokens: Option<i64>,
    /// Highest cost, in millionths of a US dollar.
    pub cost_micro_usd: Option<i64>,
    /// Longest active time, in milliseconds.
    pub active_ms: Option<i64>,
}

/// What a run has used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LimitTotals {
    /// Ended turns.
    pub turns: i64,
    /// Tokens, to and from models together.
    pub tokens: i64,
    /// Cost in millionths of a US dollar.
    pub cost_micro_usd: i64,
    /// Active time in milliseconds.
    pub active_ms: i64,
}

impl LimitTotals {
    /// The totals of a run whose head is this boundary and that has used this much. Of a fork only its own turns count:
    /// the turn of the head is counted from the turn after which the fork begins.
    pub fn new(head: Option<(i32, Boundary)>, usage: &Usage, active_ms: i64) -> Self {
        let turns = head.map_or(0, |(turn, boundary)| match boundary {
            Boundary::Plan => turn - 1,
            Boundary::Result => turn,
        });
        let tokens = usage.tokens_in.saturating_add(usage.tokens_out);
        Self { turns: turns.into(), tokens, cost_micro_usd: usage.cost_micro_usd, active_ms }
    }
}

/// A limit that is set, and how much of it is used. Of [`LimitName::ActiveSeconds`] in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitUse {
    /// Which limit.
    pub limit: LimitName,
    /// How much is used.
    pub used: i64,
    /// The limit.
    pub max: i64,
}

impl LimitUse {
    /// Whether the limit is reached.
    pub fn is_reached(&self) -> bool {
        self.used >= self.max
    }
}

/// Whether at least 80 % of a limit are used. Never of the limit 0: it is reached from the start.
pub fn is_near_limit(used: i64, max: i64) -> bool {
    max > 0 && i128::from(used) * 5 >= i128::from(max) * 4
}

impl RunLimits {
    /// The limits that are set, and what these totals use of them.
    pub fn uses(&self, totals: &LimitTotals) -> Vec<LimitUse> {
        let Self { turns, tokens, cost_micro_usd, active_ms } = *self;
        [
            (LimitName::Turns, totals.turns, turns),
            (LimitName::Tokens, totals.tokens, tokens),
            (LimitName::CostMicroUsd, totals.cost_micro_usd, cost_micro_usd),
            (LimitName::ActiveSeconds, totals.active_ms, active_ms),
        ]
        .into_iter()
        .filter_map(|(limit, used, max)| Some(LimitUse { limit, used, max: max? }))
        .collect()
    }

    /// Whether a limit of turns, tokens or cost is reached. Only a boundary, the end of a call or a change of the limits
    /// changes that.
    pub fn is_usage_reached(&self, totals: &LimitTotals) -> bool {
        Self { active_ms: None, ..*self }.uses(totals).iter().any(LimitUse::is_reached)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_ends_no_turn() {
        let turns = |boundary| LimitTotals::new(Some((3, boundary)), &Usage::default(), 0).turns;
        assert_eq!((turns(Boundary::Plan), turns(Boundary::Result)), (2, 3));
        assert_eq!(LimitTotals::new(None, &Usage::default(), 0).turns, 0);
    }

    #[test]
    fn a_limit_is_reached_when_it_is_used_up_and_0_allows_nothing() {
        let limits = RunLimits { tokens: Some(10), ..RunLimits::default() };
        let used = |tokens| LimitTotals { tokens, ..LimitTotals::default() };
        assert!(!limits.is_usage_reached(&used(9)));
        assert!(limits.is_usage_reached(&used(10)));
        assert!(RunLimits { turns: Some(0), ..RunLimits::default() }.is_usage_reached(&used(0)));
        assert!(!RunLimits::default().is_usage_reached(&used(i64::MAX)));
    }

    #[test]
    fn active_time_is_no_limit_of_usage() {
        let limits = RunLimits { active_ms: Some(0), ..RunLimits::default() };
        assert!(!limits.is_usage_reached(&LimitTotals::default()));
    }

    #[test]
    fn a_limit_is_near_from_80_percent_on() {
        assert!(!is_near_limit(79, 100) && is_near_limit(80, 100) && is_near_limit(i64::MAX, 1));
        assert!(!is_near_limit(i64::MAX / 2, i64::MAX) && !is_near_limit(0, 0));
    }

    #[test]
    fn a_limit_has_the_name_of_its_field() {
        for limit in LimitName::ALL {
            assert_eq!(serde_json::to_value(limit).unwrap(), limit.as_str());
        }
    }
}
