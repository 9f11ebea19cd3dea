//! `status`: what a run is, where it stands, why, what happens next, and the command that lifts it.

use dalsegno_crds::{AgentRun, AgentRunStatus, ConditionType, Reason, Summary};
use kube::ResourceExt as _;

use crate::advice::{Advice, Around, Need, advise, split_remedy};
use crate::approvals;
use crate::args::RunArgs;
use crate::failure::Result;
use crate::output::{Format, Output, Style, time};
use crate::runs::{self, condition};
use crate::session::Session;
use crate::verbs::list::decisive;

/// Shows a run.
pub async fn run(session: &Session, args: &RunArgs, output: &mut Output) -> Result {
    let read = runs::read(session, &args.run).await?;
    match output.format {
        Format::Json | Format::Yaml => return output.document(&read.object),
        Format::Name => {
            output.print(&runs::full_name(&read.object));
            return Ok(());
        }
        Format::Text | Format::Wide => {}
    }
    let run = read.understood(session)?;
    // Who may not list approvals sees the command that lists them.
    let asks = run.status.as_ref().is_some_and(|it| it.waiting.is_some());
    let asked = if asks { approvals::of_run(session, &run).await.unwrap_or_default() } else { Vec::new() };
    let pending: Vec<String> =
        asked.iter().filter(|it| approvals::is_pending(it)).map(|it| it.name_any()).collect();
    let around = Around { options: &session.options(), approvals: &pending, now: output.now };
    render(&run, &advise(&run, around), output);
    Ok(())
}

fn render(run: &AgentRun, advice: &Advice, output: &mut Output) {
    let none = AgentRunStatus::default();
    let status = run.status.as_ref().unwrap_or(&none);
    headline(run, status, output);
    output.field("Agent", &agent(status));
    if let Some(checkpoint) = &status.checkpoint {
        let at = checkpoint.created_time.as_ref().map(|at| time::with_distance(output.now, at.0));
        let at = at.map_or_else(String::new, |at| format!(", committed {at}"));
        output.field("Stands", &format!("after turn {}{at}", checkpoint.turn));
    } else {
        output.field("Stands", "before its first turn");
    }
    if let Some(attempt) = &status.attempt {
        output.field("Attempt", &attempt_line(run, attempt));
    }
    recovery(status, output);
    for limit in &status.limits {
        output.field("Limit", &format!("{} of {} {}", limit.used, limit.max, limit.limit.as_str()));
    }
    waits(status, output);
    if let Some(rewound) = condition(run, ConditionType::Rewound) {
        output.field("Rewind", split_remedy(&rewound.message, Reason::RewindRefused).0);
    }
    output.field("Why", &why(run, status));
    output.field("Next", &advice.next);
    if !advice.act.is_empty() {
        output.field("To do", &advice.act);
    }
    for (at, command) in advice.commands.iter().enumerate() {
        output.command(if at == 0 { "Command" } else { "" }, command);
    }
}

fn headline(run: &AgentRun, status: &AgentRunStatus, output: &mut Output) {
    let name = format!("{}/{}", run.namespace().unwrap_or_default(), run.name_any());
    let summary = status.summary.map_or("not looked at yet", |it| it.as_str());
    let reason =
        status.reason.filter(|it| it.as_str() != summary).map_or_else(String::new, |it| format!(" ({it})"));
    let since = condition(run, decisive(run)).map(|it| time::age(output.now, it.last_transition_time.0));
    let since = since.map_or_else(String::new, |it| format!(" for {it}"));
    let style = if Need::of(run) == Need::Person { Style::Alarm } else { Style::Bold };
    output.print_styled(style, &format!("{name}: {summary}{reason}{since}"));
}

fn agent(status: &AgentRunStatus) -> String {
    let name = status.agent.as_deref().unwrap_or("unknown");
    match status.attempt.as_ref().and_then(|it| it.agent_version.as_deref()) {
        Some(version) => format!("{name}, version {version}"),
        None => name.to_owned(),
    }
}

fn attempt_line(run: &AgentRun, attempt: &dalsegno_crds::AttemptStatus) -> String {
    let number = attempt.number;
    let is_over = runs::is_true(run, ConditionType::Finished);
    match (&attempt.pod_name, &attempt.node_name) {
        (Some(pod), node) => {
            let node = node.as_ref().map_or_else(String::new, |node| format!(" on {node}"));
            let state = match (is_over, runs::is_true(run, ConditionType::WorkerReady)) {
                (true, _) => "over",
                (false, true) => "its worker is attached",
                (false, false) => "no worker is attached",
            };
            format!("{number}, pod {pod}{node}, {state}")
        }
        (None, _) => format!("{number} has no pod"),
    }
}

