//! The operator announces a hold to people.

use super::{Change, Decision, OutboxEntry, Rows, Transition};
use crate::db_error::DbResult;
use dalsegno_model::{HoldNotice, RunRecord};

/// [`dalsegno_model::Operator::announce`].
#[derive(Clone, Debug)]
pub(crate) struct Announce(pub HoldNotice);

impl Transition for Announce {
    type Answer = RunRecord;
    const OPERATION: &'static str = "announcing a hold";

    fn decide(&self, rows: Rows) -> DbResult<Decision<RunRecord>> {
        let Self(HoldNotice { key, attempt }) = self;
        let mut change = Change::of(rows);
        if change.is_live() && change.row().announced.as_ref() != Some(key) {
            let now = change.now();
            change.run().announced = Some(key.clone());
            let entry = OutboxEntry::held(change.row(), now, *attempt);
            change.notify_people(entry);
        }
        change.with_record()
    }
}

/// Announces the limits that this change has brought near.
pub(super) fn announce_near_limits(change: &mut Change) {
    let now = change.now();
    for entry in OutboxEntry::near_limits(change.run(), now) {
        change.notify_people(entry);
    }
}
