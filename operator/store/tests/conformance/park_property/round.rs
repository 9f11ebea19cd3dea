//! A round: the attempts of one run.

use std::rc::Rc;

use dalsegno_model::{
    Acknowledged, Attached, CallFilter, Claim, Class, Commit, Committed, Lifecycle, NextStep, Parked,
    RequestedBy, RunId, WorkerSignals,
};
use dalsegno_protocol::{Boundary, Policy};
use futures::future::join_all;
use uuid::Uuid;

use super::messages::{Accepted, Answer, Request, Stop, Together, Write, send};
use super::{Numbers, Seen};
use crate::context::*;

/// The maximum numbers of attempts in a round, and of steps in an attempt.
const ATTEMPTS: usize = 2;
const STEPS: usize = 6;

/// What an attempt came to.
enum End {
    /// The worker stopped by itself.
    Acknowledged(Stop),
    /// The operator ended the attempt.
    Fenced,
    /// The worker is still attached.
    Working,
}

/// One run, from its beginning, and what its workers know.
pub struct Round<'c> {
    cx: &'c TestContext,
    seen: &'c Seen,
    numbers: Numbers,
    run: RunId,
    object_uid: String,
    /// Each commit that was accepted, in order.
    committed: Vec<(i32, Boundary, Uuid)>,
    /// The call that the current attempt has started and not completed.
    open: Option<Rc<Claim>>,
    /// The last commit of the current attempt that was accepted.
    last: Option<Commit>,
    signals: WorkerSignals,
    calls: u64,
}

impl<'c> Round<'c> {
    pub async fn play(cx: &'c TestContext, seen: &'c Seen, seed: u64) {
        let run = cx.run().await;
        let mut round = Self {
            cx,
            seen,
            numbers: Numbers(seed),
            run: run.id,
            object_uid: run.object_uid,
            committed: Vec::new(),
            open: None,
            last: None,
            signals: WorkerSignals::default(),
            calls: 0,
        };
        let mut stopped = Vec::new();
        for _ in 0..ATTEMPTS {
            let worker = round.begin().await;
            match round.work(&worker).await {
                End::Acknowledged(stop) => {
                    round.assert_stopped(&worker, &stop).await;
                    stopped.push((worker, stop, round.last.take()));
                }
                End::Fenced => round.see("ended by the operator"),
                End::Working => drop(cx.end_and_reserve(&worker, Class::Disruption).await),
            }
            if cx.run_by_uid(&round.object_uid).await.lifecycle == Lifecycle::Finished {
                break;
            }
        }
        // Much later, and after another attempt.
        for (worker, stop, last) in stopped.into_iter().rev().skip(1) {
            round.last = last;
            let which = round.numbers.below(1 << 20);
            round.assert_nothing_is_accepted(&worker, matches!(stop, Stop::Acknowledge), which).await;
        }
        round.end().await;
    }

    fn see(&self, outcome: &'static str) {
        self.seen.borrow_mut().insert(outcome);
    }

    /// A worker for the reserved attempt. A person has settled the calls of the attempts before.
    async fn begin(&mut self) -> Worker {
        if self.calls > 0 {
            for id in self.cx.call_ids(self.run, CallFilter::Unsettled).await {
                self.cx.settle(&person_settles(self.run, &id)).await.unwrap();
            }
        }
        // The suspend is lifted, or the worker learns of it at its first write.
        if self.numbers.one_in(2) {
            self.cx.resume(self.run).await.unwrap();
        }
        (self.open, self.last, self.signals) = (None, None, WorkerSignals::default());
        self.cx.start_worker(&self.cx.run_by_uid(&self.object_uid).await).await
    }

    /// An attempt: writes of a worker, and requests at the same time.
    async fn work(&mut self, worker: &Worker) -> End {
        for _ in 0..STEPS {
            let request = self.request();
            let is_told = self.signals.suspend || self.signals.cancel;
            let write = self.write(worker);
            if self.numbers.one_in(if is_told { 2 } else { 12 }) {
                let stop = self.stop(worker);
                // A late write is on its way through another gateway.
                let late = Some(write).filter(|_| self.numbers.one_in(2));
                if let Some(end) = self.send_stop(worker, Together { request, stop, late }).await {
                    return end;
                }
                continue;
            }
            let send = send(&*self.cx.store, worker, &write);
            let (accepted, ()) = tokio::join!(send, self.send_request(request));
            if !self.note(write, accepted) {
                // Without an acknowledgement, only the operator's end fences a worker.
                assert!(matches!(request, Request::End), "fenced by {request:?}");
            }
            if let Request::End = request {
                return End::Fenced;
            }
        }
        End::Working
    }

    fn request(&mut self) -> Request {
        match self.numbers.below(32) {
            0..=9 => Request::Suspend,
            10..=13 => Request::Resume,
            14..=16 => Request::Cancel,
            17 => Request::End,
            _ => Request::Nothing,
        }
    }

