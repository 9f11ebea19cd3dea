//! Evidence that contradicts itself: the order in which it is believed.

use dalsegno_crds::{Cause, Reason, Summary};
use dalsegno_store::Class::{Crash, CrashWithoutProgress, Disruption, Neutral};

use crate::fixtures::{Case, Given, PodFixture, case, check_all, expect_end, expect_status, pod, run};

fn with(seen: PodFixture) -> Given {
    run().attached(3).head(7).heartbeat(2).pod(seen)
}

pub fn cases() -> Vec<Case> {
    [last_words(), before_or_after(), our_own_gap(), texts()].into_iter().flatten().collect()
}

#[test]
fn the_more_certain_evidence_is_believed() {
    check_all(cases());
}

fn last_words() -> Vec<Case> {
    let said = |class: &str| format!(r#"{{"dalsegno":1,"class":"{class}","message":"as I say"}}"#);
    vec![
        case(
            "a worker's own word outranks its exit code",
            with(pod(3).terminated(1).message(&said("disruption"))),
            expect_end(3, Cause::WorkerReported, Disruption).message_contains("as I say"),
        ),
        case(
            "a worker's own word outranks a disruption",
            with(pod(3).terminated(0).message(&said("crash")).disrupted("EvictionByEvictionAPI", 7)),
            expect_end(3, Cause::WorkerReported, Crash),
        ),
        case(
            "a worker that says that nothing helps is believed",
            with(pod(3).terminated(1).message(&said("fatal"))),
            expect_end(3, Cause::WorkerFatal, Crash).message_contains("as I say"),
        ),
        case(
            "a worker that never attached has no word",
            run().created(3).pod(pod(3).terminated(1).message(&said("disruption"))),
            expect_end(3, Cause::ExitedWithError, Crash),
        ),
        case(
            "a word in a format that is not ours is log",
            with(pod(3).terminated(1).message(r#"{"dalsegno":2,"class":"fatal"}"#)),
            expect_end(3, Cause::ExitedWithError, Crash)
                .message_contains(r#"{"dalsegno":2,"class":"fatal"}"#),
        ),
        case(
            "a word of a class that is none is log",
            with(pod(3).terminated(1).message(&said("weather"))),
            expect_end(3, Cause::ExitedWithError, Crash),
        ),
        case(
            "a worker whose call's key was refused can only exit, which is no crash",
            with(pod(3).terminated(1)).keys_refused(1),
            expect_end(3, Cause::KeyRefused, Neutral),
        ),
        case(
            "a disruption stays one",
            with(pod(3).terminated(1).disrupted("EvictionByEvictionAPI", 7)).keys_refused(1),
            expect_end(3, Cause::Evicted, Disruption),
        ),
        case(
            "what the store saw outranks a worker's word",
            with(pod(3).terminated(1).message(&said("disruption"))).second_process(),
            expect_end(3, Cause::ProcessRestarted, Crash),
        ),
        case(
            "a refused version outranks whatever came after it",
            run().created(3).refused_version().second_process().pod(pod(3).oom()),
            expect_end(3, Cause::VersionIncompatible, Neutral),
        ),
        case(
            "running out of memory outranks an eviction",
            with(pod(3).oom().disrupted("EvictionByEvictionAPI", 7)),
            expect_end(3, Cause::OOMKilled, Crash),
        ),
    ]
}

fn before_or_after() -> Vec<Case> {
    let evicted =
        |exit: i32, began: i64| pod(3).terminated(exit).finished(5).disrupted("EvictionByEvictionAPI", began);
    vec![
        case(
            "a worker that exits 1 on TERM during its eviction is not charged",
            with(evicted(1, 7)),
            expect_end(3, Cause::Evicted, Disruption),
        ),
        case(
            "a worker that exits 0 on TERM during its eviction is not charged",
            with(evicted(0, 7)),
            expect_end(3, Cause::Evicted, Disruption),
        ),
        case(
            "a worker without a handler of TERM is not charged",
            with(evicted(137, 35)),
            expect_end(3, Cause::Evicted, Disruption),
        ),
        case(
            "the same second counts as before",
            with(evicted(1, 5)),
            expect_end(3, Cause::Evicted, Disruption),
        ),
        case(
            "an eviction that began after the crash is no excuse",
            with(evicted(1, 3)),
            expect_end(3, Cause::ExitedWithError, Crash),
        ),
        case(
            "an eviction that was seen while the worker ran is one, whatever the clocks say",
            with(evicted(1, 3).disruption_seen_while_running()),
            expect_end(3, Cause::Evicted, Disruption),
        ),
        case(
            "a deletion that began before the end, by its grace period, is a disruption",
            with(pod(3).terminated(1).deleted(6)),
            expect_end(3, Cause::Deleted, Disruption),
        ),
        case(
            "a deletion after the crash is no excuse",
            with(pod(3).terminated(1).deleted(2)),
            expect_end(3, Cause::ExitedWithError, Crash),
        ),
        case(
            "a late eviction does not hide an earlier deletion",
            with(pod(3).terminated(1).disrupted("EvictionByEvictionAPI", 1).deleted(9)),
            expect_end(3, Cause::Deleted, Disruption),
        ),
        case(
            "a kubelet's pressure that began after the crash is no excuse",
            with(pod(3).terminated(1).disrupted("TerminationByKubelet", 1)),
            expect_end(3, Cause::ExitedWithError, Crash),
        ),
        case(
            "a helper's end is not the worker's",
            with(pod(3).with_helper()),
            expect_status(Summary::Running, Reason::UnderControl),
        ),
    ]
}

fn our_own_gap() -> Vec<Case> {
    let fatal = r#"{"dalsegno":1,"class":"fatal","message":"no"}"#;
    let at =
        |seconds_ago: i64| pod(3).terminated(1).finished(seconds_ago).message("cannot reach the gateway");
    let low = "The node was low on resource: memory";
    vec![
        case(
            "a crash inside a silence of ours is recorded and not charged",
            with(at(50)).gateway_outage(60, 40),
            expect_end(3, Cause::ExitedWithError, Neutral)
                .message_contains("not charged, because the gateway was unavailable at that time: exit code 1"),
        ),
        case(
            "5 s before it is inside",
            with(at(65)).gateway_outage(60, 40),
            expect_end(3, Cause::ExitedWithError, Neutral),
        ),
        case(
            "6 s before it is outside",
            with(at(66)).gateway_outage(60, 40),
            expect_end(3, Cause::ExitedWithError, Crash),
        ),
        case(
            "5 s after it is inside",
            with(at(35)).gateway_outage(60, 40),
            expect_end(3, Cause::ExitedWithError, Neutral),
        ),
        case(
            "6 s after it is outside",
            with(at(34)).gateway_outage(60, 40),
            expect_end(3, Cause::ExitedWithError, Crash),
        ),
        case(
            "a silence that still lasts counts from the last beat",
            with(at(10)).last_beat(12),
            expect_end(3, Cause::ExitedWithError, Neutral),
        ),
        case(
            "a crash before the silence that still lasts is charged",
            with(at(20)).last_beat(12),
            expect_end(3, Cause::ExitedWithError, Crash),
        ),
        case(
            "a beat 3 s ago is no silence",
            with(at(1)).last_beat(3),
            expect_end(3, Cause::ExitedWithError, Crash),
        ),
        case(
            "a worker that says that nothing helps is believed, whatever the gateways did",
            with(pod(3).terminated(1).finished(50).message(fatal)).gateway_outage(60, 40),
            expect_end(3, Cause::WorkerFatal, Crash),
        ),
        case(
            "a disruption inside a silence of ours stays one",
            with(at(50).disrupted("EvictionByEvictionAPI", 51)).gateway_outage(60, 40),
            expect_end(3, Cause::Evicted, Disruption),
        ),
        case(
            "a node's pressure inside a silence of ours is not charged",
            with(at(50).kubelet("Evicted", low)).gateway_outage(60, 40),
            expect_end(3, Cause::NodePressure, Neutral),
        ),
        case(
            "a node's pressure outside one is judged by progress",
            with(at(20).kubelet("Evicted", low)).gateway_outage(60, 40),
            expect_end(3, Cause::NodePressure, CrashWithoutProgress),
        ),
    ]
}

fn texts() -> Vec<Case> {
    let long = format!("the beginning {} the end", "ä".repeat(600));
    vec![
        case(
            "of a long log the exit code and the last lines are kept",
            with(pod(3).terminated(1).message(&long)),
            expect_end(3, Cause::ExitedWithError, Crash)
                .message_contains("exit code 1: …")
                .message_contains("ää the end"),
        ),
        case(
            "what steers a terminal is not passed on",
            with(pod(3).terminated(1).message("\u{1b}[31mred\0")),
            expect_end(3, Cause::ExitedWithError, Crash).message_contains("exit code 1:  [31mred "),
        ),
    ]
}
