//! What was done to a run, by whom and why: `audit show`, and `show --calls`.

use dalsegno_model::audit::RequestedBy;
use dalsegno_model::{Cause, Claim, Claimed, Class, Committed, Ending, NextStep};
use dalsegno_protocol::Policy;
use uuid::Uuid;

use crate::test_context::{RUN, TestContext, create_run, turn};

#[tokio::test]
async fn who_cancelled_and_who_settled_is_shown_with_the_reasons() {
    let context = TestContext::new();
    let store = context.store().await;
    let run = create_run(&*store, false).await;
    let claim = Claim {
        approval: None,
        run,
        capability: [1; 32],
        id: "pay-1".into(),
        claim_id: Uuid::new_v4(),
        policy: Policy::Ask,
        key: Some("key-1".into()),
        arguments: None,
        tool: None,
    };
    assert!(matches!(store.claim(&claim).await.unwrap(), Claimed::Go(_)));
    let ending = Ending {
        attempt: 1,
        cause: Cause::ExitedWithError,
        class: Class::Crash,
        exit_code: Some(1),
        message: "a first line\nand a second".into(),
        ran: None,
    };
    store.end_attempt(run, &ending, &NextStep::Reserve).await.unwrap();
    let settle =
        ["settle", RUN, "pay-1", "--outcome", "failed", "--reason", "the bank has no payment", "--by", "ada"];
    let (success, text) = context.run(&settle, true);
    assert!(success, "{text}");
    let bob =
        RequestedBy { manager: Some("kubectl-bob".into()), reason: Some("too expensive".into()), user: None };
    store.request_cancel(run, &bob).await.unwrap();

    let (success, text) = context.run(&["show", RUN, "--calls"], true);
    let line = text.lines().find(|line| line.contains(" settled 20")).unwrap_or_default();
    assert!(success && line.ends_with("UTC by ada: failed: the bank has no payment"), "{text}");

    let (success, text) = context.run(&["audit", "show", RUN], true);
    assert!(success, "{text}");
    let line = |kind: &str| {
        text.lines().find(|line| line.split_whitespace().nth(3) == Some(kind)).unwrap_or_default().to_owned()
    };
    for (kind, actor, why) in [
        ("created", "operator", ""),
        ("ended", "operator", "ExitedWithError"),
        ("settled", "ada", "call pay-1: failed: the bank has no payment"),
        ("cancel-requested", "operator for kubectl-bob", "too expensive"),
    ] {
        assert!(line(kind).contains(actor) && line(kind).ends_with(why), "{kind}: {text}");
    }

    let (success, text) = context.run(&["audit", "show", RUN, "--output", "json"], true);
    assert!(success, "{text}");
    let rows: Vec<serde_json::Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let cancel = rows.iter().find(|row| row["kind"] == "cancel-requested").unwrap();
    assert_eq!(cancel["detail"]["reason"], "too expensive");
    assert_eq!(rows[0]["seq"], 1);
    // The store is encrypted, so the worker's last words are in no row of the audit.
    let ended = rows.iter().find(|row| row["kind"] == "ended").unwrap();
    assert!(ended["detail"]["messageDigest"].is_string() && !text.contains("a first line"), "{text}");
}

#[tokio::test]
async fn show_prints_as_many_turns_as_it_is_told_to() {
    let context = TestContext::new();
    let store = context.store().await;
    let run = create_run(&*store, false).await;
    for number in 2..=25 {
        let commit = turn(run, number, r#"{"set":{"state":{"json":"a state"}}}"#);
        assert!(matches!(store.commit(&commit).await.unwrap(), Committed::Ok(_)));
    }
    for (args, turns) in [(&[][..], 20), (&["--turns", "3"], 3), (&["--turns", "0"], 0), (&["--all"], 25)] {
        let (success, text) = context.run(&[&["show", RUN], args].concat(), true);
        assert!(success, "{text}");
        assert_eq!(text.lines().filter(|line| line.starts_with("turn ")).count(), turns, "{args:?}: {text}");
    }
}
