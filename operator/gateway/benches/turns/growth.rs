//! A state that grows by a message each turn: the bytes that are kept, against those of the last state.

use uuid::Uuid;

use crate::figures::times;
use crate::payload;
use crate::world::World;

/// Turns, and what each adds.
const TURNS: usize = 200;
const MESSAGE: usize = (1 << 20) / TURNS;

/// What the worker sends of it.
#[derive(Clone, Copy)]
pub enum Kind {
    /// What changed, by channels.
    Changes,
    /// All of it, each turn.
    Whole,
}

/// Both.
pub const KINDS: [Kind; 2] = [Kind::Changes, Kind::Whole];

/// The row of the table.
pub fn of(world: &World<'_>, kind: Kind) -> [String; 7] {
    let (name, sends) = match kind {
        Kind::Changes => ("changes", "what changed"),
        Kind::Whole => ("whole", "its whole state"),
    };
    let mut worker = world.worker(&format!("growth-{name}"));
    let (mut transcript, mut sent) = (String::new(), 0);
    for round in 0..TURNS {
        let message = payload::state(MESSAGE, round);
        transcript = if round == 0 { message.clone() } else { format!("{transcript},{message}") };
        let change = match kind {
            Kind::Changes => format!(r#""channels":{{"append":{{"messages":[{{"json":{message}}}]}}}}"#),
            Kind::Whole => format!(r#""state":{{"messages":[{transcript}]}}"#),
        };
        let body = format!(r#"{{"commitId":"{}",{change}}}"#, Uuid::from_u128(round as u128 + 1));
        sent += body.len();
        assert_eq!(worker.commit(body.as_bytes()).result(), "ok");
    }
    let [boundaries, snapshots, chunks] = world.bytes(&worker);
    let all = boundaries + snapshots + chunks;
    [
        world.name.to_owned(),
        sends.to_owned(),
        kilobytes(sent),
        kilobytes(boundaries),
        kilobytes(snapshots),
        kilobytes(chunks),
        times(all as f64 / transcript.len() as f64),
    ]
}

fn kilobytes(bytes: usize) -> String {
    format!("{} kB", bytes / 1_000)
}
