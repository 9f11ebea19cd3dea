//! Tool calls. A call has one idempotency key in all attempts.

use dalsegno_protocol::{
    Call, CallOutcome, CallState, ClaimRequest, ClaimResponse, ClaimVerdict, Code, CompleteOutcome,
    CompleteRequest, Policy, Problem, RawValue, SettleRequest, Usage,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use uuid::Uuid;

use crate::claims::Claim;
use crate::http::{CALL_TIMEOUT, percent_encode};
use crate::json::{from_text, raw, to_bytes};
use crate::{Divergence, Error, Result, Run, ToolCall, ToolError};

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
    /// The tool failed or refused, the outcome is uncertain, the id is stored with other arguments, another policy or
    /// another key ([`Error::Diverged`]), or the gateway refused the call: with [`Code::ApprovalNotGranted`] if nobody has approved [`ToolCall::approval`], with [`Code::ApprovalSpent`] if another
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
        let running = self.claims.enter(call.id);
        let tool = |key: &str, arguments| Ok((tool(key, arguments)?, Usage::default()));
        self.make_call(call, running.is_some(), arguments, tool)
    }

    /// As [`Self::call`], for a tool that also returns what it has used, such as a call of a model. The usage is added to
    /// the run's once, together with the result. Leave it out of the boundary's [`crate::Commit::usage`].
    ///
    /// It waits until every gateway has version 3 of the contract, before it claims the call.
    pub fn call_metered<A, R>(
        &self,
        call: ToolCall<'_>,
        arguments: A,
        tool: impl FnOnce(&str, A) -> std::result::Result<(R, Usage), ToolError>,
    ) -> Result<R>
    where
        A: Serialize + DeserializeOwned,
        R: Serialize + DeserializeOwned,
    {
        let path = format!("calls/{}/complete", percent_encode(call.id));
        self.client.await_contract(&path, CompleteRequest::METERED_CONTRACT)?;
        let running = self.claims.enter(call.id);
        self.make_call(call, running.is_some(), arguments, tool)
    }

    /// `is_alone`: no other thread of this process makes the call. It may have ended when this one gets its answer, so find
    /// out before the claim is sent.
    #[expect(clippy::too_many_arguments, reason = "four besides the run")]
    pub(crate) fn make_call<A, R>(
        &self,
        call: ToolCall<'_>,
        is_alone: bool,
        arguments: A,
        tool: impl FnOnce(&str, A) -> std::result::Result<(R, Usage), ToolError>,
    ) -> Result<R>
    where
        A: Serialize + DeserializeOwned,
        R: Serialize + DeserializeOwned,
    {
        let id = call.id;
        let claim = self.claim(call, &arguments)?;
        let ClaimResponse { verdict, call } = self.send_claim(id, &claim)?;
        match verdict {
            ClaimVerdict::Done => {
                self.claims.make(&call);
                self.claims.close(id, call.state);
            }
            ClaimVerdict::Uncertain => self.claims.withdraw(id, claim.id), // another claim holds the call
            ClaimVerdict::Go => self.claims.make(&call),
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
                let may_run = is_alone || claim.is_repeatable();
                if !may_run || !self.claims.begin(id, claim) {
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

    fn claim(&self, call: ToolCall<'_>, arguments: &impl Serialize) -> Result<Claim> {
        let ToolCall { id, policy, key, approval, tool } = call;
        let key = key.map_or_else(|| self.key(id), str::to_owned);
        let request = ClaimRequest {
            approval: approval.map(str::to_owned),
            tool: tool.map(str::to_owned),
            claim_id: Uuid::new_v4(),
            policy,
            key: Some(key.clone()),
            arguments: Some(raw("write a call's arguments as JSON", arguments)?),
        };
        self.claims.open(id, Claim::new(&request, &key)?)
    }

    fn send_claim(&self, id: &str, claim: &Claim) -> Result<ClaimResponse> {
        let path = format!("calls/{}/claim", percent_encode(id));
        self.client.await_contract(&path, claim.contract)?;
        let answer = self.client.call(&path, Some(&claim.body));
        if let Err(Error::Refused { problem, .. }) = &answer {
            if matches!(
                problem.code,
                Code::Invalid | Code::TooLarge | Code::ApprovalNotGranted | Code::ApprovalSpent
            ) {
                // The gateway itself refused these bytes. After any other error the claim may have been accepted.
                self.claims.withdraw(id, claim.id);
            }
            if is_divergence(problem) {
                return Err(Error::Diverged { id: id.to_owned(), why: Divergence::OtherCall });
            }
        }
        answer
    }

    /// Makes the unsettled calls of earlier attempts with the policy `retrySameKey` calls of this process. The gateway then
    /// accepts boundaries and records. The tools do not run: they run when the agent makes the calls again.
    /// [`crate::Agent`] does it on attach.
    pub fn adopt(&self) -> Result<()> {
        for call in self.claims.unsettled(Policy::RetrySameKey) {
            let Call { id, policy, key, .. } = call;
            // Without key and arguments: those that are stored stay.
            let claim_id = Uuid::new_v4();
            let (approval, key_of_call, arguments, tool) = (None, None, None, None);
            let request = ClaimRequest { claim_id, policy, key: key_of_call, arguments, approval, tool };
            let claim = self.claims.open(&id, Claim::new(&request, &key)?)?;
            let path = format!("calls/{}/claim", percent_encode(&id));
            let _: ClaimResponse = self.client.call(&path, Some(&claim.body))?;
        }
        Ok(())
    }

    /// Records the outcome of a call if [`Self::call`] could not, for example because the result was too large. This
    /// process must have claimed the call, and the call must still be open.
    pub fn complete(&self, id: &str, outcome: CompleteOutcome, result: &impl Serialize) -> Result<()> {
        self.complete_metered(id, outcome, result, Usage::default())
    }

    /// As [`Self::complete`], with what the call has used. While a gateway of an earlier version serves, the outcome is
    /// recorded without it: an effect that has happened is not held back.
    #[expect(clippy::too_many_arguments, reason = "four besides the run")]
    pub fn complete_metered(
        &self,
        id: &str,
        outcome: CompleteOutcome,
        result: &impl Serialize,
        usage: Usage,
    ) -> Result<()> {
        let claim_id = self.claims.claim_id(id).ok_or_else(|| Error::NotClaimed { id: id.to_owned() })?;
        let result = Some(tool_result(result)?);
        self.record(id, CompleteRequest { claim_id, outcome, result, usage })
    }

    fn record_outcome<R: Serialize>(
        &self,
        claim_id: Uuid,
        call: Call,
        outcome: std::result::Result<(R, Usage), ToolError>,
    ) -> Result<R> {
        let refused = |outcome, why: &str| {
            let (result, usage) = (tool_result(&why)?, Usage::default());
            let request = CompleteRequest { claim_id, outcome, result: Some(result.clone()), usage };
            self.record(&call.id, request)?;
            Ok(result)
        };
        match outcome {
            Ok((value, usage)) => {
                let (outcome, result) = (CompleteOutcome::Completed, Some(tool_result(&value)?));
                self.record(&call.id, CompleteRequest { claim_id, outcome, result, usage })?;
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

    fn record(&self, id: &str, mut request: CompleteRequest) -> Result<()> {
        let path = format!("calls/{}/complete", percent_encode(id));
        if !self.client.gets_contract(request.contract())? {
            request.usage = Usage::default();
        }
        self.client.send(&path, Some(&to_bytes(&request)?), CALL_TIMEOUT)?;
        self.claims.close(id, request.outcome.into());
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
        self.claims.close(id, outcome.into());
        Ok(())
    }

    /// Records the outcome of a call that a probe was asked about: completes it if this process has claimed it, else settles
    /// it. A refused key cannot be settled: the next probe finds it again.
    pub(crate) fn end_probed(
        &self,
        id: &str,
        outcome: CompleteOutcome,
        (result, how): (Box<RawValue>, &str),
    ) -> Result<()> {
        if self.claims.claim_id(id).is_some() {
            return self.complete(id, outcome, &result);
        }
        match outcome {
            CompleteOutcome::Completed => self.settle(id, CallOutcome::Completed, &result, how),
            CompleteOutcome::Failed => self.settle(id, CallOutcome::Failed, &result, how),
            CompleteOutcome::KeyRefused => Ok(()),
        }
    }

    /// Whether a call of this process that must not be made twice has no known outcome.
    pub(crate) fn has_open_call(&self) -> bool {
        self.claims.has_open_call()
    }
}

/// Whether a claim was refused because the call is stored with something else. The contract has no code for this: it is
/// `INVALID`, as is a malformed claim. So the detail decides.
fn is_divergence(problem: &Problem) -> bool {
    let what = ["\" has other arguments", "\" has another key", "\" has another policy"];
    problem.code == Code::Invalid
        && problem.detail.starts_with("call \"")
        && what.iter().any(|what| problem.detail.contains(what))
}

pub(crate) fn tool_result(result: &impl Serialize) -> Result<Box<RawValue>> {
    raw("write a tool's result as JSON", result)
}

/// Reads the stored arguments. The error gives the position of the mismatch and does not quote the arguments.
pub(crate) fn stored_arguments<A: DeserializeOwned>(text: &str) -> Result<A> {
    serde_json::from_str(text).map_err(|error| {
        let message =
            format!("another type than the tool takes, at line {} column {}", error.line(), error.column());
        Error::Json {
            operation: "read the stored arguments of a call",
            source: serde::de::Error::custom(message),
        }
    })
}

fn or_null(result: Option<Box<RawValue>>) -> Box<RawValue> {
    result.unwrap_or_else(|| RawValue::NULL.to_owned())
}
