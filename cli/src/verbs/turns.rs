//! `turns`: what a run has committed, without the payloads.

use dalsegno_protocol::{Boundary, Usage};
use serde::{Deserialize, Serialize};

use crate::args::TurnsArgs;
use crate::doors::{Document, Door};
use crate::failure::Result;
use crate::output::table::Rows;
use crate::output::{Output, Style, time};
use crate::session::Session;

/// A page of boundaries.
#[derive(Deserialize)]
struct Page {
    turns: Vec<TurnEntry>,
    /// `after` of the next page. Absent: the end.
    next: Option<String>,
}

/// A boundary.
#[derive(Debug, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
struct TurnEntry {
    #[serde(default)]
    id: String,
    turn: i32,
    boundary: Boundary,
    attempt: i32,
    at: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    trigger: Option<String>,
    usage: Usage,
    events: i64,
    position: i64,
    content_hash: String,
    #[serde(default)]
    undone: bool,
    #[serde(default)]
    dropped: bool,
    #[serde(default)]
    damaged: bool,
}

/// Lists the latest turns.
pub async fn run(session: &Session, args: &TurnsArgs, output: &mut Output) -> Result {
    let door = Door::open(session).await?;
    let mut turns: Vec<TurnEntry> = Vec::new();
    let mut after = None;
    loop {
        let page: Page = door.get(&Document::new(&args.run, "turns").with_some("after", after)).await?;
        let is_past = add(&mut turns, page.turns, args);
        match page.next.filter(|_| !is_past) {
            Some(next) => after = Some(next),
            None => break,
        }
    }
    if output.format.is_document() {
        return output.document(&turns);
    }
    render(&turns, output);
    Ok(())
}

/// Adds a page of turns, and keeps those that are asked for. Returns whether the later pages have none of them.
fn add(turns: &mut Vec<TurnEntry>, page: Vec<TurnEntry>, args: &TurnsArgs) -> bool {
    let is_before = |it: &TurnEntry| args.before.is_none_or(|before| it.turn < before);
    let is_past = page.last().is_some_and(|last| !is_before(last));
    turns.extend(page.into_iter().filter(is_before));
    let last = turns.iter().map(|it| it.turn).max().unwrap_or_default();
    turns.retain(|it| it.turn > last.saturating_sub(args.last));
    is_past
}

fn render(turns: &[TurnEntry], output: &mut Output) {
    if turns.is_empty() {
        return output.print("The run has committed no turn yet.");
    }
    let mut rows = Rows::new(&["TURN", "BOUNDARY", "ATTEMPT", "AGE", "EVENTS", "TOKENS", "COST", "NOTE"]);
    for it in turns {
        let boundary = match it.boundary {
            Boundary::Plan => "plan",
            Boundary::Result => "result",
        };
        let notes = [(it.undone, "undone"), (it.dropped, "dropped"), (it.damaged, "damaged")];
        let notes = notes.iter().filter(|(is_so, _)| *is_so).map(|(_, note)| *note);
        let notes: Vec<_> = notes.chain(it.trigger.as_deref()).collect();
        let age = it.at.parse().map_or_else(|_| it.at.clone(), |at| time::age(output.now, at));
        rows.push(
            if it.undone { Style::Dim } else { Style::Plain },
            vec![
                it.turn.to_string(),
                boundary.to_owned(),
                it.attempt.to_string(),
                age,
                it.events.to_string(),
                (it.usage.tokens_in + it.usage.tokens_out).to_string(),
                cost(it.usage.cost_micro_usd),
                notes.join(", "),
            ],
        );
    }
    rows.print(output);
}

/// Millionths of a US dollar, as dollars.
fn cost(micro_usd: i64) -> String {
    format!("${}.{:06}", micro_usd / 1_000_000, (micro_usd % 1_000_000).abs())
        .trim_end_matches('0')
        .trim_end_matches('.')
        .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::Format;

    #[test]
    fn costs_are_in_dollars() {
        assert_eq!([cost(0), cost(1_500_000), cost(70)], ["$0", "$1.5", "$0.00007"]);
    }

    #[test]
    fn the_page_before_a_turn_is_kept_whatever_the_pages_of_the_gateway_are() {
        let entry = |turn: i32| -> TurnEntry {
            serde_json::from_value(serde_json::json!({
                "id": format!("{turn}.2.1"), "turn": turn, "boundary": "result", "attempt": 1, "at": "2026-11-26T11:00:00Z",
                "usage": {}, "events": 0, "position": 0, "contentHash": "sha256:00",
            }))
            .unwrap()
        };
        let kept = |before: Option<i32>| {
            let args = TurnsArgs { run: "nightly".into(), last: 3, before };
            let mut turns = Vec::new();
            let pages = [1..=4, 5..=8, 9..=9];
            let read = pages
                .into_iter()
                .take_while(|page| !add(&mut turns, page.clone().map(entry).collect(), &args));
            let read = read.count();
            (turns.iter().map(|it| it.turn).collect::<Vec<_>>(), read)
        };
        assert_eq!(kept(None), (vec![7, 8, 9], 3));
        assert_eq!(kept(Some(7)), (vec![4, 5, 6], 1), "the last page is not read");
        assert_eq!(kept(Some(1)), (vec![], 0));
    }

    #[test]
    fn turns_fit_into_eighty_columns() {
        let page = serde_json::json!({ "turns": [
            { "turn": 1, "boundary": "result", "attempt": 1, "at": "2026-11-26T11:00:00Z", "trigger": "turn done\u{1b}[31m",
              "usage": { "tokensIn": 900, "tokensOut": 40, "toolCalls": 1, "costMicroUSD": 70 }, "events": 2, "position": 2,
              "contentHash": "sha256:00", "parentHash": "sha256:11", "epoch": 1, "undone": false, "dropped": false, "damaged": false },
            { "turn": 2, "boundary": "plan", "attempt": 3, "at": "2026-11-26T11:59:00Z",
              "usage": { "tokensIn": 0, "tokensOut": 0, "toolCalls": 0, "costMicroUSD": 0 }, "events": 0, "position": 2,
              "contentHash": "sha256:00", "parentHash": "sha256:11", "epoch": 4, "undone": true, "dropped": false, "damaged": false },
        ]});
        let page: Page = serde_json::from_value(page).unwrap();
        let mut output = Output::kept(Format::Text, 80, "2026-11-26T12:00:00Z".parse().unwrap());
        render(&page.turns, &mut output);
        insta::assert_snapshot!(output.text());
    }
}
