//! What holds of a call's row in either database.

use dalsegno_protocol::CallState;

use crate::fault::{Fault, Work};

/// Two columns of a call's row may not contradict each other: one whose key was refused is started.
pub(crate) fn hold_together(id: &str, state: CallState, key_refused: bool) -> Work<()> {
    if key_refused && state != CallState::Started {
        return Err(Fault::Corrupt(format!("call {id:?}: its key was refused, and it is {state:?}")));
    }
    Ok(())
}

/// Why nobody but a person says how this call ended.
pub(crate) fn key_refused(id: &str) -> String {
    format!("the tool refused the key of call {id:?}; only a person may settle it")
}