    fn stop(&mut self, worker: &Worker) -> Stop {
        // A worker that knows of a cancel may park, too.
        let acknowledges = self.numbers.one_in(if self.signals.cancel { 2 } else { 4 });
        if acknowledges { Stop::Acknowledge } else { Stop::Park(worker.park()) }
    }

    fn write(&mut self, worker: &Worker) -> Write {
        match self.numbers.below(10) {
            0..=3 => {
                let (turn, boundary) = match self.committed.last() {
                    Some((turn, Boundary::Plan, _)) => (*turn, Boundary::Result),
                    last => {
                        let plans = self.numbers.one_in(3);
                        let turn = last.map_or(0, |(turn, ..)| *turn) + 1;
                        (turn, if plans { Boundary::Plan } else { Boundary::Result })
                    }
                };
                Write::Commit(Box::new(worker.commit(turn, boundary)))
            }
            4 => self.last.as_ref().map_or(Write::Heartbeat, |last| Write::Commit(Box::new(resend(last)))),
            5..=6 => match &self.open {
                Some(claim) => Write::Complete(Rc::clone(claim)),
                None => {
                    self.calls += 1;
                    let policies = [Policy::RetrySameKey, Policy::Probe, Policy::Ask, Policy::ReadOnly];
                    let policy = policies[self.numbers.below(4) as usize];
                    Write::Claim(Rc::new(worker.claim(&format!("call-{}", self.calls), policy)))
                }
            },
            7..=8 => Write::Records,
            _ => Write::Heartbeat,
        }
    }

    async fn send_request(&self, request: Request) {
        let (store, run) = (&self.cx.second_gateway, self.run);
        let nobody = &RequestedBy::default();
        match request {
            Request::Nothing => {}
            Request::Suspend => drop(store.suspend(run, nobody).await.unwrap()),
            Request::Resume => drop(store.resume(run, nobody).await.unwrap()),
            Request::Cancel => drop(store.request_cancel(run, nobody).await.unwrap()),
            Request::End => {
                let attempt = self.cx.run_by_uid(&self.object_uid).await.attempt.number;
                let ending = ending(attempt, Class::Disruption);
                store.end_attempt(run, &ending, &NextStep::Reserve).await.unwrap();
            }
        }
    }

    /// Sends the acknowledgement together with the request and the late write. Returns `None` if the worker goes on.
    async fn send_stop(&mut self, worker: &Worker, sent: Together) -> Option<End> {
        let Together { request, stop, late } = sent;
        // The operator ends the attempt that it saw, which is the worker's.
        let over = ending(worker.attempt, Class::Disruption);
        let requested = async {
            match request {
                Request::End => {
                    self.cx.second_gateway.end_attempt(self.run, &over, &NextStep::Reserve).await.unwrap();
                }
                other => self.send_request(other).await,
            }
        };
        let sent = async {
            match &late {
                Some(write) => Some(send(&*self.cx.second_gateway, worker, write).await),
                None => None,
            }
        };
        let stopped = async {
            match &stop {
                Stop::Park(park) => Answer::Parked(self.cx.park(park).await.unwrap()),
                Stop::Acknowledge => {
                    let capability = &worker.capability;
                    Answer::Acknowledged(self.cx.acknowledge_cancel(self.run, capability).await.unwrap())
                }
            }
        };
        let (answer, accepted, ()) = tokio::join!(stopped, sent, requested);
        if let (Some(write), Some(accepted)) = (late, accepted) {
            let (is_commit, is_claim) = (matches!(write, Write::Commit(_)), matches!(write, Write::Claim(_)));
            let is_accepted = self.note(write, accepted);
            match (is_commit, is_claim, is_accepted) {
                (true, _, true) => self.see("a late commit was accepted"),
                (true, _, false) => self.see("a late commit was refused"),
                (_, true, true) => self.see("a late call was accepted"),
                (_, true, false) => self.see("a late call was refused"),
                _ => {}
            }
        }
        match answer {
            Answer::Parked(Parked::Parked) => {
                let is_over = self.cx.run_by_uid(&self.object_uid).await.lifecycle == Lifecycle::Finished;
                self.see(if is_over { "parked, and the run is cancelled" } else { "parked" });
                if let Request::Resume = request {
                    self.see("lifted while the worker parked");
                }
                return Some(End::Acknowledged(stop));
            }
            Answer::Acknowledged(Acknowledged::Cancelled) => {
                self.see("cancelled");
                return Some(End::Acknowledged(stop));
            }
            Answer::Parked(Parked::Ready) => self.see("ready"),
            Answer::Acknowledged(Acknowledged::NotRequested) => self.see("not requested"),
            Answer::Parked(Parked::OpenCalls) => self.see("an open call"),
            Answer::Parked(Parked::Fenced) | Answer::Acknowledged(Acknowledged::Fenced) => {
                assert!(matches!(request, Request::End), "fenced by {request:?}");
            }
            other => panic!("{other:?}"),
        }
        matches!(request, Request::End).then_some(End::Fenced)
    }

