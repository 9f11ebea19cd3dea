//! Spaces of records, and blobs in them.

use dalsegno_protocol::Limits;
use dalsegno_sdk::{Error, Item};
use serde_json::{Value, json};

use crate::agent::ok;
use crate::gateway::{Answer, Gateway, attached, problem};

/// Bytes of one chunk.
const CHUNK: usize = (3 << 20) - 3;

fn page(records: &[(&str, Value)]) -> Answer {
    let record = |(key, value): &(&str, Value)| json!({"key": key, "value": {"json": value}, "turn": 2});
    Some((200, json!({"records": records.iter().map(record).collect::<Vec<_>>()})))
}

/// The operations of every batch: the kind and the key of each.
fn written(gateway: &Gateway) -> Vec<Vec<String>> {
    let operations = |body: &String| -> Vec<String> {
        let body: Value = body.parse().unwrap();
        let name = |it: &Value| {
            let (kind, fields) = it.as_object().unwrap().iter().next().unwrap();
            let key = fields.get("key").unwrap_or(&fields["prefix"]);
            format!("{kind} {}", key.as_str().unwrap())
        };
        body["operations"].as_array().unwrap().iter().map(name).collect()
    };
    gateway.bodies("records").iter().map(operations).collect()
}

#[test]
fn a_key_is_read_as_its_own_type_and_not_that_of_a_longer_key() {
    let gateway = Gateway::new()
        .on("records?space=notes&prefix=a&limit=1", [page(&[("a", json!([1, 2]))])])
        .on("records?space=notes&prefix=b&limit=1", [page(&[("bb", json!(1))])])
        .on("records?space=notes&prefix=", [page(&[("a", json!(1)), ("bb", json!(2))])]);
    let run = gateway.attach();
    let notes = run.space("notes");
    assert_eq!(notes.get::<Vec<i32>>("a").unwrap(), Some(vec![1, 2]));
    assert_eq!(notes.get::<i32>("b").unwrap(), None);
    assert!(matches!(notes.get::<String>("a"), Err(Error::Json { .. })));
    let items: Vec<Item<i32>> = notes.items("").map(Result::unwrap).collect();
    let item = |key: &str, value| Item { key: key.into(), value, turn: 2, entry_id: None };
    assert_eq!(items, [item("a", 1), item("bb", 2)]);
}

/// What points to the chunks of a blob with other bytes.
fn old_blob(key: &str) -> Value {
    let prefix = format!("{key}/.chunk.0000000000000000.");
    json!({"dalsegno.blob": {"sha256": "0".repeat(64), "chunks": 2, "prefix": prefix}})
}

#[test]
fn each_write_is_one_batch() {
    let gateway = Gateway::new().on("records", [ok()]);
    let run = gateway.attach();
    let space = run.space("s");
    space.put("a", &1).unwrap();
    space.put_if_absent("b", &1).unwrap();
    space.append("c", "e1", &1).unwrap();
    space.delete("d").unwrap();
    assert_eq!(
        written(&gateway),
        [vec!["put a"], vec!["putIfAbsent b"], vec!["append c"], vec!["delete d", "deletePrefix d/.chunk."]]
    );
}

#[test]
fn the_chunks_of_a_blob_are_deleted_by_their_keys_on_an_older_gateway() {
    let gateway = Gateway::new()
        .on("attach", [attached(json!({"contract": 2}))])
        .on("records", [ok()])
        .on("records?space=s&prefix=d&limit=1", [page(&[("d", old_blob("d"))])])
        .on("records?space=s&prefix=d%2F.chunk.", [page(&[("d/.chunk.0", json!(""))])]);
    let run = gateway.attach();
    run.space("s").delete("d").unwrap();
    run.space("s").put_blob("d", b"").unwrap();
    let chunks = [0, 1].map(|number| format!("delete d/.chunk.0000000000000000.00000{number}"));
    assert_eq!(
        written(&gateway),
        [vec!["delete d", "delete d/.chunk.0"], vec!["put d", &chunks[0], &chunks[1]]]
    );
    assert_eq!(gateway.bodies("attach").len(), 1, "it does not wait for other gateways");
}

