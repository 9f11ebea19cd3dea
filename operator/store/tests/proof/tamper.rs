//! Many kinds of tampering with rows.

use dalsegno_model::{BoundaryId, Digest, Lifecycle, RunOutcome};
use dalsegno_proof::{Anchors, Problem, check_store};
use dalsegno_protocol::{Boundary, RawValue};
use jiff::Timestamp;
use proptest::prelude::Rng as _;
use proptest::test_runner::{RngAlgorithm, TestRng};
use uuid::Uuid;

use crate::rows::Rows;
use crate::tamperings;

/// Every problem of these rows.
async fn problems(rows: &mut Rows) -> Vec<Problem> {
    let mut found = Vec::new();
    let summary = check_store(rows, Anchors::default(), &mut |problem| found.push(problem)).await.unwrap();
    assert_eq!(summary.problems, found.len() as u64);
    found
}

#[tokio::test]
async fn untouched_rows_have_no_problem() {
    assert_eq!(problems(&mut Rows::valid()).await, []);
}

#[tokio::test]
async fn random_tamperings_of_rows_are_all_found() {
    let valid = Rows::valid();
    let mut tampering = Tampering(TestRng::deterministic_rng(RngAlgorithm::ChaCha));
    for number in 0..tamperings() {
        let mut rows = valid.clone();
        let what = match tampering.below(4) {
            0 => tampering.tamper_run(&mut rows),
            1 => tampering.tamper_audit(&mut rows),
            2 => tampering.tamper_branch(&mut rows),
            _ => tampering.tamper_boundary(&mut rows),
        };
        rows.sort();
        assert!(!problems(&mut rows).await.is_empty(), "tampering {number} was not found: {what}");
    }
}

#[tokio::test]
async fn one_edited_row_is_one_problem_with_its_place() {
    let mut rows = Rows::valid();
    let run = rows.runs[1].id;
    let row = rows.audit.iter_mut().find(|(of, row)| *of == run && row.seq == 5).unwrap();
    row.1.actor = "nobody".into();
    let edited = "audit row 5: it was edited: it does not have the hash it must have";
    assert_eq!(shown(&problems(&mut rows).await), [format!("run {run}, {edited}")]);

    let mut rows = Rows::valid();
    let row = rows.boundaries.iter_mut().find(|it| it.run == run && it.decoded.row.turn == 3).unwrap();
    row.decoded.row.ops = Some("{}".into());
    let edited = "turn 3 (plan): it has another payload than was committed";
    assert_eq!(shown(&problems(&mut rows).await), [format!("run {run}, {edited}")]);
}

#[tokio::test]
async fn orphaned_rows_are_one_problem_per_run() {
    let mut rows = Rows::valid();
    let run = rows.runs.remove(1).id;
    let orphaned = "runs: the run's own row is missing, and other rows of it exist";
    assert_eq!(shown(&problems(&mut rows).await), [format!("run {run}, {orphaned}")]);
}

/// The rows alone cannot show this; anchors can.
#[tokio::test]
async fn a_tail_cut_together_with_its_head_is_not_found_in_the_rows() {
    let mut rows = Rows::valid();
    let run = rows.runs[0].id;
    rows.audit.retain(|(of, row)| *of != run || row.seq < 8);
    let (_, last) = rows.audit.iter().rfind(|(of, _)| *of == run).unwrap().clone();
    (rows.runs[0].audit_seq, rows.runs[0].audit_hash) = (last.seq, last.hash);
    assert_eq!(problems(&mut rows).await, []);
}

fn shown(problems: &[Problem]) -> Vec<String> {
    problems.iter().map(ToString::to_string).collect()
}

/// A random generator with a fixed seed.
struct Tampering(TestRng);

impl Tampering {
    fn below(&mut self, end: usize) -> usize {
        (self.0.next_u64() % end as u64) as usize
    }

    /// A number other than the given one.
    fn other<N: TryFrom<i64> + Into<i64>>(&mut self, number: N) -> N
    where
        N::Error: std::fmt::Debug,
    {
        let (number, by) = (number.into(), 1 + self.below(1_000) as i64);
        let changed = if self.below(2) == 0 && number > by { number - by } else { number + by };
        N::try_from(changed).unwrap()
    }

    fn flip_bit(&mut self, digest: &mut Digest) {
        digest[self.below(32)] ^= 1 << self.below(8);
    }

