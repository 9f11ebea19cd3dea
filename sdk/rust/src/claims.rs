//! The calls that this process knows of: its own claims, and what earlier attempts have left.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use dalsegno_protocol::{Call, CallState, ClaimRequest, Policy, RawValue};
use uuid::Uuid;

use crate::json::{canonical, to_bytes};
use crate::{Divergence, Error, Result};

/// A claim and the body of its request.
#[derive(Clone)]
pub(crate) struct Claim {
    pub(crate) id: Uuid,
    pub(crate) body: Vec<u8>,
    /// The version of the contract that the body needs.
    pub(crate) contract: i32,
    content: Content,
    /// Whether the tool may have begun, shared by all threads that use this claim.
    begun: Arc<AtomicBool>,
}

impl Claim {
    /// A claim with the content of its request. `key`: the key that the request means, if it names none.
    pub(crate) fn new(request: &ClaimRequest, key: &str) -> Result<Self> {
        let content = Content {
            policy: request.policy,
            key: request.key.as_deref().unwrap_or(key).to_owned(),
            arguments: canonical_arguments(request.arguments.as_deref())?,
        };
        let (id, contract, body) = (request.claim_id, request.contract(), to_bytes(request)?);
        Ok(Self { id, body, contract, content, begun: Arc::default() })
    }

    fn is_repeatable(&self) -> bool {
        is_repeatable(self.content.policy)
    }
}

/// What one id always means. What was stored first stays.
#[derive(Clone, PartialEq, Eq)]
struct Content {
    policy: Policy,
    key: String,
    /// Canonical JSON; `None`: those of the stored call.
    arguments: Option<String>,
}

impl Content {
    fn of(call: &Call) -> Result<Self> {
        let arguments = canonical_arguments(call.arguments.as_deref())?;
        Ok(Self { policy: call.policy, key: call.key.clone(), arguments })
    }

    fn agrees_with(&self, other: &Self) -> bool {
        let have_same_arguments = match (&self.arguments, &other.arguments) {
            (Some(one), Some(other)) => one == other,
            (None, _) | (_, None) => true,
        };
        have_same_arguments && (self.policy, &self.key) == (other.policy, &other.key)
    }
}

/// The gateway takes `null` for no arguments.
fn canonical_arguments(arguments: Option<&RawValue>) -> Result<Option<String>> {
    arguments.filter(|it| it.get() != "null").map(|it| canonical(it.get())).transpose()
}

/// Whether the tool may run again if the outcome of its call is unknown.
fn is_repeatable(policy: Policy) -> bool {
    matches!(policy, Policy::RetrySameKey | Policy::ReadOnly)
}

/// The calls that this process knows of.
pub(crate) struct Claims {
    /// Claims that have been or will be sent and are not known to be over, by call id.
    open: Mutex<HashMap<String, Claim>>,
    /// Calls of earlier attempts that this process has neither made again, nor settled, nor accepted.
    inherited: Mutex<BTreeMap<String, Call>>,
}

impl Claims {
    /// `calls`: those of earlier attempts that are unsettled, or of the open turn.
    pub(crate) fn new(calls: impl IntoIterator<Item = Call>) -> Self {
        let inherited = calls.into_iter().map(|call| (call.id.clone(), call)).collect();
        Self { open: Mutex::default(), inherited: Mutex::new(inherited) }
    }

    /// The claim to send for a call: the stored claim if the tool may run under it, else the new one. A claim is stored
    /// before it is sent, because until the answer arrives it is unknown whether the gateway has accepted it.
    ///
    /// # Errors
    ///
    /// The id means another call.
    pub(crate) fn open(&self, id: &str, claim: Claim) -> Result<Claim> {
        let diverged = || Error::Diverged { id: id.to_owned(), why: Divergence::OtherCall };
        if let Some(known) = self.inherited().get(id)
            && !Content::of(known)?.agrees_with(&claim.content)
        {
            return Err(diverged());
        }
        let mut open = lock(&self.open);
        let stored = open.entry(id.to_owned()).or_insert_with(|| claim.clone());
        if !stored.content.agrees_with(&claim.content) {
            return Err(diverged());
        }
        let may_run = stored.is_repeatable() || !stored.begun.load(Ordering::SeqCst);
        Ok(if may_run { stored.clone() } else { claim })
    }

    /// Marks the tool as begun. Returns `false` if the tool must not run twice and another thread has already begun it.
    pub(crate) fn begin(&self, id: &str, claim: Claim) -> bool {
        let begun = claim.begun.swap(true, Ordering::SeqCst);
        let may_run = claim.is_repeatable() || !begun;
        if may_run {
            lock(&self.open).insert(id.to_owned(), claim);
        }
        may_run
    }

    /// The id of the claim that this process has on a call.
    pub(crate) fn claim_id(&self, id: &str) -> Option<Uuid> {
        lock(&self.open).get(id).map(|claim| claim.id)
    }

    /// The call is over.
    pub(crate) fn close(&self, id: &str) {
        lock(&self.open).remove(id);
        self.inherited().remove(id);
    }

    /// Removes a claim that the gateway has not accepted. Another thread may have made its own by now.
    pub(crate) fn withdraw(&self, id: &str, claim: Uuid) {
        let mut open = lock(&self.open);
        if open.get(id).is_some_and(|stored| stored.id == claim) {
            open.remove(id);
        }
    }

    /// Whether a call of this process that must not be made twice has no known outcome.
    pub(crate) fn has_open_call(&self) -> bool {
        lock(&self.open).values().any(|claim| !claim.is_repeatable())
    }

    /// This process has made the call of an earlier attempt again, or knows of it and leaves it as it is.
    pub(crate) fn accept(&self, id: &str) {
        self.inherited().remove(id);
    }

    /// The calls of earlier attempts whose outcome is unknown, and that this process has not claimed.
    pub(crate) fn unsettled(&self, policy: Policy) -> Vec<Call> {
        let open = lock(&self.open);
        let is_it = |call: &&Call| {
            call.policy == policy && call.state == CallState::Started && !open.contains_key(&call.id)
        };
        self.inherited().values().filter(is_it).cloned().collect()
    }

    /// Checks that no effect is forgotten if this turn ends now. The gateway itself refuses a boundary while the outcome of an
    /// earlier attempt's call is unknown.
    ///
    /// # Errors
    ///
    /// An earlier attempt made a call of this turn that this process has not made.
    pub(crate) fn require_repeated(&self, turn: i32) -> Result<()> {
        let is_refused = |it: &Call| it.state == CallState::Started && !is_repeatable(it.policy);
        let is_forgotten = |it: &&Call| it.turn == turn && it.policy != Policy::ReadOnly && !is_refused(it);
        let inherited = self.inherited();
        match inherited.values().find(is_forgotten) {
            Some(call) => Err(Error::Diverged { id: call.id.clone(), why: Divergence::NotRepeated }),
            None => Ok(()),
        }
    }

    fn inherited(&self) -> MutexGuard<'_, BTreeMap<String, Call>> {
        lock(&self.inherited)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
