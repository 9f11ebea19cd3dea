//! A receiver of notifications that is down for a while.

use std::collections::BTreeSet;

use dalsegno_crds::{ConditionType, Summary};
use dalsegno_e2e::approval::manifest;
use dalsegno_e2e::install::Version;
use dalsegno_e2e::postgres::{self, Postgres, put_secret};
use dalsegno_e2e::receiver::{Message, Receiver};
use dalsegno_e2e::wait::{eventually, secs};
use dalsegno_e2e::{Agent, Result, StatusExt, TestContext, objects, process};
use serde_json::json;

/// The Secret that signs, in the release's namespace.
const SECRET: &str = "e2e-notifications";

/// What agents say in these runs. No notification repeats it.
const WORDS: [&str; 4] = ["Quince", "Medlar", "Sloe", "Damson"];

#[tokio::test(flavor = "multi_thread")]
async fn a_receiver_that_was_down_gets_each_notification_with_its_signature_and_without_a_word_of_the_agent()
-> Result {
    let ctx = TestContext::new("notified").await?;
    let receiver = Receiver::new(&ctx);
    let key = process::run("openssl", ["rand", "-base64", "32"]).await?;
    let secret = format!("whsec_{}", key.trim());
    put_secret(&ctx.client, SECRET, json!({ "secret": secret })).await?;
    let mut values = postgres::values(1);
    let url = format!("https://{}/hook?from=e2e", receiver.host());
    objects::merge(
        &mut values,
        &json!({ "notifications": { "url": url, "existingSecret": { "name": SECRET } } }),
    );
    // The release moves to another store, which does not know this run.
    ctx.create_run(manifest(&ctx, "moved", json!({}))).await?;
    ctx.run("moved").wait_until("to be in the store", secs(60), |status| status.store_id.is_some()).await?;
    let postgres = Postgres::install_version(&ctx.client, &Version::current(), &values).await?;

    let facts = cause_facts(&ctx).await?;
    // There is no such host yet. Each notification is tried, and stays in the outbox.
    let failed = |kind: &str| {
        format!("dalsegno_operator_notifications_total{{kind=\"{kind}\",outcome=\"failed\"}} 0\n")
    };
    eventually("each kind to be tried in vain", secs(30), async || {
        let metrics = ctx.operator.metrics().await?;
        let is_tried = |(kind, _): &(String, String)| !metrics.contains(&failed(kind));
        Ok(facts.iter().all(is_tried).then_some(()))
    })
    .await?;
    receiver.start(postgres.certificate_for(&receiver.host()).await?, &secret).await?;
    let messages = eventually("each notification", secs(120), async || {
        let messages = receiver.messages().await?;
        Ok((subjects(&messages)? == facts).then_some(messages))
    })
    .await?;
    let ids: BTreeSet<_> = messages.iter().map(|it| &it.headers["webhook-id"]).collect();
    assert_eq!(ids.len(), facts.len(), "one id for each fact: {messages:#?}");
    for message in &messages {
        expect_genuine(&ctx, message).await?;
    }

    // Down again, while a run is held.
    receiver.scale(0).await?;
    let crash =
        Agent::new(json!({ "turns": 2, "script": [{ "turn": 1, "at": "start", "do": "fatal:Sloe" }] }));
    ctx.start("later", &crash).await?.wait_for(Summary::Held, secs(60)).await?;
    receiver.scale(1).await?;
    let later = BTreeSet::from([("RunHeld".to_owned(), format!("{}/later", ctx.namespace))]);
    eventually("what happened meanwhile", secs(60), async || {
        Ok((subjects(&receiver.messages().await?)? == later).then_some(()))
    })
    .await?;
    assert!(!ctx.operator.log_tail(2000).await?.contains(key.trim()), "the log shows the secret");

    for run in ["asking", "limited", "failed", "moved", "later"] {
        ctx.run(run).delete(secs(60)).await?;
    }
    ctx.end().await?;
    postgres.remove().await
}

