//! A turn: it is replayed after a crash, and committed as a whole.

use std::mem;

use dalsegno_protocol::{CommitResponse, Finish, Message, ParkMode, Policy, Trigger, Usage};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::ordinals::place;
use crate::saved::{Saved, encode};
use crate::tool::call_name;
use crate::{Commit, Error, RecordChanges, Result, Run, Tool, ToolCall, ToolError};

/// An open turn: [`crate::Agent::turn`] makes it. [`Self::commit`] stores the state and all that was given to the turn. A turn
/// that is dropped, for example by `?`, stores nothing, and [`crate::Agent::state`] is what the last boundary left.
///
/// Threads may share it: make calls at the same time with [`std::thread::scope`]. Steps that run at the same time need a
/// name each.
#[must_use = "a turn that is dropped is not committed"]
pub struct Turn<'a, S> {
    saved: &'a mut Saved<S>,
    /// The state. Change it freely: it is stored with the turn, or not at all.
    pub state: S,
    draft: Commit,
}

impl<'a, S: Serialize + DeserializeOwned + Default> Turn<'a, S> {
    pub(crate) fn open(saved: &'a mut Saved<S>) -> Result<Self> {
        saved.ordinals.clear();
        saved.run.claims.begin_try();
        let (state, draft) = (saved.copy()?, Commit::new(saved.run.turn()));
        Ok(Self { saved, state, draft })
    }

    /// The number of the turn, from 1.
    pub fn number(&self) -> i32 {
        self.draft.turn
    }

    /// Whether the plan of this turn is committed: by [`Self::plan`], now or in an earlier attempt.
    pub fn planned(&self) -> bool {
        self.run().planned()
    }

    /// The run, for its waits, its inbox and its records.
    pub fn run(&self) -> &Run {
        &self.saved.run
    }

    /// Returns what `step` returns. It is called once: its result is stored, and a replay of the turn gets it back.
    ///
    /// Use it for what costs or differs: a model's answer, a search, the time. It must change nothing outside, because a
    /// crash while it runs lets it run again. The same name may be used several times in a turn; then the order decides. So
    /// steps that run at the same time, in several threads, need a name each: the order of steps with one name is another
    /// one in the replay, and they would get each other's results. A name has characters of `A-Z a-z 0-9 . _ : -`.
    ///
    /// # Errors
    ///
    /// [`Error::Step`] if the step failed: it can be taken again. [`Error::CallFailed`] if it returned
    /// [`ToolError::Refused`], which is stored and returned again. The gateway refuses a result above 16 MiB.
    pub fn step<R: Serialize + DeserializeOwned>(
        &self,
        name: &str,
        step: impl FnOnce() -> std::result::Result<R, ToolError>,
    ) -> Result<R> {
        self.numbered(name, Policy::ReadOnly, |id| {
            let call = ToolCall::new(id, Policy::ReadOnly);
            match self.run().call(call, (), |_, ()| step()) {
                Err(Error::Tool { source, .. }) => Err(Error::Step { name: name.to_owned(), source }),
                result => result,
            }
        })
    }

    /// Makes a call of a tool, or returns its stored result.
    ///
    /// Make it in the turn itself, not inside of a step or of another tool: once that one is over, a replay does not make
    /// this call again, and the turn is [`Error::Diverged`].
    ///
    /// # Errors
    ///
    /// [`Error::CallFailed`] and [`Error::KeyRefused`] as the tool refused, now or earlier; [`Error::Uncertain`] if it may
    /// have run and must not run again; [`Error::Tool`] if its outcome is unknown: make the same call again, and it has
    /// the same key; [`Error::Diverged`] if an id of [`Tool::id`] is stored with other arguments.
    pub fn call<T: Tool>(&self, tool: &T, arguments: T::Arguments) -> Result<T::Output> {
        self.make(tool, arguments, None)
    }

    /// As [`Self::call`], for a call that the store allows only if an approval is granted, and that no other call has used:
    /// `wait` is the id of a wait of [`crate::WaitFor::approval`].
    ///
    /// # Errors
    ///
    /// Also [`crate::Code::ApprovalNotGranted`] and [`crate::Code::ApprovalSpent`].
    pub fn call_approved<T: Tool>(&self, tool: &T, arguments: T::Arguments, wait: &str) -> Result<T::Output> {
        self.make(tool, arguments, Some(wait))
    }

    fn make<T: Tool>(&self, tool: &T, arguments: T::Arguments, approval: Option<&str>) -> Result<T::Output> {
        let make = |id: &str, arguments| {
            let call = ToolCall { approval, ..ToolCall::new(id, T::POLICY) };
            self.run().make(tool, call, arguments)
        };
        match tool.id(&arguments) {
            Some(id) => make(&self.anew(id, T::POLICY), arguments),
            None => self.numbered(&call_name::<T>(&arguments)?, T::POLICY, |id| make(id, arguments)),
        }
    }

    /// Makes a call under an id of this turn. The id stays that of the same call while the outcome is unknown.
    fn numbered<R>(&self, name: &str, policy: Policy, make: impl FnOnce(&str) -> Result<R>) -> Result<R> {
        let name = format!("{}.{name}", place(self.number(), self.planned()));
        let slot = self.saved.ordinals.take(&name);
        let result = make(&self.anew(format!("{name}.{}", slot.ordinal), policy));
        if matches!(result, Ok(_) | Err(Error::CallFailed { .. })) {
            slot.end();
        }
        result
    }