    /// Notes what was accepted. Returns whether the write was not fenced.
    fn note(&mut self, write: Write, accepted: Accepted) -> bool {
        let signals = match accepted {
            Accepted::Yes(signals) => signals,
            Accepted::NotNow => return true,
            Accepted::Fenced { committed } => {
                if let Write::Commit(commit) = &write {
                    let is_known = self.committed.iter().any(|(.., id)| *id == commit.commit_id);
                    assert_eq!(committed, is_known, "the commit of turn {}", commit.turn);
                }
                return false;
            }
        };
        self.signals = signals.unwrap_or(self.signals);
        match write {
            Write::Commit(commit) => {
                let this = (commit.turn, commit.boundary, commit.commit_id);
                if self.committed.last() != Some(&this) {
                    self.committed.push(this);
                }
                self.last = Some(*commit);
            }
            Write::Claim(claim) => self.open = Some(claim),
            Write::Complete(_) => self.open = None,
            Write::Records | Write::Heartbeat => {}
        }
        true
    }

    /// Asserts that the worker has stopped for good, also while a person lifts the suspend.
    async fn assert_stopped(&mut self, worker: &Worker, stop: &Stop) {
        let acknowledged = matches!(stop, Stop::Acknowledge);
        let lifts = if self.numbers.one_in(2) { Request::Resume } else { Request::Nothing };
        let which = self.numbers.below(1 << 20);
        let writes = self.assert_nothing_is_accepted(worker, acknowledged, which);
        tokio::join!(writes, self.send_request(lifts));
        match stop {
            Stop::Park(park) => assert_eq!(self.cx.park(park).await.unwrap(), Parked::Parked),
            Stop::Acknowledge => {
                let again = self.cx.acknowledge_cancel(self.run, &worker.capability).await.unwrap();
                assert_eq!(again, Acknowledged::Cancelled);
            }
        }
    }

    /// Sends writes of the worker, all at the same time. The bits of `which` choose them.
    async fn assert_nothing_is_accepted(&self, worker: &Worker, acknowledged: bool, which: u64) {
        let (cx, capability) = (self.cx, &worker.capability);
        let next = self.committed.last().map_or(0, |(turn, ..)| *turn) + 1;
        let open = self.open.clone().unwrap_or_else(|| Rc::new(worker.claim("none", Policy::Probe)));
        let mut writes = vec![
            Write::Commit(Box::new(worker.plan(next))),
            Write::Commit(Box::new(worker.result(next))),
            Write::Commit(Box::new(worker.result(next - 1))),
            Write::Claim(Rc::new(worker.claim("late", Policy::RetrySameKey))),
            Write::Claim(Rc::clone(&open)),
            Write::Complete(open),
            Write::Records,
            Write::Heartbeat,
        ];
        writes.extend(self.last.as_ref().map(|last| Write::Commit(Box::new(resend(last)))));
        let writes = writes.into_iter().enumerate().filter(|(number, _)| which >> number & 1 == 1);
        let writes = writes.map(|(number, write)| async move {
            let store = if number % 2 == 0 { &cx.store } else { &cx.second_gateway };
            let answer = send(&**store, worker, &write).await;
            (write, answer)
        });
        let stops = async {
            match which >> 16 & 3 {
                0 => {
                    let finished = cx.finish(&worker.finish()).await.unwrap();
                    assert_eq!(finished, Committed::Fenced { committed: false });
                }
                1 => assert_eq!(cx.park(&worker.park()).await.unwrap(), Parked::Fenced),
                2 => {
                    let cancelled = cx.acknowledge_cancel(self.run, capability).await.unwrap();
                    let expected = if acknowledged { Acknowledged::Cancelled } else { Acknowledged::Fenced };
                    assert_eq!(cancelled, expected);
                }
                _ => {
                    let attached = cx.attach(self.run, &worker.pod_uid, capability).await.unwrap();
                    assert!(!matches!(attached, Attached::Ok(_) | Attached::Spent), "{attached:?}");
                }
            }
        };
        let (refused, ()) = tokio::join!(join_all(writes), stops);
        for (write, answer) in refused {
            let Accepted::Fenced { committed } = answer else { panic!("accepted: {answer:?}") };
            let is_last = matches!((write, &self.last), (Write::Commit(commit), Some(last))
                if commit.commit_id == last.commit_id);
            assert_eq!(committed, is_last);
        }
    }

    /// Each commit that was accepted is there, once and in order, and nothing else is.
    async fn end(mut self) {
        let rows = self.cx.boundaries(self.run, 1, i32::MAX).await.unwrap();
        let stored: Vec<_> = rows.iter().map(|row| (row.turn, row.boundary, row.commit_id)).collect();
        assert_eq!(stored, self.committed);
        let run = self.cx.run_by_uid(&self.object_uid).await;
        let head = run.head.map(|head| (head.turn, head.boundary));
        assert_eq!(head, self.committed.last().map(|(turn, boundary, _)| (*turn, *boundary)));
        assert_eq!(run.counters.recovery_attempts, 0, "nothing is charged");
        if self.numbers.one_in(8) {
            self.cx.assert_audit_is_valid(self.run).await;
        }
    }
}
