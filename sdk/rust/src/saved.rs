//! What an agent and its open turn share: the run, and the state as its last boundary left it.

use dalsegno_protocol::RawValue;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::json::{from_text, raw};
use crate::ordinals::Ordinals;
use crate::{Result, Run};

pub(crate) struct Saved<S> {
    pub(crate) run: Run,
    /// The state as the last boundary left it.
    pub(crate) state: S,
    /// The same as JSON; `None`: `S::default()`.
    text: Option<Box<RawValue>>,
    /// The ordinals of the open turn.
    pub(crate) ordinals: Ordinals,
}

impl<S: Serialize + DeserializeOwned + Default> Saved<S> {
    pub(crate) fn new(run: Run) -> Result<Self> {
        let text: Option<Box<RawValue>> = run.state()?;
        Ok(Self { run, state: decode(text.as_deref())?, text, ordinals: Ordinals::default() })
    }

    /// The state of its own that a turn begins with.
    pub(crate) fn copy(&self) -> Result<S> {
        decode(self.text.as_deref())
    }

    /// Keeps the state of a boundary that is committed. `state`: the same, if the turn needs it no more.
    pub(crate) fn keep(&mut self, text: Box<RawValue>, state: Option<S>) -> Result<()> {
        self.state = state.map_or_else(|| decode(Some(&text)), Ok)?;
        self.text = Some(text);
        Ok(())
    }
}

fn decode<S: DeserializeOwned + Default>(text: Option<&RawValue>) -> Result<S> {
    text.map_or_else(|| Ok(S::default()), |text| from_text("read the state", text.get()))
}

pub(crate) fn encode(state: &impl Serialize) -> Result<Box<RawValue>> {
    raw("write the state as JSON", state)
}
