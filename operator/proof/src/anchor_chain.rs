//! The anchors that the store keeps, checked one by one, and against a copy from outside.

use std::collections::{BTreeMap, VecDeque};

use dalsegno_format::header::NO_PARENT;
use dalsegno_model::anchor::{AnchorRow, AnchoredHead};
use dalsegno_model::read_transaction::{LeafKey, RunLeafKey};
use dalsegno_model::{Digest, ReadTransaction, Result, RunId};
use jiff::Timestamp;

use super::anchor::AnchorLine;
use super::anchors::Anchors;
use super::merkle::MerkleRoot;
use super::problem::Problem;

/// Which of the store's anchors are proven: by a copy from outside, or, without one, by themselves.
#[derive(Clone, Debug, Default)]
pub struct ProvenAnchors {
    /// When each anchor was created, in milliseconds since 1970, and whether it is proven.
    anchors: BTreeMap<i64, (i64, bool)>,
}

/// The audit rows of a run that anchors named before a time.
#[derive(Clone, Copy, Debug)]
pub struct NamedRows {
    /// The run.
    pub run: RunId,
    /// Only anchors before this time count.
    pub before: Timestamp,
    /// Only rows with a lower number count.
    pub below: i64,
}

impl ProvenAnchors {
    /// The number of anchors in the store.
    pub fn count(&self) -> usize {
        self.anchors.len()
    }

    /// Whether the anchor is proven.
    pub(super) fn is_proven(&self, seq: i64) -> bool {
        self.anchors.get(&seq).is_some_and(|(_, is_proven)| *is_proven)
    }

    /// Whether the first anchors were pruned.
    pub(super) fn are_pruned(&self) -> bool {
        self.anchors.keys().next().is_some_and(|first| *first > 1)
    }

    /// Number of the first anchor that was not created before this time.
    pub fn first_since(&self, time: Timestamp) -> Option<i64> {
        self.anchors.iter().find(|(_, (at, _))| *at >= time.as_millisecond()).map(|(seq, _)| *seq)
    }

    /// The last of these audit rows that a proven anchor named: its number and hash.
    pub async fn last_named(
        &self,
        reading: &mut dyn ReadTransaction,
        rows: NamedRows,
    ) -> Result<Option<(i64, Digest)>> {
        let NamedRows { run, before, below } = rows;
        let (mut after, mut last) = (RunLeafKey::before(run), None);
        loop {
            let page = reading.leaves_by_run(after, run).await?;
            let Some((anchor, _)) = page.last() else { return Ok(last) };
            after.anchor = *anchor;
            let named = page.iter().filter(|(anchor, leaf)| {
                let is_early = |(at, is_proven): &(i64, bool)| *is_proven && *at < before.as_millisecond();
                self.anchors.get(anchor).is_some_and(is_early) && (1..below).contains(&leaf.audit_seq)
            });
            last = last.max(named.map(|(_, leaf)| (leaf.audit_seq, leaf.audit_hash)).max());
        }
    }
}

/// Checks all anchors of the store and their leaves, and compares them with the copy. Holds one page of each.
pub(super) async fn check_anchors(
    reading: &mut dyn ReadTransaction,
    copy: &Anchors,
) -> Result<(ProvenAnchors, Vec<Problem>)> {
    let mut chain =
        AnchorChain { copy, links: Vec::new(), hash: NO_PARENT, announced: 1, problems: Vec::new() };
    let mut leaves = Leaves { page: VecDeque::new(), after: LeafKey::FIRST };
    let mut after = i64::MIN;
    loop {
        let page = reading.anchors(after).await?;
        let Some(last) = page.last() else { break };
        after = last.seq;
        for row in &page {
            chain.problems.extend(leaves.orphans_before(reading, row.seq).await?);
            let mut root = MerkleRoot::default();
            while let Some(leaf) = leaves.next_of(reading, row.seq).await? {
                root.push(&leaf);
            }
            chain.push(row, root);
        }
    }
    chain.problems.extend(leaves.orphans_before(reading, i64::MAX).await?);
    Ok(chain.end())
}

/// What is known of an anchor of the store.
struct Link {
    seq: i64,
    at: i64,
    /// Whether it is valid and follows from the anchor before.
    follows: bool,
    /// Whether its leaves are those that were signed.
    has_leaves: bool,
    is_in_copy: bool,
}

struct AnchorChain<'c> {
    copy: &'c Anchors,
    links: Vec<Link>,
    /// Hash of the last anchor.
    hash: Digest,
    /// The first anchor that the store keeps, as its own lines announce it.
    announced: i64,
    problems: Vec<Problem>,
}

