//! Commits of boundaries, and finishes.

use super::Postgres;
use super::commit_statement::{Extras, Proposed, commit_one, parse_committed};
use super::messages::take;
use super::row::{boundary_number, digest};
use super::transitions::transact_within;
use crate::db_error::{DbError, DbResult};
use crate::encoded_ops::{self, EncodedOps, MAX_BATCHED_BYTES};
use crate::keys::WriteCipher;
use crate::transitions::{Finish, ParkWithBoundary, parked};
use dalsegno_model::{Commit, Committed, Digest, FinishCall};

/// The digest of the boundary with this commit id on the live branch.
const STORED_DIGEST: &str = "SELECT digest FROM boundaries \
     WHERE run = $1 AND turn = $2 AND boundary = $3 AND commit_id = $4 AND NOT undone";

impl Postgres {
    pub(super) async fn do_commit(&self, commit: &Commit) -> DbResult<Committed> {
        let cipher = self.cipher_to_write(commit.run).await?;
        let proposed = Proposed::new(commit, EncodedOps::smallest(commit, &cipher)?, &cipher, None)?;
        let committed = match self.send(commit, proposed, &cipher).await? {
            Some(committed) => committed,
            None => self.send_without_base(commit, &cipher, None).await?,
        };
        let committed = match committed {
            Committed::TooLarge if !commit.full => self.send_counted(commit, &cipher).await?,
            committed => committed,
        };
        match (&committed, cipher.body(commit.digest).older()) {
            // The same body was stored before the run had a key: it is a duplicate and is not stored again. Only in
            // this case is the unkeyed digest sent to the database, whose log may contain it.
            (
                Committed::Conflict { .. }
                | Committed::Finished
                | Committed::UnsettledCalls
                | Committed::OpenCalls,
                unkeyed @ Some(_),
            ) if self.stored_digest(commit).await? == unkeyed => {
                self.send_without_base(commit, &cipher, unkeyed).await
            }
            (
                Committed::Conflict { .. } | Committed::Finished | Committed::Fenced { committed: false },
                None,
            ) => self.ensure_comparable(commit.run).await.map(|()| committed),
            _ => Ok(committed),
        }
    }

    /// Sends the ops without a base, which are valid on any head. `unkeyed_digest`: a boundary stored under this digest
    /// is a duplicate too.
    async fn send_without_base(
        &self,
        commit: &Commit,
        cipher: &WriteCipher,
        unkeyed_digest: Option<Digest>,
    ) -> DbResult<Committed> {
        let proposed = Proposed::new(commit, EncodedOps::plain(commit, cipher)?, cipher, unkeyed_digest)?;
        let sent = self.send(commit, proposed, cipher).await?;
        sent.ok_or_else(|| DbError::Corrupt("a boundary without a base was refused for its base".into()))
    }

    /// Measures the state at the head and sends the ops that fit it; starts over if the head has moved in between.
    async fn send_counted(&self, commit: &Commit, cipher: &WriteCipher) -> DbResult<Committed> {
        while let Some(ops) =
            encoded_ops::encode_with_state_size(&self.snapshot_store(), commit, cipher).await?
        {
            let proposed = Proposed::new(commit, ops, cipher, None)?;
            if let Some(committed) = self.send(commit, proposed, cipher).await? {
                return Ok(committed);
            }
        }
        Ok(Committed::TooLarge)
    }

    /// `None`: the turn is the next one, but the ops were encoded against another head.
    async fn send(
        &self,
        commit: &Commit,
        proposed: Proposed,
        cipher: &WriteCipher,
    ) -> DbResult<Option<Committed>> {
        let committed = if commit.park.is_some() || !commit.inbox.is_empty() {
            self.commit_in_transaction(proposed, Extras::of(commit, cipher)?, commit).await?
        } else {
            self.commit_alone(commit, proposed, cipher).await?
        };
        Ok(match committed {
            Some(Committed::Fenced { .. }) => {
                let body = cipher.body(commit.digest);
                let committed = self.stored_digest(commit).await?.is_some_and(|stored| body.matches(&stored));
                Some(Committed::Fenced { committed })
            }
            other => other,
        })
    }

    /// Commits a boundary that takes messages or parks the run, in one transaction: all of it or nothing.
    async fn commit_in_transaction(
        &self,
        proposed: Proposed,
        extras: Extras,
        commit: &Commit,
    ) -> DbResult<Option<Committed>> {
        let run = proposed.run;
        let park = ParkWithBoundary::of(commit);
        let queued = self.pool.join(run);
        let work = async {
            let _served = queued.acquire().await?;
            let lock = format!("SELECT FROM runs WHERE id = '{run}' FOR UPDATE");
            let (mut transaction, _) = self.pool.begin(&lock).await?;
            let rows = transaction.all(commit_one(&proposed, extras)).await?;
            let mut committed = rows.first().map_or(Ok(Some(Committed::NotFound)), parse_committed)?;
            if matches!(committed, Some(Committed::Ok(_)))
                && let Some(position) = take(&mut transaction, &proposed, &commit.inbox).await?
            {
                committed = Some(Committed::NoSuchMessage { position });
            }
            committed = match (committed, &park) {
                (Some(Committed::Ok(receipt) | Committed::Duplicate(receipt)), Some(park)) => {
                    Some(parked(transact_within(&mut transaction, run, park).await?, receipt))
                }
                (committed, _) => committed,
            };
            match committed {
                // A duplicate has recorded that it reports a cancel or a suspend.
                Some(Committed::Parked(_) | Committed::Ok(_) | Committed::Duplicate(_)) => {
                    transaction.commit().await?
                }
                _ => transaction.rollback().await?,
            }
            Ok(committed)
        };
        self.pool.with_timeout(work).await
    }

    /// Commits a boundary in one statement.
    async fn commit_alone(
        &self,
        commit: &Commit,
        proposed: Proposed,
        cipher: &WriteCipher,
    ) -> DbResult<Option<Committed>> {
        let has_extras = !commit.calls.is_empty()
            || !commit.open_calls.is_empty()
            || !commit.records.is_empty()
            || commit.finish.is_some();
        if !has_extras && proposed.size() <= MAX_BATCHED_BYTES {
            return self.batcher.commit(proposed).await;
        }
        let extras = Extras::of(commit, cipher)?;
        let row = self.pool.for_run(commit.run).optional(commit_one(&proposed, extras)).await?;
        row.as_ref().map_or(Ok(Some(Committed::NotFound)), parse_committed)
    }

    /// The digest of the boundary that is stored under this commit id.
    async fn stored_digest(&self, commit: &Commit) -> DbResult<Option<Digest>> {
        let query = sqlx::query(STORED_DIGEST)
            .bind(commit.run)
            .bind(commit.turn)
            .bind(boundary_number(commit.boundary))
            .bind(commit.commit_id);
        self.pool.optional(query).await?.map(|row| digest(&row, "digest")).transpose()
    }

    pub(super) async fn do_finish(&self, call: &FinishCall) -> DbResult<Committed> {
        // A run finishes once: the data key is read anew, so that the digest is under the stored one.
        self.keys.forget(call.run);
        let cipher = self.cipher_to_write(call.run).await?;
        let committed = self.transact(call.run, &Finish::of(call, &cipher)).await?;
        if matches!(committed, Committed::Finished | Committed::Fenced { committed: false }) {
            self.ensure_comparable(call.run).await?;
        }
        Ok(committed)
    }
}
