//! `list`: the runs, those that need a person first.

use std::cmp::Reverse;

use dalsegno_crds::{AgentRun, ConditionType};
use kube::ResourceExt as _;
use serde_json::{Value, json};

use crate::advice::Need;
use crate::args::ListArgs;
use crate::failure::Result;
use crate::output::table::Rows;
use crate::output::{Format, Output, Style, time};
use crate::runs::{self, ReadRun, Scope, condition};
use crate::session::Session;

/// Lists the runs.
pub async fn run(session: &Session, args: &ListArgs, output: &mut Output) -> Result {
    let scope = Scope { all_namespaces: args.all_namespaces, selector: args.selector.as_deref() };
    let mut found = runs::list(session, scope).await?;
    if args.needs_you {
        found.retain(|it| need(it) == Need::Person);
    }
    sort(&mut found);
    let place = if args.all_namespaces {
        String::new()
    } else {
        format!(" in the namespace {:?}", session.namespace)
    };
    render(
        &found,
        &Shown { all_namespaces: args.all_namespaces, place: &place, options: &session.options() },
        output,
    )
}

/// What is shown beside the runs.
struct Shown<'a> {
    all_namespaces: bool,
    place: &'a str,
    options: &'a str,
}

fn need(run: &ReadRun) -> Need {
    run.run.as_ref().map_or(Need::Person, Need::of)
}

/// Those that need a person first; of two with the same need the one that changed last.
fn sort(found: &mut [ReadRun]) {
    found.sort_by_cached_key(|it| {
        let since =
            it.run.as_ref().ok().and_then(|run| Some(condition(run, decisive(run))?.last_transition_time.0));
        (need(it), Reverse(since), it.object.namespace(), it.object.name_any())
    });
}

/// The condition whose time says since when a run is in its state.
pub fn decisive(run: &AgentRun) -> ConditionType {
    match Need::of(run) {
        Need::Over => ConditionType::Finished,
        Need::Stopped => ConditionType::Suspended,
        Need::Person if runs::is_true(run, ConditionType::Waiting) => ConditionType::Waiting,
        Need::Person => ConditionType::Held,
        Need::Nothing if runs::is_true(run, ConditionType::Waiting) => ConditionType::Waiting,
        Need::Trouble | Need::Nothing => ConditionType::WorkerReady,
    }
}

fn render(found: &[ReadRun], shown: &Shown<'_>, output: &mut Output) -> Result {
    match output.format {
        Format::Json | Format::Yaml => {
            let items: Vec<Value> =
                found.iter().map(|it| serde_json::to_value(&it.object).unwrap_or_default()).collect();
            return output.document(&json!({ "apiVersion": "v1", "kind": "List", "items": items }));
        }
        Format::Name => found.iter().for_each(|it| output.print(&runs::full_name(&it.object))),
        Format::Text | Format::Wide if found.is_empty() => {
            output
                .print(&format!("No runs{}. `kubectl dalsegno list -A` lists all namespaces.", shown.place));
        }
        Format::Text | Format::Wide => table(found, shown, output),
    }
    Ok(())
}

fn table(found: &[ReadRun], shown: &Shown<'_>, output: &mut Output) {
    let wide = output.format == Format::Wide;
    let mut headers = vec!["", "NAME", "STATE", "WHY", "TURN", "SINCE", "AGENT"];
    if shown.all_namespaces {
        headers.insert(1, "NAMESPACE");
    }
    if wide {
        headers.extend(["ATTEMPT", "NODE", "POD", "CRASHES", "DISRUPTIONS", "AGE"]);
    }
    let mut rows = Rows::new(&headers);
    for it in found {
        let need = need(it);
        let mut cells = match &it.run {
            Ok(run) => cells(run, need, output, wide),
            Err(_) => ["!", &it.object.name_any(), "Unknown", "Malformed"].map(str::to_owned).to_vec(),
        };
        if shown.all_namespaces {
            cells.insert(1, it.object.namespace().unwrap_or_default());
        }
        let style = match need {
            Need::Person => Style::Alarm,
            Need::Trouble | Need::Nothing | Need::Stopped => Style::Plain,
            Need::Over => Style::Dim,
        };
        rows.push(style, cells);
    }
    rows.print(output);
    let need_you = found.iter().filter(|it| need(it) == Need::Person).count();
    if need_you > 0 {
        let first = found[0].object.name_any();
        let of_first = match (shown.all_namespaces, found[0].object.namespace()) {
            (true, Some(namespace)) => format!(" -n {namespace}"),
            _ => shown.options.to_owned(),
        };
        let count = dalsegno_core::text::counted(need_you, "run needs", "runs need");
        output.print(&format!(
            "\n! {count} you. Why, and what to do: kubectl dalsegno status {first}{of_first}"
        ));
    }
}

