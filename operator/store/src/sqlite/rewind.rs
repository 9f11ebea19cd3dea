//! Going back to an earlier boundary.

use dalsegno_protocol::Boundary;
use sqlx::{Row as _, SqliteConnection};

use super::change::{append, end_noted, fence, neutral, reserve_next};
use super::columns::{Hash, Which};
use super::read::record;
use super::records;
use super::row::{HeadPoint, RunRow};
use crate::audit::kind;
use crate::fault::Work;
use crate::reads::AttemptRow;
use crate::{AttemptState, Lifecycle, Place, Rewind, Rewound, RunId, header};

/// Of boundaries whose place is known, those after it, and those that stand in its place under another epoch.
const UNDO: &str = "UPDATE boundaries SET undone = 1 \
     WHERE run = ?1 AND NOT undone \
       AND ((turn, boundary) > (?2, ?3) OR ((turn, boundary) = (?2, ?3) AND epoch <> ?4)) \
     RETURNING turn, boundary, content_hash";

/// Makes an earlier boundary the head, and marks what came after it as undone.
pub(super) async fn rewind(
    conn: &mut SqliteConnection,
    now: i64,
    run: RunId,
    rewind: Rewind,
) -> Work<Rewound> {
    let mut row = RunRow::expect(conn, run).await?;
    let Rewind { epoch, to, reason, actor } = rewind;
    let from = row.head();
    let target = target(conn, run, to).await?;
    let point = |head: HeadPoint| (head.turn, head.boundary, head.epoch, head.hash);
    if target.is_some() && from.map(point) == target.map(point) {
        return Ok(Rewound::Done(Box::new(record(conn, now, row).await?)));
    }
    let is_before = |head: HeadPoint| (to.turn, to.boundary) <= (head.turn, head.boundary);
    let is_kept = row.dropped_to().is_none_or(|last| to >= last);
    let may =
        row.lifecycle.0 == Lifecycle::Live && row.epoch == epoch && is_kept && from.is_none_or(is_before);
    let Some(target) = target.filter(|_| may) else {
        return Ok(Rewound::Refused(Box::new(record(conn, now, row).await?)));
    };

    let undone = undo(conn, run, to).await?;
    records::hide(conn, &mut row, (to.turn, to.boundary)).await?;
    let before = row.attempt_state.0;
    match before {
        AttemptState::Created | AttemptState::Attached => {
            let ending = neutral(row.attempt, "Rewound");
            end_noted(conn, &mut row, now, &ending).await?;
        }
        AttemptState::Reserved => {
            fence(&mut row);
            let mut attempt = AttemptRow::current(conn, &row).await?;
            attempt.epoch = row.epoch;
            attempt.turn_at_start = to.turn;
            attempt.save(conn).await?;
        }
        AttemptState::Ended => fence(&mut row),
    }
    // Positions never go back.
    let position = row.head_position;
    row.set_head(target, position);
    row.changed_at = now;
    let detail = serde_json::json!({
        "from": from.map(|from| shown(from.turn, from.boundary, &header::render(&from.hash))),
        "to": shown(to.turn, to.boundary, &header::render(&target.hash)),
        "epoch": row.epoch,
        "reason": reason,
        "undone": undone,
    });
    append(conn, &mut row, now, kind::REWOUND, &actor, detail).await?;
    if matches!(before, AttemptState::Created | AttemptState::Attached) {
        reserve_next(conn, &mut row, now).await?;
    }
    row.save(conn).await?;
    Ok(Rewound::Done(Box::new(record(conn, now, row).await?)))
}

/// The boundary at this place, if it is on the live branch.
async fn target(conn: &mut SqliteConnection, run: RunId, place: Place) -> Work<Option<HeadPoint>> {
    let Place { turn, boundary, epoch } = place;
    let found = sqlx::query(
        "SELECT attempt, commit_id, digest, content_hash, at FROM boundaries \
         WHERE run = ? AND turn = ? AND boundary = ? AND epoch = ? AND NOT undone",
    )
    .bind(run)
    .bind(turn)
    .bind(Which(boundary))
    .bind(epoch)
    .fetch_optional(conn)
    .await?;
    let Some(row) = found else { return Ok(None) };
    Ok(Some(HeadPoint {
        turn,
        boundary,
        epoch,
        attempt: row.try_get("attempt")?,
        commit_id: row.try_get("commit_id")?,
        digest: row.try_get::<Hash, _>("digest")?.0,
        hash: row.try_get::<Hash, _>("content_hash")?.0,
        at: row.try_get("at")?,
    }))
}

/// What is undone, in order. A hash is told as it stands there, whatever it is.
async fn undo(conn: &mut SqliteConnection, run: RunId, to: Place) -> Work<Vec<serde_json::Value>> {
    let rows = sqlx::query(UNDO)
        .bind(run)
        .bind(to.turn)
        .bind(Which(to.boundary))
        .bind(to.epoch)
        .fetch_all(conn)
        .await?;
    let mut undone = Vec::with_capacity(rows.len());
    for row in &rows {
        let hash: Vec<u8> = row.try_get("content_hash")?;
        undone.push((row.try_get::<i32, _>("turn")?, row.try_get::<Which, _>("boundary")?.0, hash));
    }
    undone.sort();
    Ok(undone.into_iter().map(|(turn, which, hash)| shown(turn, which, &header::render(&hash))).collect())
}

fn shown(turn: i32, boundary: Boundary, hash: &str) -> serde_json::Value {
    serde_json::json!({ "turn": turn, "boundary": boundary, "hash": hash })
}
