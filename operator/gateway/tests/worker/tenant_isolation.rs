//! Two tenants on one gateway: neither can read or change the other's runs, whatever it sends.

mod random;

use std::time::Duration;

use dalsegno_gateway::Config;
use dalsegno_model::{CallFilter, Operator as _, Read as _, RecordQuery, RequestedBy};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::context::*;

/// A word in everything that the bank's workers have committed.
const SECRET: &str = "canary-of-the-bank";

/// Instance of the workers of the bank's runs.
const BANK_WORKER: &str = "CCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCC";

/// Instance of the workers of the shop's runs. The shop is the attacker.
const ATTACKER: &str = "DDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDD";

/// The stage of a run in which its worker may send a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Working,
    /// In its second attempt, with an unsettled call of the first.
    Unsettled,
    /// Its call `pay` is complete.
    Suspended,
    Cancelled,
}

const STAGES: [Stage; 4] = [Stage::Working, Stage::Unsettled, Stage::Suspended, Stage::Cancelled];

/// What a run is made of.
struct Run<'a> {
    namespace: &'a str,
    name: &'a str,
    stage: Stage,
    /// Instance of its worker.
    instance: &'a str,
    /// In its turn, its event, its record and its claimed call `pay`.
    word: &'a str,
}

/// Creates a run with one turn, one event, one record and one call, behind the same gateway.
async fn create_run(shared: &TestContext, run: Run<'_>) -> TestContext {
    let Run { namespace, name, stage, instance, word } = run;
    let run = create_in(&*shared.store, namespace, name).await;
    let ctx = TestContext { store: shared.store.clone(), gateway: shared.gateway.clone(), run };
    let attach = async |attempt: i32, instance: &str| {
        ctx.record_pod(attempt, &pod(name, attempt), Some(accepted())).await;
        let token = format!("token-of-{}-in-{namespace}", pod(name, attempt));
        ctx.post_as(&token, "attach", json!({ "instance": instance }).to_string()).await.ok();
    };
    let first = if stage == Stage::Unsettled { SECOND } else { instance };
    attach(1, first).await;
    let put = json!({ "put": { "space": "s", "key": word, "value": { "json": word } } });
    for (path, body) in [
        ("turns/1", json!({ "commitId": id(0, 0), "state": word, "events": [word], "records": [put] })),
        (
            "calls/pay/claim",
            json!({ "claimId": id(0, 1), "policy": "probe", "key": word, "arguments": word }),
        ),
    ] {
        ctx.post_as(first, path, body.to_string()).await.ok();
    }
    match stage {
        Stage::Working => {}
        Stage::Unsettled => {
            ctx.reserve_next(1).await;
            attach(2, instance).await;
        }
        Stage::Suspended => {
            let complete = json!({ "claimId": id(0, 1), "outcome": "completed" }).to_string();
            ctx.post_as(first, "calls/pay/complete", complete).await.ok();
            ctx.store.suspend(run, &RequestedBy::default()).await.unwrap();
        }
        Stage::Cancelled => {
            ctx.store.request_cancel(run, &RequestedBy::default()).await.unwrap();
        }
    }
    ctx
}

fn bank_run(name: &str, stage: Stage) -> Run<'_> {
    Run { namespace: "bank", name, stage, instance: BANK_WORKER, word: SECRET }
}

fn shop_run(name: &str, stage: Stage) -> Run<'_> {
    Run { namespace: "shop", name, stage, instance: ATTACKER, word: "ours" }
}

fn pod(name: &str, attempt: i32) -> String {
    format!("pod-of-{name}-{attempt}")
}

fn id(round: u128, number: u128) -> Uuid {
    Uuid::from_u128(round << 64 | number)
}

/// A call that the run's worker may send.
#[derive(Clone)]
struct Call {
    stage: Stage,
    method: &'static str,
    path: &'static str,
    body: String,
}

