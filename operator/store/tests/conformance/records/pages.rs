//! Pages of records and of keys: from either end, and of given keys.

use dalsegno_model::{RecordKeysQuery, RecordQuery};
use dalsegno_protocol::RecordOrder::{Asc, Desc};
use dalsegno_protocol::{RecordOp, RecordOrder};

use super::{append, delete, put, query, shown, write};
use crate::context::*;
use crate::engines::on_every_engine;

on_every_engine! {
    records_are_read_from_the_end_too,
    keys_are_listed_once_without_values,
    records_of_keys_come_in_the_order_of_the_keys,
    a_page_of_given_keys_ends_within_a_key,
    a_page_of_given_keys_is_limited_by_bytes,
}

/// Keys with lists, replaced, deleted and appended to in several turns.
async fn written(cx: &TestContext) -> Worker {
    let worker = cx.worker().await;
    let mut operations: Vec<RecordOp> = (0..5).map(|n| append("b", &n.to_string())).collect();
    operations.extend([put("a", "1"), put("c", "1"), put("m/1", "1"), put("m/2", "1"), put("é", "1")]);
    write(cx, &worker, operations).await;
    cx.commit_turn(&worker, 1).await;
    write(cx, &worker, vec![put("c", "2"), append("c", "3"), delete("m/1"), append("m/2", "2")]).await;
    write(cx, &worker, vec![append("m/3", "1"), put("\u{10ffff}", "1"), put("gone", "1"), delete("gone")])
        .await;
    worker
}

async fn read_all(cx: &TestContext, worker: &Worker, first: RecordQuery) -> Vec<String> {
    let (mut all, mut after) = (Vec::new(), None);
    loop {
        let query = RecordQuery { after: after.take(), ..first.clone() };
        let page = cx.read_records(worker.run, &query).await.unwrap();
        assert!(page.records.len() <= query.limit as usize);
        assert!(!page.records.is_empty() || page.next.is_none(), "an empty page is the last one");
        all.extend(shown(&page));
        after = page.next;
        if after.is_none() {
            return all;
        }
    }
}

async fn records_are_read_from_the_end_too(cx: &TestContext) {
    let worker = written(cx).await;
    for prefix in ["", "m/", "b", "c", "\u{10ffff}", "none"] {
        let up = read_all(cx, &worker, query(prefix)).await;
        for limit in [1, 2, 3, 5, 1_000] {
            let down = RecordQuery { order: Desc, limit, ..query(prefix) };
            let mut down = read_all(cx, &worker, down).await;
            down.reverse();
            assert_eq!(down, up, "{prefix:?}, limit {limit}");
        }
    }
    let newest = RecordQuery { order: Desc, limit: 2, ..query("m/") };
    let page = cx.read_records(worker.run, &newest).await.unwrap();
    assert_eq!(shown(&page), ["m/3=1", "m/2=2"], "of a key the latest entry comes first");
    // A page ends by bytes from this end too.
    let small = RecordQuery { order: Desc, bytes: 1, ..query("b") };
    let page = cx.read_records(worker.run, &small).await.unwrap();
    assert_eq!((shown(&page), page.next.is_some()), (vec!["b=4".to_owned()], true));
}

fn of_keys(prefix: &str, order: RecordOrder, limit: u32) -> RecordQuery {
    RecordQuery { order, limit, ..query(prefix) }
}

/// All keys, read in pages as the first query says.
async fn keys(cx: &TestContext, worker: &Worker, first: RecordQuery) -> Vec<String> {
    let (mut all, mut after) = (Vec::new(), None);
    loop {
        let query = RecordQuery { after: after.take(), bytes: 0, ..first.clone() };
        let page = cx.read_record_keys(worker.run, &query).await.unwrap();
        assert!(page.keys.len() <= query.limit as usize);
        assert!(!page.keys.is_empty() || page.next.is_none());
        all.extend(page.keys);
        after = page.next;
        if after.is_none() {
            return all;
        }
    }
}

async fn keys_are_listed_once_without_values(cx: &TestContext) {
    let worker = written(cx).await;
    let expected = ["a", "b", "c", "m/2", "m/3", "é", "\u{10ffff}"];
    for limit in [1, 2, 6, 7, 8] {
        assert_eq!(keys(cx, &worker, of_keys("", Asc, limit)).await, expected, "limit {limit}");
        let mut down = keys(cx, &worker, of_keys("", Desc, limit)).await;
        down.reverse();
        assert_eq!(down, expected, "limit {limit}");
        assert_eq!(keys(cx, &worker, of_keys("m/", Asc, limit)).await, ["m/2", "m/3"]);
        assert_eq!(keys(cx, &worker, of_keys("m/", Desc, limit)).await, ["m/3", "m/2"]);
    }
    assert_eq!(keys(cx, &worker, of_keys("none", Asc, 9)).await, [""; 0]);
    // After a page of records that ended within a key, the key itself is not listed again.
    let page = cx.read_records(worker.run, &RecordQuery { limit: 3, ..query("") }).await.unwrap();
    assert_eq!(page.next.as_ref().map(|(key, _)| &**key), Some("b"));
    let after =
        cx.read_record_keys(worker.run, &RecordQuery { after: page.next, ..query("") }).await.unwrap();
    assert_eq!(after.keys, expected[2..]);
}