/// Makes runs of which people are notified. Returns the kind and the subject of each notification.
async fn cause_facts(ctx: &TestContext) -> Result<BTreeSet<(String, String)>> {
    let [title, summary, why, proposal] = WORDS;
    ctx.create_run(manifest(ctx, "asking", json!({}))).await?;
    let approval = json!({ "kind": "approval", "title": title, "summary": summary, "deadlineSeconds": 600,
                           "proposal": { "buy": proposal } });
    ctx.ask(ctx.run("asking"), "buy", approval).await?;
    let limited =
        Agent::new(json!({ "turns": 9, "turnSeconds": 0.1 })).spec(json!({ "limits": { "turns": 5 } }));
    let limited = ctx.start("limited", &limited).await?;
    let crash = format!("selfReport:crash:{why}");
    let failed = Agent::new(json!({ "turns": 9, "script": [{ "turn": 2, "at": "start", "do": crash }] }))
        .spec(json!({ "recovery": { "maxRecoveryAttempts": 0, "onExhausted": "Fail" } }));
    let failed = ctx.start("failed", &failed).await?;
    limited.wait_for(Summary::Held, secs(60)).await?;
    let status = failed.wait_for(Summary::Failed, secs(60)).await?;
    let result = format!("{:?}", status.result);
    assert!(result.contains(why), "the word is in the run's own result: {result}");
    let fact = |kind: &str, run: &str| (kind.to_owned(), format!("{}/{run}", ctx.namespace));
    Ok(BTreeSet::from([
        fact("ApprovalRequested", "asking"),
        fact("LimitNear", "limited"),
        fact("RunHeld", "limited"),
        fact("RunHeld", "moved"),
        fact("RunFailed", "failed"),
    ]))
}

/// The kind and the subject of each message.
fn subjects(messages: &[Message]) -> Result<BTreeSet<(String, String)>> {
    let text = |it: &serde_json::Value| it.as_str().unwrap_or_default().to_owned();
    let subject = |message: &Message| {
        let event = message.event()?;
        Ok((text(&event["data"]["kind"]), text(&event["subject"])))
    };
    messages.iter().map(subject).collect()
}

/// Checks the signature, the fields of the kind, the command, and that no word of an agent is there.
async fn expect_genuine(ctx: &TestContext, message: &Message) -> Result {
    assert!(message.genuine && !message.changed_is_genuine, "{message:#?}");
    assert_eq!(message.path, "/hook?from=e2e");
    let kind = message.headers.get("content-type").map(String::as_str);
    assert_eq!(kind, Some("application/cloudevents+json; charset=utf-8"));
    let shown = format!("{message:?}");
    assert!(WORDS.iter().all(|word| !shown.contains(word)), "a word of the agent: {shown}");
    let event = message.event()?;
    assert_eq!(event["id"], message.headers["webhook-id"].as_str());
    let data = &event["data"];
    let printed = process::run("sh", ["-c", data["command"].as_str().unwrap_or_default()]).await?;
    match data["kind"].as_str().unwrap_or_default() {
        "ApprovalRequested" => {
            assert_eq!(data["waitID"], "buy", "{data}");
            assert!(data["deadline"].is_string() && printed.contains("asking"), "{data}: {printed}");
        }
        "LimitNear" => assert!(data["limit"] == "turns" && printed.contains("turns"), "{data}: {printed}"),
        "RunHeld" => {
            let name = data["name"].as_str().unwrap_or_default();
            let status = ctx.run(name).status().await?;
            assert_eq!(printed, status.reason_and_message(ConditionType::Held).1);
            assert_eq!(data["runID"].is_string(), name == "limited", "{data}");
        }
        "RunFailed" => assert!(printed.contains("failed") || printed.contains("Failed"), "{printed}"),
        other => anyhow::bail!("a notification of kind {other:?}: {data}"),
    }
    Ok(())
}