fn recovery(status: &AgentRunStatus, output: &mut Output) {
    let Some(recovery) = status.recovery.as_ref().filter(|it| it.recovery_attempts + it.disruptions > 0)
    else {
        return;
    };
    let text = format!(
        "{} ({} in a row without progress), {} ({} in a row without progress)",
        dalsegno_core::text::counted(recovery.recovery_attempts, "crash", "crashes"),
        recovery.attempts_without_progress,
        dalsegno_core::text::counted(recovery.disruptions, "disruption", "disruptions"),
        recovery.disruptions_without_progress,
    );
    output.field("Recovery", &text);
}

fn waits(status: &AgentRunStatus, output: &mut Output) {
    for wait in status.waiting.iter().flat_map(|it| &it.waits) {
        let deadline = wait.deadline.as_ref().map_or_else(
            || "no deadline".to_owned(),
            |at| format!("deadline {}", time::of(output.now, Some(at))),
        );
        output.field("Waits for", &format!("{} {:?}, {deadline}", wait.kind, wait.id));
    }
}

/// Why the run is in its state: the message of the condition that decides, without what to do, which comes below.
fn why(run: &AgentRun, status: &AgentRunStatus) -> String {
    let reason = status.reason.unwrap_or(Reason::Starting);
    let message = |kind| condition(run, kind).map_or("", |it| it.message.as_str());
    let text = match status.summary {
        Some(Summary::Held) => split_remedy(message(ConditionType::Held), reason).0.to_owned(),
        Some(Summary::Suspended) => suspended(status),
        Some(Summary::Pending | Summary::Starting | Summary::BackingOff) => {
            let own = message(ConditionType::WorkerReady);
            let own = if own.is_empty() { message(ConditionType::Ready) } else { own };
            split_remedy(own, reason).0.to_owned()
        }
        Some(Summary::Succeeded | Summary::Failed | Summary::Cancelled) => result(status),
        Some(Summary::Running | Summary::Waiting) | None => String::new(),
    };
    if text.trim().is_empty() { reason.meaning().to_owned() } else { text }
}

fn suspended(status: &AgentRunStatus) -> String {
    let suspend = status.suspend.clone().unwrap_or_default();
    let by = suspend.by.map_or_else(String::new, |by| format!(" by {by}"));
    let reason = suspend.reason.map_or_else(String::new, |reason| format!(": {reason}"));
    format!("suspended{by}{reason}")
}

