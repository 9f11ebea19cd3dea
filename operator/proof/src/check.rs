//! Every run of a store: its audit, its boundaries, and rows that belong to no run.

use dalsegno_format::keys;
use dalsegno_model::reading::{EVERY_RUN, RunHead};
use dalsegno_model::{Error, Reading, Result, RunId};

use super::account::Account;
use super::anchors::Anchors;
use super::audit_chain::AuditChain;
use super::boundary_chain::BoundaryChain;
use super::marks::Marks;
use super::problem::Problem;
use super::rows::Rows;

/// What was looked at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Runs.
    pub runs: u64,
    /// Rows of their audits.
    pub audit: u64,
    /// Their boundaries.
    pub boundaries: u64,
    /// Their calls.
    pub calls: u64,
    /// Anchors that the store keeps.
    pub anchors: u64,
    /// Their snapshots.
    pub snapshots: u64,
    /// Runs that were shredded: of them only the chains can be proved.
    pub shredded: u64,
    /// Runs whose data key is wrapped by a key that is not there, or is another: a problem of each, and no damage, as far as
    /// can be told. Nothing proves the rows of data keys: whoever changes one can bring this about.
    pub locked: u64,
    /// Problems that were told.
    pub problems: u64,
}

/// Walks all anchors and runs and tells every problem. Holds one page of each kind of row, what anchors say, and of one
/// run what it has undone and which calls it made. `copy`: anchors that were kept outside; none of them: there is no copy.
pub async fn check_store(
    reading: &mut dyn Reading,
    copy: Anchors,
    tell: &mut (dyn FnMut(Problem) + Send),
) -> Result<Summary> {
    let mut summary = Summary::default();
    let marks = anchors(reading, copy, &mut summary, tell).await?;
    let mut walk = Walk { rows: Rows::all(reading), marks };
    let mut after = None;
    loop {
        let page = walk.rows.reading.runs(after).await?;
        let Some(last) = page.last() else { break };
        after = Some(last.id);
        for run in &page {
            walk.strays(run.id, &mut summary, tell).await?;
            walk.run(run, &mut summary, tell).await?;
        }
    }
    walk.strays(EVERY_RUN, &mut summary, tell).await?;
    for problem in walk.marks.rest() {
        summary.problems += 1;
        tell(problem);
    }
    Ok(summary)
}

/// What the store's anchors and the copy of them say, once they are held to each other.
async fn anchors(
    reading: &mut dyn Reading,
    copy: Anchors,
    summary: &mut Summary,
    tell: Tell<'_>,
) -> Result<Marks> {
    let mut kept = Anchors::default();
    let mut after = i64::MIN;
    let mut problems = copy.breaks(false);
    loop {
        let page = reading.anchors(after).await?;
        let Some((last, _)) = page.last() else { break };
        after = *last;
        for (seq, line) in &page {
            problems.extend(kept.take_kept(&format!("anchor {seq}"), line));
        }
    }
    problems.extend(kept.breaks(true));
    problems.extend(copy.missing_from(&kept));
    summary.anchors = kept.count() as u64;
    summary.problems += problems.len() as u64;
    problems.into_iter().for_each(tell);
    // Who can write to the store can name anything there: where there is a copy, the store's own anchors excuse nothing.
    let stand = copy.count() == 0;
    let mut marks = copy.marks;
    marks.add(kept.marks, stand);
    Ok(marks)
}

/// Run after run.
struct Walk<'r> {
    rows: Rows<'r>,
    marks: Marks,
}

type Tell<'t> = &'t mut (dyn FnMut(Problem) + Send);

impl Walk<'_> {
    async fn run(&mut self, run: &RunHead, summary: &mut Summary, tell: Tell<'_>) -> Result<()> {
        let mut problems = Vec::new();
        let mut mark = self.marks.of(run.id);
        let mut chain = AuditChain::new(run.id);
        let mut account = Account::default();
        while let Some((_, row)) = self.rows.next_audit(|of| of == run.id).await? {
            account.see_audit(&row);
            problems.extend(chain.push(&row));
            mark.see_audit(&row);
            summary.audit += 1;
        }
        match chain.pruned() {
            Ok(last) => problems.extend(last.and_then(|last| mark.see_pruned(run.id, last))),
            Err(problem) => problems.push(problem),
        }
        problems.extend(chain.end(run.audit_seq, &run.audit_hash));
        let unwrapped = self.rows.reading.unwrap_data_key(run.id).await;
        summary.locked += u64::from(matches!(unwrapped, Err(Error::Unfit(_))));
        let key_fault = keys::fault(unwrapped)?;
        let mut chain = BoundaryChain::new(run.id, run.head);
        while let Some(boundary) = self.rows.next_boundary(|of| of == run.id).await? {
            let problem = chain.push(&boundary);
            problems.extend(problem.filter(|it| key_fault.as_ref() != Some(&it.what)));
            account.see_boundary(&boundary);
            mark.see_boundary(&boundary);
            summary.boundaries += 1;
        }
        problems.extend(chain.end());
        problems.extend(mark.rest(run.id));
        summary.shredded += u64::from(account.is_shredded());
        let closed = account.close(self.rows.reading, run.id, Some(run), key_fault).await?;
        summary.calls += closed.calls;
        summary.snapshots += closed.snapshots;
        problems.extend(closed.problems);
        summary.runs += 1;
        summary.problems += problems.len() as u64;
        problems.into_iter().for_each(tell);
        Ok(())
    }

    /// Rows before the next run are no run's.
    async fn strays(&mut self, next: RunId, summary: &mut Summary, tell: Tell<'_>) -> Result<()> {
        let mut told = None;
        let mut stray = |run: RunId| {
            if told != Some(run) {
                told = Some(run);
                summary.problems += 1;
                tell(Problem::of(run, "runs", "the run itself is not there, and rows of it are"));
            }
        };
        while let Some((run, _)) = self.rows.next_audit(|of| of < next).await? {
            stray(run);
        }
        while let Some(boundary) = self.rows.next_boundary(|of| of < next).await? {
            stray(boundary.run);
        }
        Ok(())
    }
}
