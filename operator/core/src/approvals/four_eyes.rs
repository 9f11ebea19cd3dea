//! Four eyes: who must not decide about a proposal of a run, and when two people must.
//!
//! Who created the run, who last wrote its agent and who sent it a message may have caused the proposal. What cannot be
//! found out is treated as if it had been them.

use dalsegno_crds::{Agent, names};
use dalsegno_model::{Attempt, Identity, OpenWait, RunRecord};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ManagedFieldsEntry, ObjectMeta};

use crate::revision::Document;

/// Prefix of every user that is not a person: ServiceAccounts, nodes, the control plane.
const MACHINE_PREFIX: &str = "system:";

/// Who may have caused the proposals of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct FourEyes {
    /// Who created the run.
    pub creator: Author,
    /// Who last changed its agent.
    pub agent: Author,
    /// The agent as it was read with its author. `None`: it could not be read.
    pub current: Option<Box<Agent>>,
    /// Who sent messages that the run has read.
    pub messages: Vec<String>,
}

/// Who made a change, as its stamp says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Author {
    /// A user of this name.
    User(String),
    /// No stamp proves who it was.
    NotProven,
    /// The object could not be read. Holds why.
    Unknown(String),
}

/// What four eyes demand of a decider.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Demand {
    /// Nothing more.
    Satisfied,
    /// Another person must not have decided.
    Excluded(&'static str),
    /// A second person must decide too.
    SecondDecider,
    /// It cannot be judged. Holds why.
    Unknown(String),
}

impl FourEyes {
    /// The same for this wait. If an attempt that may have caused it ran another template than the agent's current one,
    /// the author of the agent's last change is not known to be the one who caused it.
    pub(super) fn of_wait(&self, row: &RunRecord, wait: &OpenWait) -> Self {
        let mut facts = self.clone();
        if matches!(facts.agent, Author::User(_)) && !self.has_run_current(row, wait) {
            facts.agent = Author::NotProven;
        }
        facts
    }

    /// Whether the current template is the one that committed the head, and that of each attempt that ran since the wait
    /// was opened, of which the first opened it.
    fn has_run_current(&self, row: &RunRecord, wait: &OpenWait) -> bool {
        let Some(current) = self.current.as_deref().map(Document::of) else { return false };
        let is_current = |revision: &str, identity: Option<&Identity>| {
            let digest = identity.map(|it| it.image_digest.as_str());
            let pinned = digest.map(|digest| current.clone().pinned(digest, &current).hash());
            revision == current.hash() || pinned.as_deref() == Some(revision)
        };
        let is_of_head = row.head.as_ref().is_none_or(|head| {
            head.revision.as_deref().is_some_and(|it| is_current(it, head.identity.as_ref()))
        });
        let attempts = std::iter::once(&row.attempt).chain(&row.past);
        let ran_since = |it: &&Attempt| it.ended_at.is_none_or(|at| at >= wait.opened_at);
        let mut is_opener_known = false;
        for attempt in attempts.filter(ran_since) {
            let Some(revision) = &attempt.revision else { continue };
            if !is_current(revision, attempt.identity.as_ref()) {
                return false;
            }
            is_opener_known |= attempt.reserved_at <= wait.opened_at;
        }
        is_of_head && is_opener_known
    }

    /// What is demanded, if these users have decided.
    pub(super) fn demand(&self, by: &str, second: Option<&str>) -> Demand {
        let unknown = [&self.creator, &self.agent].into_iter().find_map(|it| match it {
            Author::Unknown(why) => Some(why),
            Author::User(_) | Author::NotProven => None,
        });
        if let Some(why) = unknown {
            return Demand::Unknown(why.clone());
        }
        for decider in std::iter::once(by).chain(second) {
            if let Some(role) = self.role_of(decider) {
                return Demand::Excluded(role);
            }
        }
        let needs_second = !self.creator.is_person() || !self.agent.is_person();
        match second {
            Some(second) if second == by => Demand::Excluded("has made the first decision"),
            None if needs_second => Demand::SecondDecider,
            Some(_) | None => Demand::Satisfied,
        }
    }

    /// Why this user must not decide.
    fn role_of(&self, user: &str) -> Option<&'static str> {
        let is = |author: &Author| matches!(author, Author::User(name) if name == user);
        if is(&self.creator) {
            Some("has created the run")
        } else if is(&self.agent) {
            Some("has last changed the agent of the run")
        } else if self.messages.iter().any(|author| author == user) {
            Some("has sent a message to the run")
        } else {
            None
        }
    }
}

impl Author {
    fn is_person(&self) -> bool {
        matches!(self, Self::User(name) if !name.starts_with(MACHINE_PREFIX))
    }

    /// Who created this run. The stamps prove it for runs that were created after `since`.
    pub fn of_run(run: &ObjectMeta, since: Timestamp) -> Self {
        match annotation(run, names::ANNOTATION_CREATED_BY) {
            Some(user) if is_later(run, since) => Self::User(user.to_owned()),
            Some(_) | None => Self::NotProven,
        }
    }

    /// Who last changed this AgentDefinition. Its generation counts the changes, so an older stamp proves nothing.
    pub fn of_definition(definition: &ObjectMeta, since: Timestamp) -> Self {
        let is_proven = |generation| Some(generation) == definition.generation;
        Self::of_spec(definition, since, ("/f:spec", &is_proven))
    }

    /// Who last changed the inline agent of this run. A policy refuses a change of the agent that keeps the stamp.
    pub fn of_inline_agent(run: &ObjectMeta, since: Timestamp) -> Self {
        let is_proven = |generation| run.generation.is_some_and(|current| generation <= current);
        Self::of_spec(run, since, ("/f:spec/f:agent", &is_proven))
    }

    fn of_spec(
        object: &ObjectMeta,
        since: Timestamp,
        (field, is_proven): (&str, &dyn Fn(i64) -> bool),
    ) -> Self {
        let stamp = annotation(object, names::ANNOTATION_SPEC_BY).and_then(parse);
        match stamp.filter(|(generation, _)| is_proven(*generation)) {
            Some((_, user)) if is_later(object, since) || was_written_after(object, field, since) => {
                Self::User(user.to_owned())
            }
            Some(_) | None => Self::NotProven,
        }
    }
}

/// The generation and the user of a stamp.
pub(crate) fn parse(stamp: &str) -> Option<(i64, &str)> {
    let (generation, user) = stamp.split_once(' ')?;
    Some((generation.parse().ok()?, user)).filter(|_| !user.is_empty())
}

fn annotation<'a>(object: &'a ObjectMeta, name: &str) -> Option<&'a str> {
    object.annotations.as_ref()?.get(name).map(String::as_str)
}

fn is_later(object: &ObjectMeta, since: Timestamp) -> bool {
    object.creation_timestamp.as_ref().is_some_and(|created| created.0 > since)
}

/// Whether somebody last wrote this field after the policies were in place.
fn was_written_after(object: &ObjectMeta, field: &str, since: Timestamp) -> bool {
    let owns = |it: &&ManagedFieldsEntry| {
        it.subresource.is_none()
            && it.fields_v1.as_ref().is_some_and(|fields| fields.0.pointer(field).is_some())
    };
    let entries = object.managed_fields.as_deref().unwrap_or_default();
    entries.iter().filter(owns).filter_map(|it| it.time.as_ref()).any(|time| time.0 > since)
}
