//! Tools: functions whose calls have one idempotency key in all attempts.

use std::error::Error as StdError;

use dalsegno_protocol::{Call, CallState, ClaimRequest, CompleteOutcome, Policy, RawValue, Usage};
use serde::Serialize;
use serde::de::DeserializeOwned;
use sha2::{Digest as _, Sha256};

use crate::calls::{stored_arguments, tool_result};
use crate::json::{canonical, raw};
use crate::ordinals::{CallId, DIGEST_BYTES};
use crate::{Error, Result, Run, ToolCall, ToolError};

/// A tool that an agent calls with [`crate::Turn::call`]. Each call is stored, has one key for ever, and is not made again
/// once it is over.
///
/// ```no_run
/// use std::error::Error;
///
/// use dalsegno_sdk::{Policy, Probed, Tool, ToolError};
/// # struct Bank;
/// # #[derive(serde::Serialize, serde::Deserialize)] struct Receipt(String);
/// # impl Bank {
/// #     fn pay(&self, key: &str, order: &str, cents: u32) -> std::io::Result<Receipt> {
/// #         Ok(Receipt(format!("{key}: {cents} for {order}")))
/// #     }
/// #     fn find(&self, reference: &str) -> std::io::Result<Option<Receipt>> {
/// #         Ok(reference.starts_with("paid").then(|| Receipt(reference.to_owned())))
/// #     }
/// # }
///
/// struct Pay {
///     bank: Bank,
/// }
///
/// impl Tool for Pay {
///     const NAME: &'static str = "pay";
///     const POLICY: Policy = Policy::Probe;
///     type Arguments = (String, u32);
///     type Output = Receipt;
///
///     fn run(&self, key: &str, (order, cents): &(String, u32)) -> Result<Receipt, ToolError> {
///         Ok(self.bank.pay(key, order, *cents)?) // `?` leaves the outcome unknown: the probe finds out
///     }
///
///     fn probe(&self, key: &str, _: &(String, u32)) -> Result<Probed<Receipt>, Box<dyn Error + Send + Sync>> {
///         Ok(self.bank.find(key)?.map_or(Probed::NoEffect, Probed::TookEffect))
///     }
/// }
/// ```
pub trait Tool {
    /// The tool's name: a part of the ids of its calls, of `A-Z a-z 0-9 _ : -` and at most 64 characters.
    const NAME: &'static str;
    /// What to do about a call whose outcome is unknown, because a process died during it.
    const POLICY: Policy;
    /// What a call is about. Its JSON is a part of the call's id.
    type Arguments: Serialize + DeserializeOwned;
    /// What the tool answers.
    type Output: Serialize + DeserializeOwned;

    /// Makes the call. The key and the arguments are the stored ones, the same in every attempt.
    ///
    /// # Errors
    ///
    /// [`ToolError::Refused`] if nothing took effect; it is stored. `?` makes [`ToolError::Unknown`] of any error.
    fn run(&self, key: &str, arguments: &Self::Arguments) -> std::result::Result<Self::Output, ToolError>;

    /// Finds out what became of a call whose outcome is unknown. For the policy [`Policy::Probe`]; without it such a call
    /// is [`Error::Uncertain`].
    ///
    /// # Errors
    ///
    /// Nobody can say now. The outcome stays unknown.
    fn probe(
        &self,
        key: &str,
        arguments: &Self::Arguments,
    ) -> std::result::Result<Probed<Self::Output>, Box<dyn StdError + Send + Sync>> {
        let _ = (key, arguments);
        Ok(Probed::Unknown)
    }

    /// An id of your own for a call: the same effect has the same id in the whole run. By default the id is made of the
    /// turn, the name, the arguments, and the number of equal calls in the turn. Behind a plan it begins with `planned-`.
    fn id(&self, arguments: &Self::Arguments) -> Option<String> {
        let _ = arguments;
        None
    }
}

