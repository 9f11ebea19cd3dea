//! A transition that is lost between two of its round trips: it leaves no open transaction, and may be sent again.

use std::sync::atomic::{AtomicI64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dalsegno_model::{Class, Error, NextStep};
use sqlx::{Connection as _, PgConnection};
use tokio::time::timeout;

use crate::context::*;
use crate::proxy::{Fault, Proxy};
use crate::{fresh, open};

/// The round trips of a transition: it locks and reads, writes, commits.
const TRIPS: i64 = 3;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transition_cut_off_at_any_trip_may_be_sent_again() {
    let (direct, url) = fresh().await;
    let (next, fault) = (Arc::<AtomicI64>::default(), Arc::new(Mutex::new(Fault::Pass)));
    let (countdown, chosen) = (Arc::clone(&next), Arc::clone(&fault));
    let proxy = Proxy::with_faults(&url, move || match countdown.fetch_sub(1, SeqCst) {
        1 => *chosen.lock().unwrap(),
        _ => Fault::Pass,
    });
    let cx = open(&proxy.url()).await;
    let mut worker = direct.worker().await;
    let mut ends = 0;
    for cut in [Fault::CutBefore, Fault::CutAfter] {
        for trip in 1..=TRIPS {
            // Each statement is prepared once per connection.
            worker.attempt = cx.end_and_reserve(&worker, Class::Disruption).await.attempt.number;
            *fault.lock().unwrap() = cut;
            next.store(trip, SeqCst);
            let over = ending(worker.attempt, Class::Disruption);
            let lost = cx.end_attempt(worker.run, &over, &NextStep::Reserve).await;
            assert!(matches!(lost, Err(Error::Unavailable { .. })), "{cut:?} at trip {trip}: {lost:?}");
            let is_committed = direct.run_of(&worker).await.attempt.number > worker.attempt;
            assert_eq!(is_committed, (cut, trip) == (Fault::CutAfter, TRIPS), "{cut:?} at trip {trip}");
            let again = cx.end_attempt(worker.run, &over, &NextStep::Reserve).await.unwrap();
            ends += 2;
            let counted = (again.attempt.number, again.counters.disruptions);
            assert_eq!(counted, (ends + 1, ends), "{cut:?} at trip {trip}");
            worker.attempt = again.attempt.number;
        }
    }
    direct.assert_audit_is_valid(worker.run).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transition_that_is_given_up_leaves_no_open_transaction() {
    let (direct, url) = fresh().await;
    // Slow enough to be given up between two trips.
    let proxy = Proxy::with_faults(&url, || Fault::Stall(Duration::from_millis(400)));
    let slow = open(&proxy.url()).await;
    let worker = direct.worker().await;
    let giving_up = async {
        let over = ending(1, Class::Disruption);
        tokio::select! {
            ended = slow.end_attempt(worker.run, &over, &NextStep::Reserve) => panic!("it ended: {ended:?}"),
            () = until_locked(&url, &worker) => {}
        }
    };
    timeout(Duration::from_secs(60), giving_up).await.expect("the transition locks the row");
    let ended = direct.end_and_reserve(&worker, Class::Disruption).await;
    assert_eq!((ended.attempt.number, ended.counters.disruptions), (2, 1));
    assert_eq!(slow.run_of(&worker).await.attempt.number, 2, "its connections serve the next call");
    assert_eq!(open_transactions(&url).await, 0);
}

/// The server does not learn that the client is lost. The idle timeout of the transaction releases the row's lock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_lost_within_a_transition_leaves_no_run_locked() {
    let (direct, url) = fresh().await;
    let proxy = Proxy::with_faults(&url, || Fault::Stall(Duration::from_millis(400)));
    let slow = open(&proxy.url()).await;
    let worker = direct.worker().await;
    let lost = worker.clone();
    let vanishing = tokio::spawn(async move {
        slow.end_attempt(lost.run, &ending(1, Class::Disruption), &NextStep::Reserve).await
    });
    timeout(Duration::from_secs(60), until_locked(&url, &worker))
        .await
        .expect("the transition locks the row");
    proxy.go_silent();
    // This waits up to a minute for the lock. The transaction ends before that.
    let ended = direct.end_and_reserve(&worker, Class::Disruption).await;
    assert_eq!((ended.attempt.number, ended.counters.disruptions), (2, 1));
    assert!(vanishing.await.unwrap().is_err());
}

/// Waits until another transaction holds the lock of the run's row.
async fn until_locked(url: &str, worker: &Worker) {
    let mut conn = PgConnection::connect(url).await.unwrap();
    loop {
        let free = sqlx::query("SELECT FROM runs WHERE id = $1 FOR UPDATE SKIP LOCKED").bind(worker.run);
        if free.fetch_optional(&mut conn).await.unwrap().is_none() {
            return;
        }
        sleep_ms(5).await;
    }
}

async fn open_transactions(url: &str) -> i64 {
    let mut conn = PgConnection::connect(url).await.unwrap();
    let open = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() \
                AND state LIKE 'idle in transaction%'";
    sqlx::query_scalar(open).fetch_one(&mut conn).await.unwrap()
}
