//! Records.

use dalsegno_sdk::{Commit, Error, RecordChanges};
use serde_json::json;

use crate::gateway::{Gateway, committed};

#[test]
fn records_are_written_as_one_batch_or_with_a_boundary() {
    let gateway =
        Gateway::new().on("records", [None, Some((200, json!({})))]).on("turns/1", [committed(1, "result")]);
    let mut run = gateway.attach();
    let changes = || -> dalsegno_sdk::Result<RecordChanges> {
        let put = RecordChanges::new().put("notes", "a", &1)?.put_if_absent("notes", "b", &"two")?;
        Ok(put.append("log", "day", "e1", &json!({"n": 3}))?.delete("notes", "c"))
    };
    run.write_records(changes().unwrap()).unwrap();
    let bodies = gateway.bodies("records");
    assert_eq!((bodies.len(), &bodies[0]), (2, &bodies[1]), "the same bytes until they are answered");
    let operations = json!([
        {"put": {"space": "notes", "key": "a", "value": {"json": 1}}},
        {"putIfAbsent": {"space": "notes", "key": "b", "value": {"json": "two"}}},
        {"append": {"space": "log", "key": "day", "entryId": "e1", "value": {"json": {"n": 3}}}},
        {"delete": {"space": "notes", "key": "c"}},
    ]);
    assert_eq!(gateway.body("records")["operations"], operations);
    run.commit(Commit::new(1).records(changes().unwrap())).unwrap();
    assert_eq!(gateway.body("turns/1")["records"], operations);
}

#[test]
fn records_are_read_page_by_page() {
    let record = |key: &str| json!({"key": key, "value": {"json": 1}, "turn": 1});
    let gateway = Gateway::new()
        .on(
            "records?space=a%20b&prefix=%C3%A4%2F",
            [Some((200, json!({"records": [record("1"), record("2")], "next": "7.2&"})))],
        )
        .on(
            "records?space=a%20b&prefix=%C3%A4%2F&after=7.2%26",
            [Some((200, json!({"records": [record("3")]})))],
        )
        .on(
            "records?space=none&prefix=",
            [Some((400, json!({"type": "about:blank", "status": 400, "code": "INVALID", "detail": "no"})))],
        );
    let run = gateway.attach();
    let keys: Vec<_> = run.records("a b", "ä/").map(|record| record.unwrap().key).collect();
    assert_eq!(keys, ["1", "2", "3"]);
    let mut refused = run.records("none", "");
    assert!(matches!(refused.next(), Some(Err(Error::Refused { .. }))));
    assert!(refused.next().is_none());
}
