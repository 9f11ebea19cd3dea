//! What an agent proposes: read from the store, checked against the AgentApproval, shown to the person who decides.

use dalsegno_crds::AgentApproval;
use dalsegno_format::header;
use dalsegno_format::proposal::HashedProposal;
use dalsegno_protocol::{ProposalResponse, RawValue, WaitRequest};

use crate::doors::{Document, Door};
use crate::failure::{Exit, Failure, Result};
use crate::output::{Output, Style, escape, time};
use crate::session::Session;

/// A proposal whose hash is the one that a decision names.
#[derive(Debug)]
pub struct CheckedProposal {
    title: String,
    summary: String,
    proposal: Option<Box<RawValue>>,
    answer_schema: Option<Box<RawValue>>,
}

/// Reads the proposal of an approval, and checks it.
pub async fn read(session: &Session, approval: &AgentApproval) -> Result<CheckedProposal> {
    let door = Door::open(session).await?;
    let spec = &approval.spec;
    let document =
        Document::new(&spec.run_ref.name, "proposal").with("wait", &spec.wait_id).with("epoch", spec.epoch);
    check(approval, &door.get(&document).await?)
}

/// Computes the hash of what the store has, and compares it, the title and the summary with the AgentApproval.
fn check(approval: &AgentApproval, stored: &ProposalResponse) -> Result<CheckedProposal> {
    let gone = || {
        Failure::new(
            Exit::NotFound,
            "the proposal was deleted by retention, or shredded",
            "deny it, or let the agent ask again",
        )
    };
    let request = stored.request.as_ref().ok_or_else(gone)?;
    let salt = stored.salt.as_deref().and_then(salt).ok_or_else(gone)?;
    let request: WaitRequest =
        serde_json::from_str(request.get()).map_err(|error| differs(&error.to_string()))?;
    let WaitRequest { title, summary, proposal, answer_schema, .. } = request;
    let (title, summary) = (title.unwrap_or_default(), summary.unwrap_or_default());
    let text = proposal.as_ref().map_or("", |it| it.get());
    let hash = HashedProposal { salt: &salt, title: &title, summary: &summary, proposal: text }.hash();
    let spec = &approval.spec;
    if header::render(&hash) != spec.proposal_hash {
        return Err(differs("its hash is another one"));
    }
    if (&title, &summary) != (&spec.title, &spec.summary) {
        return Err(differs("its title or its summary is another one"));
    }
    Ok(CheckedProposal { title, summary, proposal, answer_schema })
}

fn differs(why: &str) -> Failure {
    Failure::new(
        Exit::Differs,
        format!("the proposal in the store is not the one that the AgentApproval names: {why}"),
        "do not decide: tell an administrator, who checks the store (docs/guides/audit.md)",
    )
}

fn salt(hex: &str) -> Option<[u8; 16]> {
    let digit = |at: usize| u8::from_str_radix(hex.get(at..at + 2)?, 16).ok();
    let bytes: Option<Vec<u8>> = (0..hex.len()).step_by(2).map(digit).collect();
    bytes?.try_into().ok()
}

/// Shows who asks, until when, and what the agent says.
pub fn print_approval(approval: &AgentApproval, output: &mut Output) {
    let spec = &approval.spec;
    let name = approval.metadata.name.as_deref().unwrap_or_default();
    output.print_styled(
        Style::Bold,
        &format!("{name}: asked by the run {} in turn {}", spec.run_ref.name, spec.turn),
    );
    if spec.deadline_time.is_some() {
        let at = time::of(output.now, spec.deadline_time.as_ref());
        output.field("Deadline", &format!("{at}, then {}", spec.on_timeout));
    }
    if spec.four_eyes {
        output.field("Four eyes", "who created the run, wrote its agent or sent it a message may not decide");
    }
    if let Some(first) = &spec.decision {
        output.field("Decided", &format!("{} by {}: {}", first.verdict, first.by, first.reason));
    }
}

impl CheckedProposal {
    /// Shows the proposal. The agent's own words are marked as such.
    pub fn print(&self, output: &mut Output) {
        let Self { title, summary, proposal, answer_schema } = self;
        output.print_styled(Style::Bold, "The agent says (compare it with the proposal):");
        output.field("  title", title);
        if !summary.is_empty() {
            output.field("  summary", summary);
        }
        output.print_styled(Style::Bold, "The proposal, as it will be executed (its hash is right):");
        let text = proposal.as_ref().map_or("null", |it| it.get());
        indented(text).lines().for_each(|line| output.print(&format!("  {}", escape::line(line))));
        if let Some(schema) = answer_schema {
            output.field("Changes", &format!("the agent expects {}", schema.get()));
        }
    }
}

