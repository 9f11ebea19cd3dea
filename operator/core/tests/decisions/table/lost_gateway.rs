//! The node of one gateway loses the network. Its workers are healthy, and connect to another gateway.

use dalsegno_model::{Deadline, GatewayHeartbeat, RunRecord};
use jiff::{SignedDuration, Timestamp};

use crate::fixtures::{now, run};

const WORKERS: u32 = 5_000;

/// Seconds between two heartbeats.
const INTERVAL: f64 = 5.0;

/// How a worker connects again.
#[derive(Clone, Copy)]
struct Client {
    /// How long it waits for an answer on a connection, in seconds.
    answer: f64,
    /// How long one try to connect takes if no attempt reaches a gateway, in seconds.
    connect: f64,
    /// Attempts within one try. Each leads to any of the gateways, the lost one included.
    attempts: u32,
}

/// As the contract demands it.
const RACING: Client = Client { answer: 2.0, connect: 1.0, attempts: 10 };

/// It waits 5 s for each answer, and makes one attempt to connect.
const SLOW: Client = Client { answer: 5.0, connect: 5.0, attempts: 1 };

/// A sequence of numbers from 0 to 1 that is the same in every run (xorshift).
struct Random(u64);

impl Random {
    fn next(&mut self) -> f64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as f64 / (1_u64 << 53) as f64
    }
}

fn at(seconds: f64) -> Timestamp {
    now() + SignedDuration::from_secs_f64(seconds)
}

/// A run whose lease the lost gateway has renewed. The gateway was lost at 0; another one serves.
fn row() -> RunRecord {
    let mut row = run().attached(3).head(7).heartbeat(1).row;
    let always = at(-9_000.0);
    row.beat = GatewayHeartbeat { last: at(0.0), since: always, gap_from: always };
    row.lease_gateway = Some(GatewayHeartbeat { last: at(0.0), since: always, gap_from: always });
    row
}

/// Whether the lease has expired if it was renewed at `renewed` and the store is polled at `poll`.
fn is_silent(row: &mut RunRecord, renewed: f64, poll: f64) -> bool {
    row.attempt.lease_renewed_at = Some(at(renewed));
    (row.now, row.beat.last) = (at(poll), at(poll));
    row.is_expired(Deadline::Lease)
}

/// When the worker's next heartbeat reaches another gateway.
fn renewal(client: Client, gateways: f64, renewed: f64, random: &mut Random) -> f64 {
    let mut time = renewed + INTERVAL + client.answer;
    for delay in [0.1, 0.2, 0.4, 0.8, 1.6, 3.2].into_iter().chain(std::iter::repeat(5.0)) {
        time += delay * (0.5 + random.next() / 2.0);
        if (0..client.attempts).any(|_| random.next() * gateways >= 1.0) {
            return time;
        }
        time += client.connect;
    }
    unreachable!("the delays never end")
}

/// How many workers end for silence before they have connected again, and how many of these are charged.
fn ended(client: Client, gateways: f64) -> (u32, u32) {
    let (mut random, mut row) = (Random(3), row());
    let (mut fenced, mut charged) = (0, 0);
    for _ in 0..WORKERS {
        let renewed = -random.next() * INTERVAL;
        let renewal = renewal(client, gateways, renewed, &mut random);
        let phase = random.next();
        let mut polls = (0_u32..).map(|second| f64::from(second) + phase).take_while(|poll| *poll < renewal);
        if polls.any(|poll| is_silent(&mut row, renewed, poll)) {
            fenced += 1;
            charged += u32::from(row.lease_gateway_outage_ms() == 0);
        }
    }
    (fenced, charged)
}

#[test]
fn no_healthy_worker_is_fenced_when_one_of_its_gateways_is_lost() {
    for gateways in [2.0, 3.0] {
        assert_eq!(ended(RACING, gateways), (0, 0), "{gateways} gateways");
    }
}

#[test]
fn a_client_that_is_slow_to_connect_again_may_be_fenced_but_is_not_charged() {
    let (fenced, charged) = ended(SLOW, 2.0);
    assert!(fenced > 0, "the simulation can fail");
    assert_eq!(charged, 0);
}

#[test]
fn a_worker_that_hangs_is_found_though_its_gateway_was_lost() {
    assert!(!is_silent(&mut row(), 0.0, 20.0));
    assert!(is_silent(&mut row(), 0.0, 20.1));
}
