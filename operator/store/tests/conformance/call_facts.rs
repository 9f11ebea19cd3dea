//! What a claim and an end say about a call besides its payloads: the tool, and what was used.

use dalsegno_model::audit::kind;
use dalsegno_model::{CallFilter, Claim, Claimed, Class, Commit, Complete, Completed, RunId, RunLimits};
use dalsegno_protocol::{Call, CompleteOutcome, Policy, Usage};
use futures::future::join_all;
use serde_json::{Value, json as value};

use crate::context::*;
use crate::engines::{count, on_every_engine, on_every_persistent_engine, tamper};

on_every_engine! {
    a_call_is_found_by_its_tool_in_a_later_attempt,
    the_tool_that_was_named_first_stays,
    a_refused_claim_names_no_tool,
    usage_of_a_call_is_added_once,
    concurrent_copies_of_a_completion_are_counted_once,
    usage_of_a_call_counts_for_the_limits_at_once,
    limits_that_usage_of_a_call_nearly_reaches_are_announced_once,
    a_checkpoint_has_the_usage_of_the_calls_before_it,
}

on_every_persistent_engine! {
    a_call_finds_each_limit_near_and_reached_where_a_boundary_does,
}

fn named(worker: &Worker, id: &str, tool: &str) -> Claim {
    Claim { tool: Some(tool.into()), ..worker.claim(id, Policy::RetrySameKey) }
}

async fn go(cx: &TestContext, claim: &Claim) -> Call {
    match cx.claim(claim).await.unwrap() {
        Claimed::Go(call) => *call,
        other => panic!("{other:?}"),
    }
}

/// The details of the run's audit rows of this kind.
async fn audited(cx: &TestContext, run: RunId, kind: &str) -> Vec<Value> {
    cx.assert_audit_is_valid(run).await;
    let rows = cx.store.audit(run).await.unwrap();
    let rows = rows.iter().filter(|row| row.kind == kind);
    rows.map(|row| serde_json::from_str(&row.detail).unwrap()).collect()
}

async fn a_call_is_found_by_its_tool_in_a_later_attempt(cx: &TestContext) {
    let worker = cx.worker().await;
    assert_eq!(go(cx, &named(&worker, "open", "bank.pay")).await.tool.as_deref(), Some("bank.pay"));
    let done = named(&worker, "done", "web search (beta)/é");
    go(cx, &done).await;
    cx.complete(&worker.complete(&done)).await.unwrap();
    cx.start_call(&worker, "nameless", Policy::RetrySameKey).await;
    let next = cx.next_worker(&worker).await;
    let tools = async |which| {
        let calls = cx.calls(next.run, which).await.unwrap();
        calls.into_iter().map(|call| (call.id, call.tool)).collect::<Vec<_>>()
    };
    let of = |id: &str, tool: Option<&str>| (id.to_owned(), tool.map(str::to_owned));
    assert_eq!(tools(CallFilter::Unsettled).await, [of("open", Some("bank.pay")), of("nameless", None)]);
    assert_eq!(tools(CallFilter::OpenTurn).await, [of("done", Some("web search (beta)/é"))]);
    assert_eq!(tools(CallFilter::All).await.len(), 3);
    let claims = audited(cx, worker.run, kind::CLAIMED).await;
    let tools: Vec<_> = claims.iter().map(|detail| &detail["tool"]).collect();
    assert_eq!(tools, [&value!("bank.pay"), &value!("web search (beta)/é"), &Value::Null]);
}