/// All calls of the contract, in an order in which a worker may send them, with ids that no other round uses.
fn calls(round: u128) -> Vec<Call> {
    use Stage::{Cancelled, Suspended, Unsettled, Working};
    let get = |path| (Working, "GET", path, Value::Null);
    let post = |stage, path, body| (stage, "POST", path, body);
    let delete = json!({ "delete": { "space": "s", "key": "k" } });
    let all = [
        post(Working, "attach", json!({ "instance": ATTACKER })),
        get("state"),
        get("state?turn=1"),
        get("checkpoint"),
        get("events?from=1"),
        get("memory-delta"),
        get("records?space=s"),
        get("records?space=s&keysOnly=true"),
        post(Working, "records/read", json!({ "space": "s", "keys": ["k", "canary-of-the-bank"] })),
        get("export"),
        post(Working, "heartbeat", Value::Null),
        post(
            Working,
            "calls/new/claim",
            json!({ "claimId": id(round, 1), "policy": "readOnly", "key": "k" }),
        ),
        post(Working, "calls/pay/complete", json!({ "claimId": id(0, 1), "outcome": "completed" })),
        post(Unsettled, "calls/pay/settle", json!({ "outcome": "completed", "reason": "mine" })),
        post(Working, "records", json!({ "batchId": id(round, 2), "operations": [delete] })),
        post(Working, "turns/2/plan", json!({ "commitId": id(round, 3), "state": 2 })),
        post(Working, "turns/2", json!({ "commitId": id(round, 4), "state": 2 })),
        post(Working, "finish", json!({ "commitId": id(round, 5), "finish": { "outcome": "failed" } })),
        post(Suspended, "park", json!({ "parkId": id(round, 6) })),
        post(Cancelled, "cancelled", Value::Null),
    ];
    let text = |body: Value| if body.is_null() { String::new() } else { body.to_string() };
    all.into_iter()
        .map(|(stage, method, path, body)| Call { stage, method, path, body: text(body) })
        .collect()
}

/// How a call is sent: the bearer, the base path, and a header that names another run.
struct Target<'a> {
    bearer: &'a str,
    path: String,
    header: (&'static str, String),
}

async fn send(ctx: &TestContext, call: &Call, method: &str, target: Target<'_>) -> Answer {
    let request = axum::http::Request::builder()
        .method(method)
        .uri(format!("{}/{}", target.path, call.path))
        .header("authorization", format!("Bearer {}", target.bearer))
        .header(target.header.0, target.header.1);
    ctx.send(request, call.body.clone()).await
}

/// Everything that the store holds of a run.
async fn stored_data(ctx: &TestContext) -> String {
    let (store, run) = (&ctx.store, ctx.run);
    let query = RecordQuery { space: "s".into(), limit: 9, bytes: 1 << 20, ..RecordQuery::default() };
    format!(
        "{} {:?} {:?} {:?} {:?}",
        ctx.stored_run().await,
        store.boundaries(run, 1, 9).await.unwrap(),
        store.calls(run, CallFilter::All).await.unwrap(),
        store.read_records(run, &query).await.unwrap(),
        store.audit(run).await.unwrap(),
    )
}

struct Bank {
    runs: Vec<TestContext>,
    before: Vec<String>,
}

impl Bank {
    async fn create(ctx: &TestContext) -> Self {
        let (mut runs, mut before) = (Vec::new(), Vec::new());
        for stage in STAGES {
            let run = create_run(ctx, bank_run(&format!("{stage:?}"), stage)).await;
            before.push(stored_data(&run).await);
            runs.push(run);
        }
        assert!(before.iter().all(|stored| stored.matches(SECRET).count() > 3), "{before:?}");
        Self { runs, before }
    }

    /// The bank's run that a call is sent to.
    fn run_for(&self, call: &Call) -> &TestContext {
        &self.runs[call.stage as usize]
    }

    async fn assert_unchanged(&self) {
        for (run, before) in self.runs.iter().zip(&self.before) {
            assert_eq!(stored_data(run).await, *before, "the bank's data has changed");
        }
    }
}