/// JSON with a line for each part. Only white space between the parts changes: every value is as the agent wrote it.
fn indented(json: &str) -> String {
    let (mut text, mut depth, mut in_string, mut is_escaped) = (String::new(), 0_usize, false, false);
    let new_line = |text: &mut String, depth: usize| {
        text.push('\n');
        text.push_str(&"  ".repeat(depth));
    };
    let mut letters = json.chars().peekable();
    while let Some(letter) = letters.next() {
        if in_string {
            text.push(letter);
            (in_string, is_escaped) = (is_escaped || letter != '"', letter == '\\' && !is_escaped);
            continue;
        }
        match letter {
            '{' | '[' => {
                text.push(letter);
                while letters.next_if(|it| it.is_whitespace()).is_some() {}
                match letters.next_if(|it| matches!(it, '}' | ']')) {
                    Some(end) => text.push(end),
                    None => {
                        depth += 1;
                        new_line(&mut text, depth);
                    }
                }
            }
            '}' | ']' => {
                depth = depth.saturating_sub(1);
                new_line(&mut text, depth);
                text.push(letter);
            }
            ',' => {
                text.push(letter);
                new_line(&mut text, depth);
            }
            ':' => text.push_str(": "),
            letter if letter.is_whitespace() => {}
            letter => {
                text.push(letter);
                in_string = letter == '"';
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::output::Format;

    fn approval(hash: &str) -> AgentApproval {
        let approval = json!({
            "apiVersion": "dalsegno.dev/v1alpha1", "kind": "AgentApproval",
            "metadata": { "name": "purchase-4be05b1fc2", "namespace": "shop" },
            "spec": { "runRef": { "name": "purchase", "uid": "u" }, "waitID": "pay", "epoch": 1, "turn": 7,
                      "proposalHash": hash, "title": "pay 500 cents", "summary": "the invoice is due\u{202e}",
                      "deadlineTime": "2026-11-26T14:00:00Z", "onTimeout": "Answer", "fourEyes": true },
        });
        serde_json::from_value(approval).unwrap()
    }

    fn stored(summary: &str, proposal: serde_json::Value) -> ProposalResponse {
        let request =
            json!({ "kind": "approval", "title": "pay 500 cents", "summary": summary, "proposal": proposal });
        let response = json!({ "wait": "pay", "epoch": 1, "turn": 7, "request": request, "salt": "01".repeat(16),
                               "proposalHash": "sha256:00" });
        serde_json::from_str(&response.to_string()).unwrap()
    }

    fn hash(proposal: &str) -> String {
        let summary = "the invoice is due\u{202e}";
        let hashed = HashedProposal { salt: &[1; 16], title: "pay 500 cents", summary, proposal };
        header::render(&hashed.hash())
    }

    #[test]
    fn a_proposal_is_shown_if_its_hash_is_right_and_the_agents_words_are_marked() {
        let approval = approval(&hash(r#"{"cents":500,"note":"\u001b[2J"}"#));
        let checked = check(
            &approval,
            &stored("the invoice is due\u{202e}", json!({ "cents": 500, "note": "\u{1b}[2J" })),
        );
        let mut output = Output::kept(Format::Text, 80, "2026-11-26T12:00:00Z".parse().unwrap());
        print_approval(&approval, &mut output);
        checked.unwrap().print(&mut output);
        insta::assert_snapshot!(output.text());
    }

    #[test]
    fn a_proposal_is_indented_and_every_value_is_as_the_agent_wrote_it() {
        let text = r#"{"a": 1.0,"b":[ ],"c":[12345678901234567890123,{"d":"x, {\"y\": \\"}],"a":2}"#;
        let expected = r#"{
  "a": 1.0,
  "b": [],
  "c": [
    12345678901234567890123,
    {
      "d": "x, {\"y\": \\"
    }
  ],
  "a": 2
}"#;
        assert_eq!(indented(text), expected);
    }

    #[test]
    fn another_proposal_or_another_summary_is_never_shown() {
        let approval = approval(&hash(r#"{"cents":500}"#));
        for (summary, cents) in [("the invoice is due\u{202e}", 501), ("all is well", 500)] {
            let failure = check(&approval, &stored(summary, json!({ "cents": cents }))).unwrap_err();
            assert_eq!(failure.exit, Exit::Differs, "{failure}");
        }
        let mut shredded = stored("", json!(null));
        shredded.request = None;
        assert_eq!(check(&approval, &shredded).unwrap_err().exit, Exit::NotFound);
    }
}
