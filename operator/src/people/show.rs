//! A run as the store knows it, for a person's eyes.

use std::time::Duration;

use anyhow::{Context as _, bail};
use dalsegno_protocol::{CallState, Channel, Payload, State};
use dalsegno_store::audit::kind;
use dalsegno_store::reading::AuditKey;
use dalsegno_store::{
    Attempt, AttemptState, AuditRow, BoundaryRow, CallFilter, Error, Lifecycle, RunRecord, Store, memory,
};
use jiff::Timestamp;

use super::find;
use super::keys::still_plain;
use crate::config::{RunRef, StoreArgs};
use crate::output::print_line;

/// How often `--follow` looks.
const LOOK: Duration = Duration::from_secs(1);
/// Turns shown unless asked for more.
const TURNS: i32 = 20;

/// What to show beside the run itself.
pub struct What {
    /// The state after this turn.
    pub turn: Option<i32>,
    /// What changed in the state since this turn.
    pub since: Option<i32>,
    /// Its calls.
    pub calls: bool,
    /// Go on until the run is over.
    pub follow: bool,
}

/// Shows a run as the store knows it.
///
/// # Errors
///
/// There is no such run, or the store does not answer.
pub async fn run(store: &StoreArgs, run: &RunRef, what: What) -> anyhow::Result<()> {
    let store = store.open_read_only().await?;
    let (mut run, earlier) = find(store.as_ref(), run).await?;
    print_run(&run, &earlier, shredding(store.as_ref(), &run).await?.as_ref());
    let head = run.head.as_ref().map_or(0, |head| head.turn);
    let mut shown = (head - TURNS).max(0);
    shown = print_turns(store.as_ref(), &run, shown).await?;
    if let Some(turn) = what.turn {
        print_state(store.as_ref(), &run, turn).await?;
    }
    if let (Some(since), Some(turn)) = (what.since, what.turn) {
        print_difference(store.as_ref(), &run, since, turn).await?;
    }
    if what.calls {
        print_calls(store.as_ref(), &run).await?;
    }
    while what.follow && run.lifecycle == Lifecycle::Live {
        tokio::time::sleep(LOOK).await;
        let attempt = run.attempt.number;
        let now = store.get_run(run.id).await.context("looking for the run")?;
        run = now.context("the run is gone")?;
        if run.attempt.number != attempt {
            print_attempts(&run, &run.past[..1.min(run.past.len())]);
        }
        shown = print_turns(store.as_ref(), &run, shown).await?;
    }
    if what.follow {
        print_line!("{}", ending(&run));
    }
    Ok(())
}

/// What tells that a run was shredded, and how many payloads of it are left plain: only one that is over can be.
async fn shredding(store: &dyn Store, run: &RunRecord) -> anyhow::Result<Option<(AuditRow, u64)>> {
    if run.lifecycle == Lifecycle::Live {
        return Ok(None);
    }
    let mut reading = store.reading().await.context("beginning to read")?;
    let mut after = AuditKey::before(run.id);
    loop {
        let page = reading.audit(after, run.id).await.context("reading the audit")?;
        let Some((_, last)) = page.last() else { return Ok(None) };
        after.seq = last.seq;
        if let Some((_, row)) = page.into_iter().find(|(_, row)| row.kind == kind::SHREDDED) {
            return Ok(Some((row, store.unsealed(run.id).await.context("counting what was never sealed")?)));
        }
    }
}

fn print_run(run: &RunRecord, earlier: &[RunRecord], shredding: Option<&(AuditRow, u64)>) {
    let RunRecord { namespace, name, id, object_uid, tenant, .. } = run;
    print_line!("run         {namespace}/{name}  (id {id}, object {object_uid}, namespace UID {tenant})");
    for run in earlier {
        print_line!("earlier     {}", brief(run));
    }
    print_line!("begun       {}", clock(run.created_at));
    print_line!("state       {}", ending(run));
    if let Some((AuditRow { at, actor, detail, .. }, plain)) = shredding {
        let detail: serde_json::Value = serde_json::from_str(detail).unwrap_or_default();
        let reason = detail["reason"].as_str().unwrap_or_default();
        print_line!("shredded    {} by {actor}: {reason}", clock(*at));
        print_line!("            what was sealed of it can be read by nobody any more");
        if let Some(still) = still_plain(run, *plain) {
            print_line!("            {still}");
        }
    }
    if let Some(head) = &run.head {
        print_line!(
            "checkpoint  turn {} ({}), event {}, {}",
            head.turn,
            word(&head.boundary),
            head.position,
            clock(head.at)
        );
        print_line!("hash        {}", head.content_hash);
        if let Some(identity) = &head.identity {
            print_line!("written by  version {}, image {}", identity.agent_version, identity.image_digest);
        }
    }
    let (counters, usage) = (&run.counters, &run.usage);
    print_line!(
        "recovery    {} charged, {} in a row without progress; {} disrupted, {} in a row without progress",
        counters.recovery_attempts,
        counters.attempts_without_progress,
        counters.disruptions,
        counters.disruptions_without_progress
    );
    print_line!(
        "usage       {} tokens in, {} out, {} tool calls, {} µUSD",
        usage.tokens_in,
        usage.tokens_out,
        usage.tool_calls,
        usage.cost_micro_usd
    );
    print_line!();
    let mut attempts = run.past.clone();
    attempts.reverse();
    attempts.push(run.attempt.clone());
    print_attempts(run, &attempts);
    print_line!();
}

/// Which run of several, in one line.
pub(super) fn brief(run: &RunRecord) -> String {
    format!("{}, begun {}, {}", run.id, clock(run.created_at), state_of(run))
}

