//! The one table of limits.

/// What the gateway takes. `docs/reference/contract.md` shows the same table; a test compares the two.
pub struct Limits;

impl Limits {
    /// Largest body of a call, before any decoding.
    pub const BODY_BYTES: usize = 16 << 20;
    /// Largest body of an attach.
    pub const ATTACH_BYTES: usize = 64 << 10;
    /// Largest state that `attach` sends inline; above it the worker fetches `GET state`.
    pub const INLINE_STATE_BYTES: usize = 1 << 20;
    /// Largest state. It is counted as its values' bytes and its channels' names, with 64 more for each channel and for each
    /// value: a list of very many small items takes memory for each.
    pub const STATE_BYTES: usize = 64 << 20;
    /// Channels that one boundary sets or appends to; as many that it removes, and that it truncates.
    pub const CHANNELS: usize = 64;
    /// Items that one boundary appends to lists.
    pub const ITEMS: usize = 100_000;
    /// Characters in the name of a channel or a call, in a reason, a trigger or a media type.
    pub const NAME_CHARS: usize = 128;
    /// Characters in the key of a call: room for the run's id and the longest name of a call, of which the SDKs make it.
    pub const KEY_CHARS: usize = 256;
    /// Events in one boundary.
    pub const EVENTS: usize = 1_000;
    /// Calls planned in one boundary.
    pub const CALLS: usize = 100;
    /// Bytes of a run's open calls together: those that are started, and those of the open turn that are planned or have ended.
    /// Each counts its id, key, arguments and result. An attach carries them all: also twice as many, which a rewind may bring
    /// together, go into an answer (`PROCESS_BYTES`).
    pub const OPEN_CALLS_BYTES: usize = 64 << 20;
    /// Largest result of a call that is always taken: an open call counts no less for its result.
    pub const SMALL_RESULT_BYTES: usize = 1 << 10;
    /// Changes of records in one batch or boundary.
    pub const RECORDS: usize = 1_000;
    /// Bytes of a record's space, key or entry id.
    pub const RECORD_NAME_BYTES: usize = 512;
    /// Bytes of a record's value: of JSON the text's, else the base64's.
    pub const RECORD_VALUE_BYTES: usize = 4 << 20;
    /// Entries or events in one page of an answer.
    pub const PAGE: u32 = 1_000;
    /// Bytes of entries or events after which a page ends early.
    pub const PAGE_BYTES: usize = 4 << 20;
    /// Levels of nesting in any JSON.
    pub const DEPTH: usize = 128;
    /// Turns in a run.
    pub const TURNS: i32 = 1_000_000;
    /// Largest amount in one field of a boundary's usage.
    pub const USAGE: i64 = 1 << 40;
    /// Bytes of a finish's message.
    pub const FINISH_MESSAGE_BYTES: usize = 1 << 10;
    /// Bytes of a finish's output.
    pub const FINISH_OUTPUT_BYTES: usize = 4 << 10;
    /// Bytes of bodies that one gateway process holds at once; above it: 503 with Retry-After. One run holds a quarter at most,
    /// and so do all together who are not known to be a run's current worker.
    pub const PROCESS_BYTES: usize = 256 << 20;
    /// Bytes of answers of more than 16 KiB, and of streams, that one gateway process has on their way out at once; above it:
    /// 503 with Retry-After. One run, or one person, holds a quarter at most, or one answer that is larger.
    pub const ANSWERS_BYTES: usize = 256 << 20;
    /// Bytes of an AgentRun's `input`.
    pub const INPUT_BYTES: usize = 32 << 10;
    /// Levels of nesting in what an AgentRun shows: its `input`, and a finish's output.
    pub const SHOWN_DEPTH: usize = 64;
}