#[track_caller]
fn assert_refused(answer: &Answer, status: u16, code: &str, request: &str) {
    assert_eq!((answer.status, answer.code().as_str()), (status, code), "{request}: {answer:?}");
    assert!(!answer.text.contains(SECRET), "{request}: {answer:?}");
    assert!(!format!("{:?}", answer.headers).contains(SECRET), "{request}: {answer:?}");
}

fn target_path(ctx: &TestContext) -> String {
    format!("/v1/runs/{}", ctx.run)
}

/// Sends every call of the contract twenty times, to another tenant's run and to an own run in the same stage. The own
/// run accepts it, so the tenant alone makes the difference.
#[tokio::test]
async fn every_call_accepted_for_an_own_run_is_refused_for_another_tenants() {
    let ctx = TestContext::new().await;
    let bank = Bank::create(&ctx).await;
    for round in 1..=20 {
        let mut own = Vec::new();
        for stage in STAGES {
            own.push(create_run(&ctx, shop_run(&format!("{stage:?}-{round}"), stage)).await);
        }
        for call in calls(round) {
            let theirs = bank.run_for(&call);
            let request = format!("round {round}, {} {}", call.method, call.path);
            let own_pod = format!("token-of-{}-in-shop", pod(&format!("Working-{round}"), 1));
            let bearer = if call.path == "attach" { own_pod.as_str() } else { ATTACKER };
            let header = ("x-run-id", theirs.run.to_string());

            let target = Target { bearer, path: target_path(theirs), header: header.clone() };
            let answer = send(&ctx, &call, call.method, target).await;
            match call.path {
                "attach" => assert_refused(&answer, 403, "FORBIDDEN", &request),
                _ => assert_refused(&answer, 409, "FENCED", &request),
            }
            if call.path.starts_with("turns/") {
                assert_eq!(answer.json()["committed"], false, "{request}");
            }
            let target = Target { bearer, path: target_path(&own[call.stage as usize]), header };
            let accepted = send(&ctx, &call, call.method, target).await;
            assert_eq!(accepted.status, 200, "{request}: {accepted:?}");
            assert!(!accepted.text.contains(SECRET), "{request}: {accepted:?}");
        }
    }
    bank.assert_unchanged().await;
}

#[tokio::test]
async fn a_recorded_pod_of_another_tenant_cannot_attach() {
    let ctx = TestContext::new().await;
    let bank = create_run(&ctx, bank_run("nightly", Stage::Unsettled)).await;
    bank.reserve_next(2).await;
    bank.record_pod(3, "pod-of-ours", Some(accepted())).await;
    let before = stored_data(&bank).await;
    for call in calls(1) {
        let attach = call.path == "attach";
        let bearer = if attach { "token-of-pod-of-ours-in-shop" } else { ATTACKER };
        let target = Target { bearer, path: target_path(&bank), header: ("x-run-id", String::new()) };
        let answer = send(&ctx, &call, call.method, target).await;
        let (status, code) = if attach { (403, "FORBIDDEN") } else { (409, "FENCED") };
        assert_refused(&answer, status, code, &format!("{} {}", call.method, call.path));
    }
    assert_eq!(stored_data(&bank).await, before);
}

