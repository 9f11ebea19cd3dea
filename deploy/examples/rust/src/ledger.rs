//! The ledger: the outside world of the example agents, where anybody can count that nothing was lost or done twice.
//!
//! An entry is made under an idempotency key. A key that comes again makes no second entry: the stored one is returned
//! and its `deliveries` go up, so repeats are seen, and have no effect.
//!
//! | call | answer |
//! |---|---|
//! | `POST /entries {key, run, turn, attempt, note}` | 201 the new entry; 200 the one that is there; 409 where the key is that of another effect |
//! | `GET /entries?run=` | the entries of a run (of all, without `run`) in order |
//! | `GET /summary?run=` | `{entries, deliveries, byTurn: {turn: {entries, deliveries}}}` |
//! | `POST /notes {run, attempt, note}`, `GET /notes?run=` | remarks, as they come |
//! | `GET /healthz` | 200 |
//!
//! *Caveat.* It keeps everything in memory: it remembers for as long as its own pod lives.

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

/// An effect as an agent asks for it.
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
    /// How often it was asked for.
    deliveries: u32,
    /// The attempts that asked for it.
    attempts: BTreeSet<i32>,
}

/// A remark of an agent.
#[derive(Clone, Serialize, Deserialize)]
struct Note {
    run: String,
    attempt: i32,
    note: String,
}

#[derive(Default)]
struct Book {
    entries: Vec<Entry>,
    /// Where the entry of a key stands.
    by_key: HashMap<String, usize>,
    notes: Vec<Note>,
}

/// The book, shared by all requests.
#[derive(Clone, Default)]
struct Ledger(Arc<Mutex<Book>>);

impl Ledger {
    fn book(&self) -> MutexGuard<'_, Book> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Which run; without it, all.
#[derive(Deserialize)]
struct Which {
    run: Option<String>,
}

impl Which {
    fn is(&self, run: &str) -> bool {
        self.run.as_deref().is_none_or(|which| which == run)
    }
}

#[derive(Default, Serialize)]
struct Sum {
    entries: u32,
    deliveries: u32,
}

impl Sum {
    fn add(&mut self, entry: &Entry) {
        self.entries += 1;
        self.deliveries += entry.deliveries;
    }
}

#[derive(Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct Summary {
    #[serde(flatten)]
    all: Sum,
    by_turn: BTreeMap<i32, Sum>,
}

async fn enter(State(ledger): State<Ledger>, Json(effect): Json<Effect>) -> Response {
    let mut book = ledger.book();
    if let Some(&at) = book.by_key.get(&effect.key) {
        let entry = &mut book.entries[at];
        entry.deliveries += 1;
        entry.attempts.insert(effect.attempt);
        let same = (&entry.effect.run, entry.effect.turn, &entry.effect.note)
            == (&effect.run, effect.turn, &effect.note);
        let status = if same { StatusCode::OK } else { StatusCode::CONFLICT };
        return (status, Json(entry.clone())).into_response();
    }
    let entry = Entry { deliveries: 1, attempts: BTreeSet::from([effect.attempt]), effect };
    let at = book.entries.len();
    book.by_key.insert(entry.effect.key.clone(), at);
    book.entries.push(entry.clone());
    (StatusCode::CREATED, Json(entry)).into_response()
}

async fn entries(State(ledger): State<Ledger>, Query(which): Query<Which>) -> Json<Vec<Entry>> {
    let book = ledger.book();
    Json(book.entries.iter().filter(|entry| which.is(&entry.effect.run)).cloned().collect())
}

async fn summary(State(ledger): State<Ledger>, Query(which): Query<Which>) -> Json<Summary> {
    let mut summary = Summary::default();
    for entry in ledger.book().entries.iter().filter(|entry| which.is(&entry.effect.run)) {
        summary.all.add(entry);
        summary.by_turn.entry(entry.effect.turn).or_default().add(entry);
    }
    Json(summary)
}

async fn note(State(ledger): State<Ledger>, Json(note): Json<Note>) -> StatusCode {
    ledger.book().notes.push(note);
    StatusCode::CREATED
}

async fn notes(State(ledger): State<Ledger>, Query(which): Query<Which>) -> Json<Vec<Note>> {
    let book = ledger.book();
    Json(book.notes.iter().filter(|note| which.is(&note.run)).cloned().collect())
}

fn router() -> Router {
    Router::new()
        .route("/entries", post(enter).get(entries))
        .route("/summary", get(summary))
        .route("/notes", post(note).get(notes))
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