async fn the_tool_that_was_named_first_stays(cx: &TestContext) {
    let worker = cx.worker().await;
    let plan = Commit { calls: vec![planned("planned", Policy::RetrySameKey)], ..worker.plan(1) };
    ok(cx.commit(&plan).await.unwrap());
    // A planned call gets its name with the claim; a call that was claimed without a name, with a later claim.
    assert_eq!(go(cx, &named(&worker, "planned", "first")).await.tool.as_deref(), Some("first"));
    let nameless = cx.start_call(&worker, "late", Policy::RetrySameKey).await;
    let same = Claim { tool: Some("ignored".into()), ..nameless };
    assert_eq!(go(cx, &same).await.tool, None, "the same claim again changes nothing");
    let next = cx.next_worker(&worker).await;
    assert_eq!(go(cx, &next.claim("planned", Policy::RetrySameKey)).await.tool.as_deref(), Some("first"));
    assert_eq!(go(cx, &named(&next, "late", "second")).await.tool.as_deref(), Some("second"));
    let third = cx.next_worker(&next).await;
    for id in ["planned", "late"] {
        let kept = go(cx, &named(&third, id, "other")).await.tool;
        assert_eq!(kept.as_deref(), Some(if id == "late" { "second" } else { "first" }), "{id}");
    }
    let claims = audited(cx, worker.run, kind::CLAIMED).await;
    let tools: Vec<_> = claims.iter().filter_map(|detail| detail["tool"].as_str()).collect();
    assert_eq!(tools, ["first", "second"], "in the row of the claim that brought it");
}

async fn a_refused_claim_names_no_tool(cx: &TestContext) {
    let worker = cx.worker().await;
    cx.start_call(&worker, "pay", Policy::Probe).await;
    let other_key =
        Claim { key: Some("another".into()), tool: Some("x".into()), ..worker.claim("pay", Policy::Probe) };
    assert!(matches!(cx.claim(&other_key).await.unwrap(), Claimed::Invalid(_)));
    let uncertain = Claim { tool: Some("x".into()), ..worker.claim("pay", Policy::Probe) };
    assert!(matches!(cx.claim(&uncertain).await.unwrap(), Claimed::Uncertain(call) if call.tool.is_none()));
    assert_eq!(audited(cx, worker.run, kind::CLAIMED).await.len(), 1);
}

fn usage(tokens_in: i64) -> Usage {
    Usage { tokens_in, tokens_out: 2, tool_calls: 1, cost_micro_usd: 10 }
}

async fn total(cx: &TestContext, worker: &Worker) -> Usage {
    cx.run_of(worker).await.usage
}

async fn usage_of_a_call_is_added_once(cx: &TestContext) {
    let worker = cx.worker().await;
    ok(cx.commit(&Commit { usage: usage(1), ..worker.result(1) }).await.unwrap());
    let claim = cx.start_call(&worker, "model", Policy::ReadOnly).await;
    let complete = Complete { usage: usage(100), ..worker.complete(&claim) };
    assert!(matches!(cx.complete(&complete).await.unwrap(), Completed::Ok));
    let expected = Usage { tokens_in: 101, tokens_out: 4, tool_calls: 2, cost_micro_usd: 20 };
    assert_eq!(total(cx, &worker).await, expected);
    let other = Complete { usage: usage(7), ..worker.complete(&claim) };
    for again in [&complete, &other] {
        assert!(matches!(cx.complete(again).await.unwrap(), Completed::Duplicate));
    }
    let conflict = Complete { outcome: CompleteOutcome::Failed, usage: usage(7), ..worker.complete(&claim) };
    assert!(matches!(cx.complete(&conflict).await.unwrap(), Completed::Conflict(_)));
    assert_eq!(total(cx, &worker).await, expected, "neither a duplicate nor a conflict adds anything");
    // Whatever its outcome, a call has used what it has used.
    for (id, outcome) in [("failed", CompleteOutcome::Failed), ("refused", CompleteOutcome::KeyRefused)] {
        let claim = cx.start_call(&worker, id, Policy::ReadOnly).await;
        cx.complete(&Complete { outcome, usage: usage(0), ..worker.complete(&claim) }).await.unwrap();
    }
    let claim = cx.start_call(&worker, "unmetered", Policy::ReadOnly).await;
    cx.complete(&worker.complete(&claim)).await.unwrap();
    assert_eq!(
        total(cx, &worker).await,
        Usage { tokens_in: 101, tokens_out: 8, tool_calls: 4, cost_micro_usd: 40 }
    );
    cx.settle(&person_settles_after(cx, &worker, "refused").await).await.unwrap();
    assert_eq!(total(cx, &worker).await.tokens_out, 8, "a person's settle adds nothing");
    let said = value!({ "tokensIn": 100, "tokensOut": 2, "toolCalls": 1, "costMicroUSD": 10 });
    let completed = audited(cx, worker.run, kind::COMPLETED).await;
    assert_eq!(completed.iter().map(|detail| &detail["usage"]).collect::<Vec<_>>(), [&said, &Value::Null]);
}

