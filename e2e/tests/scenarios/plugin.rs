//! `kubectl dalsegno`, tried as a new user would, in 80 columns.

use dalsegno_crds::{ApprovalConditionType as Condition, ApprovalReason, Reason, Summary};
use dalsegno_e2e::approval::manifest;
use dalsegno_e2e::operator::NAMESPACE;
use dalsegno_e2e::plugin::expect_harmless;
use dalsegno_e2e::process::{self, UndoGuard};
use dalsegno_e2e::wait::{eventually, secs};
use dalsegno_e2e::{Agent, Plugin, Result, StatusExt, TestContext};
use serde_json::{Value, json};

/// The page for people who use the plugin.
const PAGE: &str = include_str!("../../../docs/guides/kubectl.md");

/// Exit codes, as docs/guides/kubectl.md lists them.
mod exit {
    pub const USAGE: i32 = 2;
    pub const NOT_FOUND: i32 = 3;
    pub const FORBIDDEN: i32 = 4;
    pub const NO_DOOR: i32 = 5;
    pub const REFUSED: i32 = 6;
    pub const TIMED_OUT: i32 = 8;
    pub const DIFFERS: i32 = 9;
    pub const NEVER: i32 = 10;
}

/// The rule of the operator's next decision.
async fn explained(plugin: &Plugin, run: &str) -> Result<Value> {
    Ok(serde_json::from_str(&plugin.run(&["explain", run, "-o", "json"]).await?)?)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_user_finds_stops_and_continues_a_run() -> Result {
    let ctx = TestContext::new("plugin").await?;
    let plugin = ctx.plugin().await?;
    let run = ctx.start("nightly", &Agent::new(json!({ "turns": 40, "turnSeconds": 0.5 }))).await?;
    plugin.run(&["wait", "nightly", "--for", "turn=2", "--timeout", "60s"]).await?;

    let list = plugin.run(&["list"]).await?;
    expect_harmless(&list)?;
    assert!(list.contains("nightly") && list.contains("Running"), "{list}");
    assert_eq!(plugin.run(&["list", "-o", "name"]).await?.trim(), "agentrun.dalsegno.dev/nightly");
    let document: Value = serde_json::from_str(&plugin.run(&["list", "-o", "json"]).await?)?;
    assert_eq!(document["items"][0]["metadata"]["name"], "nightly");
    let before = explained(&plugin, "nightly").await?;
    assert_eq!(before["rule"], "Running", "{before}");

    let reason = "the model is too expensive";
    let told = plugin.run(&["suspend", "nightly", "--reason", reason]).await?;
    assert!(told.contains("kubectl dalsegno resume nightly"), "{told}");
    plugin.run(&["wait", "nightly", "--for", "Suspended"]).await?;
    let status = plugin.run(&["status", "nightly"]).await?;
    expect_harmless(&status)?;
    assert!(status.contains("Suspended") && status.contains(reason), "{status}");
    assert!(status.contains("\nCommand    kubectl dalsegno resume nightly"), "{status}");
    assert_eq!(run.status().await?.suspend.and_then(|it| it.reason).as_deref(), Some(reason));
    let stopped = explained(&plugin, "nightly").await?;
    assert_eq!(stopped["rule"], "Suspended", "{stopped}");
    let turn = run.status().await?.turn();
    let state = plugin.run(&["state", "nightly"]).await?;
    assert!(state.contains(&format!("\"turn\":{turn}")), "{state}");

    plugin.run(&["resume", "nightly", "--message", "go on, with less"]).await?;
    plugin.run(&["send", "nightly", "hurry", "--topic", "pace"]).await?;
    let events = plugin.run(&["events", "nightly"]).await?;
    expect_harmless(&events)?;
    let status = run.wait_for_success().await?;
    assert_eq!(status.attempt().resumed_from_turn, Some(turn));
    let attempts = plugin.run(&["attempts", "nightly"]).await?;
    expect_harmless(&attempts)?;
    assert!(attempts.contains("Suspended"), "{attempts}");
    let logs = plugin.run(&["logs", "nightly", "--all-attempts"]).await?;
    assert!(logs.contains("attempt 2, pod nightly-2"), "{logs}");
    let after = explained(&plugin, "nightly").await?;
    assert_eq!(
        (after["rule"].as_str(), after["certain"].as_bool()),
        (Some("RunEnded"), Some(true)),
        "{after}"
    );

    let refused = plugin.fail(exit::REFUSED, &["suspend", "nightly"]).await?;
    assert!(refused.contains("has ended"), "{refused}");
    plugin.fail(exit::NEVER, &["wait", "nightly", "--for", "Held"]).await?;
    let folder = std::env::temp_dir().join(&ctx.namespace);
    std::fs::create_dir_all(&folder)?;
    let bundle = folder.join("bundle.jsonl").display().to_string();
    plugin.run(&["export", "nightly", "-f", &bundle]).await?;
    let verified = plugin.run(&["verify", &bundle]).await?;
    assert!(verified.contains("0 problems"), "{verified}");
    let text = std::fs::read_to_string(&bundle)?;
    std::fs::write(&bundle, &text[..text.len() / 2])?;
    plugin.fail(exit::DIFFERS, &["verify", &bundle]).await?;
    std::fs::remove_dir_all(&folder)?;
    run.expect_nothing_lost_or_repeated(40).await?;
    ctx.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_held_run_comes_first_and_the_command_that_is_shown_lifts_it() -> Result {
    let ctx = TestContext::new("plugin-held").await?;
    let plugin = ctx.plugin().await?;
    ctx.start("aaa", &Agent::new(json!({ "turns": 900, "turnSeconds": 0.5 }))).await?;
    let script = json!([{ "attempt": 1, "turn": 3, "at": "afterClaim", "do": "exit:1" }]);
    let agent = json!({ "turns": 5, "turnSeconds": 0.2, "callPolicy": "ask", "script": script });
    let run = ctx.start("held", &Agent::new(agent)).await?;
    plugin.run(&["wait", "held", "--for", "needs-you"]).await?;
    ctx.run("aaa").wait_for(Summary::Running, secs(60)).await?;

    let list = plugin.run(&["list"]).await?;
    expect_harmless(&list)?;
    let first = list.lines().nth(1).unwrap_or_default();
    assert!(first.starts_with('!') && first.contains("held") && first.contains("EffectUnknown"), "{list}");
    let status = plugin.run(&["status", "held"]).await?;
    expect_harmless(&status)?;
    let command = status.lines().find(|line| line.contains("dalsegno settle")).unwrap_or_default();
    assert!(command.contains("kubectl dalsegno settle held") && command.contains("turn-3"), "{status}");
    let before = explained(&plugin, "held").await?;
    assert_eq!(before["rule"], "Held", "{before}");
    expect_harmless(&plugin.run(&["explain", "held"]).await?)?;

    let wrong = plugin.fail(exit::REFUSED, &["reset", "held"]).await?;
    assert!(wrong.contains("EffectUnknown"), "{wrong}");
    let outcome = ["--outcome", "failed", "--reason", "the ledger does not have it"];
    plugin.fail(exit::NOT_FOUND, &[&["settle", "held", "no-such-call"], &outcome[..]].concat()).await?;
    let settled = plugin.run(&[&["settle", "held", "turn-3"], &outcome[..]].concat()).await?;
    assert!(settled.contains("is settled"), "{settled}");
    plugin.run(&["wait", "held", "--for", "Succeeded"]).await?;
    assert_eq!(run.status().await?.attempt().number, 2);

    let unasked = plugin.fail(exit::USAGE, &["cancel", "aaa"]).await?;
    assert!(unasked.contains("--yes"), "{unasked}");
    plugin.run(&["cancel", "aaa", "--yes", "--reason", "no longer needed"]).await?;
    plugin.run(&["wait", "aaa", "--for", "ended"]).await?;
    assert_eq!(explained(&plugin, "aaa").await?["rule"], "RunEnded");
    ctx.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_person_decides_about_what_is_proposed_and_a_hostile_title_does_no_harm() -> Result {
    let ctx = TestContext::new("plugin-asks").await?;
    let plugin = ctx.plugin().await?;
    let body = |cents: i64| {
        json!({ "kind": "approval", "title": "pay \u{202e}005\u{202c}\u{2066} cents",
                "summary": "all is well\u{1b}]0;owned\u{7}\u{200b}", "proposal": { "cents": cents, "to": "\u{202e}mallory" } })
    };
    ctx.create_run(manifest(&ctx, "purchase", json!({}))).await?;
    let asked = ctx.ask(ctx.run("purchase"), "pay", body(500)).await?;
    asked.park(&["pay"]).await?;
    asked.wait_for(Condition::Pending, ApprovalReason::AwaitingDecision).await?;
    asked.run.wait_for(Summary::Waiting, secs(30)).await?;

    let listed = plugin.run(&["approvals"]).await?;
    expect_harmless(&listed)?;
    assert!(listed.contains(&asked.name) && listed.contains("\\u{202e}005"), "{listed}");
    let status = plugin.run(&["status", "purchase"]).await?;
    expect_harmless(&status)?;
    assert!(status.contains(&format!("kubectl dalsegno approve {}", asked.name)), "{status}");
    assert_eq!(explained(&plugin, "purchase").await?["rule"], "Waiting");

    // Nobody is asked here, so nothing is decided; what is decided about is shown all the same.
    let answer = plugin.try_run(&["approve", "purchase"]).await?;
    assert_eq!(answer.code, exit::USAGE, "{answer}");
    expect_harmless(&answer.stdout)?;
    assert!(answer.stdout.contains("The agent says") && answer.stdout.contains("\"cents\": 500"), "{answer}");
    let blind = ctx.plugin_without_account().fail(exit::NO_DOOR, &["approve", "purchase", "--yes"]).await?;
    assert!(blind.contains("--service-account"), "{blind}");
    plugin.run(&["approve", &asked.name, "--yes", "--reason", "PO 7"]).await?;
    asked.wait_for(Condition::Applied, ApprovalReason::Answered).await?;
    let (_, attached) = ctx.play(&asked.run, 2).await?;
    let answer = attached.waits[0].answer.clone().expect("the wait is answered");
    assert_eq!(answer.reason.as_deref(), Some("PO 7"));
    let again = plugin.fail(exit::REFUSED, &["approve", &asked.name, "--yes"]).await?;
    assert!(again.contains("Approved by"), "{again}");

    ctx.create_run(manifest(&ctx, "other", json!({}))).await?;
    let other = ctx.ask(ctx.run("other"), "pay", body(700)).await?;
    other.wait_for(Condition::Pending, ApprovalReason::AwaitingDecision).await?;
    plugin.run(&["deny", "other", "--yes", "--reason", "too much"]).await?;
    other.wait_for(Condition::Applied, ApprovalReason::Answered).await?;
    let wait = other.worker.get("waits/pay?seconds=5").await?;
    assert!(wait.body.contains("denied") && wait.body.contains("too much"), "{wait:?}");
    ctx.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn many_held_runs_are_reset_after_a_preview_and_no_further_if_the_first_is_held_again() -> Result {
    let ctx = TestContext::new("plugin-reset").await?;
    let plugin = ctx.plugin().await?;
    let crash = json!({ "turns": 3, "script": [{ "turn": 1, "at": "start", "do": "exit:1" }] });
    let limit = json!({ "recovery": { "maxAttemptsWithoutProgress": 1 } });
    for name in ["one", "two"] {
        ctx.start(name, &Agent::new(crash.clone()).spec(limit.clone())).await?;
    }
    for name in ["one", "two"] {
        plugin.run(&["wait", name, "--for", "Held"]).await?;
    }
    let status = plugin.run(&["status", "one"]).await?;
    assert!(status.contains("\nCommand    kubectl dalsegno reset one"), "{status}");
    let preview = plugin.run(&["reset", "--all", "--reason", "RecoveryLoop"]).await?;
    expect_harmless(&preview)?;
    assert!(
        preview.contains("/one") && preview.contains("/two") && preview.contains("Nothing was changed"),
        "{preview}"
    );
    let empty = plugin.run(&["reset", "--all", "--held-for", "CannotStart"]).await?;
    assert!(empty.contains("No run is held"), "{empty}");
    plugin.fail(exit::USAGE, &["reset", "--all", "--held-for", "EffectUnknown"]).await?;

    let ramp = ["reset", "--all", "--yes", "--ramp", "1", "--reason", "the library is fixed"];
    let stopped = plugin.fail(exit::NEVER, &ramp).await?;
    assert!(
        stopped.contains("held again: RecoveryLoop") && stopped.contains("1 run was not reset"),
        "{stopped}"
    );
    let mut granted = Vec::new();
    for name in ["one", "two"] {
        let run = ctx.run(name).object().await?;
        granted.push(run.spec.recovery.and_then(|it| it.reset_generation).unwrap_or_default());
    }
    granted.sort_unstable();
    assert_eq!(granted, [0, 1]);
    let held = ctx.run("one").wait_for(Summary::Held, secs(30)).await?;
    assert_eq!(held.reason, Some(Reason::RecoveryLoop));
    ctx.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn every_error_has_a_code_and_says_what_to_do_next() -> Result {
    let ctx = TestContext::new("plugin-errors").await?;
    let plugin = ctx.plugin().await?;
    let agent = Agent::new(json!({ "turns": 900, "turnSeconds": 0.5 }));
    ctx.start("nightly", &agent).await?.wait_for_turn(1).await?;

    for verb in ["status", "suspend", "resume", "attempts", "logs", "events", "explain"] {
        let told = plugin.fail(exit::NOT_FOUND, &[verb, "no-such-run"]).await?;
        assert!(told.contains("no-such-run") && told.contains("kubectl dalsegno list -A"), "{told}");
    }
    plugin.fail(exit::NOT_FOUND, &["approve", "no-such-approval"]).await?;
    plugin.fail(exit::NOT_FOUND, &["state", "nightly", "--turn", "800"]).await?;
    plugin.fail(exit::NOT_FOUND, &["logs", "nightly", "--attempt", "9"]).await?;
    let told = plugin.fail(exit::FORBIDDEN, &["list", "--as", "nobody"]).await?;
    assert!(told.contains("cannot list resource \"agentruns\""), "{told}");
    plugin.fail(exit::FORBIDDEN, &["suspend", "nightly", "--as", "nobody"]).await?;
    let told = ctx.plugin_without_account().fail(exit::NO_DOOR, &["state", "nightly"]).await?;
    assert!(told.contains("kubectl create serviceaccount"), "{told}");
    let told = plugin.fail(exit::NO_DOOR, &["state", "nightly", "--gateway", "nowhere/gateway"]).await?;
    assert!(told.contains("--gateway NAMESPACE/SERVICE"), "{told}");
    plugin.fail(exit::NO_DOOR, &["state", "nightly", "--service-account", "nobody"]).await?;
    let told = plugin.fail(exit::FORBIDDEN, &["state", "nightly", "--service-account", "default"]).await?;
    assert!(told.contains("agentruns/state"), "{told}");
    plugin.fail(exit::USAGE, &["wait", "nightly", "--for", "done"]).await?;
    plugin.fail(exit::USAGE, &["send", "nightly", "{", "--json"]).await?;
    plugin.fail(exit::USAGE, &["no-such-verb"]).await?;
    plugin.fail(exit::TIMED_OUT, &["wait", "nightly", "--for", "Held", "--timeout", "2s"]).await?;
    let context = ["list", "--context", "no-such-context"];
    assert!(plugin.try_run(&context).await?.stderr.contains("kubectl config get-contexts"));
    ctx.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_rights_that_the_page_grants_to_ada_are_enough_for_the_door_of_the_gateway() -> Result {
    let ctx = TestContext::new("plugin-ada").await?;
    let run = ctx.start("nightly", &Agent::new(json!({ "turns": 900, "turnSeconds": 0.5 }))).await?;
    run.wait_for_turn(2).await?;
    // Her rights to the gateway are not in the test's namespace: they are removed in any case.
    let door = ["role/dalsegno-door", "rolebinding/ada-door", "--namespace", NAMESPACE, "--ignore-not-found"];
    let remove = [&["kubectl", "delete"], &door[..]].concat();
    process::run("kubectl", &remove[1..]).await?;
    let removed = UndoGuard::new(remove);

    let plugin = ctx.plugin_without_account();
    let account = format!("{}/ada", ctx.namespace);
    let as_ada = ["--as", "ada", "--service-account", &account];
    let state = [&["state", "nightly"], &as_ada[..]].concat();
    let told = plugin.fail(exit::NO_DOOR, &state).await?;
    assert!(told.contains("get and create pods/portforward"), "{told}");
    process::run("bash", ["-euc", &commands_for_ada(&ctx.namespace)]).await?;
    let views = ["create", "rolebinding", "ada-views", "--clusterrole", "dalsegno-viewer", "--user", "ada"];
    process::run("kubectl", [&views[..], &["--namespace", &ctx.namespace]].concat()).await?;
    let shown = eventually("ada's rights", secs(30), async || plugin.run(&state).await.map(Some)).await?;
    assert!(shown.contains("\"turn\":"), "{shown}");
    plugin.run(&[&["send", "nightly", "hurry"], &as_ada[..]].concat()).await?;
    // She may read and act by the door. Her own user may only read the run.
    plugin.fail(exit::FORBIDDEN, &[&["suspend", "nightly"], &as_ada[..]].concat()).await?;
    removed.undo().await?;
    ctx.end().await
}

/// The commands by which the page lets the user `ada` in, for runs in this namespace instead of `shop`.
fn commands_for_ada(namespace: &str) -> String {
    let blocks = PAGE.split("```sh\n").skip(1).filter_map(|it| it.split("```").next());
    let found: Vec<_> = blocks.filter(|it| it.contains("kubectl create serviceaccount ada")).collect();
    assert_eq!(found.len(), 1, "docs/guides/kubectl.md has one block that lets ada in");
    found[0].replace("-n shop", &format!("-n {namespace}")).replace("shop:ada", &format!("{namespace}:ada"))
}
