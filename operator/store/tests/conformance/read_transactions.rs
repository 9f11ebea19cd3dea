//! Read transactions: reads that see the store as of one moment.

use dalsegno_model::ReadTransaction;
use dalsegno_model::read_transaction::AuditKey;

use crate::context::*;
use crate::engines::{on_every_engine, on_every_persistent_engine};

on_every_persistent_engine! {
    later_writes_are_not_visible,
}

on_every_engine! {
    a_renewed_transaction_sees_later_writes,
}

async fn later_writes_are_not_visible(cx: &TestContext) {
    let worker = cx.worker().await;
    let mut reading = cx.begin_read().await.unwrap();
    let before = rows(&mut *reading, &worker).await;
    cx.request_cancel(worker.run).await.unwrap();
    assert_eq!(rows(&mut *reading, &worker).await, before);
}

async fn a_renewed_transaction_sees_later_writes(cx: &TestContext) {
    let worker = cx.worker().await;
    let mut reading = cx.begin_read().await.unwrap();
    for expected in 1..=3 {
        let before = rows(&mut *reading, &worker).await;
        let claim = worker.claim(&format!("call-{expected}"), dalsegno_protocol::Policy::Probe);
        cx.claim(&claim).await.unwrap();
        reading.renew().await.unwrap();
        assert_eq!(rows(&mut *reading, &worker).await, before + 1);
    }
}

/// Rows of the run's audit.
async fn rows(reading: &mut dyn ReadTransaction, worker: &Worker) -> usize {
    reading.audit(AuditKey::before(worker.run), worker.run).await.unwrap().len()
}