fn ending(run: &RunRecord) -> String {
    let mut text = state_of(run);
    if let (Some(finish), Lifecycle::Finished) = (&run.finish, run.lifecycle) {
        text.push_str(&format!(" {}", finish.message));
        if let Some(output) = &finish.output {
            text.push_str(&format!("\noutput      {output}"));
        }
    }
    text
}

/// How it stands, without what its worker says of that.
fn state_of(run: &RunRecord) -> String {
    match (&run.finish, run.lifecycle) {
        (Some(finish), Lifecycle::Finished) => {
            format!("{} at {}: {}", word(&finish.outcome), clock(finish.at), finish.reason)
        }
        (_, Lifecycle::Deleted) => "its AgentRun was deleted".to_owned(),
        (_, Lifecycle::Abandoned) => "abandoned for a later run of this name".to_owned(),
        _ => format!("attempt {} is {}", run.attempt.number, word(&run.attempt.state)),
    }
}

fn print_attempts(run: &RunRecord, attempts: &[Attempt]) {
    for attempt in attempts {
        let node = attempt.node.as_deref().unwrap_or("-");
        let pod = attempt.pod_name.as_deref().unwrap_or("-");
        match &attempt.end {
            Some(end) => print_line!(
                "attempt {:<3} {pod} on {node}: {} ({}{}) after turn {}: {}",
                attempt.number,
                end.cause,
                word(&end.class).to_lowercase(),
                if end.charged { ", charged" } else { "" },
                attempt.turn_at_end.unwrap_or_default(),
                end.message
            ),
            None => print_line!("attempt {:<3} {pod} on {node}: {}", attempt.number, standing(run, attempt)),
        }
    }
}

/// How an attempt stands that nobody has ended. A worker that finishes its run leaves its own attempt as it is.
fn standing(run: &RunRecord, attempt: &Attempt) -> String {
    match (run.lifecycle, attempt.state) {
        (Lifecycle::Live, state) | (_, state @ (AttemptState::Reserved | AttemptState::Ended)) => {
            word(&state)
        }
        (_, AttemptState::Created | AttemptState::Attached) => "ended with the run".to_owned(),
    }
}

/// Prints the turns after `shown`; answers the last one.
async fn print_turns(store: &dyn Store, run: &RunRecord, shown: i32) -> anyhow::Result<i32> {
    let Some(head) = run.head.as_ref().filter(|head| head.turn > shown) else {
        return Ok(shown);
    };
    let rows = store.boundaries(run.id, shown + 1, head.turn).await.context("reading the turns")?;
    for row in rows {
        let place = row.place();
        let BoundaryRow { turn, boundary, attempt, position, at, usage, events, trigger, ops, .. } = row;
        let bytes = match run.dropped_to.is_some_and(|last| place <= last) {
            true => "dropped".to_owned(),
            false => format!("{} bytes", ops.map_or(0, |it| it.len())),
        };
        print_line!(
            "turn {turn:<5} {boundary:<6} attempt {attempt:<3} event {position:<6} {}  {bytes}, {} tokens{}",
            clock(at),
            usage.tokens_in + usage.tokens_out,
            trigger.map_or_else(String::new, |it| format!(", {it}")),
            boundary = word(&boundary),
        );
        for event in events {
            print_line!("             {event}");
        }
    }
    Ok(head.turn)
}

async fn print_difference(store: &dyn Store, run: &RunRecord, from: i32, to: i32) -> anyhow::Result<()> {
    let before = if from == 0 { Default::default() } else { state(store, run, from).await? };
    let delta = memory::delta(&before, &state(store, run, to).await?);
    print_line!("from turn {from} to turn {to}: {}", serde_json::to_string(&delta)?);
    Ok(())
}

async fn state(store: &dyn Store, run: &RunRecord, turn: i32) -> anyhow::Result<State> {
    let state = match store.state(run.id, Some(turn)).await {
        Err(Error::Gone { detail, .. }) => {
            bail!("the state after turn {turn} is gone: {detail}{}", kept(run, turn))
        }
        answer => answer.context("reading the state")?,
    };
    state.with_context(|| format!("the run has no turn {turn}"))
}

/// What there is instead of a state that was dropped.
fn kept(run: &RunRecord, turn: i32) -> String {
    let first = run.dropped_to.filter(|first| turn < first.turn);
    first.map_or_else(String::new, |first| {
        format!("; the first that is kept is that after turn {}", first.turn)
    })
}

async fn print_state(store: &dyn Store, run: &RunRecord, turn: i32) -> anyhow::Result<()> {
    print_channels(turn, state(store, run, turn).await?);
    Ok(())
}

pub(super) fn print_channels(turn: i32, state: State) {
    print_line!("\nstate after turn {turn}");
    for (name, channel) in state {
        match channel {
            Channel::Value(value) => print_line!("{name}: {}", shown(&value)),
            Channel::List(items) => {
                print_line!("{name}: {} items", items.len());
                items.iter().for_each(|item| print_line!("  - {}", shown(item)));
            }
        }
    }
}

fn shown(payload: &Payload) -> String {
    match payload {
        Payload::Json(json) => json.get().to_owned(),
        Payload::Bytes { media_type, base64 } => {
            format!("{media_type}, {} characters of base64", base64.len())
        }
    }
}

async fn print_calls(store: &dyn Store, run: &RunRecord) -> anyhow::Result<()> {
    print_line!("\ncalls");
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
            word(&call.policy),
            word(&call.state),
            call.key
        );
    }
    Ok(())
}

/// As contract and store spell it.
fn word(value: &impl serde::Serialize) -> String {
    serde_json::to_value(value).ok().and_then(|word| word.as_str().map(str::to_owned)).unwrap_or_default()
}

fn clock(at: Timestamp) -> String {
    at.strftime("%Y-%m-%d %H:%M:%S UTC").to_string()
}