impl AnchorChain<'_> {
    fn push(&mut self, row: &AnchorRow, leaves: MerkleRoot) {
        let seq = row.seq;
        let line = match AnchorLine::parse(&row.line) {
            Some(Ok(line)) => line,
            Some(Err(what)) => return self.report(seq, what),
            None => return self.report(seq, "its line is no anchor"),
        };
        let is_valid = line.proves(row);
        if !is_valid {
            self.report(seq, "it was edited: it does not have the hash it must have");
        } else if !line.is_signed_by(&row.public_key) {
            self.report(seq, "it is not signed by the key that it names");
        }
        let has_leaves = (leaves.leaves(), leaves.finish()) == (row.leaves, row.root);
        if !has_leaves {
            self.report(
                seq,
                "its leaves are not those that were signed: some were edited, exchanged or removed",
            );
        }
        // The anchor before the first one may have been pruned. No anchor follows the highest possible number.
        let expected = self.links.last().map_or(Some(seq), |last| last.seq.checked_add(1));
        let is_next = expected == Some(seq);
        let has_parent = self.links.is_empty() && seq > 1 || row.parent_hash == self.hash;
        if !is_next {
            let expected = expected.unwrap_or(i64::MAX);
            self.report(seq, format!("anchor {expected} was expected: some are missing"));
        } else if !has_parent {
            self.report(seq, "it does not follow from the anchor before");
        }
        self.announced = self.announced.max(line.first());
        self.links.push(Link {
            seq,
            at: line.at(),
            follows: is_valid && is_next && has_parent,
            has_leaves: is_valid && has_leaves,
            is_in_copy: self.copy.line(seq) == Some(&line),
        });
        self.hash = line.hash();
    }

    fn report(&mut self, seq: i64, what: impl Into<String>) {
        self.problems.push(Problem::at(format!("anchor {seq}"), what));
    }

    /// To be called after the last anchor. An anchor is proven if the copy has it, or a later one that it leads to.
    fn end(mut self) -> (ProvenAnchors, Vec<Problem>) {
        let has_copy = self.copy.count() > 0;
        self.check_start(if has_copy { self.copy.announced() } else { self.announced });
        self.compare_with_copy();
        let mut proven = ProvenAnchors::default();
        // Whoever can write to the store can create anchors for anything. If there is a copy, the store's own anchors
        // prove nothing.
        let mut leads_to_copy = !has_copy;
        for link in self.links.iter().rev() {
            leads_to_copy |= link.is_in_copy;
            proven.anchors.insert(link.seq, (link.at, leads_to_copy && link.has_leaves));
            leads_to_copy &= link.follows || !has_copy;
        }
        (proven, self.problems)
    }

    /// `announced`: the first anchor that the store must still have.
    fn check_start(&mut self, announced: i64) {
        if let Some(first) = self.links.first().map(|link| link.seq)
            && first > announced
        {
            self.report(first, format!("anchor {announced} was expected: some are missing"));
        }
    }

    /// Reports anchors of the copy that the store lacks.
    fn compare_with_copy(&mut self) {
        let same: BTreeMap<_, _> = self.links.iter().map(|link| (link.seq, link.is_in_copy)).collect();
        let announced = self.copy.announced();
        let mut missing = self.copy.numbers().filter(|seq| match same.get(seq) {
            Some(is_same) => !is_same,
            None => *seq >= announced,
        });
        let Some(first) = missing.next() else { return };
        let more = match missing.count() {
            0 => String::new(),
            more => format!(" (and {more} more)"),
        };
        let what = format!("the copy has it, and it is missing or different in the store{more}");
        self.report(first, what);
    }
}

/// Leaves in the order of their anchors. Holds one page.
struct Leaves {
    page: VecDeque<(i64, AnchoredHead)>,
    after: LeafKey,
}

impl Leaves {
    /// Number of the next leaf's anchor.
    async fn peek(&mut self, reading: &mut dyn ReadTransaction) -> Result<Option<i64>> {
        if self.page.is_empty() {
            self.page = reading.leaves(self.after).await?.into();
            if let Some((anchor, leaf)) = self.page.back() {
                self.after = LeafKey { anchor: *anchor, run: leaf.run };
            }
        }
        Ok(self.page.front().map(|(anchor, _)| *anchor))
    }

    /// The next leaf, if its anchor is this one.
    async fn next_of(&mut self, reading: &mut dyn ReadTransaction, seq: i64) -> Result<Option<AnchoredHead>> {
        let anchor = self.peek(reading).await?;
        Ok(if anchor == Some(seq) { self.page.pop_front().map(|(_, leaf)| leaf) } else { None })
    }

    /// Reports leaves of missing anchors before this one.
    async fn orphans_before(
        &mut self,
        reading: &mut dyn ReadTransaction,
        seq: i64,
    ) -> Result<Option<Problem>> {
        let mut first = None;
        while let Some(anchor) = self.peek(reading).await?.filter(|anchor| *anchor < seq) {
            first.get_or_insert(anchor);
            self.page.pop_front();
        }
        Ok(first.map(|seq| Problem::at(format!("anchor {seq}"), "it is missing, and leaves of it exist")))
    }
}
