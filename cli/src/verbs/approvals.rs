//! `approvals`: what agents ask people to decide.

use dalsegno_crds::{AgentApproval, ApprovalConditionType, ApprovalReason, ConditionStatus, has_status};
use kube::ResourceExt as _;
use serde_json::json;

use crate::approvals::{self, condition, is_pending};
use crate::args::ApprovalsArgs;
use crate::failure::Result;
use crate::output::table::Rows;
use crate::output::{Format, Output, Style, time};
use crate::session::Session;

/// Lists approvals: those that wait first.
pub async fn run(session: &Session, args: &ApprovalsArgs, output: &mut Output) -> Result {
    let mut found = approvals::list(session, args.all_namespaces).await?;
    found.retain(|it| args.all || is_pending(it));
    if let Some(run) = &args.run {
        found.retain(|it| it.spec.run_ref.name == *run);
    }
    match output.format {
        Format::Json | Format::Yaml => {
            return output.document(&json!({ "apiVersion": "v1", "kind": "List", "items": found }));
        }
        Format::Name => {
            found
                .iter()
                .for_each(|it| output.print(&format!("agentapproval.dalsegno.dev/{}", it.name_any())));
        }
        Format::Text | Format::Wide => render(&found, args.all_namespaces, &session.options(), output),
    }
    Ok(())
}

fn render(found: &[AgentApproval], all_namespaces: bool, options: &str, output: &mut Output) {
    if found.is_empty() {
        let decided = "`kubectl dalsegno approvals --all` shows what was decided.";
        return output.paragraph(&format!("Nothing waits for a decision. {decided}"));
    }
    let mut headers = vec!["NAME", "RUN", "STATE", "DEADLINE", "AGE", "TITLE (THE AGENT'S)"];
    if all_namespaces {
        headers.insert(0, "NAMESPACE");
    }
    let mut rows = Rows::new(&headers);
    for it in found {
        let deadline = it.spec.deadline_time.as_ref().map(|at| at.0.duration_since(output.now).as_secs());
        let deadline = deadline.map_or_else(
            || "-".to_owned(),
            |left| match left {
                ..=0 => "passed".to_owned(),
                left => format!("in {}", time::duration(left)),
            },
        );
        let mut cells = vec![
            it.name_any(),
            it.spec.run_ref.name.clone(),
            state(it),
            deadline,
            time::age_of(output.now, it.metadata.creation_timestamp.as_ref()),
            it.spec.title.clone(),
        ];
        if all_namespaces {
            cells.insert(0, it.namespace().unwrap_or_default());
        }
        rows.push(if is_pending(it) { Style::Alarm } else { Style::Dim }, cells);
    }
    rows.print(output);
    if let Some(first) = found.iter().find(|it| is_pending(it)) {
        let options = match (all_namespaces, first.namespace()) {
            (true, Some(namespace)) => format!(" -n {namespace}"),
            _ => options.to_owned(),
        };
        output.print(&format!("\nSee and decide: kubectl dalsegno approve {}{options}", first.name_any()));
    }
}

/// The state of an approval in one word.
fn state(approval: &AgentApproval) -> String {
    use ApprovalConditionType as Kind;
    let holds = |kind| condition(approval, kind).is_some_and(|it| has_status(it, ConditionStatus::True));
    if holds(Kind::Withdrawn) {
        return "Withdrawn".to_owned();
    }
    if holds(Kind::Expired) {
        return "Expired".to_owned();
    }
    if is_pending(approval) {
        let reason = condition(approval, Kind::Pending).map(|it| it.reason.as_str());
        let undecided = [None, Some(ApprovalReason::AwaitingDecision.as_str())];
        return reason.filter(|_| !undecided.contains(&reason)).unwrap_or("Undecided").to_owned();
    }
    approval.spec.decision.as_ref().map_or_else(|| "Decided".to_owned(), |it| it.verdict.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_title_that_pretends_to_be_something_else_does_no_harm() {
        let hash = format!("sha256:{}", "0".repeat(64));
        let approval = json!({
            "apiVersion": "dalsegno.dev/v1alpha1", "kind": "AgentApproval",
            "metadata": { "name": "purchase-4be05b1fc2", "namespace": "shop", "creationTimestamp": "2026-11-26T11:00:00Z" },
            "spec": { "runRef": { "name": "purchase", "uid": "u" }, "waitID": "pay", "epoch": 1, "turn": 7,
                      "proposalHash": hash, "title": "pay \u{1b}[2J\u{202e}005\u{202c} euros\nAPPROVED BY ann",
                      "summary": "", "deadlineTime": "2026-11-26T14:00:00Z", "onTimeout": "Answer", "fourEyes": false },
        });
        let approval: AgentApproval = serde_json::from_value(approval).unwrap();
        let mut output = Output::kept(Format::Text, 80, "2026-11-26T12:00:00Z".parse().unwrap());
        render(&[approval], false, "", &mut output);
        insta::assert_snapshot!(output.text());
    }
}
