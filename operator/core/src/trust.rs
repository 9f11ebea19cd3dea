//! What the store's answer is worth: whether it is the store that the run was begun in, and as new as anything that is
//! known of the run. If not, nothing is touched.

use dalsegno_crds::{AgentRun, ConditionType, Reason, find_condition, names};
use dalsegno_model::{Lifecycle, PriorRun, RunRecord};
use uuid::Uuid;

use crate::pod::annotation;
use crate::recovery::Hold;
use crate::{Observed, StoreSight};

/// What the store's answer is worth.
#[derive(Debug)]
pub(crate) enum Trust<'a> {
    /// It could not be asked. Nothing may be concluded.
    Unknown(&'a str),
    /// It does not know the run, and nothing says that it ever should have.
    New,
    /// The run's row, as new as anything that is known.
    Row(&'a RunRecord),
    /// A person must look first.
    Hold(Hold),
    /// The status says that the run is over, and the store does not say the same: an end stays an end.
    Over,
}

impl<'a> Trust<'a> {
    /// The row, if it is trusted.
    pub(crate) fn row(&self) -> Option<&'a RunRecord> {
        match self {
            Self::Row(row) => Some(row),
            Self::Unknown(_) | Self::New | Self::Hold(_) | Self::Over => None,
        }
    }
}

/// Judges the store's answer by what is known of the run.
pub(crate) fn judge<'a>(run: &AgentRun, observed: &'a Observed) -> Trust<'a> {
    let trust = match &observed.store {
        StoreSight::Unknown(why) => Trust::Unknown(why),
        StoreSight::NotFound { store_id } => {
            distrust(run, observed, *store_id, None).map_or(Trust::New, Trust::Hold)
        }
        StoreSight::Prior(prior) => Trust::Hold(prior_run(prior)),
        StoreSight::Found(row) => {
            distrust(run, observed, row.store_id, Some(row)).map_or(Trust::Row(row), Trust::Hold)
        }
    };
    let agrees = trust.row().is_some_and(|row| row.finish.is_some());
    if is_over(run) && !agrees { Trust::Over } else { trust }
}

fn is_over(run: &AgentRun) -> bool {
    let conditions = run.status.as_ref().map(|it| it.conditions.as_slice()).unwrap_or_default();
    find_condition(conditions, ConditionType::Finished).is_some_and(|it| it.status == "True")
}

fn distrust(run: &AgentRun, observed: &Observed, store_id: Uuid, row: Option<&RunRecord>) -> Option<Hold> {
    if let Some(known) = run.status.as_ref().and_then(|it| it.store_id.as_deref())
        && known != store_id.to_string()
    {
        let message = format!("the run was begun in store {known}, this one is {store_id}");
        return Some(Hold::new(Reason::StoreChanged, message));
    }
    let closed = |row: &RunRecord| matches!(row.lifecycle, Lifecycle::Deleted | Lifecycle::Abandoned);
    if row.is_some_and(|row| closed(row) && row.finish.is_none()) {
        let message =
            "the store has closed this run: it was deleted, or given up for a later one of its name";
        return Some(Hold::new(Reason::StoreBehind, message));
    }
    let known = Known::of(run, observed);
    let stored = row.map_or_else(Known::default, Known::by);
    known.is_beyond(&stored).then(|| {
        let stands = match row {
            Some(_) => format!("the store stands at {stored}"),
            None => "the store does not know this run".to_owned(),
        };
        Hold::new(Reason::StoreBehind, format!("{stands}; {known} is known to have been reached"))
    })
}

/// How far a run is known to have come.
#[derive(Default)]
struct Known {
    attempt: i32,
    turn: i32,
    position: i64,
}

impl Known {
    /// By the row. A rewind takes back what is committed, not what was reached.
    fn by(row: &RunRecord) -> Self {
        let position = row.head.as_ref().map_or(0, |head| head.position);
        Self { attempt: row.attempt.number, turn: row.highest_turn, position }
    }

    /// By the status, and by the labels and annotations of its pods.
    fn of(run: &AgentRun, observed: &Observed) -> Self {
        let status = run.status.as_ref();
        let checkpoint = status.and_then(|it| it.checkpoint.as_ref());
        let mut known = Self {
            attempt: status.and_then(|it| it.attempt.as_ref()).map_or(0, |it| it.number),
            turn: checkpoint.map_or(0, |it| it.turn),
            position: checkpoint.map_or(0, |it| it.event_position),
        };
        for seen in observed.own_pods(run) {
            let resumed = annotation(&seen.pod, names::ANNOTATION_TURN).and_then(|it| it.split_once('/'));
            let (turn, position) = resumed.unwrap_or_default();
            known.attempt = known.attempt.max(seen.attempt().unwrap_or_default());
            known.turn = known.turn.max(turn.parse().unwrap_or_default());
            known.position = known.position.max(position.parse().unwrap_or_default());
        }
        known
    }

    fn is_beyond(&self, other: &Self) -> bool {
        self.attempt > other.attempt || self.turn > other.turn || self.position > other.position
    }
}

impl std::fmt::Display for Known {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "attempt {}, turn {}, event position {}", self.attempt, self.turn, self.position)
    }
}

fn prior_run(prior: &PriorRun) -> Hold {
    let PriorRun { id: _, object_uid, tenant, asked_by, turn } = prior;
    let adoptable = if tenant == asked_by {
        String::new()
    } else {
        format!(
            "; its namespace had another UID: before it can be adopted, an administrator runs `dalsegno \
             adopt-namespace {tenant} {asked_by} --reason TEXT`"
        )
    };
    let message = format!(
        "the store holds a run of this name at turn {turn} that belonged to object {object_uid}{adoptable}"
    );
    Hold::new(Reason::PriorRunFound, message)
}
