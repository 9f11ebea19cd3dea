//! The first part of `dalsegno show`: the run, its checkpoint, its counters and its attempts.

use dalsegno_core::text::position;
use dalsegno_model::{Attempt, AttemptState, AuditRow, Identity, Lifecycle, RunRecord};

use crate::cli::audit_rows::Explanation;
use crate::cli::runs::{state, summary, unsealed_note, utc, wire_name};
use crate::dev;
use crate::output::print_line;

/// How a run was shredded.
pub struct Shredding {
    /// The audit row.
    pub row: AuditRow,
    /// Number of payloads that were never sealed, so that they can still be read.
    pub unsealed: u64,
}

/// Prints the name and the ids of the run.
pub fn print_name(run: &RunRecord) {
    let RunRecord { namespace, name, id, object_uid, tenant, .. } = run;
    print_line!("run         {namespace}/{name}  (id {id}, object {object_uid}, namespace UID {tenant})");
}

/// Prints what the run has done, and its attempts.
pub fn print_header(run: &RunRecord, earlier: &[RunRecord], shredding: Option<&Shredding>) {
    for run in earlier {
        print_line!("earlier     {}", summary(run));
    }
    print_line!("created     {}", utc(run.created_at));
    print_line!("state       {}", state_and_result(run));
    if let Some(shredding) = shredding {
        print_shredding(run, shredding);
    }
    print_checkpoint(run);
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

fn print_shredding(run: &RunRecord, shredding: &Shredding) {
    let Explanation { at, actor, text, .. } = Explanation::of(&shredding.row);
    print_line!("shredded    {} by {actor}: {text}", utc(at));
    print_line!("            its sealed payloads can no longer be read by anybody");
    if let Some(note) = unsealed_note(run, shredding.unsealed) {
        print_line!("            {note}");
    }
}

fn print_checkpoint(run: &RunRecord) {
    let Some(head) = &run.head else { return };
    print_line!(
        "checkpoint  turn {} ({}), event {}, {}",
        head.turn,
        wire_name(&head.boundary),
        head.position,
        utc(head.at)
    );
    print_line!("hash        {}", head.content_hash);
    if let Some(identity) = &head.identity {
        let Identity { agent_version, image_digest, .. } = identity;
        // A laptop has no images: the digest of the program's files is the version.
        if run.tenant == dev::NAMESPACE_UID {
            print_line!("written by  program {image_digest}");
        } else {
            print_line!("written by  version {agent_version}, image {image_digest}");
        }
    }
}

/// The state of a run, and the message and output of its worker if it has finished.
pub fn state_and_result(run: &RunRecord) -> String {
    let mut text = state(run);
    if let (Some(finish), Lifecycle::Finished) = (&run.finish, run.lifecycle) {
        if !finish.message.is_empty() {
            text.push_str(&format!(": {}", finish.message));
        }
        if let Some(output) = &finish.output {
            text.push_str(&format!("\noutput      {output}"));
        }
    }
    text
}

/// Prints one line per attempt.
pub fn print_attempts(run: &RunRecord, attempts: &[Attempt]) {
    for attempt in attempts {
        let node = attempt.node.as_deref().unwrap_or("-");
        let pod = attempt.pod_name.as_deref().unwrap_or("-");
        match &attempt.end {
            Some(end) => print_line!(
                "attempt {:<3} {pod} on {node}: {} ({}{}) {}: {}",
                attempt.number,
                end.cause,
                wire_name(&end.class).to_lowercase(),
                if end.charged { ", charged" } else { "" },
                position(attempt.turn_at_end.unwrap_or_default()),
                end.message
            ),
            None => {
                print_line!("attempt {:<3} {pod} on {node}: {}", attempt.number, attempt_state(run, attempt))
            }
        }
    }
}

/// The state of an attempt without a recorded end. A worker that finishes its run does not change its attempt's state.
fn attempt_state(run: &RunRecord, attempt: &Attempt) -> String {
    match (run.lifecycle, attempt.state) {
        (Lifecycle::Live, state) | (_, state @ (AttemptState::Reserved | AttemptState::Ended)) => {
            wire_name(&state)
        }
        (_, AttemptState::Created | AttemptState::Attached) => "ended with the run".to_owned(),
    }
}
