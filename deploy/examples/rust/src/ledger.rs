//! The ledger: the external system of the example agents. Its entries show whether an effect was lost or happened
//! twice.
//!
//! An entry is created under an idempotency key. A second request with the same key creates no entry: it returns the
//! stored entry and increments its `deliveries`, so repeats are counted and have no effect.
//!
//! | call | answer |
//! |---|---|
//! | `POST /entries {key, run, turn, attempt, note}` | 201 and the new entry; 200 and the stored entry; 409 if the key belongs to another effect |
//! | `GET /entries?run=` | the entries of a run, or of all runs, in order |
//! | `GET /summary?run=` | `{entries, deliveries, byTurn: {turn: {entries, deliveries}}}` |
//! | `POST /notes {run, attempt, note}`, `GET /notes?run=` | notes, in order |
//! | `GET /healthz` | 200 |
//!
//! *Caveat.* It keeps everything in memory. When its pod ends, the entries are lost.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::Context;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde::{Deserialize, Serialize};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

/// An effect that an agent requests.
#[derive(Clone, Serialize, Deserialize)]
struct Effect {
    key: String,
    run: String,
    turn: i32,
    attempt: i32,
    note: String,
}

/// An effect that took place.
#[derive(Clone, Serialize)]
struct Entry {
    #[serde(flatten)]
    effect: Effect,
    /// How often it was requested.
    deliveries: u32,
    /// The attempts that requested it.
    attempts: BTreeSet<i32>,
}

/// A note of an agent.
#[derive(Clone, Serialize, Deserialize)]
struct Note {
    run: String,
    attempt: i32,
    note: String,
}

#[derive(Default)]
struct Records {
    entries: Vec<Entry>,
    /// The index of a key's entry.
    by_key: HashMap<String, usize>,
    notes: Vec<Note>,
}

/// The records, shared by all requests.
#[derive(Clone, Default)]
struct Ledger(Arc<Mutex<Records>>);

impl Ledger {
    fn records(&self) -> MutexGuard<'_, Records> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The run of a query, or all runs.
#[derive(Deserialize)]
struct RunFilter {
    run: Option<String>,
}

impl RunFilter {
    fn matches(&self, run: &str) -> bool {
        self.run.as_deref().is_none_or(|wanted| wanted == run)
    }
}

#[derive(Default, Serialize)]
struct Totals {
    entries: u32,
    deliveries: u32,
}

impl Totals {
    fn add(&mut self, entry: &Entry) {
        self.entries += 1;
        self.deliveries += entry.deliveries;
    }
}

#[derive(Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct Summary {
    #[serde(flatten)]
    all: Totals,
    by_turn: BTreeMap<i32, Totals>,
}

async fn create_entry(State(ledger): State<Ledger>, Json(effect): Json<Effect>) -> Response {
    let mut records = ledger.records();
    if let Some(&at) = records.by_key.get(&effect.key) {
        let entry = &mut records.entries[at];
        entry.deliveries += 1;
        entry.attempts.insert(effect.attempt);
        let same = (&entry.effect.run, entry.effect.turn, &entry.effect.note)
            == (&effect.run, effect.turn, &effect.note);
        let status = if same { StatusCode::OK } else { StatusCode::CONFLICT };
        return (status, Json(entry.clone())).into_response();
    }
    let entry = Entry { deliveries: 1, attempts: BTreeSet::from([effect.attempt]), effect };
    let at = records.entries.len();
    records.by_key.insert(entry.effect.key.clone(), at);
    records.entries.push(entry.clone());
    (StatusCode::CREATED, Json(entry)).into_response()
}

async fn list_entries(State(ledger): State<Ledger>, Query(filter): Query<RunFilter>) -> Json<Vec<Entry>> {
    let records = ledger.records();
    Json(records.entries.iter().filter(|entry| filter.matches(&entry.effect.run)).cloned().collect())
}

