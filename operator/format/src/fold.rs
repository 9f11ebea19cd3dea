//! A run's state: the fold of its boundaries' channel operations, in order.
//!
//! Folding never fails on accepted operations, so no commit can make its run's state unreadable. The result depends
//! on the existing channel:
//!
//! | operation | on a missing channel | on a value | on a list |
//! |---|---|---|---|
//! | `remove` | no effect | removed | removed |
//! | `truncate` n | no effect | no effect | shortened to at most n items |
//! | `set` | new value | replaced | replaced by the value |
//! | `append` | new list | replaced by a new list | items added |
//!
//! Within one boundary the operations are applied in the order of the table. `full` first removes all channels.

use dalsegno_model::{Error, Result, redacted_json_error};
use dalsegno_protocol::{Channel, ChannelOps, State};

/// The state after these operations, the oldest first. Each item is the JSON text of [`ChannelOps`] of one boundary.
/// JSON payloads are preserved byte for byte.
pub fn fold<'a>(operations: impl IntoIterator<Item = &'a str>) -> Result<State> {
    let mut state = State::new();
    for text in operations {
        step(&mut state, text)?;
    }
    Ok(state)
}

/// Applies the operations of one boundary: the JSON text of [`ChannelOps`].
pub fn step(state: &mut State, operations: &str) -> Result<()> {
    let ops = serde_json::from_str(operations).map_err(|error| corrupt(redacted_json_error(&error)))?;
    apply(state, ops);
    Ok(())
}

/// The canonical text of a state, used for patches and snapshots. It must never change: channels in the order of
/// their names, no blanks, each JSON payload as received.
pub fn text(state: &State) -> Result<Vec<u8>> {
    serde_json::to_vec(state).map_err(|error| corrupt(error.to_string()))
}

/// Parses the [`text`] of a state.
pub fn state(text: &[u8]) -> Result<State> {
    serde_json::from_slice(text).map_err(|error| corrupt(redacted_json_error(&error)))
}

fn apply(state: &mut State, ops: ChannelOps) {
    let ChannelOps { full, remove, truncate, set, append } = ops;
    if full {
        state.clear();
    }
    for name in remove {
        state.remove(&name);
    }
    for (name, length) in truncate {
        if let Some(Channel::List(items)) = state.get_mut(&name) {
            items.truncate(length as usize);
        }
    }
    for (name, value) in set {
        state.insert(name, Channel::Value(value));
    }
    for (name, mut items) in append {
        match state.get_mut(&name) {
            Some(Channel::List(list)) => list.append(&mut items),
            Some(Channel::Value(_)) | None => {
                state.insert(name, Channel::List(items));
            }
        }
    }
}

fn corrupt(detail: String) -> Error {
    Error::Corrupt { operation: "folding channel operations", detail }
}
