//! The states of a run from its bundle alone.

use std::io::BufRead;

use dalsegno_protocol::State;

use super::lines::Line;
use crate::{Error, Result, fold};

/// The state after a turn of the live branch; `None`: there is no such turn. Verify the bundle first.
///
/// # Errors
///
/// A line cannot be read, or is not what a bundle has; or the payloads were dropped before the bundle was made.
pub fn state(bundle: impl BufRead, turn: i32) -> Result<Option<State>> {
    let mut state = State::new();
    let mut last = 0;
    for line in bundle.lines() {
        let line = line.map_err(|error| unreadable(&error))?;
        match serde_json::from_str(&line).map_err(|error| unreadable(&error))? {
            Line::Boundary(it) if !it.undone && it.turn <= turn => {
                last = it.turn;
                if let Some(gone) = it.gone() {
                    return Err(Error::Corrupt { doing: "reading a bundle", detail: gone.to_string() });
                }
                if let Some(ops) = &it.ops {
                    fold::step(&mut state, ops)?;
                }
            }
            Line::Bundle(_) | Line::Boundary(_) => {}
            Line::Call(_) | Line::Audit(_) | Line::End(_) => break,
        }
    }
    Ok((last == turn).then_some(state))
}

fn unreadable(error: &dyn std::error::Error) -> Error {
    Error::Corrupt { doing: "reading a bundle", detail: error.to_string() }
}
