//! A state that grows by one message per turn: the bytes stored, compared with the bytes of the last state.

use uuid::Uuid;

use crate::context::BenchContext;
use crate::figures::times;
use crate::payload;

/// Number of turns.
const TURNS: usize = 200;
/// Bytes that each turn adds.
const MESSAGE: usize = (1 << 20) / TURNS;

/// What the worker sends.
#[derive(Clone, Copy)]
pub enum Kind {
    /// The changed channels.
    Changes,
    /// The full state in each turn.
    Whole,
}

/// All kinds.
pub const KINDS: [Kind; 2] = [Kind::Changes, Kind::Whole];

/// The row of the table.
pub fn of(ctx: &BenchContext<'_>, kind: Kind) -> [String; 7] {
    let (name, sends) = match kind {
        Kind::Changes => ("changes", "what changed"),
        Kind::Whole => ("whole", "its whole state"),
    };
    let mut worker = ctx.worker(&format!("growth-{name}"));
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
    let [boundaries, snapshots, chunks] = ctx.bytes(&worker);
    let all = boundaries + snapshots + chunks;
    [
        ctx.name.to_owned(),
        sends.to_owned(),
        kilobytes(sent),
        kilobytes(boundaries),
        kilobytes(snapshots),
        kilobytes(chunks),
        times(all as f64 / last as f64),
    ]
}

/// The row of LangGraph's saver, if there is one. All its bytes count as boundaries.
pub fn of_langgraph(ctx: &BenchContext<'_>) -> Option<[String; 7]> {
    let mut saver = ctx.saver()?;
    let mut sent = 0;
    let last = grow(|_, _, state| {
        sent += state.len();
        saver.step(state);
    });
    let all = ctx.bytes_of_saver(&saver);
    Some([
        format!("{}, LangGraph's saver", ctx.name),
        "its whole state".into(),
        kilobytes(sent),
        kilobytes(all),
        String::new(),
        String::new(),
        times(all as f64 / last as f64),
    ])
}

/// Calls `turn` with the number, the message and the new state of each turn. Returns the bytes of the last state.
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
