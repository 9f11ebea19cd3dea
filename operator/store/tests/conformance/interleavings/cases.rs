//! The cases: every combination of call, delivery, epoch, and what happens before or after the call. The table in
//! `docs/reference/interleavings.md` has the expected outcome of each.

use std::fmt;

const PAGE: &str = include_str!("../../../../../docs/reference/interleavings.md");

/// How a call reaches the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// The call is sent once and its answer arrives.
    Ok,
    /// The answer is lost, and the same bytes are sent again.
    Lost,
    /// The same bytes are sent twice at the same time.
    Concurrent,
}

/// Whether and when the sender's attempt ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Epoch {
    Same,
    /// Before the call, or between the two sends of a lost answer.
    Next,
    /// While both copies are in flight, before the first.
    First,
    /// Between the two copies.
    Between,
    /// After both copies.
    Last,
}

/// The call that is sent.
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

/// Whether the call is first sent before the step or after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    Before,
    After,
}

/// What else happens to the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    Rewind,
    /// A snapshot of the state at the head.
    Snapshot,
    /// Retention drops all payloads but the head's.
    Retention,
}

/// One combination.
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
const DELIVERIES: [Delivery; 3] = [Delivery::Ok, Delivery::Lost, Delivery::Concurrent];
const STEPS: [Step; 3] = [Step::Rewind, Step::Snapshot, Step::Retention];
const MOMENTS: [Moment; 2] = [Moment::Before, Moment::After];

/// Every case of a call, in the order of the page's table.
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
        Delivery::Concurrent => &[Epoch::Same, Epoch::First, Epoch::Between, Epoch::Last],
    }
}

impl Case {
    /// The expected outcome.
    pub fn expected(&self) -> &'static str {
        let (row, column) = (self.row(), self.column());
        let mut table = table();
        let at = table.next().unwrap().iter().position(|cell| *cell == column);
        let cells = table.find(|cells| cells[..3] == row).unwrap_or_else(|| panic!("no row for {self}"));
        cells[at.unwrap_or_else(|| panic!("no column for {self}"))]
    }

    /// The case whose outcome is also possible when the second and the third waiter for the run's row change places.
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
            Delivery::Concurrent => "twins",
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

/// The rows of the page's table; the first is its head.
fn table() -> impl Iterator<Item = Vec<&'static str>> {
    let section = PAGE.split("\n## ").find(|section| section.starts_with("Interleavings")).unwrap();
    let lines = section.lines().filter(|line| line.starts_with("| ")).take_while(|line| !line.is_empty());
    lines.map(|line| line.trim_matches('|').split('|').map(str::trim).collect())
}

#[test]
fn the_page_lists_exactly_these_cases() {
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