#[test]
fn the_key_of_a_blob_leaves_room_for_those_of_its_chunks() {
    let gateway = Gateway::new().on("records", [ok()]);
    let run = gateway.attach();
    let space = run.space("s");
    let long = "k".repeat(482);
    let error = space.put_blob(&long, b"bytes").unwrap_err();
    assert_eq!(error.to_string(), "the key of a blob has at most 481 bytes");
    assert_eq!(written(&gateway).len(), 0);
    space.delete(&long).unwrap();
    assert_eq!(written(&gateway), [vec![format!("delete {long}")]], "it has no chunks");

    let longest = &long[1..];
    let gateway = gateway.on(&format!("records?space=s&prefix={longest}&limit=1"), [page(&[])]);
    gateway.attach().space("s").put_blob(longest, b"bytes").unwrap();
    let key = &written(&gateway)[1][0]["put ".len()..];
    assert_eq!(key.len(), Limits::RECORD_NAME_BYTES);
}

#[test]
fn a_prefix_of_too_many_keys_is_deleted_in_batches() {
    let keys = (200, json!({"records": [{"key": "a/1"}, {"key": "a/2"}]}));
    let gateway = Gateway::new()
        .on("records", [problem(413, "TOO_LARGE"), ok()])
        .on("records?space=s&prefix=a%2F&keysOnly=true", [Some(keys)]);
    gateway.attach().space("s").delete_prefix("a/").unwrap();
    assert_eq!(written(&gateway), [vec!["deletePrefix a/"], vec!["delete a/1", "delete a/2"]]);
}

#[test]
fn a_blob_is_written_in_chunks_and_what_points_to_them_comes_last() {
    let gateway = Gateway::new()
        .on("records", [ok()])
        .on("records?space=s&prefix=k&limit=1", [page(&[("k", old_blob("k"))])]);
    let content = vec![7; CHUNK * 4 + 1];
    gateway.attach().space("s").put_blob("k", &content).unwrap();
    let batches = written(&gateway);
    assert_eq!(batches.iter().map(Vec::len).collect::<Vec<_>>(), [3, 2, 2]);
    assert_eq!(batches[2], ["put k", "deletePrefix k/.chunk.0000000000000000."], "the old chunks go with it");
    let bodies = gateway.bodies("records");
    assert!(bodies.iter().all(|body| body.len() < 16 << 20));

    // The same gateway with what was written gives the bytes back.
    let value = |body: usize, at: usize| {
        let body: Value = bodies[body].parse().unwrap();
        let put = body["operations"][at]["put"].clone();
        (put["key"].as_str().unwrap().to_owned(), put["value"]["json"].clone())
    };
    let chunks: Vec<_> = [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)].map(|(body, at)| value(body, at)).into();
    let (key, pointer) = value(2, 0);
    let prefix = pointer["dalsegno.blob"]["prefix"].as_str().unwrap().replace('/', "%2F");
    let chunks: Vec<_> = chunks.iter().map(|(key, value)| (key.as_str(), value.clone())).collect();
    let gateway = Gateway::new()
        .on("records?space=s&prefix=k&limit=1", [page(&[(&key, pointer)])])
        .on(&format!("records?space=s&prefix={prefix}"), [page(&chunks), page(&chunks[1..])]);
    let run = gateway.attach();
    let space = run.space("s");
    assert!(space.blob("k").unwrap().unwrap() == content);
    assert!(matches!(space.blob("k"), Err(Error::BlobChanged)));
    space.put_blob("k", &content).unwrap();
    assert_eq!(gateway.bodies("records").len(), 0, "the same bytes are there");
}

#[test]
fn a_key_without_a_blob_has_none() {
    let gateway =
        Gateway::new().on("records?space=s&prefix=k&limit=1", [page(&[("k", json!({"a": 1}))]), page(&[])]);
    let run = gateway.attach();
    assert_eq!([(); 2].map(|()| run.space("s").blob("k").unwrap()), [None, None]);
}