    /// The id of a call that changes nothing. After a rewind it is made anew, so the id names the branch.
    fn anew(&self, id: String, policy: Policy) -> String {
        match self.run().branch() {
            branch if branch > 0 && policy == Policy::ReadOnly => format!("{id}.b{branch}"),
            _ => id,
        }
    }

    /// Says that this turn knows of a call that an earlier try of it has made, and does not make it. Without it the turn is
    /// [`Error::Diverged`], because an effect would be forgotten.
    pub fn accept(&self, call: &str) {
        self.run().claims.accept(call);
    }

    /// Adds an event, which people can read: any JSON, at most 1,000 in a boundary.
    pub fn event(&mut self, event: &impl Serialize) -> Result<()> {
        self.draft.push_event(event)
    }

    /// Adds to what this turn spent.
    pub fn spent(&mut self, usage: Usage) {
        self.draft.add_usage(usage);
    }

    /// Sets why the turn is committed.
    pub fn trigger(&mut self, trigger: &Trigger) {
        self.draft.request.trigger = Some(trigger.to_string());
    }

    /// Adds changes of records. They take effect together with the turn.
    pub fn records(&mut self, changes: RecordChanges) {
        self.draft.push_records(changes);
    }

    /// The messages that no boundary has taken, in order. This turn takes them: with its commit, or not at all.
    ///
    /// A replay gets the same messages, and those that came later remain for the next turn. Each is its author's word: see
    /// [`crate::UserTurn`].
    pub fn take_messages(&mut self) -> Result<Vec<Message>> {
        let taken = &self.draft.request.inbox;
        let mut messages = self.run().read_inbox()?;
        messages.retain(|message| !taken.contains(&message.position));
        let positions = || Ok(messages.iter().map(|message| message.position).collect());
        let positions: Vec<i64> = self.step("messages", positions)?;
        messages.retain(|message| positions.contains(&message.position));
        self.draft.request.inbox.extend(positions);
        Ok(messages)
    }

    /// Takes messages with this turn, such as that of [`Run::wait_for_message`]: no later turn gets them.
    pub fn take(&mut self, messages: &[Message]) {
        let inbox = &mut self.draft.request.inbox;
        let new = messages.iter().map(|message| message.position).filter(|it| !inbox.contains(it));
        let new: Vec<_> = new.collect();
        inbox.extend(new);
    }

    /// Ends the run with the commit of this turn.
    pub fn finish(&mut self, finish: Finish) {
        self.draft.set_finish(finish);
    }

    /// Ends the attempt with the commit of this turn, until all or any of these waits are answered: [`Self::commit`] then
    /// exits the process with 0.
    pub fn park(&mut self, on: &[&str], mode: ParkMode) {
        self.draft.set_park(on, mode);
    }

    /// Commits the plan of this turn: the state as it is, and the events, usage, records and messages so far.
    ///
    /// After a crash the turn begins with this state and with [`Self::planned`], so skip then what came before. What is
    /// done behind the plan has other ids than the same before it. Calls of ids of your own ([`Tool::id`]) are not required
    /// then: a call before the plan and one behind it look the same. A turn without a plan is replayed from its start,
    /// which is enough for most agents.
    ///
    /// # Errors
    ///
    /// [`Error::Diverged`] if an earlier try of the turn made a call that this one did not: behind the plan it could not be
    /// made again. The gateway refuses the plan. The turn then keeps all that was given to it.
    pub fn plan(&mut self) -> Result<()> {
        self.run().claims.require_repeated(self.number())?;
        let text = encode(&self.state)?;
        let mut plan = self.take_draft().into_plan().with_state(text.clone());
        if let Err(error) = self.saved.run.send_commit(&mut plan) {
            self.draft = plan.into_result();
            return Err(error);
        }
        self.run().claims.forget_made();
        self.saved.keep(text, None)
    }

    /// Commits the turn. Returns when it is durable.
    ///
    /// # Errors
    ///
    /// [`Error::Diverged`] if an earlier try of the turn made a call that this one did not. The gateway refuses with
    /// [`crate::Code::UnsettledCalls`] while the outcome of a call is unknown. Nothing of the turn is stored then.
    pub fn commit(mut self) -> Result<CommitResponse> {
        self.run().claims.require_repeated(self.number())?;
        let text = encode(&self.state)?;
        let draft = self.take_draft();
        let committed = self.saved.run.commit(draft.with_state(text.clone()))?;
        self.run().claims.end_try();
        let state = mem::take(&mut self.state);
        self.saved.keep(text, Some(state))?;
        Ok(committed)
    }

    fn take_draft(&mut self) -> Commit {
        let number = self.number();
        mem::replace(&mut self.draft, Commit::new(number))
    }
}

/// A turn that is not committed leaves its calls to its next try, which has to make them again.
impl<S> Drop for Turn<'_, S> {
    fn drop(&mut self) {
        self.saved.run.claims.drop_try();
    }
}
