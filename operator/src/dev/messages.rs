//! Texts that `dalsegno dev` prints on standard error.

use dalsegno_core::remedy::ON_A_LAPTOP;
use dalsegno_crds::{AgentRunStatus, ConditionType, Summary, find_condition};

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

/// Prints why the run is held, and what to do about it on this machine.
pub fn print_held(status: &AgentRunStatus) {
    let Some(held) = find_condition(&status.conditions, ConditionType::Held) else { return };
    let message = held.message.as_str();
    let (why, what) = message.rsplit_once(ON_A_LAPTOP).unwrap_or((message, ""));
    print_message(&format!("held: {}: {}", held.reason, why.trim_end()));
    print_message(&format!("what to do: {what}"));
}
