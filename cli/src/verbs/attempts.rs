//! `attempts`: the lives of a run's pods, from its status.

use dalsegno_crds::{AgentRun, AgentRunStatus, AttemptEnd};

use crate::args::RunArgs;
use crate::failure::Result;
use crate::output::table::Rows;
use crate::output::{Output, Style, time};
use crate::runs;
use crate::session::Session;

/// Lists the current attempt and the ends of the last ten.
pub async fn run(session: &Session, args: &RunArgs, output: &mut Output) -> Result {
    let run = runs::get(session, &args.run).await?;
    let status = run.status.clone().unwrap_or_default();
    if output.format.is_document() {
        let history = status.recovery.as_ref().map(|it| it.history.clone()).unwrap_or_default();
        return output.document(&serde_json::json!({ "current": status.attempt, "ended": history }));
    }
    render(&run, &status, output);
    Ok(())
}

fn render(run: &AgentRun, status: &AgentRunStatus, output: &mut Output) {
    let mut rows = Rows::new(&["ATTEMPT", "TURNS", "NODE", "ENDED", "CAUSE", "CHARGED", "MESSAGE"]);
    let history = status.recovery.as_ref().map(|it| it.history.as_slice()).unwrap_or_default();
    for end in history.iter().rev() {
        rows.push(Style::Plain, ended(end, output));
    }
    let is_current = |number: i32| !history.iter().any(|end| end.attempt == number);
    if let Some(attempt) = status.attempt.as_ref().filter(|it| is_current(it.number)) {
        let dash = || "-".to_owned();
        let over = status.completion_time.is_some();
        let turn = status.checkpoint.as_ref().map_or(0, |it| it.turn);
        let message = if attempt.pod_name.is_none() { "has no pod" } else { "" };
        let cells = vec![
            attempt.number.to_string(),
            turns(attempt.resumed_from_turn.unwrap_or_default(), turn),
            attempt.node_name.clone().unwrap_or_else(dash),
            if over { time::age_of(output.now, status.completion_time.as_ref()) } else { dash() },
            if over { "the run ended".to_owned() } else { "current".to_owned() },
            "no".to_owned(),
            message.to_owned(),
        ];
        rows.push(Style::Bold, cells);
    }
    if rows.is_empty() {
        let name = run.metadata.name.as_deref().unwrap_or_default();
        return output.print(&format!("The run {name} has had no attempt yet."));
    }
    rows.print(output);
}

fn ended(end: &AttemptEnd, output: &Output) -> Vec<String> {
    vec![
        end.attempt.to_string(),
        turns(end.turn_at_start, end.turn_at_end),
        end.node_name.clone().unwrap_or_else(|| "-".to_owned()),
        time::age_of(output.now, end.end_time.as_ref()),
        end.cause.to_string(),
        if end.charged { "yes" } else { "no" }.to_owned(),
        end.message.clone().unwrap_or_default(),
    ]
}

/// The turns that an attempt has committed.
fn turns(from: i32, to: i32) -> String {
    match to - from {
        ..=0 => "none".to_owned(),
        1 => to.to_string(),
        2.. => format!("{}-{to}", from + 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::Format;

    #[test]
    fn attempts_fit_into_eighty_columns() {
        let status = serde_json::json!({
            "attempt": { "number": 3, "resumedFromTurn": 7 },
            "checkpoint": { "turn": 7, "eventPosition": 7 },
            "recovery": { "history": [
                { "attempt": 2, "cause": "OOMKilled", "class": "Crash", "charged": true, "exitCode": 137, "nodeName": "n2",
                  "message": "the worker \u{1b}]0;owned\u{7} ran out of memory: 64 MiB are allowed, and more were used at once",
                  "turnAtStart": 3, "turnAtEnd": 7, "endTime": "2026-11-26T11:50:00Z" },
                { "attempt": 1, "cause": "Evicted", "class": "Disruption", "charged": false, "nodeName": "n1",
                  "turnAtStart": 0, "turnAtEnd": 3, "endTime": "2026-11-26T11:00:00Z" },
            ] },
        });
        let mut run = AgentRun::new("nightly", Default::default());
        run.status = Some(serde_json::from_value(status).unwrap());
        let mut output = Output::kept(Format::Text, 80, "2026-11-26T12:00:00Z".parse().unwrap());
        render(&run, run.status.as_ref().unwrap(), &mut output);
        insta::assert_snapshot!(output.text());
    }
}