    fn tamper_run(&mut self, rows: &mut Rows) -> &'static str {
        let index = self.below(rows.runs.len());
        let run = &mut rows.runs[index];
        let head = run.head.as_mut().unwrap();
        match self.below(12) {
            0 => self.flip_bit(&mut run.audit_hash),
            1 => run.audit_seq = self.other(run.audit_seq),
            2 => self.flip_bit(&mut head.content_hash),
            3 => head.boundary.turn = self.other(head.boundary.turn),
            4 => head.position = self.other(head.position),
            5 => run.head = None,
            6 => run.namespace.push('x'),
            7 => run.name.push('x'),
            8 => run.object_uid.push('x'),
            9 => run.lifecycle = Lifecycle::Finished,
            10 => run.outcome = Some(RunOutcome::Succeeded),
            _ => {
                rows.runs.remove(index);
            }
        }
        "a run's row"
    }

    /// Tampering that leaves the rows consistent with each other: a rewind nobody requested, or one that is taken back.
    fn tamper_branch(&mut self, rows: &mut Rows) -> &'static str {
        let index = self.below(rows.runs.len());
        let run = rows.runs[index].id;
        if self.below(2) == 0 {
            let turn = 1 + self.below(5) as i32;
            rows.rewind_silently(run, turn);
            return "a rewind that was not requested";
        }
        rows.boundaries.iter_mut().filter(|it| it.run == run && it.decoded.row.turn > 4).for_each(|it| {
            it.undone = !it.undone;
        });
        rows.set_head(run);
        "a rewind that is taken back"
    }

    fn tamper_audit(&mut self, rows: &mut Rows) -> &'static str {
        let index = self.below(rows.audit.len());
        let (run, row) = &mut rows.audit[index];
        match self.below(10) {
            0 => row.seq = self.other(row.seq),
            1 => row.at = Timestamp::from_millisecond(self.other(row.at.as_millisecond())).unwrap(),
            2 => row.kind.push('x'),
            3 => row.actor = "somebody".into(),
            4 => row.detail = row.detail.replace(':', ": "),
            5 => self.flip_bit(&mut row.parent_hash),
            6 => self.flip_bit(&mut row.hash),
            7 => *run = Uuid::from_u128(self.0.next_u64().into()),
            8 => {
                rows.audit.remove(index);
            }
            _ => {
                let run = *run;
                let other =
                    (0..rows.audit.len()).find(|at| rows.audit[*at].0 == run && *at != index).unwrap();
                let seq = rows.audit[other].1.seq;
                rows.audit[other].1.seq = rows.audit[index].1.seq;
                rows.audit[index].1.seq = seq;
                return "audit rows in another order";
            }
        }
        "a row of the audit"
    }

    fn tamper_boundary(&mut self, rows: &mut Rows) -> &'static str {
        let index = self.below(rows.boundaries.len());
        let boundary = &mut rows.boundaries[index];
        let decoded = &mut boundary.decoded;
        let row = &mut decoded.row;
        match self.below(22) {
            0 => row.turn = self.other(row.turn),
            1 => {
                row.boundary = match row.boundary {
                    Boundary::Plan => Boundary::Result,
                    Boundary::Result => Boundary::Plan,
                };
            }
            2 => row.epoch = self.other(row.epoch),
            3 => row.attempt = self.other(row.attempt),
            4 => row.position = self.other(row.position),
            5 => row.commit_id = Uuid::from_u128(self.0.next_u64().into()),
            6 => self.flip_bit(&mut row.digest),
            7 => self.flip_bit(&mut row.parent_hash),
            8 => self.flip_bit(&mut row.content_hash),
            9 => row.at = Timestamp::from_millisecond(self.other(row.at.as_millisecond())).unwrap(),
            10 => row.ops = row.ops.as_ref().map(|ops| ops.replace("turn", "torn")),
            11 => row.ops = None,
            12 => row.full = !row.full,
            13 => row.events[0] = RawValue::from_string("{}".into()).unwrap(),
            14 => row.events.clear(),
            15 => row.usage.cost_micro_usd = self.other(row.usage.cost_micro_usd),
            16 => row.trigger = None,
            17 => decoded.parent = decoded.parent.map_or(Some(place_of_nothing()), |_| None),
            18 => decoded.ops_digest = None,
            19 => self.flip_bit(decoded.events_digest.as_mut().unwrap()),
            20 => boundary.undone = !boundary.undone,
            _ => {
                rows.boundaries.remove(index);
            }
        }
        "a boundary"
    }
}

fn place_of_nothing() -> BoundaryId {
    BoundaryId { turn: 9, boundary: Boundary::Result, epoch: 9 }
}
