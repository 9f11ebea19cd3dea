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
    let mut sent = 0;
    let last = grow(|round, message, state| {
        let change = match kind {
            Kind::Changes => format!(r#""channels":{{"append":{{"messages":[{{"json":{message}}}]}}}}"#),
            Kind::Whole => format!(r#""state":{state}"#),
        };
        let body = format!(r#"{{"commitId":"{}",{change}}}"#, Uuid::from_u128(round as u128 + 1));
        sent += body.len();
        assert_eq!(worker.commit(body.as_bytes()).result(), "ok");
    });
    let [boundaries, snapshots, chunks] = world.bytes(&worker);
    let all = boundaries + snapshots + chunks;
    [
        world.name.to_owned(),
        sends.to_owned(),
        kilobytes(sent),
        kilobytes(boundaries),
        kilobytes(snapshots),
        kilobytes(chunks),
        times(all as f64 / last as f64),
    ]
}

/// The row of LangGraph's saver, where there is one: all that it keeps counts as boundaries.
pub fn of_langgraph(world: &World<'_>) -> Option<[String; 7]> {
    let mut saver = world.saver()?;
    let mut sent = 0;
    let last = grow(|_, _, state| {
        sent += state.len();
        saver.step(state);
    });
    let all = world.bytes_of_saver(&saver);
    Some([
        format!("{}, LangGraph's saver", world.name),
        "its whole state".into(),
        kilobytes(sent),
        kilobytes(all),
        String::new(),
        String::new(),
        times(all as f64 / last as f64),
    ])
}

/// Tells of each turn its message and the state with it. Bytes of the last state.
fn grow(mut turn: impl FnMut(usize, &str, &str)) -> usize {
    let mut state = r#"{"messages":["#.to_owned();
    for round in 0..TURNS {
        let message = payload::state(MESSAGE, round);
        if round > 0 {
            state.push(',');
        }
        state += &message;
        turn(round, &message, &format!("{state}]}}"));
    }
    state.len()
}

fn kilobytes(bytes: usize) -> String {
    format!("{} kB", bytes / 1_000)
}
