//! The page docs/guides/state-machine.md shows the table of calls and phases. Each of its cells is compared.

use std::collections::BTreeMap;
use std::fs;

use super::phases::{Phase, TABLE, VERBS, Verb};

/// What the page calls a phase.
fn row_of(phase: Phase) -> &'static str {
    match phase {
        Phase::Reserved => "reserved: no pod",
        Phase::Created => "created: a pod, no worker",
        Phase::Attached => "attached: a worker",
        Phase::Suspended => "suspended, the worker does not know",
        Phase::Told => "suspended, the worker knows",
        Phase::Cancelling => "cancelled, the worker knows",
        Phase::Parked => "parked by a suspend",
        Phase::Ended => "ended, no successor yet",
        Phase::Finished => "finished",
        Phase::Deleted => "deleted",
        Phase::Waiting => "parked on a wait",
        Phase::Unattended => "a wait is open, the worker has not parked",
    }
}

/// What the page calls a call.
fn column_of(verb: Verb) -> &'static str {
    match verb {
        Verb::Suspend => "suspend",
        Verb::Resume => "resume",
        Verb::Cancel => "cancel",
        Verb::Park => "park",
        Verb::AcknowledgeCancel => "acknowledge",
        Verb::Rewind => "repair",
        Verb::ResetBudget => "budget",
        Verb::MarkDeleted => "delete",
        Verb::OpenWait => "open a wait",
        Verb::ParkOnWait => "park on it",
        Verb::SettleTime => "clock",
        Verb::ParkUnattended => "operator parks",
        Verb::RequestRewind => "rewind",
        Verb::StepBack => "step back",
    }
}

/// The page's word for a cell of the table.
fn word_of(cell: &str) -> &'static str {
    let (answer, changes) = cell.rsplit_once(": ").unwrap_or(("", cell));
    match (answer.split('(').next().unwrap(), changes) {
        ("", "-") => "–",
        ("Fenced", "-") => "`FENCED`",
        ("Finished", "-") => "`FINISHED`",
        ("NotRequested", "-") => "`CONFLICT`",
        ("NoSuchWait", "-") => "`NO_SUCH_WAIT`",
        ("Invalid", "-") => "`INVALID`",
        ("Ready", "-") => "`ready`",
        ("Refused", "-") => "refused",
        (_, "-") => panic!("the page has no word for {cell:?}"),
        _ => "done",
    }
}

fn is_refusal(word: &str) -> bool {
    word == "refused" || word.starts_with('`') && word != "`ready`"
}

/// The cells of the table, by the page's words for the phase and the call.
fn expected() -> BTreeMap<(String, String), String> {
    let rows = TABLE.iter().flat_map(|(phase, cells)| VERBS.into_iter().zip(cells).map(|it| (*phase, it)));
    let cell = |(phase, (verb, cell)): (Phase, (Verb, &&str))| {
        ((row_of(phase).to_owned(), column_of(verb).to_owned()), word_of(cell).to_owned())
    };
    rows.map(cell).collect()
}

fn page() -> String {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/guides/state-machine.md");
    fs::read_to_string(path).unwrap()
}

#[test]
fn the_page_shows_each_cell() {
    let page = page();
    let mut lines = page
        .lines()
        .skip_while(|line| !line.starts_with("| phase |"))
        .map(|line| line.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect::<Vec<_>>());
    let header = lines.next().unwrap();
    let rows: Vec<_> = lines.skip(1).take_while(|row| row.len() > 1).collect();
    let cells = rows.iter().flat_map(|row| {
        assert_eq!(row.len(), header.len(), "{row:?}");
        let of = |(column, word): (&String, &String)| ((row[0].clone(), column.clone()), word.clone());
        header.iter().zip(row).skip(1).map(of).collect::<Vec<_>>()
    });
    assert_eq!(cells.collect::<BTreeMap<_, _>>(), expected());
}

#[test]
fn the_page_counts_the_refusals() {
    let cells = expected();
    let of = |columns: &[&str]| {
        let chosen = cells.iter().filter(|((_, column), _)| columns.contains(&column.as_str()));
        let words: Vec<_> = chosen.map(|(_, word)| word.as_str()).collect();
        (words.iter().filter(|word| is_refusal(word)).count(), words.len())
    };
    let (worker, of_worker) = of(&["park", "acknowledge", "open a wait", "park on it"]);
    let (repair, _) = of(&["repair"]);
    let (step_back, _) = of(&["step back"]);
    let refusals = cells.values().filter(|word| is_refusal(word)).count();
    assert_eq!(refusals, worker + repair + step_back, "no request of a person is refused");
    let percent = (refusals * 100 + cells.len() / 2) / cells.len();
    assert!(percent <= 30, "{percent} % are refusals");
    let text = format!(
        "**{refusals} of the {} cells ({percent} %) are refusals**: {worker} of the {of_worker} cells of a worker's \
         calls, {repair} of the operator's repair, and {step_back} of its step back.",
        cells.len()
    );
    let page = page().split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(page.contains(&text), "the page does not say: {text}");
}