/// What a probe has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Probed<R> {
    /// The call took effect, with this result.
    TookEffect(R),
    /// The call did not take effect, and never will. The tool runs now, under the same key.
    NoEffect,
    /// The probe cannot say. The call stays [`Error::Uncertain`].
    Unknown,
}

/// The name of a call in its turn: the tool, and what the call is about.
pub(crate) fn call_name<T: Tool>(arguments: &T::Arguments) -> Result<String> {
    let text = canonical(raw("write a call's arguments as JSON", arguments)?.get())?;
    let digest = Sha256::digest(text.as_bytes());
    let digest: String = digest.iter().take(DIGEST_BYTES).map(|byte| format!("{byte:02x}")).collect();
    Ok(format!("{}.{digest}", T::NAME))
}

/// Whether a call is one of the tool's: its claim has named the tool, or the SDK made its id of the name.
pub(crate) fn is_call_of<T: Tool>(call: &Call) -> bool {
    if let Some(tool) = &call.tool {
        return tool == T::NAME;
    }
    CallId::parse(&call.id).is_some_and(|id| id.tool == T::NAME)
}

impl Run {
    /// Makes a call of a tool. Asks its probe if the outcome is unknown, unless another thread of this process makes the
    /// same call now.
    pub(crate) fn make<T: Tool>(
        &self,
        tool: &T,
        call: ToolCall<'_>,
        arguments: T::Arguments,
    ) -> Result<T::Output> {
        let text = raw("write a call's arguments as JSON", &arguments)?;
        // It is only a name: a call does not wait until every gateway takes it.
        let name =
            call.tool.or_else(|| self.client.has_contract(ClaimRequest::TOOL_CONTRACT).then_some(T::NAME));
        let call = ToolCall { tool: name, ..call };
        let running = self.claims.enter(call.id);
        let may_ask = T::POLICY == Policy::Probe && running.is_some();
        let run_tool = |key: &str, arguments| Ok((tool.run(key, &arguments)?, Usage::default()));
        match self.make_call(call, running.is_some(), arguments, run_tool) {
            Err(Error::Uncertain(call)) if may_ask && call.state == CallState::Started => {
                self.ask_probe(tool, *call, &text)
            }
            made => made,
        }
    }

    /// If the process dies between the tool's effect and its record, the next attempt asks the probe again.
    fn ask_probe<T: Tool>(&self, tool: &T, call: Call, claimed: &RawValue) -> Result<T::Output> {
        let arguments = stored_arguments(call.arguments.as_deref().unwrap_or(claimed).get())?;
        let id = &call.id;
        match tool.probe(&call.key, &arguments) {
            Err(source) => Err(Error::Tool { id: call.id, source }),
            Ok(Probed::Unknown) => Err(Error::Uncertain(Box::new(call))),
            Ok(Probed::TookEffect(result)) => {
                let how = "the probe found the effect";
                self.end_probed(id, CompleteOutcome::Completed, (tool_result(&result)?, how))?;
                Ok(result)
            }
            Ok(Probed::NoEffect) => self.run_probed(tool, call, &arguments),
        }
    }

    /// Runs the tool of a call that took no effect.
    fn run_probed<T: Tool>(&self, tool: &T, call: Call, arguments: &T::Arguments) -> Result<T::Output> {
        let Call { id, key, .. } = call;
        let how = "the probe found no effect, and the tool ran";
        match tool.run(&key, arguments) {
            Ok(result) => {
                self.end_probed(&id, CompleteOutcome::Completed, (tool_result(&result)?, how))?;
                Ok(result)
            }
            Err(ToolError::Refused(why)) => {
                let result = tool_result(&why)?;
                self.end_probed(&id, CompleteOutcome::Failed, (result.clone(), how))?;
                Err(Error::CallFailed { id, result })
            }
            Err(ToolError::KeyRefused(why)) => {
                let result = tool_result(&why)?;
                self.end_probed(&id, CompleteOutcome::KeyRefused, (result.clone(), how))?;
                Err(Error::KeyRefused { id, result })
            }
            Err(ToolError::Unknown(source)) => Err(Error::Tool { id, source }),
        }
    }
}
