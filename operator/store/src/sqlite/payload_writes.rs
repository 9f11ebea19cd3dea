//! Writes of payloads: they are digested, encoded and encrypted here, so that the writer's task only compares and
//! writes.

use super::boundary::PreparedCommit;
use super::database::{Sqlite, with_timeout};
use super::transact::transact;
use super::{calls, records, waits};
use crate::encoded_ops::{self, EncodedOps};
use crate::reads::encode_payload;
use crate::transitions::{Finish, OpenWait, SettleCall, Transition as _};
use dalsegno_format::seal::{AadContext, CallDigestsExt as _, PayloadCipher};
use dalsegno_format::size;
use dalsegno_model::{
    Claim, Claimed, Commit, Committed, Complete, Completed, Error, FinishCall, OpenWaitRequest, RecordBatch,
    Result, RunId, Settle, WaitOpened, Written,
};

impl Sqlite {
    pub(super) async fn commit_boundary(&self, commit: &Commit) -> Result<Committed> {
        let cipher = self.cipher_to_write(commit.run).await?;
        for ops in [EncodedOps::smallest, EncodedOps::plain] {
            let prepared = self.prepare(commit, ops(commit, &cipher)?, cipher.clone())?;
            let work = with_timeout("committing a boundary", self.writer()?.commit(prepared));
            match work.await? {
                Some(Committed::TooLarge) if !commit.full => {
                    return self.commit_counted(commit, cipher).await;
                }
                Some(committed) => return self.check_comparison(commit.run, committed).await,
                None => {}
            }
        }
        let detail = "a commit that is no delta was refused for its base".into();
        Err(Error::Corrupt { operation: "committing a boundary", detail })
    }

    /// Commits a boundary for which the state at the head must be measured. Measures again if the head has moved in
    /// between.
    async fn commit_counted(&self, commit: &Commit, cipher: PayloadCipher) -> Result<Committed> {
        while let Some(ops) =
            encoded_ops::encode_with_state_size(&self.snapshot_store(), commit, &cipher).await?
        {
            let prepared = self.prepare(commit, ops, cipher.clone())?;
            let work = with_timeout("committing a boundary", self.writer()?.commit(prepared));
            if let Some(committed) = work.await? {
                return self.check_comparison(commit.run, committed).await;
            }
        }
        Ok(Committed::TooLarge)
    }

    fn prepare(&self, commit: &Commit, ops: EncodedOps, cipher: PayloadCipher) -> Result<PreparedCommit> {
        Ok(PreparedCommit { room: self.room(), ..PreparedCommit::new(commit, ops, cipher)? })
    }

    pub(super) async fn claim_call(&self, claim: &Claim) -> Result<Claimed> {
        let cipher = self.cipher_to_write(claim.run).await?;
        let claim = calls::PreparedClaim {
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
            approval: claim.approval.clone(),
            tool: claim.tool.clone(),
            cipher,
            room: self.room(),
        };
        self.write("claiming a call", |conn, now| Box::pin(calls::claim(conn, now, claim))).await
    }

    pub(super) async fn complete_call(&self, complete: &Complete) -> Result<Completed> {
        let Complete { run, capability, ref id, claim_id, outcome, ref result, usage } = *complete;
        let cipher = self.cipher_to_write(run).await?;
        let end = calls::CallEnd {
            run,
            capability,
            id: id.clone(),
            claim_id,
            state: outcome.into(),
            result: result.clone(),
            usage,
            cipher,
        };
        self.write("completing a call", |conn, now| Box::pin(calls::complete(conn, now, end))).await
    }

    pub(super) async fn settle_call(&self, settle: &Settle) -> Result<Completed> {
        let cipher = self.cipher_to_write(settle.run).await?;
        self.transition(settle.run, SettleCall::of(settle, cipher)?).await
    }

    pub(super) async fn open_wait_of(&self, request: &OpenWaitRequest) -> Result<WaitOpened> {
        let cipher = self.cipher_to_write(request.run).await?;
        let (run, rule, room) = (request.run, OpenWait::of(request, cipher)?, self.room());
        self.write(OpenWait::OPERATION, move |conn, now| {
            Box::pin(async move {
                // What is opened already is returned on a full volume too.
                if !room.exists() && waits::first_unknown(conn, run, rule.ids()).await?.is_some() {
                    room.check()?;
                }
                transact(conn, now, run, rule).await
            })
        })
        .await
    }

    pub(super) async fn write_record_batch(&self, batch: &RecordBatch) -> Result<Written> {
        let run = batch.run;
        let cipher = self.cipher_to_write(run).await?;
        let batch = records::PreparedBatch::new(batch, &cipher, self.room())?;
        let written =
            self.write("writing records", |conn, now| Box::pin(records::write(conn, now, batch))).await?;
        if matches!(written, Written::Conflict | Written::Finished) {
            self.check_can_compare(run).await?;
        }
        Ok(written)
    }

    pub(super) async fn finish_run(&self, finish: &FinishCall) -> Result<Committed> {
        let cipher = self.cipher_to_write(finish.run).await?;
        let committed = self.transition(finish.run, Finish::of(finish, &cipher)).await?;
        self.check_comparison(finish.run, committed).await
    }

    /// Returns the result of a commit or a finish. Fails if it depends on a digest that this process cannot compute.
    async fn check_comparison(&self, run: RunId, committed: Committed) -> Result<Committed> {
        match &committed {
            Committed::Conflict { .. } | Committed::Finished | Committed::Fenced { committed: false } => {
                self.check_can_compare(run).await?;
            }
            _ => {}
        }
        Ok(committed)
    }
}
