//! A limit that many callers share: on bytes, calls or streams. It has a total and a maximum for each owner.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use dalsegno_model::{Digest, RunId};
use dalsegno_protocol::Code;

use crate::response::ApiProblem;

/// Who is charged for what is in use.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum LimitOwner {
    /// All callers whose capability or token is not verified, together.
    UnverifiedPeer,
    /// A worker as it names itself; its capability is not verified. It can use up no other worker's share.
    Worker(RunId, Digest),
    /// A pod, verified by its token. The value is its UID.
    Pod(String),
    /// The current worker of this run, verified by its capability.
    Run(RunId),
    /// A user, verified by a token. The value is the user name.
    User(String),
}

/// Which limit was exceeded.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum LimitExceeded {
    /// The total.
    Total,
    /// The share of all unverified callers together.
    UnverifiedPeers,
    /// The share of this owner.
    Owner,
}

/// A limit with a total and a maximum for each owner. Clones share one limit.
#[derive(Clone)]
pub(crate) struct SharedLimit {
    total: usize,
    per_owner: usize,
    in_use: Arc<Mutex<InUse>>,
}

/// The two maxima of a [`SharedLimit`].
pub(crate) struct Maximum {
    pub(crate) total: usize,
    pub(crate) per_owner: usize,
}

#[derive(Default)]
struct InUse {
    total: usize,
    by_owner: HashMap<LimitOwner, usize>,
}

/// An amount in use. It is given back on drop.
pub(crate) struct LimitPermit {
    limit: SharedLimit,
    owner: LimitOwner,
    amount: usize,
}

impl SharedLimit {
    pub(crate) fn new(Maximum { total, per_owner }: Maximum) -> Self {
        Self { total, per_owner, in_use: Arc::default() }
    }

    /// Takes this amount or fails at once. An owner that holds nothing else may take more than its share, up to the
    /// total.
    pub(crate) fn acquire(&self, owner: LimitOwner, amount: usize) -> Result<LimitPermit, LimitExceeded> {
        let mut permit = self.empty_permit(owner);
        permit.grow(amount)?;
        Ok(permit)
    }

    /// A permit for nothing, to be grown later.
    pub(crate) fn empty_permit(&self, owner: LimitOwner) -> LimitPermit {
        LimitPermit { limit: self.clone(), owner, amount: 0 }
    }

    fn in_use(&self) -> MutexGuard<'_, InUse> {
        self.in_use.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the owner may use `request.more` more.
    fn check_owner(&self, in_use: &InUse, request: &OwnerRequest<'_>) -> Result<(), LimitExceeded> {
        let OwnerRequest { owner, more, in_permit } = *request;
        let used = in_use.by_owner.get(owner).copied().unwrap_or_default();
        match owner {
            _ if used == in_permit || used + more <= self.per_owner => Ok(()),
            LimitOwner::UnverifiedPeer => Err(LimitExceeded::UnverifiedPeers),
            _ => Err(LimitExceeded::Owner),
        }
    }
}

/// An amount that an owner wants in addition.
struct OwnerRequest<'a> {
    owner: &'a LimitOwner,
    more: usize,
    /// What the owner already holds in the permit that is to grow. If it holds nothing else, its share does not apply.
    in_permit: usize,
}

impl InUse {
    fn add(&mut self, owner: &LimitOwner, amount: usize) {
        self.total += amount;
        *self.by_owner.entry(owner.clone()).or_default() += amount;
    }

    fn remove(&mut self, owner: &LimitOwner, amount: usize) {
        self.total -= amount;
        if let Entry::Occupied(mut used) = self.by_owner.entry(owner.clone()) {
            *used.get_mut() -= amount;
            if *used.get() == 0 {
                used.remove();
            }
        }
    }
}

impl LimitPermit {
    pub(crate) fn amount(&self) -> usize {
        self.amount
    }

    /// Takes this much more or fails at once.
    pub(crate) fn grow(&mut self, more: usize) -> Result<(), LimitExceeded> {
        let mut in_use = self.limit.in_use();
        if more > self.limit.total - in_use.total {
            return Err(LimitExceeded::Total);
        }
        let request = OwnerRequest { owner: &self.owner, more, in_permit: self.amount };
        self.limit.check_owner(&in_use, &request)?;
        in_use.add(&self.owner, more);
        self.amount += more;
        Ok(())
    }

    /// Charges another owner from now on.
    pub(crate) fn transfer_to(&mut self, owner: LimitOwner) -> Result<(), LimitExceeded> {
        let mut in_use = self.limit.in_use();
        let request = OwnerRequest { owner: &owner, more: self.amount, in_permit: 0 };
        self.limit.check_owner(&in_use, &request)?;
        in_use.remove(&self.owner, self.amount);
        in_use.add(&owner, self.amount);
        self.owner = owner;
        Ok(())
    }
}

impl Drop for LimitPermit {
    fn drop(&mut self) {
        self.limit.in_use().remove(&self.owner, self.amount);
    }
}

impl From<LimitExceeded> for ApiProblem {
    fn from(exceeded: LimitExceeded) -> Self {
        match exceeded {
            LimitExceeded::Total | LimitExceeded::UnverifiedPeers => Self::at_capacity(),
            LimitExceeded::Owner => Self::new(
                Code::TooManyRequests,
                "this run or this user has too many calls under way, or they hold too many bytes; wait until some of \
                 them have ended, then send the same bytes again",
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: LimitOwner = LimitOwner::Run(RunId::from_u128(1));
    const OTHER: LimitOwner = LimitOwner::Run(RunId::from_u128(2));
    const UNVERIFIED: LimitOwner = LimitOwner::UnverifiedPeer;

    #[test]
    fn an_owner_exceeds_neither_its_share_nor_the_total() {
        let limit = SharedLimit::new(Maximum { total: 10, per_owner: 4 });
        let one = limit.acquire(ONE, 3).unwrap();
        assert_eq!(limit.acquire(ONE, 2).err(), Some(LimitExceeded::Owner));
        let small = limit.acquire(ONE, 1).unwrap();
        let other = limit.acquire(OTHER, 6).unwrap();
        assert_eq!(other.amount(), 6, "a single permit may exceed the owner's share");
        assert_eq!(limit.acquire(UNVERIFIED, 1).err(), Some(LimitExceeded::Total));
        drop((one, small));
        assert!(limit.acquire(ONE, 4).is_ok());
        drop(other);
        assert!(limit.in_use().by_owner.is_empty() && limit.in_use().total == 0);
    }

    #[test]
    fn a_permit_grows_and_is_charged_to_the_owner_it_is_transferred_to() {
        let limit = SharedLimit::new(Maximum { total: 10, per_owner: 4 });
        let _other = limit.acquire(UNVERIFIED, 3).unwrap();
        let mut permit = limit.acquire(UNVERIFIED, 1).unwrap();
        assert_eq!(
            permit.grow(2),
            Err(LimitExceeded::UnverifiedPeers),
            "all unverified peers have one share"
        );
        permit.transfer_to(ONE).unwrap();
        permit.grow(3).unwrap();
        let mut more = limit.acquire(UNVERIFIED, 1).unwrap();
        assert_eq!(more.transfer_to(ONE), Err(LimitExceeded::Owner));
        assert_eq!(limit.in_use().total, 8);
    }
}