/// Ends the attempt, so that a person may settle the call.
async fn person_settles_after(cx: &TestContext, worker: &Worker, id: &str) -> dalsegno_model::Settle {
    cx.end_and_reserve(worker, Class::Neutral).await;
    person_settles(worker.run, id)
}

async fn concurrent_copies_of_a_completion_are_counted_once(cx: &TestContext) {
    let worker = cx.worker().await;
    for round in 1..=10 {
        let claim = cx.start_call(&worker, &format!("call-{round}"), Policy::ReadOnly).await;
        let complete = Complete { usage: usage(1), ..worker.complete(&claim) };
        let answers = join_all((0..3).map(|_| cx.complete(&complete))).await;
        let ok = answers.iter().filter(|answer| matches!(answer, Ok(Completed::Ok))).count();
        assert_eq!((ok, total(cx, &worker).await.tokens_in), (1, round));
    }
    cx.assert_audit_is_valid(worker.run).await;
}

async fn usage_of_a_call_counts_for_the_limits_at_once(cx: &TestContext) {
    let none = RunLimits { turns: None, tokens: None, cost_micro_usd: None, active_ms: None };
    for (limits, is_reached) in [
        (RunLimits { tokens: Some(107), ..none }, true),
        (RunLimits { tokens: Some(108), ..none }, false),
        (RunLimits { cost_micro_usd: Some(20), ..none }, true),
        (RunLimits { cost_micro_usd: Some(21), ..none }, false),
        (RunLimits { turns: Some(1), ..none }, true),
        (RunLimits { turns: Some(2), ..none }, false),
        (none, false),
    ] {
        let worker = cx.worker().await;
        ok(cx.commit(&Commit { usage: usage(3), ..worker.result(1) }).await.unwrap());
        cx.set_limits(worker.run, &limits).await.unwrap();
        let claim = cx.start_call(&worker, "model", Policy::ReadOnly).await;
        cx.complete(&Complete { usage: usage(100), ..worker.complete(&claim) }).await.unwrap();
        let run = cx.run_of(&worker).await;
        assert_eq!(run.limit_reached_at.is_some(), is_reached, "{limits:?}");
        let flags = cx.heartbeats(&[(worker.run, worker.capability)]).await.unwrap().remove(0);
        let limit = matches!(flags, dalsegno_model::HeartbeatAnswer::Ok(signals) if signals.limit);
        assert_eq!(limit, is_reached, "the next answer with flags says it: {limits:?}");
        // The first time stays.
        ok(cx.commit(&worker.result(2)).await.unwrap());
        if limits.turns.is_none() {
            assert_eq!(cx.run_of(&worker).await.limit_reached_at, run.limit_reached_at);
        }
    }
}

async fn limits_that_usage_of_a_call_nearly_reaches_are_announced_once(cx: &TestContext) {
    let worker = cx.worker().await;
    let limits = RunLimits { turns: None, tokens: Some(100), cost_micro_usd: Some(1_000), active_ms: None };
    cx.set_limits(worker.run, &limits).await.unwrap();
    let near = async || {
        let due = cx.due_notifications(10_000).await.unwrap().due;
        let own = due.into_iter().filter(|it| it.run == Some(worker.run));
        own.map(|it| (it.kind, it.detail.limit)).collect::<Vec<_>>()
    };
    for (number, (tokens_in, announced)) in (1..).zip([(77, 0), (1, 1), (1, 1)]) {
        let claim = cx.start_call(&worker, &format!("call-{number}"), Policy::ReadOnly).await;
        let usage = Usage { tokens_in, tokens_out: 1, ..Usage::default() };
        cx.complete(&Complete { usage, ..worker.complete(&claim) }).await.unwrap();
        let near = near().await;
        assert_eq!(near.len(), announced, "call {number}: {near:?}");
    }
}

