//! What a committer remembers of a run's state from one commit to the next, so that a full state can be stored as a
//! patch.
//!
//! If the state is forgotten, the next one only takes more bytes. If another committer was faster, the store notices:
//! it accepts a patch against the head's state only. Invariant: the state remembered under a boundary's hash is the
//! state right after that boundary.

use std::sync::Arc;

use dalsegno_model::{Commit, CommitReceipt, Committed, DeltaBase, PATCH_CHAIN};

use crate::{fold, header};

/// The state after the last committed boundary, as its committer knows it.
#[derive(Clone, Debug)]
pub struct PatchChain {
    base: DeltaBase,
    /// Boundaries since the last full state that was stored plain.
    depth: i32,
}

impl PatchChain {
    /// What is known after a commit has been answered. `last` is what was known before. `None` if nothing is known.
    pub fn after(last: Option<Self>, commit: &Commit, committed: &Committed) -> Option<Self> {
        if matches!(committed, Committed::Fenced { .. } | Committed::NotFound) {
            // Whoever sent it is not the run's worker: it changed nothing, and says nothing of the run.
            return last;
        }
        let Committed::Ok(CommitReceipt { head: Some(head), parent, .. }) = committed else { return None };
        if commit.finish.is_some() {
            // No commit follows: do not hold the run's data any longer than necessary.
            return None;
        }
        let content_hash = header::parse(&head.content_hash)?;
        // `last` may belong to another boundary than the parent: others commit too, and a rewind goes back.
        let before = last.filter(|last| Some(last.base.content_hash) == *parent);
        match &commit.ops {
            Some(ops) if commit.full => {
                let state = fold::fold([str::from_utf8(ops).ok()?]).and_then(|state| fold::text(&state));
                let base = DeltaBase { content_hash, state: Arc::new(state.ok()?) };
                let is_patch = commit.base.as_ref().is_some_and(|base| Some(base.content_hash) == *parent);
                Some(Self { base, depth: if is_patch { before?.depth + 1 } else { 0 } })
            }
            Some(_) => None,
            None => {
                let Self { base, depth } = before?;
                Some(Self { base: DeltaBase { content_hash, ..base }, depth: depth + 1 })
            }
        }
    }

    /// The base for a patch of the next full state. `None` if the chain of patches has its full length, so that the
    /// next state must be stored plain.
    pub fn base(&self) -> Option<DeltaBase> {
        (self.depth + 1 < PATCH_CHAIN).then(|| self.base.clone())
    }

    /// Length of the state's text in bytes.
    pub fn bytes(&self) -> usize {
        self.base.state.len()
    }
}

#[cfg(test)]
mod tests {
    use dalsegno_model::{NewFinish, RunId, RunOutcome, WorkerSignals};
    use dalsegno_protocol::{Boundary, Head, Usage};
    use uuid::Uuid;

    use super::*;

    fn commit(ops: Option<&str>, base: Option<DeltaBase>) -> Commit {
        Commit {
            run: RunId::nil(),
            capability: [0; 32],
            turn: 1,
            boundary: Boundary::Result,
            commit_id: Uuid::nil(),
            digest: [0; 32],
            full: ops.is_some_and(|ops| ops.contains("full")),
            ops: ops.map(Into::into),
            size: 0,
            base,
            events: Vec::new(),
            calls: Vec::new(),
            open_calls: Vec::new(),
            records: Vec::new(),
            inbox: Vec::new(),
            usage: Usage::default(),
            trigger: None,
            finish: None,
            park: None,
        }
    }

    /// Committed as the boundary with this hash, after the one with that.
    fn standing(hash: u8, parent: Option<u8>) -> CommitReceipt {
        let content_hash = header::render(&[hash; 32]);
        let head = Head { turn: 1, boundary: Boundary::Result, position: 0, content_hash };
        CommitReceipt {
            head: Some(head),
            parent: parent.map(|hash| [hash; 32]),
            signals: WorkerSignals::default(),
        }
    }

    const FULL: &str = r#"{"full":true,"set":{"state":{"json":"x"}}}"#;

    fn delta_base_after_commit(hash: u8) -> Option<PatchChain> {
        PatchChain::after(None, &commit(Some(FULL), None), &Committed::Ok(standing(hash, None)))
    }

    #[test]
    fn the_base_is_the_text_of_the_state_after_the_head() {
        let base = delta_base_after_commit(1).unwrap().base().unwrap();
        assert_eq!(base.content_hash, [1; 32]);
        assert_eq!(base.state.as_slice(), br#"{"state":{"value":{"json":"x"}}}"#);
        let stays = PatchChain::after(
            delta_base_after_commit(1),
            &commit(None, None),
            &Committed::Ok(standing(2, Some(1))),
        );
        assert_eq!(stays.unwrap().base().unwrap().content_hash, [2; 32], "the state stayed, the head moved");
    }

    #[test]
    fn a_stranger_makes_nobody_forget_the_state() {
        for answer in [false, true]
            .map(|committed| Committed::Fenced { committed })
            .into_iter()
            .chain([Committed::NotFound])
        {
            let left = PatchChain::after(delta_base_after_commit(1), &commit(Some(FULL), None), &answer);
            assert_eq!(left.unwrap().base().unwrap().content_hash, [1; 32], "{answer:?}");
        }
    }

    #[test]
    fn an_unchanged_state_is_known_only_if_its_parent_state_is_known() {
        for parent in [Some(3), None] {
            let committed = Committed::Ok(standing(2, parent));
            assert!(
                PatchChain::after(delta_base_after_commit(1), &commit(None, None), &committed).is_none(),
                "{parent:?}"
            );
        }
    }

    #[test]
    fn the_state_is_unknown_after_partial_operations_or_without_a_new_commit() {
        let append = commit(Some(r#"{"append":{"log":[{"json":1}]}}"#), None);
        assert!(
            PatchChain::after(delta_base_after_commit(1), &append, &Committed::Ok(standing(2, Some(1))))
                .is_none()
        );
        for answer in [Committed::Duplicate(standing(2, None)), Committed::Conflict { head: None }] {
            assert!(
                PatchChain::after(delta_base_after_commit(1), &commit(Some(FULL), None), &answer).is_none(),
                "{answer:?}"
            );
        }
        let (outcome, reason, message) = (RunOutcome::Succeeded, "Completed".into(), String::new());
        let finish = Some(NewFinish { outcome, reason, message, output: None });
        let last = Commit { finish, ..commit(Some(FULL), None) };
        assert!(
            PatchChain::after(delta_base_after_commit(1), &last, &Committed::Ok(standing(2, Some(1))))
                .is_none(),
            "the end"
        );
    }

    #[test]
    fn a_chain_of_patches_has_a_maximum_length() {
        let committed = Committed::Ok(standing(1, Some(1)));
        let mut last = delta_base_after_commit(1).unwrap();
        let mut patches = 0;
        while let Some(base) = last.base() {
            last = PatchChain::after(Some(last), &commit(Some(FULL), Some(base)), &committed).unwrap();
            patches += 1;
        }
        assert_eq!(patches, PATCH_CHAIN - 1);
        let plain = PatchChain::after(Some(last.clone()), &commit(Some(FULL), None), &committed);
        assert!(plain.unwrap().base().is_some(), "a full state begins another");
        let overtaken = commit(Some(FULL), Some(last.base.clone()));
        let overtaken = PatchChain::after(Some(last), &overtaken, &Committed::Ok(standing(3, Some(2))));
        assert!(overtaken.unwrap().base().is_some(), "and so does one that found another head");
    }
}
