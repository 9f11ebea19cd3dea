//! Tool calls with one key for ever.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, MutexGuard, PoisonError};

use dalsegno_protocol::{
    Call, CallOutcome, CallState, ClaimRequest, ClaimResponse, ClaimVerdict, Code, CompleteOutcome,
    CompleteRequest, Policy, RawValue, SettleRequest,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use uuid::Uuid;

use crate::http::{CALL, encoded};
use crate::json::{from_text, raw, to_bytes};
use crate::{Error, Result, Run, ToolError};

impl Run {
    /// Calls a tool as `tool(key, arguments)` unless it is known to be done; returns its result, now or from the store.
    ///
    /// `policy` says what to do where the outcome is unknown. The key is for ever the same ([`Self::key`] unless
    /// given); the tool gets the key and the arguments that the store knows. A result that is not recorded because
    /// this process dies is an unknown outcome, and so is [`ToolError::Unknown`]. One that cannot be recorded as it is
    /// (too large, no JSON) is an error: record what can be by [`Self::complete`].
    pub fn call<A, R>(
        &self,
        id: &str,
        policy: Policy,
        key: Option<&str>,
        arguments: A,
        tool: impl FnOnce(&str, A) -> std::result::Result<R, ToolError>,
    ) -> Result<R>
    where
        A: Serialize + DeserializeOwned,
        R: Serialize + DeserializeOwned,
    {
        let claim = self.claim(id, policy, key, &arguments)?;
        let answer = self.client.call(&format!("calls/{}/claim", encoded(id)), Some(&claim.body));
        if let Err(Error::Refused { problem, .. }) = &answer
            && matches!(problem.code, Code::Invalid | Code::TooLarge)
        {
            // The gateway's own word on these bytes. After any other they may have been heard.
            self.forget(id, claim.id);
        }
        let ClaimResponse { verdict, call } = answer?;
        match verdict {
            ClaimVerdict::Done => drop(self.claims().remove(id)),
            ClaimVerdict::Uncertain => self.forget(id, claim.id), // another one stands
            ClaimVerdict::Go => {}
        }
        match (verdict, call.state) {
            (_, CallState::KeyRefused) => Err(Error::KeyRefused { id: call.id, result: said(call.result) }),
            (ClaimVerdict::Uncertain, _) => Err(Error::Uncertain(Box::new(call))),
            (ClaimVerdict::Done, CallState::Failed) => {
                Err(Error::CallFailed { id: call.id, result: said(call.result) })
            }
            (ClaimVerdict::Done, _) => {
                let stored = call.result.as_deref().unwrap_or(RawValue::NULL);
                from_text("read the stored result of a call", stored.get())
            }
            (ClaimVerdict::Go, _) => {
                let claim_id = claim.id;
                if !self.begin(id, claim) {
                    return Err(Error::Uncertain(Box::new(call)));
                }
                let arguments = match &call.arguments {
                    Some(stored) => stored_arguments(stored.get())?,
                    None => arguments,
                };
                let outcome = tool(&call.key, arguments);
                self.end(claim_id, call, outcome)
            }
        }
    }

    /// The claim to send: the one that is kept where the tool may be called under it, else a new one. It is kept before
    /// it is sent: whether it stands is unknown until it is answered.
    fn claim(
        &self,
        id: &str,
        policy: Policy,
        key: Option<&str>,
        arguments: &impl Serialize,
    ) -> Result<Claim> {
        let request = ClaimRequest {
            claim_id: Uuid::new_v4(),
            policy,
            key: Some(key.map_or_else(|| self.key(id), str::to_owned)),
            arguments: Some(raw("write a call's arguments as JSON", arguments)?),
        };
        let claim = Claim { id: request.claim_id, policy, body: to_bytes(&request)?, begun: Arc::default() };
        let mut claims = self.claims();
        let open = claims.entry(id.to_owned()).or_insert_with(|| claim.clone());
        let begun = open.begun.load(Ordering::SeqCst);
        let may_be_called = open.policy == policy && (repeatable(policy) || !begun);
        Ok(if may_be_called { open.clone() } else { claim })
    }

    /// Whether the tool may run under this claim: where it must not run twice, another thread may have begun it, and
    /// ended it too.
    fn begin(&self, id: &str, claim: Claim) -> bool {
        let begun = claim.begun.swap(true, Ordering::SeqCst);
        let may = repeatable(claim.policy) || !begun;
        if may {
            self.claims().insert(id.to_owned(), claim);
        }
        may
    }

    /// Nothing stands under this claim.
    fn forget(&self, id: &str, claim: Uuid) {
        let mut claims = self.claims();
        if claims.get(id).is_some_and(|kept| kept.id == claim) {
            claims.remove(id);
        }
    }

    /// Records how the tool of a call ended where [`Self::call`] could not, as when its result was too large. The call is
    /// one that this process claimed and that is not over yet.
    pub fn complete(&self, id: &str, outcome: CompleteOutcome, result: &impl Serialize) -> Result<()> {
        let claim = self.claims().get(id).map(|open| open.id);
        let claim = claim.ok_or_else(|| Error::NotClaimed { id: id.to_owned() })?;
        self.record(id, claim, outcome, result).map(drop)
    }

    fn end<R: Serialize>(
        &self,
        claim: Uuid,
        call: Call,
        outcome: std::result::Result<R, ToolError>,
    ) -> Result<R> {
        match outcome {
            Ok(result) => {
                self.record(&call.id, claim, CompleteOutcome::Completed, &result)?;
                Ok(result)
            }
            Err(ToolError::Refused(why)) => {
                let result = self.record(&call.id, claim, CompleteOutcome::Failed, &why)?;
                Err(Error::CallFailed { id: call.id, result })
            }
            Err(ToolError::KeyRefused(why)) => {
                let result = self.record(&call.id, claim, CompleteOutcome::KeyRefused, &why)?;
                Err(Error::KeyRefused { id: call.id, result })
            }
            Err(ToolError::Unknown(source)) => Err(Error::Tool { id: call.id, source }),
        }
    }

    fn record(
        &self,
        id: &str,
        claim_id: Uuid,
        outcome: CompleteOutcome,
        result: &impl Serialize,
    ) -> Result<Box<RawValue>> {
        let result = raw("write a tool's result as JSON", result)?;
        let request = CompleteRequest { claim_id, outcome, result: Some(result.clone()) };
        self.client.send(&format!("calls/{}/complete", encoded(id)), Some(&to_bytes(&request)?), CALL)?;
        self.claims().remove(id);
        Ok(result)
    }

    /// Records what a probe found out about an uncertain call, and how it was found.
    pub fn settle(
        &self,
        id: &str,
        outcome: CallOutcome,
        result: &impl Serialize,
        reason: &str,
    ) -> Result<()> {
        let result = Some(raw("write a call's result as JSON", result)?);
        let body = to_bytes(&SettleRequest { outcome, result, reason: reason.to_owned() })?;
        self.client.send(&format!("calls/{}/settle", encoded(id)), Some(&body), CALL)?;
        Ok(())
    }

    fn claims(&self) -> MutexGuard<'_, HashMap<String, Claim>> {
        self.claims.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The arguments as the store knows them. An error says where they are not what the tool takes, and does not quote them.
fn stored_arguments<A: DeserializeOwned>(text: &str) -> Result<A> {
    serde_json::from_str(text).map_err(|error| {
        let place =
            format!("another type than the tool takes, at line {} column {}", error.line(), error.column());
        Error::Json { doing: "read the stored arguments of a call", source: serde::de::Error::custom(place) }
    })
}

fn repeatable(policy: Policy) -> bool {
    matches!(policy, Policy::RetrySameKey | Policy::ReadOnly)
}

/// What a tool said, or null.
fn said(result: Option<Box<RawValue>>) -> Box<RawValue> {
    result.unwrap_or_else(|| RawValue::NULL.to_owned())
}

/// A claim, and the bytes that say so.
#[derive(Clone)]
pub(crate) struct Claim {
    id: Uuid,
    policy: Policy,
    body: Vec<u8>,
    /// Whether its tool may have run, for all threads that sent it.
    begun: Arc<AtomicBool>,
}
