//! What anybody may read of the store.

use async_trait::async_trait;
use dalsegno_protocol::{Call, State};
use uuid::Uuid;

use crate::{
    Attempt, AuditRow, BoundaryRow, CallFilter, EventPage, EventQuery, Link, Place, Reading, RecordPage,
    RecordQuery, Result, RunId, RunRecord, Sizes,
};

/// What the gateway, the operator and people read. Nothing here changes a run.
#[async_trait]
pub trait Read: Send + Sync + 'static {
    /// The store's own id, made by its first migration. A run that was begun in another store is not touched.
    async fn id(&self) -> Result<Uuid>;

    /// Everything about the run with this id.
    async fn get_run(&self, run: RunId) -> Result<Option<RunRecord>>;

    /// Every row that ever had this namespace and name, the newest first.
    async fn find(&self, namespace: &str, name: &str) -> Result<Vec<RunRecord>>;

    /// Ids of runs after this one ([`RunId::nil`]: from the first), in order: some of them, none only after the last.
    async fn run_ids(&self, after: RunId) -> Result<Vec<RunId>>;

    /// One attempt of a run, however long ago; of the current one the lease stands in the run's own record.
    async fn attempt(&self, run: RunId, number: i32) -> Result<Option<Attempt>>;

    /// The state after turn `turn` of the live branch (its latest boundary), or after the head. `None` where nothing
    /// is committed or the live branch has no such turn. [`crate::Error::Gone`]: it was dropped or shredded.
    async fn state(&self, run: RunId, turn: Option<i32>) -> Result<Option<State>>;

    /// A turn of the live branch (its latest boundary), without its payloads, and the state after it, of one moment. Like
    /// [`Self::state`].
    async fn boundary(&self, run: RunId, turn: i32) -> Result<Option<(BoundaryRow, State)>>;

    /// Boundaries of the live branch with a turn in `from..=to`, in order, payloads decoded; those that were dropped
    /// without them.
    async fn boundaries(&self, run: RunId, from: i32, to: i32) -> Result<Vec<BoundaryRow>>;

    /// The boundaries after this place, undone ones too, in the order of [`Place`], each judged by itself: some of them,
    /// none only after the last. Their payloads are read and not returned. See `dalsegno_proof::verify`.
    async fn links(&self, run: RunId, after: Option<Place>) -> Result<Vec<Link>>;

    /// How much a lookup of the head reads, without reading it.
    async fn sizes(&self, run: RunId) -> Result<Sizes>;

    /// Calls of a run in the order in which they were first seen.
    async fn calls(&self, run: RunId, which: CallFilter) -> Result<Vec<Call>>;

    /// Entries of a space of the run's records, in order. None for an unknown run.
    async fn read_records(&self, run: RunId, query: &RecordQuery) -> Result<RecordPage>;

    /// Events of the live branch in order, as they came, each boundary's held to its digest. Those that were dropped are
    /// left out: the first has a higher position then.
    async fn events(&self, run: RunId, query: EventQuery) -> Result<EventPage>;

    /// The position at which the events of this turn of the live branch begin, whether it has any or not. `None`: the live
    /// branch has no such turn.
    async fn first_event(&self, run: RunId, turn: i32) -> Result<Option<i64>>;

    /// The audit chain of a run, in order; it begins after what was pruned.
    async fn audit(&self, run: RunId) -> Result<Vec<AuditRow>>;

    /// How many payloads of a run are plain: boundaries, calls, values of records and snapshots that stand there from before
    /// it had a data key, or that has none.
    async fn unsealed(&self, run: RunId) -> Result<u64>;

    /// The whole store as it stands at this moment, to be read row by row. It holds a connection until it is dropped.
    async fn reading(&self) -> Result<Box<dyn Reading>>;
}
