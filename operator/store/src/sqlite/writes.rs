//! What a worker writes: digested and sealed before the writer gets it, so that this only compares and writes.

use super::{Sqlite, boundary, calls, in_time, records};
use crate::encoded_ops::{self, EncodedOps};
use crate::reads::encode_payload;
use crate::seal::{AadContext, CallDigestsExt as _, PayloadCipher};
use crate::transitions::{Finish, SettleCall};
use crate::{
    Claim, Claimed, Commit, Committed, Complete, Completed, Error, FinishCall, RecordBatch, Result, RunId,
    Settle, Written, size,
};

impl Sqlite {
    pub(super) async fn do_commit(&self, commit: &Commit) -> Result<Committed> {
        let cipher = self.cipher_to_write(commit.run).await?;
        for ops in [EncodedOps::smallest, EncodedOps::plain] {
            let prepared = boundary::Prepared::new(commit, ops(commit, &cipher)?, cipher.clone())?;
            let work = in_time("committing a boundary", self.writer()?.commit(prepared));
            match work.await? {
                Some(Committed::TooLarge) if !commit.full => {
                    return self.commit_counted(commit, cipher).await;
                }
                Some(committed) => return self.told_apart(commit.run, committed).await,
                None => {}
            }
        }
        let detail = "a boundary that patches nothing was refused for its base".into();
        Err(Error::Corrupt { doing: "committing a boundary", detail })
    }

    /// The state at the head is counted; anew where the head has moved meanwhile.
    async fn commit_counted(&self, commit: &Commit, cipher: PayloadCipher) -> Result<Committed> {
        while let Some(ops) = encoded_ops::encode_with_state_size(&self.rows(), commit, &cipher).await? {
            let prepared = boundary::Prepared::new(commit, ops, cipher.clone())?;
            let work = in_time("committing a boundary", self.writer()?.commit(prepared));
            if let Some(committed) = work.await? {
                return self.told_apart(commit.run, committed).await;
            }
        }
        Ok(Committed::TooLarge)
    }

    pub(super) async fn do_claim(&self, claim: &Claim) -> Result<Claimed> {
        let cipher = self.cipher_to_write(claim.run).await?;
        let claim = calls::Claim {
            run: claim.run,
            capability: claim.capability,
            id: claim.id.clone(),
            claim_id: claim.claim_id,
            policy: claim.policy,
            key: claim.key.clone(),
            arguments: encode_payload(claim.arguments.as_deref(), AadContext::Arguments(&claim.id), &cipher)?,
            arguments_bytes: size::of_json(claim.arguments.as_deref()),
            arguments_digest: {
                let digests = cipher.call_digests(&claim.id);
                claim.arguments.as_deref().map(|json| digests.render(json.get()))
            },
            cipher,
        };
        self.write("claiming a call", |conn, now| Box::pin(calls::claim(conn, now, claim))).await
    }

    pub(super) async fn do_complete(&self, complete: &Complete) -> Result<Completed> {
        let Complete { run, capability, ref id, claim_id, outcome, ref result } = *complete;
        let cipher = self.cipher_to_write(run).await?;
        let ending =
            calls::Ending { run, id: id.clone(), state: outcome.into(), result: result.clone(), cipher };
        self.write("completing a call", move |conn, now| {
            Box::pin(calls::complete(conn, now, capability, claim_id, ending))
        })
        .await
    }

    pub(super) async fn do_settle(&self, settle: &Settle) -> Result<Completed> {
        let cipher = self.cipher_to_write(settle.run).await?;
        self.transition(settle.run, SettleCall::of(settle, cipher)).await
    }

    pub(super) async fn do_write_records(&self, batch: &RecordBatch) -> Result<Written> {
        let run = batch.run;
        let batch = records::Batch::new(batch, &self.cipher_to_write(run).await?)?;
        let written =
            self.write("writing records", |conn, now| Box::pin(records::write(conn, now, batch))).await?;
        if matches!(written, Written::Conflict | Written::Finished) {
            self.ensure_comparable(run).await?;
        }
        Ok(written)
    }

    pub(super) async fn do_finish(&self, finish: &FinishCall) -> Result<Committed> {
        let body = self.cipher_to_write(finish.run).await?.body(finish.digest);
        let committed = self.transition(finish.run, Finish::of(finish, body)).await?;
        self.told_apart(finish.run, committed).await
    }

    /// The answer to a commit or a finish, unless it rests on a digest that cannot be made here.
    async fn told_apart(&self, run: RunId, committed: Committed) -> Result<Committed> {
        match &committed {
            Committed::Conflict { .. } | Committed::Finished | Committed::Fenced { committed: false } => {
                self.ensure_comparable(run).await?;
            }
            _ => {}
        }
        Ok(committed)
    }
}
