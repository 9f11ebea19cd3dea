//! Time-outs, intervals and limits of one gateway process.

use std::path::PathBuf;
use std::time::Duration;

use dalsegno_protocol::Limits;

use crate::limits::state_reads::TWO_STATES;

/// One run, or one user, may hold at most one of this many equal shares of the bytes in memory.
pub(crate) const SHARES: usize = 4;

/// Time-outs, intervals and limits of one gateway process.
#[derive(Clone, Debug)]
pub struct Config {
    /// A call to the store or to the authenticator that takes longer fails with `UNAVAILABLE`.
    pub store_timeout: Duration,
    /// How long an attach waits until the operator has recorded its pod; then it fails with `NOT_READY`.
    pub pod_record_timeout: Duration,
    /// How long an attach waits until the operator has checked its image's version; then it fails with
    /// `VERSION_PENDING`.
    pub version_verdict_timeout: Duration,
    /// How often a waiting attach looks into the store again, and a waiting export tries again to charge its bytes.
    pub poll_interval: Duration,
    /// A new connection is closed if its first byte does not arrive within this time.
    pub first_byte_timeout: Duration,
    /// A connection is closed if its TLS handshake is not complete this long after its first byte.
    pub handshake_timeout: Duration,
    /// A connection is closed if the head of a request is not complete this long after its first byte.
    pub header_read_timeout: Duration,
    /// A connection is closed if its next request does not begin this long after the last answer.
    pub idle_timeout: Duration,
    /// A request body that is not complete after this time is refused.
    pub body_read_timeout: Duration,
    /// How long an accepted token is not reviewed again. A token or a right that is revoked meanwhile still counts.
    pub accepted_token_ttl: Duration,
    /// How long a refused token is refused without another review.
    pub refused_token_ttl: Duration,
    /// Reviews of tokens under way at once.
    pub max_token_reviews: usize,
    /// Reviews under way at once for one peer address. Further ones wait.
    pub max_token_reviews_per_peer: usize,
    /// How long a refused review counts among those of its peer address. At most half of an address's reviews do.
    pub refused_review_pause: Duration,
    /// Connections open at once. If an idle one can be closed, a further connection takes its place; otherwise it is
    /// refused with 503.
    pub max_connections: usize,
    /// Connections open at once from one IPv4 address, or from one /64 network of IPv6. Workers of one node may share an
    /// address.
    pub max_connections_per_peer: usize,
    /// A gateway that has not been able to accept a connection for this long must be restarted.
    pub accept_failure_limit: Duration,
    /// Bytes of request bodies in memory at once.
    pub max_request_bytes: usize,
    /// Bytes of responses in memory at once; small responses are not counted. Request bodies have a limit of their own,
    /// so that a client that does not read its response stops no worker from committing.
    pub max_response_bytes: usize,
    /// A connection is closed if its peer reads next to nothing of a response for this long.
    pub write_timeout: Duration,
    /// Event streams open at once.
    pub max_event_streams: usize,
    /// How often an event stream looks into the store for new events.
    pub stream_poll_interval: Duration,
    /// After this long without an event, a stream sends a keep-alive.
    pub stream_keepalive_interval: Duration,
    /// An event stream ends after this time, and its client opens a new one. A bundle or another large response that is
    /// not sent by then is cut off.
    pub max_response_duration: Duration,
    /// How often an export checks that its worker may still read.
    pub reauthorize_interval: Duration,
    /// Calls of users at once, event streams included. The limit keeps users from taking all of the gateway.
    pub max_user_calls: usize,
    /// Bytes of states that are read at once for attempts that resume; at least 72 MiB. A read takes about twice as much
    /// memory.
    pub max_resume_bytes: usize,
    /// Bytes of states that are read at once for all other purposes: inspections and snapshots; at least 72 MiB.
    pub max_inspection_bytes: usize,
    /// Bytes of pages of events and records that are read at once; at least one page.
    pub max_page_bytes: usize,
    /// Bytes of full states kept in memory, so that the next full state of the run can be stored as a delta.
    pub max_delta_base_bytes: usize,
    /// Calls of one worker at once; heartbeats are not counted.
    pub max_calls_per_run: usize,
    /// Calls that wait for the store at once; heartbeats are not counted. Further calls are refused at once.
    pub max_store_calls: usize,
    /// Exports at once, at most one for each run. Each one holds a database connection.
    pub max_exports: usize,
    /// File with the Ed25519 key, PEM (PKCS#8), that signs exports; `None`: the key in the store.
    pub signing_key: Option<PathBuf>,
    /// Heartbeats that arrive within this time after a batch wait for the next batch.
    pub heartbeat_batch_window: Duration,
    /// How often the gateway records in the store that it serves.
    pub gateway_heartbeat_interval: Duration,
    /// How long calls may take to end once the gateway is stopping.
    pub shutdown_timeout: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            store_timeout: Duration::from_secs(5),
            pod_record_timeout: Duration::from_secs(5),
            version_verdict_timeout: Duration::from_secs(20),
            poll_interval: Duration::from_millis(100),
            first_byte_timeout: Duration::from_secs(5),
            handshake_timeout: Duration::from_secs(5),
            header_read_timeout: Duration::from_secs(10),
            idle_timeout: Duration::from_secs(60),
            body_read_timeout: Duration::from_secs(30),
            accepted_token_ttl: Duration::from_secs(60),
            refused_token_ttl: Duration::from_secs(10),
            max_token_reviews: 64,
            max_token_reviews_per_peer: 8,
            refused_review_pause: Duration::from_secs(1),
            max_connections: 4_096,
            max_connections_per_peer: 1_024,
            accept_failure_limit: Duration::from_secs(30),
            max_request_bytes: Limits::PROCESS_BYTES,
            max_response_bytes: Limits::ANSWERS_BYTES,
            write_timeout: Duration::from_secs(30),
            max_event_streams: 64,
            stream_poll_interval: Duration::from_millis(500),
            stream_keepalive_interval: Duration::from_secs(15),
            max_response_duration: Duration::from_secs(600),
            reauthorize_interval: Duration::from_secs(10),
            max_user_calls: 32,
            max_resume_bytes: 96 << 20,
            max_inspection_bytes: 96 << 20,
            max_page_bytes: 16 << 20,
            max_delta_base_bytes: 32 << 20,
            max_calls_per_run: 16,
            max_store_calls: 512,
            max_exports: 2,
            signing_key: None,
            heartbeat_batch_window: Duration::from_millis(200),
            gateway_heartbeat_interval: Duration::from_secs(1),
            shutdown_timeout: Duration::from_secs(10),
        }
    }
}