fn cells(run: &AgentRun, need: Need, output: &Output, wide: bool) -> Vec<String> {
    let dash = || "-".to_owned();
    let status = run.status.clone().unwrap_or_default();
    let since = condition(run, decisive(run)).map(|it| &it.last_transition_time);
    let mut cells = vec![
        if need == Need::Person { "!".to_owned() } else { String::new() },
        run.name_any(),
        status.summary.map_or_else(dash, |it| it.to_string()),
        status.reason.map_or_else(dash, |it| it.to_string()),
        status.checkpoint.as_ref().map_or(0, |it| it.turn).to_string(),
        time::age_of(output.now, since),
        status.agent.clone().unwrap_or_else(dash),
    ];
    if wide {
        let attempt = status.attempt.clone().unwrap_or_default();
        let recovery = status.recovery.clone().unwrap_or_default();
        cells.extend([
            attempt.number.to_string(),
            attempt.node_name.unwrap_or_else(dash),
            attempt.pod_name.unwrap_or_else(dash),
            recovery.recovery_attempts.to_string(),
            recovery.disruptions.to_string(),
            time::age_of(output.now, run.metadata.creation_timestamp.as_ref()),
        ]);
    }
    cells
}

#[cfg(test)]
mod tests {
    use kube::api::DynamicObject;

    use super::*;

    fn run(name: &str, status: Value) -> ReadRun {
        let object: DynamicObject = serde_json::from_value(json!({
            "apiVersion": "dalsegno.dev/v1alpha1", "kind": "AgentRun",
            "metadata": { "name": name, "namespace": "shop", "creationTimestamp": "2026-11-26T10:00:00Z" },
            "spec": { "agentRef": { "name": "field-guide" } }, "status": status,
        }))
        .unwrap();
        ReadRun::of(object)
    }

    fn status(summary: &str, reason: &str, condition: &str) -> Value {
        json!({ "summary": summary, "reason": reason, "agent": "field-guide",
                "checkpoint": { "turn": 7, "eventPosition": 9 },
                "conditions": [{ "type": condition, "status": "True", "reason": reason, "message": "",
                                 "lastTransitionTime": "2026-11-26T11:30:00Z" }] })
    }

    #[test]
    fn runs_that_need_a_person_come_first_in_eighty_columns() {
        let mut found = vec![
            run("done", status("Succeeded", "Completed", "Finished")),
            run("working", status("Running", "UnderControl", "WorkerReady")),
            run("stopped", status("Suspended", "Suspended", "Suspended")),
            run("no-image", status("Starting", "ImagePullFailed", "WorkerReady")),
            run("asks", status("Waiting", "Approval", "Waiting")),
            run("sleeps", status("Waiting", "Until", "Waiting")),
            run("crashed", status("Held", "RecoveryLoop", "Held")),
            run(
                "a-run-with-a-name-that-is-as-long-as-a-name-may-be-x",
                status("Held", "DisruptionsExhausted", "Held"),
            ),
            run("of-a-later-version", json!({ "summary": "Dreaming" })),
        ];
        sort(&mut found);
        let mut output = Output::kept(Format::Text, 80, "2026-11-26T12:00:00Z".parse().unwrap());
        render(&found, &Shown { all_namespaces: false, place: "", options: " -n shop" }, &mut output)
            .unwrap();
        insta::assert_snapshot!(output.text());
    }

    #[test]
    fn the_names_alone_are_for_scripts() {
        let mut output = Output::kept(Format::Name, 80, jiff::Timestamp::UNIX_EPOCH);
        let found = [run("working", status("Running", "UnderControl", "WorkerReady"))];
        render(&found, &Shown { all_namespaces: true, place: "", options: "" }, &mut output).unwrap();
        assert_eq!(output.text(), "agentrun.dalsegno.dev/working\n");
    }
}
