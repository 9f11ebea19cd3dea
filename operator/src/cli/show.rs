//! `dalsegno show`: prints a run from the store.

use std::ops::RangeInclusive;
use std::time::Duration;

use anyhow::{Context as _, bail};
use dalsegno_core::text::counted;
use dalsegno_format::memory;
use dalsegno_model::audit::kind;
use dalsegno_model::{BoundaryRow, CallFilter, Error, Lifecycle, RunRecord, Store};
use dalsegno_protocol::{CallState, Channel, Payload, State};

use super::audit_rows::{Explanation, read_audit};
use super::runs::{FoundRun, find, utc, wire_name};
use crate::config::ShowArgs;
use crate::output::print_line;

mod header;
mod waiting;

use header::{Shredding, print_attempts, print_header, print_name, state_and_result};
use waiting::print_waiting;

/// Interval at which `--follow` reads the run.
const FOLLOW_INTERVAL: Duration = Duration::from_secs(1);

/// Prints a run.
///
/// # Errors
///
/// There is no such run, or the store is unavailable.
pub async fn run(args: ShowArgs) -> anyhow::Result<()> {
    let ShowArgs { store, run, turn, since, turns, all, before, calls, follow } = args;
    let args = store;
    let store = args.open_read_only().await?;
    let FoundRun { mut run, earlier } = find(store.as_ref(), &run).await?;
    let shredding = find_shredding(store.as_ref(), &run).await?;
    print_name(&run);
    print_waiting(&args, store.as_ref(), &run).await?;
    print_header(&run, &earlier, shredding.as_ref());
    let head = run.head.as_ref().map_or(0, |head| head.turn);
    let last = before.map_or(head, |before| head.min(before - 1));
    let first = if all { 1 } else { (last - turns).max(0) + 1 };
    print_turns(store.as_ref(), &run, first..=last).await?;
    let mut shown = last;
    if let Some(turn) = turn {
        print_state(turn, read_state(store.as_ref(), &run, turn).await?);
    }
    if let (Some(since), Some(turn)) = (since, turn) {
        print_difference(store.as_ref(), &run, since, turn).await?;
    }
    if calls {
        print_calls(store.as_ref(), &run).await?;
    }
    while follow && run.lifecycle == Lifecycle::Live {
        tokio::time::sleep(FOLLOW_INTERVAL).await;
        let attempt = run.attempt.number;
        let now = store.get_run(run.id).await.context("looking for the run")?;
        run = now.context("the store no longer has the run")?;
        if run.attempt.number != attempt {
            print_attempts(&run, &run.past[..1.min(run.past.len())]);
        }
        let head = run.head.as_ref().map_or(0, |head| head.turn);
        print_turns(store.as_ref(), &run, shown + 1..=head).await?;
        shown = shown.max(head);
    }
    if follow {
        print_line!("{}", state_and_result(&run));
    }
    Ok(())
}

/// The audit row of a run's shredding. Only a run that is over can be shredded.
async fn find_shredding(store: &dyn Store, run: &RunRecord) -> anyhow::Result<Option<Shredding>> {
    if run.lifecycle == Lifecycle::Live {
        return Ok(None);
    }
    let rows = read_audit(store, run.id).await?;
    let Some(row) = rows.into_iter().find(|row| row.kind == kind::SHREDDED) else { return Ok(None) };
    let unsealed = store.count_unsealed(run.id).await.context("counting payloads that were never sealed")?;
    Ok(Some(Shredding { row, unsealed }))
}

/// Prints these turns.
async fn print_turns(store: &dyn Store, run: &RunRecord, turns: RangeInclusive<i32>) -> anyhow::Result<()> {
    if turns.is_empty() {
        return Ok(());
    }
    let rows = store.boundaries(run.id, *turns.start(), *turns.end()).await.context("reading the turns")?;
    for row in rows {
        let boundary_id = row.id();
        let BoundaryRow { turn, boundary, attempt, position, at, usage, events, trigger, ops, .. } = row;
        let bytes = match run.dropped_to.is_some_and(|last| boundary_id <= last) {
            true => "dropped".to_owned(),
            false => counted(ops.map_or(0, |it| it.len()), "byte", "bytes"),
        };
        print_line!(
            "turn {turn:<5} {boundary:<6} attempt {attempt:<3} event {position:<6} {}  {bytes}, {} tokens{}",
            utc(at),
            usage.tokens_in + usage.tokens_out,
            trigger.map_or_else(String::new, |it| format!(", {it}")),
            boundary = wire_name(&boundary),
        );
        for event in events {
            print_line!("             {event}");
        }
    }
    Ok(())
}

async fn print_difference(store: &dyn Store, run: &RunRecord, from: i32, to: i32) -> anyhow::Result<()> {
    let before = if from == 0 { Default::default() } else { read_state(store, run, from).await? };
    let delta = memory::delta(&before, &read_state(store, run, to).await?);
    print_line!("from turn {from} to turn {to}: {}", serde_json::to_string(&delta)?);
    Ok(())
}

async fn read_state(store: &dyn Store, run: &RunRecord, turn: i32) -> anyhow::Result<State> {
    let state = match store.state(run.id, Some(turn)).await {
        Err(Error::Gone { detail, .. }) => {
            let kept = run.dropped_to.filter(|first| turn < first.turn);
            let kept = kept.map_or_else(String::new, |first| {
                format!("; the first state that is kept is the one after turn {}", first.turn)
            });
            bail!("the state after turn {turn} is gone: {detail}{kept}")
        }
        state => state.context("reading the state")?,
    };
    state.with_context(|| format!("the run has no turn {turn}"))
}

/// Prints every channel of a state.
pub(super) fn print_state(turn: i32, state: State) {
    print_line!("\nstate after turn {turn}");
    for (name, channel) in state {
        match channel {
            Channel::Value(value) => print_line!("{name}: {}", payload_text(&value)),
            Channel::List(items) => {
                print_line!("{name}: {}", counted(items.len(), "item", "items"));
                items.iter().for_each(|item| print_line!("  - {}", payload_text(item)));
            }
        }
    }
}

fn payload_text(payload: &Payload) -> String {
    match payload {
        Payload::Json(json) => json.get().to_owned(),
        Payload::Bytes { media_type, base64 } => {
            format!("{media_type}, {} characters of base64", base64.len())
        }
    }
}

async fn print_calls(store: &dyn Store, run: &RunRecord) -> anyhow::Result<()> {
    print_line!("\ncalls");
    let settled = read_audit(store, run.id).await?;
    let settled: Vec<_> =
        settled.iter().filter(|row| row.kind == kind::SETTLED).map(Explanation::of).collect();
    for call in store.calls(run.id, CallFilter::All).await.context("reading the calls")? {
        let note = match call.state {
            CallState::Started => "  (outcome unknown)",
            CallState::KeyRefused => "  (outcome unknown, a person must settle it)",
            CallState::Planned | CallState::Completed | CallState::Failed => "",
        };
        print_line!(
            "{:<24} turn {:<5} {} {} key {}{note}",
            call.id,
            call.turn,
            wire_name(&call.policy),
            wire_name(&call.state),
            call.key
        );
        // A call ends once, so that it has one row of a settlement at most.
        if let Some(why) = settled.iter().find(|why| why.call.as_deref() == Some(&*call.id)) {
            print_line!("{:<24} settled {} by {}: {}", "", utc(why.at), why.actor, why.text);
        }
    }
    Ok(())
}
