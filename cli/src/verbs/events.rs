//! `events`: what a run's agent has told.

use std::time::Duration;

use dalsegno_protocol::{Event, EventsResponse};
use serde_json::json;

use crate::args::EventsArgs;
use crate::doors::{Document, Door};
use crate::failure::{Exit, Failure, Result};
use crate::output::{Output, escape};
use crate::session::Session;
use crate::{advice::Need, runs};

/// Pause between two looks for new events. A request that is long is cut by the API server after a minute.
const PAUSE: Duration = Duration::from_secs(1);

/// How long the door may be closed while events are followed: a gateway restarts, a connection is lost.
const OUTAGE: u32 = 60;

/// Shows events.
pub async fn run(session: &Session, args: &EventsArgs, output: &mut Output) -> Result {
    let object = runs::get(session, &args.run).await?;
    let door = Door::open(session).await?;
    let committed =
        object.status.as_ref().and_then(|it| it.checkpoint.as_ref()).map_or(0, |it| it.event_position);
    let first = match args.last {
        0 => 1,
        last => committed.saturating_sub(last.max(1)).saturating_add(1).max(1),
    };
    let document = Document::new(&args.run, "events");
    let document = match args.turn {
        Some(turn) => document.with("turn", turn),
        None => document.with("from", first),
    };
    let mut page: EventsResponse = door.get(&document).await?;
    let mut any = false;
    loop {
        while !page.events.is_empty() {
            any = true;
            print_page(&page.events, output)?;
            page = next_page(&door, &args.run, page.next).await?;
        }
        if !args.follow {
            break;
        }
        // The end first: what was committed before it is in the page that is read after it.
        let is_over = Need::of(&runs::get(session, &args.run).await?) == Need::Over;
        tokio::time::sleep(PAUSE).await;
        page = follow(&door, &args.run, page.next).await?;
        if is_over && page.events.is_empty() {
            break;
        }
    }
    if !any && !output.format.is_document() {
        output.print("The run has no events.");
    }
    Ok(())
}

async fn next_page(door: &Door, run: &str, from: i64) -> Result<EventsResponse> {
    door.get(&Document::new(run, "events").with("from", from)).await
}

/// The next page. A door that is closed for a while is tried again.
async fn follow(door: &Door, run: &str, from: i64) -> Result<EventsResponse> {
    let mut failures = 0;
    loop {
        match next_page(door, run, from).await {
            Err(Failure { exit: Exit::Unavailable | Exit::NoDoor, .. }) if failures < OUTAGE => failures += 1,
            answer => return answer,
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Prints events, in each format one after the other, so that they can be followed.
fn print_page(events: &[Event], output: &mut Output) -> Result {
    for it in events {
        if output.format.is_document() {
            let line = serde_json::to_string(&json!({
                "position": it.position, "turn": it.turn, "attempt": it.attempt, "event": it.event,
            }));
            output.write(format!("{}\n", line.unwrap_or_default()).as_bytes());
        } else {
            let text = escape::line(it.event.get());
            output.print(&format!("{:<7} turn {:<5} {text}", it.position, it.turn));
        }
    }
    Ok(())
}
