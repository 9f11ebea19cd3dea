//! Rebuilds the states of a run from its bundle alone.

use std::io::BufRead;

use dalsegno_format::fold;
use dalsegno_model::{Error, Result};
use dalsegno_protocol::State;

use super::lines::Line;

/// The state after a turn of the live branch; `None` if there is no such turn. Verify the bundle first.
///
/// # Errors
///
/// A line cannot be parsed. [`Error::Gone`]: payloads were dropped or shredded before the export, and no full state
/// follows them.
pub fn state(bundle: impl BufRead, turn: i32) -> Result<Option<State>> {
    let mut state = Ok(State::new());
    let mut last = 0;
    for line in bundle.lines() {
        let line = line.map_err(|error| unreadable(&error))?;
        match serde_json::from_str(&line).map_err(|error| unreadable(&error))? {
            Line::Boundary(it) if !it.undone && it.turn <= turn => {
                last = it.turn;
                match (it.gone(), &it.ops) {
                    (Some(gone), _) => state = Err(gone),
                    (None, Some(ops)) => {
                        if it.full {
                            state = Ok(State::new());
                        }
                        if let Ok(state) = &mut state {
                            fold::step(state, ops)?;
                        }
                    }
                    (None, None) => {}
                }
            }
            Line::Bundle(_) | Line::Boundary(_) => {}
            Line::Call(_)
            | Line::Wait(_)
            | Line::Message(_)
            | Line::RecordBatch(_)
            | Line::Record(_)
            | Line::Audit(_)
            | Line::End(_) => break,
        }
    }
    if last != turn {
        return Ok(None);
    }
    let gone = |gone| Error::Gone { operation: "reading a bundle", detail: format!("turn {turn}: {gone}") };
    state.map(Some).map_err(gone)
}

fn unreadable(error: &dyn std::error::Error) -> Error {
    Error::Corrupt { operation: "reading a bundle", detail: error.to_string() }
}