#[tokio::test]
async fn no_manipulated_request_reads_or_changes_another_tenants_run() {
    let ctx = TestContext::new().await;
    let bank = Bank::create(&ctx).await;
    let ours = create_run(&ctx, shop_run("ours", Stage::Working)).await;
    let mut requests = 0;
    for call in calls(1) {
        let theirs = bank.run_for(&call).run.to_string();
        let exact = format!("/v1/runs/{theirs}");
        let attach = call.path == "attach";
        let fenced = if attach { (401, "UNAUTHENTICATED") } else { (409, "FENCED") };
        let (spent, unknown) = ((401, "UNAUTHENTICATED"), (404, "NOT_FOUND"));
        let mut all = Vec::new();
        for (bearer, is) in [
            (ATTACKER, fenced),
            (SECOND, fenced),
            ("token-of-pod-of-ours-1-in-shop", if attach { (403, "FORBIDDEN") } else { spent }),
            // A pod of the bank that is not this run's.
            ("token-of-pod-of-ours-1-in-bank", if attach { (409, "FENCED") } else { spent }),
            ("ada", spent),
            (SECRET, spent),
            (theirs.as_str(), spent),
            ("", spent),
        ] {
            all.push((call.method, bearer, exact.clone(), ("x-run-id", String::new()), is));
        }
        for (spelling, is) in [
            (theirs.to_uppercase(), fenced),
            (theirs.replace('-', ""), fenced),
            (format!("urn:uuid:{theirs}"), fenced),
            (format!("%7B{theirs}%7D"), fenced),
            (format!("{}/../{theirs}", ours.run), unknown),
            (format!("./{theirs}"), unknown),
            (format!("{}%2f..%2f{theirs}", ours.run), unknown),
            (format!("{theirs}%00"), unknown),
        ] {
            all.push((
                call.method,
                ATTACKER,
                format!("/v1/runs/{spelling}"),
                ("x-run-id", String::new()),
                is,
            ));
        }
        for header in ["x-original-url", "x-forwarded-host", "host", "x-http-method-override", "cookie"] {
            all.push((call.method, ATTACKER, exact.clone(), (header, ours.run.to_string()), fenced));
        }
        let swapped = if call.method == "GET" { "POST" } else { "GET" };
        // Records are read and written under one path.
        let swapped = (!call.path.starts_with("records")).then_some(swapped);
        for method in ["PUT", "DELETE", "PATCH"].into_iter().chain(swapped) {
            all.push((method, ATTACKER, exact.clone(), ("x-run-id", String::new()), unknown));
        }
        for (method, bearer, path, header, (status, code)) in all {
            let request = format!("{method} {path}/{} as {bearer:?}, {header:?}", call.path);
            let answer = send(&ctx, &call, method, Target { bearer, path, header }).await;
            assert_refused(&answer, status, code, &request);
            requests += 1;
        }
    }
    assert!(requests > 400, "{requests}");
    bank.assert_unchanged().await;
}

#[tokio::test]
async fn a_user_of_one_namespace_cannot_read_another_by_any_spelling() {
    let ctx = TestContext::new().await;
    let bank = Bank::create(&ctx).await;
    create_run(&ctx, shop_run("working", Stage::Working)).await;
    for call in calls(1).iter().filter(|call| call.method == "GET") {
        let at = |namespace: &str| format!("/v1/namespaces/{namespace}/agentruns/working");
        let header = || ("x-run-id", bank.run_for(call).run.to_string());
        for (namespace, bearer, status, code) in [
            ("bank", "ada", 403, "FORBIDDEN"),
            ("%62ank", "ada", 403, "FORBIDDEN"),
            ("BANK", "ada", 404, "NOT_FOUND"),
            ("*", "ada", 404, "NOT_FOUND"),
            ("bank%00", "ada", 404, "NOT_FOUND"),
            ("shop%2f..%2fbank", "ada", 404, "NOT_FOUND"),
            ("shop/../bank", "ada", 404, "NOT_FOUND"),
            ("bank", ATTACKER, 401, "UNAUTHENTICATED"),
            ("bank", BANK_WORKER, 401, "UNAUTHENTICATED"),
            ("bank", "", 401, "UNAUTHENTICATED"),
        ] {
            let target = Target { bearer, path: at(namespace), header: header() };
            let answer = send(&ctx, call, "GET", target).await;
            assert_refused(&answer, status, code, &format!("{namespace}/{} as {bearer:?}", call.path));
        }
        let target = Target { bearer: "ada", path: at("shop"), header: header() };
        let answer = send(&ctx, call, "GET", target).await;
        assert!(answer.status == 200 && !answer.text.contains(SECRET), "{}: {answer:?}", call.path);
    }
    bank.assert_unchanged().await;
}
