//! An agent: a run with a typed state, whose turns are committed as a whole.

use std::fmt;

use dalsegno_protocol::{Call, CallState, Finish, Policy, RawValue};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::calls::stored_arguments;
use crate::saved::Saved;
use crate::tool::is_call_of;
use crate::{Error, Result, Run, Tool, ToolCall, Turn};

/// A run with a state of the type `S`: begin here.
///
/// ```no_run
/// use dalsegno_sdk::{Agent, Policy, Tool, ToolError, succeeded};
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Default, Serialize, Deserialize)]
/// struct State {
///     pages: Vec<String>,
/// }
///
/// struct WritePage; // the ledger honours the key: at most one entry
///
/// impl Tool for WritePage {
///     const NAME: &'static str = "write_page";
///     const POLICY: Policy = Policy::RetrySameKey;
///     type Arguments = (i32, String);
///     type Output = String;
///
///     fn run(&self, key: &str, (page, text): &(i32, String)) -> Result<String, ToolError> {
///         Ok(post_to_ledger(key, *page, text)?)
///     }
/// }
/// # fn post_to_ledger(key: &str, page: i32, text: &str) -> std::io::Result<String> { Ok(format!("{key} {page} {text}")) }
/// # fn model(state: &State) -> std::io::Result<String> { Ok(String::new()) }
///
/// fn main() -> dalsegno_sdk::Result<()> {
///     let mut agent = Agent::<State>::attach()?; // waits until the gateway lets this process in
///     let pages: i32 = agent.run().input()?;
///     while agent.next_turn() <= pages {
///         let mut turn = agent.turn()?; // nothing is stored of a turn that is dropped
///         let text = turn.step("draft", || Ok(model(&turn.state)?))?; // paid for once; its answer is stored
///         let entry = turn.call(&WritePage, (turn.number(), text))?;
///         turn.state.pages.push(entry);
///         turn.commit()?;
///     }
///     agent.finish(succeeded())
/// }
/// ```
///
/// *Guarantees.* A committed turn is never run again. A turn that was open when its process died is replayed from its
/// start: its steps and its tool calls are answered from the store, and all other code runs again. A replay that makes
/// other calls than the turn has made before is [`Error::Diverged`], and is not committed.
///
/// *Caveat.* What costs money, or differs from one time to the next, must be a [`Turn::step`] or a [`Tool`]: a model, a
/// search, the clock, a random number.
pub struct Agent<S>(Saved<S>);

impl<S: Serialize + DeserializeOwned + Default> Agent<S> {
    /// Attaches to the run that the environment names, with heartbeats and a handler of SIGTERM.
    ///
    /// # Errors
    ///
    /// As [`Run::attach`] and [`Self::new`].
    pub fn attach() -> Result<Self> {
        Self::new(Run::attach()?)
    }

    /// The agent of an attached run, for other options than those of [`Self::attach`]: `Agent::new(Run::builder()…)`.
    /// A fresh run begins with `S::default()`. Calls of earlier attempts are adopted ([`Run::adopt`]).
    ///
    /// # Errors
    ///
    /// The stored state is none of the type `S`. Give a new field `#[serde(default)]`.
    pub fn new(run: Run) -> Result<Self> {
        let saved = Saved::new(run)?;
        saved.run.adopt()?;
        Ok(Self(saved))
    }

    /// The run: its input, its waits, its inbox, its records.
    pub fn run(&self) -> &Run {
        &self.0.run
    }

    /// The state as the last boundary left it.
    pub fn state(&self) -> &S {
        &self.0.state
    }

    /// The number of the next turn, from 1.
    pub fn next_turn(&self) -> i32 {
        self.0.run.turn()
    }

    /// Opens the next turn. Before, [`Run::check`] leaves the process if a person or the cluster asks for it.
    ///
    /// # Errors
    ///
    /// As [`Run::check`].
    pub fn turn(&mut self) -> Result<Turn<'_, S>> {
        self.0.run.check()?;
        Turn::open(&mut self.0)
    }

    /// Brings the calls of this tool that a process left without an outcome to their end, before the agent goes on: asks
    /// the tool's probe about each, and runs the tool if nothing took effect. A call that the tool refuses then is over.
    /// The turn makes these calls again, and gets their results.
    ///
    /// An agent that replays its turns does not need it, because the turn makes the call again. But the gateway accepts no
    /// records while the outcome of a call is unknown.
    ///
    /// # Errors
    ///
    /// As [`Turn::call`].
    pub fn recover<T: Tool>(&self, tool: &T) -> Result<()> {
        for call in self.0.run.claims.unsettled(Policy::Probe).iter().filter(|call| is_call_of::<T>(call)) {
            let arguments = call.arguments.as_deref().unwrap_or(RawValue::NULL);
            let arguments = stored_arguments(arguments.get())?;
            let (state, result) = match self.0.run.make(tool, ToolCall::new(&call.id, call.policy), arguments)
            {
                Ok(_) => (CallState::Completed, Ok(())),
                Err(Error::CallFailed { .. }) => (CallState::Failed, Ok(())),
                Err(error) => (call.state, Err(error)),
            };
            self.0.run.claims.require(Call { state, ..call.clone() });
            result?;
        }
        Ok(())
    }

    /// Calls of earlier attempts with the policy `probe` or `ask` whose outcome is still unknown. Code that knows the tool
    /// settles them with [`Run::settle`]; those with the policy `ask` only a person can settle.
    pub fn uncertain_calls(&self) -> Vec<Call> {
        [Policy::Probe, Policy::Ask]
            .into_iter()
            .flat_map(|policy| self.0.run.claims.unsettled(policy))
            .collect()
    }

    /// Ends the run.
    ///
    /// # Errors
    ///
    /// The gateway refuses with [`crate::Code::UnsettledCalls`] while the outcome of a call is unknown.
    pub fn finish(mut self, finish: Finish) -> Result<()> {
        self.0.run.finish(finish)
    }
}

/// Leaves out the state, which may be secret.
impl<S> fmt::Debug for Agent<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Agent").field("run", &self.0.run.name()).finish_non_exhaustive()
    }
}