async fn summary(State(ledger): State<Ledger>, Query(filter): Query<RunFilter>) -> Json<Summary> {
    let mut summary = Summary::default();
    for entry in ledger.records().entries.iter().filter(|entry| filter.matches(&entry.effect.run)) {
        summary.all.add(entry);
        summary.by_turn.entry(entry.effect.turn).or_default().add(entry);
    }
    Json(summary)
}

async fn create_note(State(ledger): State<Ledger>, Json(note): Json<Note>) -> StatusCode {
    ledger.records().notes.push(note);
    StatusCode::CREATED
}

async fn list_notes(State(ledger): State<Ledger>, Query(filter): Query<RunFilter>) -> Json<Vec<Note>> {
    let records = ledger.records();
    Json(records.notes.iter().filter(|note| filter.matches(&note.run)).cloned().collect())
}

fn router() -> Router {
    Router::new()
        .route("/entries", post(create_entry).get(list_entries))
        .route("/summary", get(summary))
        .route("/notes", post(create_note).get(list_notes))
        .route("/healthz", get(async || StatusCode::OK))
        .with_state(Ledger::default())
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "0.0.0.0:8090".to_owned());
    let listener = TcpListener::bind(&address).await.with_context(|| format!("listening on {address}"))?;
    let mut stop = signal(SignalKind::terminate()).context("listening for SIGTERM")?;
    println!("ledger listens on {}", listener.local_addr()?);
    tokio::select! {
        served = axum::serve(listener, router()) => served.context("serving"),
        _ = stop.recv() => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    async fn start() -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async { axum::serve(listener, router()).await });
        url
    }

    fn send(url: &str, body: &Value) -> (u16, Value) {
        let agent: ureq::Agent = ureq::Agent::config_builder().http_status_as_error(false).build().into();
        let mut answer = agent.post(url).send_json(body).unwrap();
        (answer.status().as_u16(), answer.body_mut().read_json().unwrap_or_default())
    }

    fn read(url: &str) -> Value {
        ureq::get(url).call().unwrap().body_mut().read_json().unwrap()
    }

    fn effect(key: &str, turn: i32, attempt: i32) -> Value {
        json!({"key": key, "run": "demo/a", "turn": turn, "attempt": attempt, "note": "n"})
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_key_takes_effect_once_and_its_deliveries_are_counted() {
        let url = start().await;
        let entries = format!("{url}/entries");
        assert_eq!(send(&entries, &effect("k1", 1, 1)).0, 201);
        let (status, again) = send(&entries, &effect("k1", 1, 2));
        assert_eq!((status, &again["attempt"], &again["deliveries"]), (200, &json!(1), &json!(2)));
        assert_eq!(again["attempts"], json!([1, 2]));
        assert_eq!(send(&entries, &effect("k2", 2, 2)).0, 201);

        let all = read(&format!("{entries}?run=demo/a"));
        assert_eq!(all.as_array().unwrap().len(), 2);
        assert_eq!(read(&format!("{entries}?run=demo/b")), json!([]));
        let by_turn = json!({"1": {"entries": 1, "deliveries": 2}, "2": {"entries": 1, "deliveries": 1}});
        let expected = json!({"entries": 2, "deliveries": 3, "byTurn": by_turn});
        assert_eq!(read(&format!("{url}/summary?run=demo/a")), expected);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_key_that_comes_for_another_effect_is_a_conflict() {
        let entries = format!("{}/entries", start().await);
        send(&entries, &effect("k1", 1, 1));
        assert_eq!(send(&entries, &effect("k1", 2, 1)).0, 409);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn notes_are_kept_by_run() {
        let notes = format!("{}/notes", start().await);
        let fenced = json!({"run": "demo/a", "attempt": 1, "note": "fenced"});
        assert_eq!(send(&notes, &fenced).0, 201);
        assert_eq!(read(&format!("{notes}?run=demo/a")), json!([fenced]));
        assert_eq!(read(&format!("{notes}?run=demo/b")), json!([]));
    }
}
