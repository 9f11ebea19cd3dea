//! The calls that this process knows of: its own claims, and what earlier tries of the open turn have left.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use dalsegno_protocol::{Call, CallState, ClaimRequest, Policy, RawValue};
use uuid::Uuid;

use crate::json::{canonical, to_bytes};
use crate::ordinals::CallId;
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

    /// Whether the tool may run again if the outcome is unknown, and several times at once.
    pub(crate) fn is_repeatable(&self) -> bool {
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
    /// Ids of the calls that threads of this process are making now.
    running: Mutex<HashSet<String>>,
    tries: Mutex<Tries>,
    /// Ids of calls of the open turn that need not be repeated: an earlier attempt made them before the plan that this
    /// process begins behind.
    before_plan: HashSet<String>,
}

/// What the tries of a turn have done, by call id.
struct Tries {
    /// Calls of earlier attempts, and of earlier tries in this process, that this try has not made and has not accepted.
    earlier: BTreeMap<String, Call>,
    /// The calls of the open turn's try; `None` between two turns.
    made: Option<BTreeMap<String, Call>>,
}

impl Claims {
    /// `earlier`: the calls of earlier attempts that are unsettled, or of the open turn. `planned`: the turn whose plan is
    /// the head. Then the store does not say whether a call came before the plan, and the id says it. Of ids of the
    /// agent's own none is required.
    pub(crate) fn new(earlier: impl IntoIterator<Item = Call>, planned: Option<i32>) -> Self {
        let earlier: BTreeMap<_, _> = earlier.into_iter().map(|call| (call.id.clone(), call)).collect();
        let is_before = |call: &&Call| {
            planned == Some(call.turn)
                && !CallId::parse(&call.id).is_some_and(|id| id.is_behind_plan_of(call.turn))
        };
        let before_plan = earlier.values().filter(is_before).map(|call| call.id.clone()).collect();
        let tries = Mutex::new(Tries { earlier, made: None });
        Self { open: Mutex::default(), running: Mutex::default(), tries, before_plan }
    }

    /// Lets this thread make a call, until the answer is dropped; `None` if another thread of this process makes it now.
    /// A tool that must not run twice may run, and its probe may be asked, only by the thread that makes the call: no
    /// probe can say what becomes of a tool that runs now.
    pub(crate) fn enter<'a>(&'a self, id: &'a str) -> Option<Running<'a>> {
        let is_first = lock(&self.running).insert(id.to_owned());
        is_first.then(|| Running { claims: self, id })
    }

    /// The claim to send for a call: the stored claim if the tool may run under it, else the new one. A claim is stored
    /// before it is sent, because until the answer arrives it is unknown whether the gateway has accepted it.
    ///
    /// # Errors
    ///
    /// The id means another call.
    pub(crate) fn open(&self, id: &str, claim: Claim) -> Result<Claim> {
        let diverged = || Error::Diverged { id: id.to_owned(), why: Divergence::OtherCall };
        if let Some(known) = self.tries().earlier.get(id)
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

    /// The call is over: its result is stored.
    pub(crate) fn close(&self, id: &str, state: CallState) {
        lock(&self.open).remove(id);
        self.tries().end(id, state);
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

    /// This try has made the call. The gateway has answered its claim with this call.
    pub(crate) fn make(&self, call: &Call) {
        self.tries().make(Call { result: None, ..call.clone() });
    }

    /// The agent knows of a call of an earlier try, and leaves it as it is.
    pub(crate) fn accept(&self, id: &str) {
        self.tries().earlier.remove(id);
    }

    /// The open turn has to make this call, whatever was done about it between two turns.
    pub(crate) fn require(&self, call: Call) {
        self.tries().earlier.insert(call.id.clone(), call);
    }

    /// A try of a turn begins.
    pub(crate) fn begin_try(&self) {
        self.tries().drop_try();
        self.tries().made = Some(BTreeMap::new());
    }

    /// The turn is not committed. Its next try has to make the same calls.
    pub(crate) fn drop_try(&self) {
        self.tries().drop_try();
    }

    /// The turn is committed.
    pub(crate) fn end_try(&self) {
        self.tries().made = None;
    }

    /// The plan of the turn is committed: the next try begins behind it.
    pub(crate) fn forget_made(&self) {
        self.tries().made = Some(BTreeMap::new());
    }

    /// The calls of earlier attempts whose outcome is unknown, and that this process has not claimed.
    pub(crate) fn unsettled(&self, policy: Policy) -> Vec<Call> {
        let tries = self.tries();
        let open = lock(&self.open);
        let is_it = |call: &&Call| {
            call.policy == policy && call.state == CallState::Started && !open.contains_key(&call.id)
        };
        tries.earlier.values().filter(is_it).cloned().collect()
    }

    /// Checks that no effect is forgotten if this turn ends now. The gateway itself refuses a boundary while the outcome of
    /// a call is unknown that must not be made twice.
    ///
    /// # Errors
    ///
    /// An earlier try of this turn made a call that this one has not made.
    pub(crate) fn require_repeated(&self, turn: i32) -> Result<()> {
        let is_refused = |it: &Call| it.state == CallState::Started && !is_repeatable(it.policy);
        let is_forgotten = |it: &&Call| {
            let is_required = it.turn == turn && !self.before_plan.contains(&it.id);
            is_required && it.policy != Policy::ReadOnly && !is_refused(it)
        };
        match self.tries().earlier.values().find(is_forgotten) {
            Some(call) => Err(Error::Diverged { id: call.id.clone(), why: Divergence::NotRepeated }),
            None => Ok(()),
        }
    }

    fn tries(&self) -> MutexGuard<'_, Tries> {
        lock(&self.tries)
    }
}

/// While a thread makes a call.
pub(crate) struct Running<'a> {
    claims: &'a Claims,
    id: &'a str,
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        lock(&self.claims.running).remove(self.id);
    }
}

impl Tries {
    fn make(&mut self, call: Call) {
        self.earlier.remove(&call.id);
        // A call that changes nothing is never required.
        if let Some(made) = &mut self.made
            && call.policy != Policy::ReadOnly
        {
            made.insert(call.id.clone(), call);
        }
    }

    /// The call is over. Inside of a turn this try has made it; between two turns the next one has to make it.
    fn end(&mut self, id: &str, state: CallState) {
        match &mut self.made {
            Some(made) => {
                let earlier = self.earlier.remove(id).map(|call| (id.to_owned(), call));
                made.extend(earlier);
                if let Some(call) = made.get_mut(id) {
                    call.state = state;
                }
            }
            None => {
                if let Some(call) = self.earlier.get_mut(id) {
                    call.state = state;
                }
            }
        }
    }

    fn drop_try(&mut self) {
        self.earlier.extend(self.made.take().unwrap_or_default());
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
