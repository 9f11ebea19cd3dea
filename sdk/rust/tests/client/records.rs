//! Records.

use dalsegno_sdk::{Commit, Error, RecordChanges};
use serde_json::json;

use crate::gateway::{Gateway, attached, committed};

#[test]
fn records_are_written_as_one_batch_or_with_a_boundary() {
    let gateway =
        Gateway::new().on("records", [None, Some((200, json!({})))]).on("turns/1", [committed(1, "result")]);
    let mut run = gateway.attach();
    let changes = || -> dalsegno_sdk::Result<RecordChanges> {
        let put = RecordChanges::new().put("notes", "a", &1)?.put_if_absent("notes", "b", &"two")?;
        let put = put.append("log", "day", "e1", &json!({"n": 3}))?.delete("notes", "c");
        Ok(put.delete_prefix("notes", "draft/"))
    };
    run.write_records(changes().unwrap()).unwrap();
    let bodies = gateway.bodies("records");
    assert_eq!((bodies.len(), &bodies[0]), (2, &bodies[1]), "the same bytes until they are answered");
    let operations = json!([
        {"put": {"space": "notes", "key": "a", "value": {"json": 1}}},
        {"putIfAbsent": {"space": "notes", "key": "b", "value": {"json": "two"}}},
        {"append": {"space": "log", "key": "day", "entryId": "e1", "value": {"json": {"n": 3}}}},
        {"delete": {"space": "notes", "key": "c"}},
        {"deletePrefix": {"space": "notes", "prefix": "draft/"}},
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

#[test]
fn keys_and_records_are_read_from_the_greatest_key_on() {
    let key = |key: &str| json!({"key": key});
    let record = |key: &str| json!({"key": key, "value": {"json": 1}, "turn": 1});
    let gateway = Gateway::new()
        .on("records?space=s&prefix=a&order=desc", [Some((200, json!({"records": [record("a2")]})))])
        .on(
            "records?space=s&prefix=&keysOnly=true&order=desc",
            [Some((200, json!({"records": [key("b"), key("a")], "next": "1.a"})))],
        )
        .on(
            "records?space=s&prefix=&keysOnly=true&order=desc&after=1.a",
            [Some((200, json!({"records": []})))],
        );
    let run = gateway.attach();
    let newest: Vec<_> = run.records("s", "a").newest_first().map(|record| record.unwrap().key).collect();
    assert_eq!(newest, ["a2"]);
    let keys: Vec<_> = run.record_keys("s", "").greatest_first().map(Result::unwrap).collect();
    assert_eq!(keys, ["b", "a"]);
}

#[test]
fn records_of_many_keys_are_read_in_few_requests() {
    let record = |key: &str| json!({"key": key, "value": {"json": 1}, "turn": 1});
    let gateway = Gateway::new().on(
        "records/read",
        [
            Some((200, json!({"records": [record("k0")], "next": "1.k0"}))),
            Some((200, json!({"records": [record("k7")]}))),
            Some((200, json!({"records": [record("k1000")]}))),
        ],
    );
    let names: Vec<_> = (0..1_001).map(|number| format!("k{number}")).collect();
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    let read = gateway.attach().records_of("s", &names).unwrap();
    assert_eq!(read.iter().map(|record| &*record.key).collect::<Vec<_>>(), ["k0", "k7", "k1000"]);
    let bodies: Vec<serde_json::Value> =
        gateway.bodies("records/read").iter().map(|body| serde_json::from_str(body).unwrap()).collect();
    assert_eq!(
        bodies.iter().map(|it| it["keys"].as_array().unwrap().len()).collect::<Vec<_>>(),
        [1_000, 1_000, 1]
    );
    assert_eq!(
        bodies.iter().map(|it| &it["after"]).collect::<Vec<_>>(),
        [&json!(null), &json!("1.k0"), &json!(null)]
    );
}

/// A gateway of the version before would refuse the operation for good.
#[test]
fn what_is_new_waits_until_every_gateway_has_it() {
    let gateway = Gateway::new()
        .on(
            "attach",
            [attached(json!({"contract": 2})), attached(json!({"contract": 2})), attached(json!({}))],
        )
        .on("records", [Some((200, json!({})))]);
    let run = gateway.attach();
    run.write_records(RecordChanges::new().delete("s", "a")).unwrap();
    assert_eq!(gateway.bodies("attach").len(), 1, "an operation of the first version");
    run.write_records(RecordChanges::new().delete_prefix("s", "a")).unwrap();
    assert_eq!(gateway.bodies("attach").len(), 3);
    assert_eq!(gateway.bodies("records").len(), 2);
}
