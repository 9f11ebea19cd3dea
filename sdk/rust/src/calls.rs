//! Tool calls. A call has one idempotency key in all attempts.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard, PoisonError};

use dalsegno_protocol::{
    Call, CallOutcome, CallState, ClaimRequest, ClaimResponse, ClaimVerdict, Code, CompleteOutcome,
    CompleteRequest, Policy, RawValue, SettleRequest,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use uuid::Uuid;

use crate::http::{CALL_TIMEOUT, percent_encode};
use crate::json::{from_text, raw, to_bytes};
use crate::run::Claim;
use crate::{Error, Result, Run, ToolCall, ToolError};

impl Run {
    /// Runs `tool(key, arguments)` unless the call is already complete. Returns the tool's result, new or stored.
    ///
    /// The tool gets the stored key and arguments, which are the same in every attempt. If the process dies before the
    /// result is recorded, or if the tool returns [`ToolError::Unknown`], the outcome is unknown and the call's policy
    /// applies. If the result cannot be recorded (it is too large, or not JSON), this is an error: record a smaller
    /// result with [`Self::complete`].
    ///
    /// # Errors
    ///
    /// The tool failed or refused, the outcome is uncertain, or the gateway refused the call: with
    /// [`Code::ApprovalNotGranted`] if nobody has approved [`ToolCall::approval`], with [`Code::ApprovalSpent`] if another
    /// call has used it.
    pub fn call<A, R>(
        &self,
        call: ToolCall<'_>,
        arguments: A,
        tool: impl FnOnce(&str, A) -> std::result::Result<R, ToolError>,
    ) -> Result<R>
    where
        A: Serialize + DeserializeOwned,
        R: Serialize + DeserializeOwned,
    {
        let id = call.id;
        let claim = self.claim(call, &arguments)?;
        let answer = self.client.call(&format!("calls/{}/claim", percent_encode(id)), Some(&claim.body));
        if let Err(Error::Refused { problem, .. }) = &answer
            && matches!(
                problem.code,
                Code::Invalid | Code::TooLarge | Code::ApprovalNotGranted | Code::ApprovalSpent
            )
        {
            // The gateway itself refused these bytes. After any other error the claim may have been accepted.
            self.remove_claim(id, claim.id);
        }
        let ClaimResponse { verdict, call } = answer?;
        match verdict {
            ClaimVerdict::Done => drop(self.claims().remove(id)),
            ClaimVerdict::Uncertain => self.remove_claim(id, claim.id), // another claim holds the call
            ClaimVerdict::Go => {}
        }
        match (verdict, call.state) {
            (_, CallState::KeyRefused) => {
                Err(Error::KeyRefused { id: call.id, result: or_null(call.result) })
            }
            (ClaimVerdict::Uncertain, _) => Err(Error::Uncertain(Box::new(call))),
            (ClaimVerdict::Done, CallState::Failed) => {
                Err(Error::CallFailed { id: call.id, result: or_null(call.result) })
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
                self.record_outcome(claim_id, call, outcome)
            }
        }
    }

    /// The claim to send: the stored claim if the tool may run under it, else a new one. A claim is stored before it is
    /// sent, because until the answer arrives it is unknown whether the gateway has accepted it.
    fn claim(&self, call: ToolCall<'_>, arguments: &impl Serialize) -> Result<Claim> {
        let ToolCall { id, policy, key, approval } = call;
        let request = ClaimRequest {
            approval: approval.map(str::to_owned),
            claim_id: Uuid::new_v4(),
            policy,
            key: Some(key.map_or_else(|| self.key(id), str::to_owned)),
            arguments: Some(raw("write a call's arguments as JSON", arguments)?),
        };
        let claim = Claim { id: request.claim_id, policy, body: to_bytes(&request)?, begun: Arc::default() };
        let mut claims = self.claims();
        let open = claims.entry(id.to_owned()).or_insert_with(|| claim.clone());
        let begun = open.begun.load(Ordering::SeqCst);
        let may_run = open.policy == policy && (repeatable(policy) || !begun);
        Ok(if may_run { open.clone() } else { claim })
    }

    /// Marks the tool as begun. Returns `false` if the tool must not run twice and another thread has already begun it.
    fn begin(&self, id: &str, claim: Claim) -> bool {
        let begun = claim.begun.swap(true, Ordering::SeqCst);
        let may_run = repeatable(claim.policy) || !begun;
        if may_run {
            self.claims().insert(id.to_owned(), claim);
        }
        may_run
    }

    /// Removes a claim that the gateway has not accepted.
    fn remove_claim(&self, id: &str, claim: Uuid) {
        let mut claims = self.claims();
        if claims.get(id).is_some_and(|stored| stored.id == claim) {
            claims.remove(id);
        }
    }

    /// Records the outcome of a call if [`Self::call`] could not, for example because the result was too large. This
    /// process must have claimed the call, and the call must still be open.
    pub fn complete(&self, id: &str, outcome: CompleteOutcome, result: &impl Serialize) -> Result<()> {
        let claim_id = self.claims().get(id).map(|open| open.id);
        let claim_id = claim_id.ok_or_else(|| Error::NotClaimed { id: id.to_owned() })?;
        self.record(id, &CompleteRequest { claim_id, outcome, result: Some(tool_result(result)?) })
    }

    fn record_outcome<R: Serialize>(
        &self,
        claim_id: Uuid,
        call: Call,
        outcome: std::result::Result<R, ToolError>,
    ) -> Result<R> {
        let refused = |outcome, why: &str| {
            let result = tool_result(&why)?;
            self.record(&call.id, &CompleteRequest { claim_id, outcome, result: Some(result.clone()) })?;
            Ok(result)
        };
        match outcome {
            Ok(value) => {
                let (outcome, result) = (CompleteOutcome::Completed, Some(tool_result(&value)?));
                self.record(&call.id, &CompleteRequest { claim_id, outcome, result })?;
                Ok(value)
            }
            Err(ToolError::Refused(why)) => {
                let result = refused(CompleteOutcome::Failed, &why)?;
                Err(Error::CallFailed { id: call.id, result })
            }
            Err(ToolError::KeyRefused(why)) => {
                let result = refused(CompleteOutcome::KeyRefused, &why)?;
                Err(Error::KeyRefused { id: call.id, result })
            }
            Err(ToolError::Unknown(source)) => Err(Error::Tool { id: call.id, source }),
        }
    }

    fn record(&self, id: &str, request: &CompleteRequest) -> Result<()> {
        self.client.send(
            &format!("calls/{}/complete", percent_encode(id)),
            Some(&to_bytes(request)?),
            CALL_TIMEOUT,
        )?;
        self.claims().remove(id);
        Ok(())
    }

    /// Settles an uncertain call: records its outcome and how it was found out.
    #[expect(clippy::too_many_arguments, reason = "four besides the run")]
    pub fn settle(
        &self,
        id: &str,
        outcome: CallOutcome,
        result: &impl Serialize,
        reason: &str,
    ) -> Result<()> {
        let result = Some(raw("write a call's result as JSON", result)?);
        let body = to_bytes(&SettleRequest { outcome, result, reason: reason.to_owned() })?;
        self.client.send(&format!("calls/{}/settle", percent_encode(id)), Some(&body), CALL_TIMEOUT)?;
        Ok(())
    }

    /// Whether a call of this process that must not be made twice has no known outcome.
    pub(crate) fn has_open_call(&self) -> bool {
        self.claims().values().any(|claim| !repeatable(claim.policy))
    }

    fn claims(&self) -> MutexGuard<'_, HashMap<String, Claim>> {
        self.claims.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn tool_result(result: &impl Serialize) -> Result<Box<RawValue>> {
    raw("write a tool's result as JSON", result)
}

/// Reads the stored arguments. The error gives the position of the mismatch and does not quote the arguments.
fn stored_arguments<A: DeserializeOwned>(text: &str) -> Result<A> {
    serde_json::from_str(text).map_err(|error| {
        let message =
            format!("another type than the tool takes, at line {} column {}", error.line(), error.column());
        Error::Json {
            operation: "read the stored arguments of a call",
            source: serde::de::Error::custom(message),
        }
    })
}

fn repeatable(policy: Policy) -> bool {
    matches!(policy, Policy::RetrySameKey | Policy::ReadOnly)
}

fn or_null(result: Option<Box<RawValue>>) -> Box<RawValue> {
    result.unwrap_or_else(|| RawValue::NULL.to_owned())
}
