//! Texts that `dalsegno dev` prints on standard error.

use dalsegno_crds::{AgentRun, AgentRunStatus, ConditionType, Reason, Summary, find_condition};
use kube::ResourceExt as _;

use super::process::Orphans;
use crate::output::print_message;

/// Prints which processes of an earlier `dalsegno dev` were still running.
pub fn print_orphans(orphans: &Orphans) {
    if orphans.worker {
        print_message("a worker of an earlier `dalsegno dev` was still running and was killed");
    }
    if let Some(others) = &orphans.others {
        let pids: Vec<_> = others.iter().map(|it| it.as_raw_nonzero().to_string()).collect();
        let which = if pids.is_empty() { String::new() } else { format!(": process {}", pids.join(", ")) };
        print_message(&format!(
            "warning: a process that an earlier worker started outside its process group is still running, and is not \
             killed{which}"
        ));
    }
}

/// Prints the end of the run.
pub fn print_over(summary: Summary, status: &AgentRunStatus) {
    let turn = status.checkpoint.as_ref().map_or(0, |it| it.turn);
    let result = status.result.as_ref();
    let texts = [result.and_then(|it| it.reason.as_deref()), result.and_then(|it| it.message.as_deref())];
    let texts = texts.map(|it| it.map_or_else(String::new, |it| format!(": {it}"))).concat();
    let position = dalsegno_core::text::position(turn);
    print_message(&format!("the run is over {position}, {summary}{texts}; --fresh starts a new one"));
}

/// Prints why the run is held, and what to do about it on this machine. `store_url` is quoted for a shell.
pub fn print_held(store_url: &str, run: &AgentRun, status: &AgentRunStatus) {
    let Some(held) = find_condition(&status.conditions, ConditionType::Held) else { return };
    let reason: Option<Reason> = held.reason.parse().ok();
    // The condition ends with the remediation for a cluster.
    let of_cluster = reason.map_or("", Reason::remediation);
    let message = held.message.strip_suffix(of_cluster).unwrap_or(&held.message).trim_end();
    print_message(&format!("held: {}: {message}", held.reason));
    print_message(&format!("what to do: {}", remediation(store_url, run, reason)));
}

/// What a user can do about a hold.
fn remediation(store_url: &str, run: &AgentRun, reason: Option<Reason>) -> String {
    match reason {
        Some(Reason::EffectUnknown | Reason::KeyRefused) => format!(
            "find out whether the call took effect (`dalsegno show --calls` lists it), record that by `dalsegno settle \
             --database-url {} {}/{} CALL --outcome completed|failed --reason TEXT`, then run the same command again",
            store_url,
            run.namespace().unwrap_or_default(),
            run.name_any(),
        ),
        Some(Reason::InputTooLarge) => {
            "pass a smaller input, or one that refers to a file, with --fresh".to_owned()
        }
        _ => "fix the agent, then run the same command again, which grants a fresh budget; --fresh starts a new run"
            .to_owned(),
    }
}

/// A word, quoted for a shell if necessary.
pub fn shell_quoted(word: &str) -> String {
    let is_plain = |it: char| it.is_alphanumeric() || "/:._-".contains(it);
    if word.chars().all(is_plain) { word.to_owned() } else { format!("'{}'", word.replace('\'', "'\\''")) }
}
