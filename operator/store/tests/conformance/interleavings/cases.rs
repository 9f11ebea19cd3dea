//! The cases: every combination of how a call is delivered, in which epoch, which call it is, and what comes before or
//! after it. What each must come to stands in `docs/reference/interleavings.md`.

use std::fmt;

const PAGE: &str = include_str!("../../../../../docs/reference/interleavings.md");

/// How a call reaches the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// Once, and its answer arrives.
    Ok,
    /// Its answer is lost, and the same bytes come again.
    Lost,
    /// Two of the same at once.
    Twins,
}

/// Whether the sender's attempt is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Epoch {
    Same,
    /// Before the call, or between the two of a lost answer.
    Next,
    /// While twins are under way, and before both.
    First,
    /// Between them.
    Between,
    /// After both.
    Last,
}

/// What is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    Plan,
    Result,
    Claim,
    Complete,
    Settle,
    Finish,
    Records,
}

/// Whether the step comes after the call is first sent, or before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    Before,
    After,
}

/// What happens to the run beside its worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    Rewind,
    /// Of the state at the head.
    Snapshot,
    /// All payloads are dropped but the head's.
    Retention,
}

/// One of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Case {
    pub call: Call,
    pub delivery: Delivery,
    pub epoch: Epoch,
    pub moment: Moment,
    pub step: Step,
}

const CALLS: [Call; 7] =
    [Call::Plan, Call::Result, Call::Claim, Call::Complete, Call::Settle, Call::Finish, Call::Records];
const DELIVERIES: [Delivery; 3] = [Delivery::Ok, Delivery::Lost, Delivery::Twins];
const STEPS: [Step; 3] = [Step::Rewind, Step::Snapshot, Step::Retention];
const MOMENTS: [Moment; 2] = [Moment::Before, Moment::After];

/// Every case of a call, in the order of the page.
pub fn of(call: Call) -> impl Iterator<Item = Case> {
    let columns = STEPS.into_iter().flat_map(|step| MOMENTS.map(|moment| (moment, step)));
    let rows =
        DELIVERIES.into_iter().flat_map(|delivery| epochs(delivery).iter().map(move |it| (delivery, *it)));
    rows.flat_map(move |(delivery, epoch)| {
        columns.clone().map(move |(moment, step)| Case { call, delivery, epoch, moment, step })
    })
}

fn epochs(delivery: Delivery) -> &'static [Epoch] {
    match delivery {
        Delivery::Ok | Delivery::Lost => &[Epoch::Same, Epoch::Next],
        Delivery::Twins => &[Epoch::Same, Epoch::First, Epoch::Between, Epoch::Last],
    }
}

impl Case {
    /// What it must come to.
    pub fn expected(&self) -> &'static str {
        let (row, column) = (self.row(), self.column());
        let mut table = table();
        let at = table.next().unwrap().iter().position(|cell| *cell == column);
        let cells = table.find(|cells| cells[..3] == row).unwrap_or_else(|| panic!("no row for {self}"));
        cells[at.unwrap_or_else(|| panic!("no column for {self}"))]
    }

    /// What it is where the second and the third who wait for the run's row change places.
    pub fn overtaken(self) -> Option<Self> {
        match self.epoch {
            Epoch::Between => Some(Self { epoch: Epoch::Last, ..self }),
            Epoch::Last => Some(Self { epoch: Epoch::Between, ..self }),
            Epoch::Same | Epoch::Next | Epoch::First => None,
        }
    }

    fn row(&self) -> [&'static str; 3] {
        let call = match self.call {
            Call::Plan => "plan",
            Call::Result => "result",
            Call::Claim => "claim",
            Call::Complete => "complete",
            Call::Settle => "settle",
            Call::Finish => "finish",
            Call::Records => "records",
        };
        let delivery = match self.delivery {
            Delivery::Ok => "ok",
            Delivery::Lost => "answer lost",
            Delivery::Twins => "twins",
        };
        let epoch = match self.epoch {
            Epoch::Same => "same",
            Epoch::Next => "next",
            Epoch::First => "next first",
            Epoch::Between => "next between",
            Epoch::Last => "next last",
        };
        [call, delivery, epoch]
    }

    fn column(&self) -> String {
        let moment = match self.moment {
            Moment::Before => "before",
            Moment::After => "after",
        };
        let step = match self.step {
            Step::Rewind => "a rewind",
            Step::Snapshot => "a snapshot",
            Step::Retention => "retention",
        };
        format!("{moment} {step}")
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [call, delivery, epoch] = self.row();
        write!(f, "{call}, {delivery}, {epoch} epoch, {}", self.column())
    }
}

/// The page's table: its head, then its rows.
fn table() -> impl Iterator<Item = Vec<&'static str>> {
    let section = PAGE.split("\n## ").find(|section| section.starts_with("Interleavings")).unwrap();
    let lines = section.lines().filter(|line| line.starts_with("| ")).take_while(|line| !line.is_empty());
    lines.map(|line| line.trim_matches('|').split('|').map(str::trim).collect())
}

#[test]
fn the_page_lists_the_cases_and_no_others() {
    let mut table = table();
    let head = table.next().unwrap();
    let columns: Vec<_> =
        of(Call::Plan).take(STEPS.len() * MOMENTS.len()).map(|case| case.column()).collect();
    assert_eq!(head[3..], columns);
    let listed: Vec<[&str; 3]> = table.map(|row| [row[0], row[1], row[2]]).collect();
    let mut cases: Vec<_> = CALLS.into_iter().flat_map(of).map(|case| case.row()).collect();
    cases.dedup();
    assert_eq!(listed, cases);
}