fn of(keys: &[&str]) -> RecordKeysQuery {
    let keys = keys.iter().map(|&key| key.to_owned()).collect();
    RecordKeysQuery { space: "s".into(), keys, after: 0, limit: 1_000, bytes: 1 << 20 }
}

async fn records_of_keys_come_in_the_order_of_the_keys(cx: &TestContext) {
    let worker = written(cx).await;
    let asked = of(&["é", "nothing", "m/2", "gone", "a", "m/1", "c"]);
    let page = cx.read_records_of(worker.run, &asked).await.unwrap();
    assert_eq!(shown(&page), ["é=1", "m/2=1", "m/2=2", "a=1", "c=2", "c=3"]);
    assert_eq!(page.next, None);
    assert_eq!(page.records[2].entry_id.as_deref(), Some("entry-2"));
    assert_eq!(page.records.iter().map(|it| it.turn).collect::<Vec<_>>(), [1, 1, 2, 1, 2, 2]);
    let nothing = cx.read_records_of(worker.run, &of(&["nothing", "gone"])).await.unwrap();
    assert_eq!((nothing.records.len(), nothing.next), (0, None));
    let other = RecordKeysQuery { space: "t".into(), ..of(&["a"]) };
    assert!(cx.read_records_of(worker.run, &other).await.unwrap().records.is_empty());
    // A thousand keys in one request.
    let many: Vec<_> = (0..1_000).map(|n| format!("n{n:03}")).collect();
    write(cx, &worker, many.iter().map(|key| put(key, "1")).collect()).await;
    let mut asked = RecordKeysQuery { keys: many.clone(), ..of(&[]) };
    asked.keys.reverse();
    let page = cx.read_records_of(worker.run, &asked).await.unwrap();
    assert_eq!((page.records.len(), page.next), (1_000, None));
    assert_eq!(page.records.iter().rev().map(|it| it.key.clone()).collect::<Vec<_>>(), many);
}

async fn a_page_of_given_keys_ends_within_a_key(cx: &TestContext) {
    let worker = written(cx).await;
    let keys = ["c", "none", "b", "a"];
    let whole = ["c=2", "c=3", "b=0", "b=1", "b=2", "b=3", "b=4", "a=1"];
    for limit in 1..=9 {
        let (mut all, mut query) = (Vec::new(), RecordKeysQuery { limit, ..of(&keys) });
        loop {
            let page = cx.read_records_of(worker.run, &query).await.unwrap();
            assert!(page.records.len() <= limit as usize);
            all.extend(shown(&page));
            let Some((key, seq)) = page.next else { break };
            assert!(!page.records.is_empty());
            // As the gateway does it: the keys before that one are done.
            let index = query.keys.iter().position(|it| *it == key).unwrap();
            query.keys.drain(..index);
            query.after = seq;
        }
        assert_eq!(all, whole, "limit {limit}");
    }
    // A page that holds just everything is the last one.
    let page = cx.read_records_of(worker.run, &RecordKeysQuery { limit: 8, ..of(&keys) }).await.unwrap();
    assert_eq!(page.next, None);
    let page =
        cx.read_records_of(worker.run, &RecordKeysQuery { limit: 2, ..of(&["c", "none"]) }).await.unwrap();
    assert_eq!(page.next, None, "the keys after it hold nothing");
}

async fn a_page_of_given_keys_is_limited_by_bytes(cx: &TestContext) {
    let worker = cx.worker().await;
    let value = format!("\"{}\"", "x".repeat(1_000));
    write(cx, &worker, (0..6).map(|n| put(&format!("k{n}"), &value)).collect()).await;
    for (bytes, entries) in [(1, 1), (1_500, 2), (2_500, 3), (100_000, 6)] {
        let query = RecordKeysQuery { bytes, ..of(&["k5", "k4", "k3", "k2", "k1", "k0"]) };
        let page = cx.read_records_of(worker.run, &query).await.unwrap();
        assert_eq!(page.records.len(), entries, "{bytes} bytes");
        assert_eq!(page.next.is_some(), entries < 6, "{bytes} bytes");
    }
}