impl Config {
    /// Memory of one connection in bytes: its buffers, its task and a small response. Measured with strangers that send as
    /// much as they can, and rounded up.
    pub const CONNECTION_BYTES: usize = 32 << 10;

    /// A request takes up to this many times the bytes of its body: the body, what is parsed of it, and what is encoded and
    /// written.
    pub const REQUEST_FACTOR: usize = 4;

    /// Reading a state takes this many times its bytes: as it is stored, and as it is returned.
    pub const STATE_FACTOR: usize = 2;

    /// Reading a page takes this many times its bytes: as it is stored, and as it is returned.
    const PAGE_FACTOR: usize = 2;

    /// Memory of a gateway without work: the program, its caches of small entries, its connections to the store, and 24 MiB
    /// for the connections of the API server, which are counted apart.
    const BASE_BYTES: usize = 56 << 20;

    /// Bytes of the states that the store reads at once to measure what follows from a boundary: one of the largest, and
    /// two of an eighth.
    const MEASURED_STATE_BYTES: usize = Limits::STATE_BYTES + 2 * Limits::STATE_BYTES / 8;

    /// Most memory in bytes that a gateway with these limits takes. The caches of an operator in the same process are not
    /// included. A read that is larger than its budget has it alone, so each budget counts as two of the largest states
    /// at least: that is a comparison, or the largest head with its open calls.
    pub fn memory_bytes(&self) -> usize {
        let reads = self.max_resume_bytes.max(TWO_STATES) + self.max_inspection_bytes.max(TWO_STATES);
        let states = reads + Self::MEASURED_STATE_BYTES;
        Self::BASE_BYTES
            + self.max_connections * Self::CONNECTION_BYTES
            + self.max_request_bytes * Self::REQUEST_FACTOR
            + self.max_response_bytes
            + self.max_page_bytes * Self::PAGE_FACTOR
            + self.max_delta_base_bytes
            + states * Self::STATE_FACTOR
    }

    /// Largest response in bytes that is not counted against `max_response_bytes`. One such response on every
    /// connection takes at most one share.
    pub(crate) fn small_response_bytes(&self) -> usize {
        self.max_response_bytes / SHARES / self.max_connections.max(1)
    }
}
