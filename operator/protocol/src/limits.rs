//! The limits of the contract.

/// The limits that the gateway enforces. `docs/reference/contract.md` has the same table; a test compares the two.
pub struct Limits;

impl Limits {
    /// Bytes of a request body, before decoding.
    pub const BODY_BYTES: usize = 16 << 20;
    /// Bytes of an attach's body.
    pub const ATTACH_BYTES: usize = 64 << 10;
    /// Bytes of a state that `attach` returns inline. A worker fetches a larger state with `GET state`.
    pub const INLINE_STATE_BYTES: usize = 1 << 20;
    /// Bytes that a state counts: the bytes of its values and of its channels' names, and 64 for each channel and for
    /// each value, because every item of a list takes memory, however small.
    pub const STATE_BYTES: usize = 64 << 20;
    /// Channels that one boundary sets or appends to. It may remove as many, and truncate as many.
    pub const CHANNELS: usize = 64;
    /// Items that one boundary appends to lists.
    pub const ITEMS: usize = 100_000;
    /// Characters of the name of a channel, the id of a call, a reason, a trigger or a media type.
    pub const NAME_CHARS: usize = 128;
    /// Characters of a call's key. The SDKs make keys of the run's id and the call's id, and the longest one fits.
    pub const KEY_CHARS: usize = 256;
    /// Events in one boundary.
    pub const EVENTS: usize = 1_000;
    /// Calls planned in one boundary.
    pub const CALLS: usize = 100;
    /// Bytes of a run's open calls together: the started ones, and those of the open turn that are planned or have
    /// ended. Each counts its id, key, arguments and result. An attach returns them all. A rewind can bring twice as
    /// many together, and they still fit into a response (`ANSWERS_BYTES`).
    pub const OPEN_CALLS_BYTES: usize = 64 << 20;
    /// Bytes of a call's result that are always accepted: every open call counts at least this much for its result.
    pub const SMALL_RESULT_BYTES: usize = 1 << 10;
    /// Changes of records in one batch or boundary.
    pub const RECORDS: usize = 1_000;
    /// Keys that the operations `deletePrefix` of one batch or boundary empty. Each takes time under the lock of the run's
    /// row, and the statement has few seconds.
    pub const PREFIX_KEYS: i64 = 10_000;
    /// Bytes of a record's space, key or entry id.
    pub const RECORD_NAME_BYTES: usize = 512;
    /// Bytes of a record's value: of the JSON text, or of the base64.
    pub const RECORD_VALUE_BYTES: usize = 4 << 20;
    /// Bytes of a message's value.
    pub const MESSAGE_BYTES: usize = 256 << 10;
    /// Messages of a run that no boundary has taken. Above it no message is accepted. A rewind gives messages back, also
    /// above it. One boundary takes at most so many.
    pub const MESSAGES: usize = 1_000;
    /// Bytes of the values of these messages together.
    pub const INBOX_BYTES: usize = 16 << 20;
    /// Calls in the history of a checkpoint: the latest.
    pub const CHECKPOINT_CALLS: u32 = 100;
    /// Bytes of the arguments and results of these calls together; those of earlier calls are left out.
    pub const CHECKPOINT_CALLS_BYTES: usize = 256 << 10;
    /// Items that each part of a memory delta names.
    pub const DELTA_ITEMS: usize = 1_000;
    /// Members of an object or items of a list that a memory delta compares one by one. A larger channel is one item.
    pub const DELTA_MEMBERS: usize = 10_000;
    /// Records, events or messages in one page.
    pub const PAGE: u32 = 1_000;
    /// Bytes of records, events or messages after which a page ends early.
    pub const PAGE_BYTES: usize = 4 << 20;
    /// Open waits of a run.
    pub const WAITS: usize = 64;
    /// Bytes of the requests of a run's open waits together.
    pub const OPEN_WAIT_BYTES: usize = 4 << 20;
    /// Bytes of a proposal.
    pub const PROPOSAL_BYTES: usize = 1 << 20;
    /// Bytes of a proposal's summary.
    pub const SUMMARY_BYTES: usize = 2 << 10;
    /// Bytes of the schema of a decision's changes.
    pub const ANSWER_SCHEMA_BYTES: usize = 64 << 10;
    /// Longest time from the opening of a wait to its deadline, or to the time of an `until`, in seconds: 10 years. A
    /// later time counts as this one.
    pub const WAIT_SECONDS: i64 = 10 * 366 * 86_400;
    /// Longest time until the end of a rate limit, in seconds: a day. A later time counts as this one.
    pub const RATE_LIMIT_SECONDS: i64 = 86_400;
    /// Longest time that `GET waits/{id}` waits for an answer, in seconds.
    pub const WAIT_POLL_SECONDS: u32 = 20;
    /// `GET waits/{id}` calls of one gateway process that wait at once; above it: 503 with Retry-After.
    pub const WAIT_POLLERS: usize = 2_048;
    /// Levels of nesting in a request body.
    pub const DEPTH: usize = 128;
    /// Turns in a run.
    pub const TURNS: i32 = 1_000_000;
    /// Amount in one field of a boundary's usage.
    pub const USAGE: i64 = 1 << 40;
    /// Bytes of a finish's message.
    pub const FINISH_MESSAGE_BYTES: usize = 1 << 10;
    /// Bytes of a finish's output.
    pub const FINISH_OUTPUT_BYTES: usize = 4 << 10;
    /// Bytes of request bodies that one gateway process holds at once, unless it is configured otherwise; above it: 503
    /// with Retry-After. One run may hold a quarter, and all callers that are not verified as a run's current worker may
    /// hold a quarter together.
    pub const PROCESS_BYTES: usize = 64 << 20;
    /// Bytes of unsent responses that one gateway process holds at once: responses of more than 10 KiB, and streams,
    /// unless it is configured otherwise; above it: 503 with Retry-After. One run, or one user, may hold a quarter, or one
    /// larger response.
    pub const ANSWERS_BYTES: usize = 160 << 20;
    /// Bytes of an AgentRun's `input`.
    pub const INPUT_BYTES: usize = 32 << 10;
    /// Levels of nesting in an AgentRun's `input` and in a finish's output, which its status shows.
    pub const SHOWN_DEPTH: usize = 64;
}
