//! Contradictory evidence, and its order.

use dalsegno_crds::{Cause, Reason, Summary};
use dalsegno_model::Class::{Crash, CrashWithoutProgress, Disruption, Neutral};

use crate::fixtures::{Case, Given, PodFixture, case, check_all, expect_end, expect_status, pod, run};

fn with(seen: PodFixture) -> Given {
    run().attached(3).head(7).heartbeat(2).pod(seen)
}

pub fn cases() -> Vec<Case> {
    [termination_messages(), before_or_after(), gateway_outages(), texts()].into_iter().flatten().collect()
}

#[test]
fn the_most_certain_evidence_wins() {
    check_all(cases());
}

fn termination_messages() -> Vec<Case> {
    let reported = |class: &str| format!(r#"{{"dalsegno":1,"class":"{class}","message":"as reported"}}"#);
    vec![
        case(
            "the worker's message comes before its exit code",
            with(pod(3).terminated(1).message(&reported("disruption"))),
            expect_end(3, Cause::WorkerReported, Disruption).message_contains("as reported"),
        ),
        case(
            "the worker's message comes before a disruption",
            with(pod(3).terminated(0).message(&reported("crash")).disrupted("EvictionByEvictionAPI", 7)),
            expect_end(3, Cause::WorkerReported, Crash),
        ),
        case(
            "a worker can report a fatal error",
            with(pod(3).terminated(1).message(&reported("fatal"))),
            expect_end(3, Cause::WorkerFatal, Crash).message_contains("as reported"),
        ),
        case(
            "the message of a worker that never attached does not count",
            run().created(3).pod(pod(3).terminated(1).message(&reported("disruption"))),
            expect_end(3, Cause::ExitedWithError, Crash),
        ),
        case(
            "a message in an unknown format is a log",
            with(pod(3).terminated(1).message(r#"{"dalsegno":2,"class":"fatal"}"#)),
            expect_end(3, Cause::ExitedWithError, Crash)
                .message_contains(r#"{"dalsegno":2,"class":"fatal"}"#),
        ),
        case(
            "a message with an unknown class is a log",
            with(pod(3).terminated(1).message(&reported("unknown"))),
            expect_end(3, Cause::ExitedWithError, Crash),
        ),
        case(
            "the exit of a worker after a refused key is not a crash",
            with(pod(3).terminated(1)).keys_refused(1),
            expect_end(3, Cause::KeyRefused, Neutral),
        ),
        case(
            "a disruption after a refused key is a disruption",
            with(pod(3).terminated(1).disrupted("EvictionByEvictionAPI", 7)).keys_refused(1),
            expect_end(3, Cause::Evicted, Disruption),
        ),
        case(
            "the store's row comes before the worker's message",
            with(pod(3).terminated(1).message(&reported("disruption"))).second_process(),
            expect_end(3, Cause::ProcessRestarted, Crash),
        ),
        case(
            "a refused version comes before everything that happened later",
            run().created(3).refused_version().second_process().pod(pod(3).oom()),
            expect_end(3, Cause::VersionIncompatible, Neutral),
        ),
        case(
            "an eviction comes before a node that is short of memory",
            with(pod(3).oom().no_memory_limit().disrupted("EvictionByEvictionAPI", 7)),
            expect_end(3, Cause::Evicted, Disruption),
        ),
        case(
            "an OOM kill comes before an eviction",
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
            "a worker that exits with 1 on SIGTERM during its eviction is not charged",
            with(evicted(1, 7)),
            expect_end(3, Cause::Evicted, Disruption),
        ),
        case(
            "a worker that exits with 0 on SIGTERM during its eviction is not charged",
            with(evicted(0, 7)),
            expect_end(3, Cause::Evicted, Disruption),
        ),
        case(
            "a worker without a handler for SIGTERM is not charged",
            with(evicted(137, 35)),
            expect_end(3, Cause::Evicted, Disruption),
        ),
        case(
            "an eviction in the same second counts as before the end",
            with(evicted(1, 5)),
            expect_end(3, Cause::Evicted, Disruption),
        ),
        case(
            "an eviction does not count as later if the node's clock is five seconds behind",
            with(evicted(1, 0)),
            expect_end(3, Cause::Evicted, Disruption),
        ),
        case(
            "an eviction that began after the crash does not count",
            with(evicted(1, 3).finished(14)),
            expect_end(3, Cause::ExitedWithError, Crash),
        ),
        case(
            "an eviction that was seen while the worker was running counts, whatever the clocks show",
            with(evicted(1, 3).finished(14).disruption_seen_while_running()),
            expect_end(3, Cause::Evicted, Disruption),
        ),
        case(
            "a deletion that began before the end is a disruption; the grace period gives its begin",
            with(pod(3).terminated(1).deleted(6)),
            expect_end(3, Cause::Deleted, Disruption),
        ),
        case(
            "a deletion that began after the crash does not count",
            with(pod(3).terminated(1).finished(13).deleted(2)),
            expect_end(3, Cause::ExitedWithError, Crash),
        ),
        case(
            "a late eviction does not hide an earlier deletion",
            with(pod(3).terminated(1).finished(12).disrupted("EvictionByEvictionAPI", 1).deleted(16)),
            expect_end(3, Cause::Deleted, Disruption),
        ),
        case(
            "the kubelet ended the pod itself, so the time of its condition does not matter",
            with(pod(3).terminated(1).disrupted("TerminationByKubelet", 1)),
            expect_end(3, Cause::NodePressure, CrashWithoutProgress),
        ),
        case(
            "a pod that the watch does not show is requested again",
            with(pod(3).unwatched()),
            expect_status(Summary::Running, Reason::UnderControl).requeue_after(10),
        ),
        case(
            "the end of a helper is not the end of the worker",
            with(pod(3).with_helper()),
            expect_status(Summary::Running, Reason::UnderControl),
        ),
    ]
}

fn gateway_outages() -> Vec<Case> {
    let fatal = r#"{"dalsegno":1,"class":"fatal","message":"no"}"#;
    let at =
        |seconds_ago: i64| pod(3).terminated(1).finished(seconds_ago).message("cannot reach the gateway");
    let low = "The node was low on resource: memory";
    vec![
        case(
            "a crash during an outage is recorded and not charged",
            with(at(50)).gateway_outage(60, 40),
            expect_end(3, Cause::ExitedWithError, Neutral).message_contains(
                "not charged, because the gateway was unavailable at that time: exit code 1",
            ),
        ),
        case(
            "5 s before the outage counts as during it",
            with(at(65)).gateway_outage(60, 40),
            expect_end(3, Cause::ExitedWithError, Neutral),
        ),
        case(
            "6 s before the outage does not count",
            with(at(66)).gateway_outage(60, 40),
            expect_end(3, Cause::ExitedWithError, Crash),
        ),
        case(
            "5 s after the outage counts as during it",
            with(at(35)).gateway_outage(60, 40),
            expect_end(3, Cause::ExitedWithError, Neutral),
        ),
        case(
            "6 s after the outage does not count",
            with(at(34)).gateway_outage(60, 40),
            expect_end(3, Cause::ExitedWithError, Crash),
        ),
        case(
            "an ongoing outage counts from the last beat",
            with(at(10)).last_beat(12),
            expect_end(3, Cause::ExitedWithError, Neutral),
        ),
        case(
            "a crash before an ongoing outage is charged",
            with(at(20)).last_beat(12),
            expect_end(3, Cause::ExitedWithError, Crash),
        ),
        case(
            "a beat 3 s ago is not an outage",
            with(at(1)).last_beat(3),
            expect_end(3, Cause::ExitedWithError, Crash),
        ),
        case(
            "a fatal error during an outage is charged",
            with(pod(3).terminated(1).finished(50).message(fatal)).gateway_outage(60, 40),
            expect_end(3, Cause::WorkerFatal, Crash),
        ),
        case(
            "a disruption during an outage is a disruption",
            with(at(50).disrupted("EvictionByEvictionAPI", 51)).gateway_outage(60, 40),
            expect_end(3, Cause::Evicted, Disruption),
        ),
        case(
            "a node pressure eviction during an outage is not charged",
            with(at(50).kubelet("Evicted", low)).gateway_outage(60, 40),
            expect_end(3, Cause::NodePressure, Neutral),
        ),
        case(
            "a node pressure eviction outside an outage is charged only without progress",
            with(at(20).kubelet("Evicted", low)).gateway_outage(60, 40),
            expect_end(3, Cause::NodePressure, CrashWithoutProgress),
        ),
    ]
}

fn texts() -> Vec<Case> {
    let long = format!("the beginning {} the end", "ä".repeat(600));
    vec![
        case(
            "the message has the exit code and the last lines of a long log",
            with(pod(3).terminated(1).message(&long)),
            expect_end(3, Cause::ExitedWithError, Crash)
                .message_contains("exit code 1: …")
                .message_contains("ää the end"),
        ),
        case(
            "control characters of a terminal are removed",
            with(pod(3).terminated(1).message("\u{1b}[31mred\0")),
            expect_end(3, Cause::ExitedWithError, Crash).message_contains("exit code 1:  [31mred "),
        ),
    ]
}