fn result(status: &AgentRunStatus) -> String {
    let Some(result) = &status.result else { return String::new() };
    let parts = [result.reason.as_deref(), result.message.as_deref()];
    let text = parts.into_iter().flatten().filter(|it| !it.is_empty()).collect::<Vec<_>>().join(": ");
    match &result.output {
        Some(output) if !output.is_null() => format!("{text}. Output: {output}"),
        _ => text,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn run(status: Value) -> AgentRun {
        let run = json!({
            "apiVersion": "dalsegno.dev/v1alpha1", "kind": "AgentRun",
            "metadata": { "name": "nightly", "namespace": "shop" },
            "spec": { "agentRef": { "name": "field-guide" } }, "status": status,
        });
        serde_json::from_value(run).unwrap()
    }

    fn shown(status: Value, approvals: &[String]) -> String {
        let run = run(status);
        let now = "2026-11-26T12:00:00Z".parse().unwrap();
        let mut output = Output::kept(Format::Text, 80, now);
        let advice = advise(&run, Around { options: " -n shop", approvals, now });
        render(&run, &advice, &mut output);
        output.text().to_owned()
    }

    fn condition(kind: &str, reason: &str, message: &str) -> Value {
        json!({ "type": kind, "status": "True", "reason": reason, "message": message,
                "lastTransitionTime": "2026-11-26T11:30:00Z" })
    }

    /// The worker pretends to be the operator: it quotes the remediation, and a command of its own.
    #[test]
    fn a_held_run_shows_why_and_the_command_that_lifts_it() {
        let remediation = Reason::RecoveryLoop.remediation();
        let hostile = format!(
            "exit code 1: {remediation} To raise resetGeneration, run `kubectl delete namespace shop`."
        );
        let message = format!(
            "12 attempts in a row made no progress after turn 7; attempt 12 ended after turn 7: ExitedWithError: \
             {hostile}\u{1b}[2J. {remediation} To raise resetGeneration, run `kubectl patch agentrun nightly`."
        );
        insta::assert_snapshot!(shown(
            json!({
                "summary": "Held", "reason": "RecoveryLoop", "agent": "field-guide",
                "attempt": { "number": 13, "agentVersion": "1.4.2" },
                "checkpoint": { "turn": 7, "eventPosition": 9, "createdTime": "2026-11-26T11:00:00Z" },
                "recovery": { "recoveryAttempts": 12, "attemptsWithoutProgress": 12, "disruptions": 1 },
                "conditions": [condition("Held", "RecoveryLoop", &message)],
            }),
            &[]
        ));
    }

    #[test]
    fn a_call_whose_outcome_is_unknown_is_named_in_the_command() {
        let remediation = Reason::EffectUnknown.remediation();
        let message = format!(
            "an attempt ended during 1 call with policy `ask`, and it is not known whether it took effect; attempt 1 ended \
             after turn 2: ExitedWithError: exit code 9. {remediation} If it took effect, run `kubectl exec --namespace \
             dalsegno-system deployment/dalsegno -- /dalsegno settle shop/nightly pay-ann --outcome completed --reason \
             \"what you found\" --by \"$USER\"`; if not, the same with `--outcome failed`."
        );
        insta::assert_snapshot!(shown(
            json!({
                "summary": "Held", "reason": "EffectUnknown", "agent": "field-guide", "attempt": { "number": 2 },
                "checkpoint": { "turn": 2, "eventPosition": 2 },
                "conditions": [condition("Held", "EffectUnknown", &message)],
            }),
            &[]
        ));
    }

    /// The agent chose the ids of the calls: one of them would be a command of its own, and one an option.
    #[test]
    fn a_refused_rewind_shows_the_command_that_names_the_calls() {
        let message =
            format!("turn 2 is not restored: it undoes 3 calls. {}", Reason::RewindRefused.remediation());
        insta::assert_snapshot!(shown(
            json!({
                "summary": "Suspended", "reason": "Suspended", "agent": "field-guide", "attempt": { "number": 2 },
                "checkpoint": { "turn": 7, "eventPosition": 9 },
                "rewind": { "observedGeneration": 1, "toTurn": 2, "effects": ["turn-3", "$(reboot)", "--yes"] },
                "conditions": [condition("Rewound", "RewindRefused", &message)],
            }),
            &[]
        ));
    }

    #[test]
    fn a_run_that_waits_for_people_shows_how_to_answer() {
        insta::assert_snapshot!(shown(
            json!({
                "summary": "Waiting", "reason": "Approval", "agent": "<inline>", "attempt": { "number": 2 },
                "checkpoint": { "turn": 7, "eventPosition": 9 },
                "waiting": { "since": "2026-11-26T11:30:00Z", "waits": [
                    { "id": "pay\u{202e}", "kind": "Approval", "deadline": "2026-11-26T14:00:00Z" },
                    { "id": "news", "kind": "Message" },
                ] },
                "conditions": [condition("Waiting", "Approval", "")],
            }),
            &["nightly-4be05b1fc2".to_owned()]
        ));
    }

    #[test]
    fn every_state_says_what_happens_next() {
        let mut all = String::new();
        for (summary, reason, kind, message) in [
            ("Pending", "Queued", "WorkerReady", "2 runs of this AgentDefinition start before it"),
            ("Starting", "ImagePullFailed", "WorkerReady", "ErrImagePull: no such image"),
            ("Running", "UnderControl", "WorkerReady", ""),
            ("Running", "Suspending", "WorkerReady", ""),
            ("BackingOff", "Crashed", "WorkerReady", ""),
            ("Suspended", "Suspended", "Suspended", ""),
            ("Waiting", "Until", "Waiting", ""),
            ("Succeeded", "Completed", "Finished", ""),
            ("Failed", "AgentFailed", "Finished", ""),
        ] {
            all.push_str(&shown(
                json!({
                    "summary": summary, "reason": reason, "agent": "field-guide",
                    "attempt": { "number": 2, "podName": "nightly-2", "nodeName": "n1" },
                    "recovery": { "nextAttemptTime": "2026-11-26T12:00:30Z" },
                    "suspend": { "by": "ann", "reason": "too expensive" },
                    "result": { "outcome": "Succeeded", "reason": "Done", "message": "all\nfine", "output": { "pages": 3 } },
                    "limits": [{ "limit": "tokens", "used": 80, "max": 100 }],
                    "conditions": [condition(kind, reason, message)],
                }),
                &[],
            ));
            all.push('\n');
        }
        assert!(all.lines().all(|line| textwrap::core::display_width(line) <= 80), "{all}");
        insta::assert_snapshot!(all);
    }

    #[test]
    fn a_run_that_nobody_has_looked_at_is_no_mystery() {
        let run = AgentRun::new("nightly", Default::default());
        let now = "2026-11-26T12:00:00Z".parse().unwrap();
        let mut output = Output::kept(Format::Text, 80, now);
        render(&run, &advise(&run, Around { options: "", approvals: &[], now }), &mut output);
        assert!(output.text().contains("The operator has not looked at the run yet."), "{}", output.text());
    }
}
