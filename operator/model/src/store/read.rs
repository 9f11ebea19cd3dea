//! Reads of the store.

use async_trait::async_trait;
use dalsegno_protocol::{Call, State};
use uuid::Uuid;

use crate::{
    Attempt, AuditRow, BoundaryCheck, BoundaryFacts, BoundaryId, BoundaryQuery, BoundaryRow, CallFilter,
    EventPage, EventQuery, MessagePage, MessageQuery, Proposal, ReadTransaction, RecordKeyPage,
    RecordKeysQuery, RecordPage, RecordQuery, Result, RunId, RunRecord, Sizes, Wait,
};

/// Reads for the gateway, the operator and people. None of them changes a run.
#[async_trait]
pub trait Read: Send + Sync + 'static {
    /// The store's own id, created by its first migration. A run that was created in another store is never touched.
    async fn id(&self) -> Result<Uuid>;

    /// Everything about the run with this id.
    async fn get_run(&self, run: RunId) -> Result<Option<RunRecord>>;

    /// Every row that ever had this namespace and name, the newest first.
    async fn find(&self, namespace: &str, name: &str) -> Result<Vec<RunRecord>>;

    /// Ids of runs in order, after this one ([`RunId::nil`]: from the first). Returns a part of them; an empty answer
    /// means that there are no more.
    async fn run_ids(&self, after: RunId) -> Result<Vec<RunId>>;

    /// Waits of the live branch: the open ones, and those that were answered since the head, in the order of their
    /// opening.
    async fn waits(&self, run: RunId) -> Result<Vec<Wait>>;

    /// The request of a wait and its answer, on any branch. `None`: the run never had this wait.
    async fn proposal(&self, run: RunId, id: &str, epoch: i64) -> Result<Option<Proposal>>;

    /// Any attempt of a run. The lease of the current attempt is in the run's own record.
    async fn attempt(&self, run: RunId, number: i32) -> Result<Option<Attempt>>;

    /// The state after turn `turn` of the live branch (after its latest boundary), or after the head. `None` if
    /// nothing is committed, or the live branch has no such turn. [`crate::Error::Gone`] if the state was dropped or
    /// shredded.
    async fn state(&self, run: RunId, turn: Option<i32>) -> Result<Option<State>>;

    /// A boundary without its payloads, and the state after it, read at the same moment. Errors as in [`Self::state`].
    async fn boundary(&self, run: RunId, which: BoundaryQuery) -> Result<Option<(BoundaryRow, State)>>;

    /// What is known of a boundary of any branch besides its own row. `None`: the run has no such boundary.
    async fn boundary_facts(&self, run: RunId, boundary: BoundaryId) -> Result<Option<BoundaryFacts>>;

    /// Boundaries of the live branch with a turn in `from..=to`, in order, payloads decoded. Dropped boundaries have
    /// no payloads.
    async fn boundaries(&self, run: RunId, from: i32, to: i32) -> Result<Vec<BoundaryRow>>;

    /// Boundaries after this one, undone ones too, in the order of [`BoundaryId`]. Each is checked on its own; its
    /// payloads are read and not returned. Returns a part of them; an empty answer means that there are no more. See
    /// `dalsegno_proof::verify`.
    async fn check_boundaries(&self, run: RunId, after: Option<BoundaryId>) -> Result<Vec<BoundaryCheck>>;

    /// How many bytes a lookup of the head reads, without reading them.
    async fn sizes(&self, run: RunId) -> Result<Sizes>;

    /// Calls of a run in the order in which they were first seen.
    async fn calls(&self, run: RunId, which: CallFilter) -> Result<Vec<Call>>;

    /// Ids of the calls that hold a run until a person settles them, in the order in which they were first seen, at
    /// most `limit`: those with a refused key, and those with the policy `ask` that an earlier attempt has started.
    async fn calls_to_settle(&self, run: RunId, limit: u32) -> Result<Vec<String>>;

    /// Records of one space of the run, in order. Empty for an unknown run.
    async fn read_records(&self, run: RunId, query: &RecordQuery) -> Result<RecordPage>;

    /// The keys of a space that have records. Reads no values.
    async fn read_record_keys(&self, run: RunId, query: &RecordQuery) -> Result<RecordKeyPage>;

    /// The records of some keys, in the order of the keys in the query and within a key in the order in which they were
    /// added.
    async fn read_records_of(&self, run: RunId, query: &RecordKeysQuery) -> Result<RecordPage>;

    /// Messages to the run in the order of their positions. Empty for an unknown run.
    async fn messages(&self, run: RunId, query: &MessageQuery) -> Result<MessagePage>;

    /// Everybody who has sent a message to the run, in order: the store does not know which of the messages a worker
    /// has looked at.
    async fn message_authors(&self, run: RunId) -> Result<Vec<String>>;

    /// Events of the live branch in order, byte for byte as received. The events of each boundary are checked against
    /// its digest. Dropped events are skipped: the first returned event then has a higher position.
    async fn events(&self, run: RunId, query: EventQuery) -> Result<EventPage>;

    /// The position of the first event of this turn of the live branch, also if the turn has no events. `None` if the
    /// live branch has no such turn.
    async fn first_event(&self, run: RunId, turn: i32) -> Result<Option<i64>>;

    /// The audit chain of a run, in order. It begins after the pruned rows.
    async fn audit(&self, run: RunId) -> Result<Vec<AuditRow>>;

    /// How many payloads of a run are plain: boundaries, calls, values of records and messages, and snapshots that were written
    /// before the run had a data key, or of a run without one.
    async fn count_unsealed(&self, run: RunId) -> Result<u64>;

    /// Opens a consistent view of the whole store at this moment, to be read row by row. It holds a connection until
    /// it is dropped.
    async fn begin_read(&self) -> Result<Box<dyn ReadTransaction>>;
}