/// At 79, 80 and 100 of 100, for each limit alone, by a call and by a boundary. What the boundaries before have found is
/// forgotten first.
async fn a_call_finds_each_limit_near_and_reached_where_a_boundary_does(cx: &TestContext) {
    let none = RunLimits { turns: None, tokens: None, cost_micro_usd: None, active_ms: None };
    let minutes = |count: i64| count * 60_000;
    for (name, limits, bit) in [
        ("turns", RunLimits { turns: Some(5), ..none }, 1),
        ("tokens", RunLimits { tokens: Some(100), ..none }, 2),
        ("cost", RunLimits { cost_micro_usd: Some(100), ..none }, 4),
        ("active time", RunLimits { active_ms: Some(minutes(100)), ..none }, 8),
    ] {
        for (percent, by_call) in
            [79, 80, 100].into_iter().flat_map(|percent| [(percent, true), (percent, false)])
        {
            let worker = cx.worker().await;
            let turns = percent as i32 / 20;
            for turn in 1..turns + i32::from(by_call) {
                ok(cx.commit(&worker.result(turn)).await.unwrap());
            }
            cx.set_limits(worker.run, &limits).await.unwrap();
            let earlier = minutes(percent);
            tamper(cx, &format!("UPDATE runs SET attached_at = attached_at - {earlier}")).await;
            tamper(cx, "UPDATE runs SET limits_near = 0, limit_reached_at = NULL").await;
            let half = percent / 2;
            let usage =
                Usage { tokens_in: half, tokens_out: percent - half, tool_calls: 0, cost_micro_usd: percent };
            if by_call {
                let claim = cx.start_call(&worker, "model", Policy::ReadOnly).await;
                cx.complete(&Complete { usage, ..worker.complete(&claim) }).await.unwrap();
            } else {
                ok(cx.commit(&Commit { usage, ..worker.result(turns) }).await.unwrap());
            }
            let near = count(cx, "SELECT CAST(max(limits_near) AS bigint) FROM runs").await;
            assert_eq!(
                near,
                if percent < 80 { 0 } else { bit },
                "{percent} % of {name}, by a call: {by_call}"
            );
            let is_reached = cx.run_of(&worker).await.limit_reached_at.is_some();
            // The limit of active time is compared with the clock by whoever asks.
            assert_eq!(is_reached, percent == 100 && bit != 8, "{percent} % of {name}, by a call: {by_call}");
        }
    }
}

async fn a_checkpoint_has_the_usage_of_the_calls_before_it(cx: &TestContext) {
    let worker = cx.worker().await;
    let call = async |id: &str, tokens_in| {
        let claim = cx.start_call(&worker, id, Policy::ReadOnly).await;
        cx.complete(&Complete { usage: usage(tokens_in), ..worker.complete(&claim) }).await.unwrap();
        // The clock of the store has milliseconds.
        sleep_ms(5).await;
    };
    call("a", 1).await;
    ok(cx.commit(&Commit { usage: usage(10), ..worker.plan(1) }).await.unwrap());
    sleep_ms(5).await;
    call("b", 100).await;
    ok(cx.commit(&Commit { usage: usage(1_000), ..worker.result(1) }).await.unwrap());
    sleep_ms(5).await;
    call("c", 10_000).await;
    ok(cx.commit(&Commit { usage: usage(100_000), ..worker.result(2) }).await.unwrap());
    sleep_ms(5).await;
    call("d", 1_000_000).await;
    let rows = cx.boundaries(worker.run, 1, 2).await.unwrap();
    let mut totals = Vec::new();
    for row in &rows {
        totals.push(cx.boundary_facts(worker.run, row.id()).await.unwrap().unwrap().usage.tokens_in);
    }
    assert_eq!(totals, [11, 1_111, 111_111]);
    assert_eq!(total(cx, &worker).await.tokens_in, 1_111_111);
}
