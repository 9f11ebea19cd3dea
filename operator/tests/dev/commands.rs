//! Other commands on the store of `dalsegno dev`, and its messages.

use std::fs;

use serde_json::json;

use crate::test_context::TestContext;

#[test]
fn an_exported_run_is_verified_by_the_file_alone() {
    let context = TestContext::new(&json!({ "turns": 3 }));
    context.run_to_end(&[]).expect_output(0, &["Succeeded"]);
    let url = context.url();
    let verified = context.command(&["verify", "--database-url", &url, "dev/agent"]);
    assert!(verified.contains(": 0 problems\nthe state can be rebuilt up to turn 3 (result)"), "{verified}");

    let shown =
        context.command(&["show", "--database-url", &url, "dev/agent", "--turn", "3", "--since", "1"]);
    assert!(shown.contains(r#"from turn 1 to turn 3: {"version":2,"added":{},"updated":{"#), "{shown}");
    let page =
        context.command(&["show", "--database-url", &url, "dev/agent", "--before", "3", "--turns", "1"]);
    let turns: Vec<_> = page.lines().filter(|line| line.starts_with("turn ")).collect();
    assert!(turns.len() == 1 && turns[0].starts_with("turn 2 "), "{page}");

    context.command(&["export", "--database-url", &url, "dev/agent", "--output", "run.jsonl"]);
    let verified = context.command(&["verify", "run.jsonl"]);
    assert!(
        verified.contains("run dev/agent: 3 boundaries, ") && verified.contains(": 0 problems"),
        "{verified}"
    );
    let key = verified.lines().find_map(|it| it.strip_prefix("public key ")?.split(' ').next()).unwrap();
    let replayed = context.command(&["verify", "run.jsonl", "--public-key", key, "--turn", "2"]);
    assert!(replayed.contains("state after turn 2") && replayed.contains("[1, 2]"), "{replayed}");

    let bundle = fs::read_to_string(context.path().join("run.jsonl")).unwrap();
    fs::write(context.path().join("changed.jsonl"), bundle.replacen("[1, 2]", "[1, 3]", 1)).unwrap();
    let changed = context.failing_command(&["verify", "changed.jsonl"]);
    assert!(changed.contains("turn 2 (result): it has another payload than was committed"), "{changed}");
    let twice =
        context.failing_command(&["export", "--database-url", &url, "dev/agent", "--output", "run.jsonl"]);
    assert!(twice.contains("creating run.jsonl"), "{twice}");
    assert!(context.failing_command(&["verify", "no.jsonl"]).contains("there is no file no.jsonl"));
}

#[test]
fn a_command_whose_output_nobody_reads_exits_silently() {
    let context = TestContext::new(&json!({ "turns": 3 }));
    context.run_to_end(&[]).expect_output(0, &["Succeeded"]);
    let url = context.url();
    for verb in ["show", "verify", "export"] {
        assert_eq!(
            context.unread_command(&[verb, "--database-url", &url, "dev/agent"]),
            (Some(141), String::new())
        );
    }
    assert_eq!(context.unread_command(&["crds"]), (Some(141), String::new()));
}

#[test]
fn a_call_with_an_unknown_outcome_is_settled_by_the_printed_command() {
    let context = TestContext::new(&json!({ "turns": 2, "askAt": 2 }));
    let held = context.run_to_end(&[]).expect_output(1, &["held: EffectUnknown", "dalsegno settle"]);
    assert_eq!(held.turns(), [1]);
    let printed = held.stderr.split('`').find(|it| it.starts_with("dalsegno settle")).unwrap();
    let shown = context.command(&["show", "--database-url", &context.url(), "dev/agent"]);
    let line = shown.lines().nth(1).unwrap_or_default();
    assert!(line.starts_with("held        since 20") && line.contains(": EffectUnknown: "), "{shown}");
    assert!(line.contains(printed), "{shown}");
    assert_eq!(context.shell(printed), "settled: pay\n");
    let shown = context.command(&["show", "--database-url", &context.url(), "dev/agent"]);
    let line = shown.lines().nth(1).unwrap_or_default();
    assert!(line.contains("the same `dalsegno dev` command continues the run"), "{shown}");
    assert_eq!(context.run_to_end(&[]).expect_output(0, &["Succeeded"]).turns(), [2]);
}

#[test]
fn a_message_is_sent_once_and_kept_until_a_turn_takes_it() {
    let context = TestContext::new(&json!({ "turns": 1, "pauseAt": 1 }));
    assert!(context.failing_command(&["dev", "send", "hello"]).contains("there is no store in .dalsegno"));
    context.end_pause();
    context.run_to_end(&[]).expect_output(0, &["Succeeded"]);
    let send = ["dev", "send", "hello", "--id", "first"];
    assert!(context.failing_command(&send).contains("the run is over"));

    context.begin_pause();
    let mut dev = context.dev(&["--fresh", "--input", "input.json"]);
    dev.wait_for("dev/agent 1 attached");
    let sent =
        context.command(&["dev", "send", r#"{"text": "hello"}"#, "--topic", "greeting", "--id", "first"]);
    context.end_pause();
    dev.end();
    assert_eq!(sent, "sent: message 1, with the id first\n");
    assert_eq!(context.rows()[0].inbox.position, 1);
}

#[test]
fn a_suspended_run_starts_no_worker_until_it_is_resumed() {
    let context = TestContext::new(&json!({ "turns": 2 }));
    context.run_to_end(&[]).expect_output(0, &["Succeeded"]);
    let suspended = context.command(&["dev", "suspend"]);
    assert!(suspended.starts_with("suspended: dev/agent"), "{suspended}");
    let mut dev = context.dev(&["--fresh", "--input", "input.json"]);
    dev.wait_for_stderr("the run is suspended; `dalsegno dev resume` lifts that");
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
    while context.rows()[0].suspend.is_none() {
        assert!(std::time::Instant::now() < deadline);
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    assert!(context.rows()[0].head.is_none(), "no worker has started");
    assert_eq!(context.command(&["dev", "resume"]), "resumed: dev/agent\n");
    assert_eq!(dev.end().expect_output(0, &["Succeeded"]).turns(), [1, 2]);
}

#[test]
fn each_message_is_one_write() {
    let context = TestContext::new(&json!({ "turns": 2 }));
    let writes = context.stderr_writes(&["--input", "input.json"]);
    assert!(writes.len() > 3, "{writes:?}");
    for line in writes {
        assert!(line.starts_with("dalsegno: ") && line.ends_with('\n'), "{line:?}");
    }
}
