//! Evidence that contradicts itself: the order in which it is believed.

use dalsegno_crds::{Cause, Reason, Summary};
use dalsegno_model::Class::{Crash, CrashWithoutProgress, Disruption, Neutral};

use crate::words::{Case, Given, Seen, case, ends, pod, rests, run, try_all};

fn with(seen: Seen) -> Given {
    run().attached(3).head(7).heartbeat(2).pod(seen)
}

pub fn cases() -> Vec<Case> {
    [last_words(), before_or_after(), our_own_gap(), texts()].into_iter().flatten().collect()
}

#[test]
fn the_more_certain_evidence_is_believed() {
    try_all(cases());
}

fn last_words() -> Vec<Case> {
    let said = |class: &str| format!(r#"{{"dalsegno":1,"class":"{class}","message":"as I say"}}"#);
    vec![
        case(
            "a worker's own word outranks its exit code",
            with(pod(3).terminated(1).said(&said("disruption"))),
            ends(3, Cause::WorkerReported, Disruption).says("as I say"),
        ),
        case(
            "a worker's own word outranks a disruption",
            with(pod(3).terminated(0).said(&said("crash")).disrupted("EvictionByEvictionAPI", 7)),
            ends(3, Cause::WorkerReported, Crash),
        ),
        case(
            "a worker that says that nothing helps is believed",
            with(pod(3).terminated(1).said(&said("fatal"))),
            ends(3, Cause::WorkerFatal, Crash).says("as I say"),
        ),
        case(
            "a worker that never attached has no word",
            run().created(3).pod(pod(3).terminated(1).said(&said("disruption"))),
            ends(3, Cause::ExitedWithError, Crash),
        ),
        case(
            "a word in a format that is not ours is log",
            with(pod(3).terminated(1).said(r#"{"dalsegno":2,"class":"fatal"}"#)),
            ends(3, Cause::ExitedWithError, Crash).says(r#"{"dalsegno":2,"class":"fatal"}"#),
        ),
        case(
            "a word of a class that is none is log",
            with(pod(3).terminated(1).said(&said("weather"))),
            ends(3, Cause::ExitedWithError, Crash),
        ),
        case(
            "a worker whose call's key was refused can only exit, which is no crash",
            with(pod(3).terminated(1)).keys_refused(1),
            ends(3, Cause::KeyRefused, Neutral),
        ),
        case(
            "a disruption stays one",
            with(pod(3).terminated(1).disrupted("EvictionByEvictionAPI", 7)).keys_refused(1),
            ends(3, Cause::Evicted, Disruption),
        ),
        case(
            "what the store saw outranks a worker's word",
            with(pod(3).terminated(1).said(&said("disruption"))).spent(),
            ends(3, Cause::ProcessRestarted, Crash),
        ),
        case(
            "a refused version outranks whatever came after it",
            run().created(3).refused_version().spent().pod(pod(3).oom()),
            ends(3, Cause::VersionIncompatible, Neutral),
        ),
        case(
            "running out of memory outranks an eviction",
            with(pod(3).oom().disrupted("EvictionByEvictionAPI", 7)),
            ends(3, Cause::OOMKilled, Crash),
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
            ends(3, Cause::Evicted, Disruption),
        ),
        case(
            "a worker that exits 0 on TERM during its eviction is not charged",
            with(evicted(0, 7)),
            ends(3, Cause::Evicted, Disruption),
        ),
        case(
            "a worker without a handler of TERM is not charged",
            with(evicted(137, 35)),
            ends(3, Cause::Evicted, Disruption),
        ),
        case("the same second counts as before", with(evicted(1, 5)), ends(3, Cause::Evicted, Disruption)),
        case(
            "an eviction that began after the crash is no excuse",
            with(evicted(1, 3)),
            ends(3, Cause::ExitedWithError, Crash),
        ),
        case(
            "an eviction that was seen while the worker ran is one, whatever the clocks say",
            with(evicted(1, 3).seen_before_its_end()),
            ends(3, Cause::Evicted, Disruption),
        ),
        case(
            "a deletion that began before the end, by its grace period, is a disruption",
            with(pod(3).terminated(1).deleted(6)),
            ends(3, Cause::Deleted, Disruption),
        ),
        case(
            "a deletion after the crash is no excuse",
            with(pod(3).terminated(1).deleted(2)),
            ends(3, Cause::ExitedWithError, Crash),
        ),
        case(
            "a late eviction does not hide an earlier deletion",
            with(pod(3).terminated(1).disrupted("EvictionByEvictionAPI", 1).deleted(9)),
            ends(3, Cause::Deleted, Disruption),
        ),
        case(
            "a kubelet's pressure that began after the crash is no excuse",
            with(pod(3).terminated(1).disrupted("TerminationByKubelet", 1)),
            ends(3, Cause::ExitedWithError, Crash),
        ),
        case(
            "a helper's end is not the worker's",
            with(pod(3).with_helper()),
            rests(Summary::Running, Reason::UnderControl),
        ),
    ]
}

fn our_own_gap() -> Vec<Case> {
    let fatal = r#"{"dalsegno":1,"class":"fatal","message":"no"}"#;
    let at = |seconds_ago: i64| pod(3).terminated(1).finished(seconds_ago).said("cannot reach the gateway");
    let low = "The node was low on resource: memory";
    vec![
        case(
            "a crash inside a silence of ours is recorded and not charged",
            with(at(50)).gap(60, 40),
            ends(3, Cause::ExitedWithError, Neutral)
                .says("not charged, the gateway was away at the time: exit code 1"),
        ),
        case("5 s before it is inside", with(at(65)).gap(60, 40), ends(3, Cause::ExitedWithError, Neutral)),
        case("6 s before it is outside", with(at(66)).gap(60, 40), ends(3, Cause::ExitedWithError, Crash)),
        case("5 s after it is inside", with(at(35)).gap(60, 40), ends(3, Cause::ExitedWithError, Neutral)),
        case("6 s after it is outside", with(at(34)).gap(60, 40), ends(3, Cause::ExitedWithError, Crash)),
        case(
            "a silence that still lasts counts from the last beat",
            with(at(10)).last_beat(12),
            ends(3, Cause::ExitedWithError, Neutral),
        ),
        case(
            "a crash before the silence that still lasts is charged",
            with(at(20)).last_beat(12),
            ends(3, Cause::ExitedWithError, Crash),
        ),
        case(
            "a beat 3 s ago is no silence",
            with(at(1)).last_beat(3),
            ends(3, Cause::ExitedWithError, Crash),
        ),
        case(
            "a worker that says that nothing helps is believed, whatever the gateways did",
            with(pod(3).terminated(1).finished(50).said(fatal)).gap(60, 40),
            ends(3, Cause::WorkerFatal, Crash),
        ),
        case(
            "a disruption inside a silence of ours stays one",
            with(at(50).disrupted("EvictionByEvictionAPI", 51)).gap(60, 40),
            ends(3, Cause::Evicted, Disruption),
        ),
        case(
            "a node's pressure inside a silence of ours is not charged",
            with(at(50).kubelet("Evicted", low)).gap(60, 40),
            ends(3, Cause::NodePressure, Neutral),
        ),
        case(
            "a node's pressure outside one is judged by progress",
            with(at(20).kubelet("Evicted", low)).gap(60, 40),
            ends(3, Cause::NodePressure, CrashWithoutProgress),
        ),
    ]
}

fn texts() -> Vec<Case> {
    let long = format!("the beginning {} the end", "ä".repeat(600));
    vec![
        case(
            "of a long log the exit code and the last lines are kept",
            with(pod(3).terminated(1).said(&long)),
            ends(3, Cause::ExitedWithError, Crash).says("exit code 1: …").says("ää the end"),
        ),
        case(
            "what steers a terminal is not passed on",
            with(pod(3).terminated(1).said("\u{1b}[31mred\0")),
            ends(3, Cause::ExitedWithError, Crash).says("exit code 1:  [31mred "),
        ),
    ]
}
