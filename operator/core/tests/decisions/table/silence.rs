//! Silence: deadlines that ran out, nodes that are not Ready, and whose silence it was.

use dalsegno_crds::{Cause, Reason, Summary};
use dalsegno_model::Class::{Crash, Disruption, Neutral};
use serde_json::json;

use crate::words::{Case, Given, case, ends, pod, rests, run, try_all};

pub fn cases() -> Vec<Case> {
    [leases(), deadlines(), nodes(), being_stopped()].into_iter().flatten().collect()
}

#[test]
fn silence_is_judged_last_and_our_own_is_not_theirs() {
    try_all(cases());
}

/// Attached on a Ready node; the built-in deadlines are 15 s, 600 s and 1800 s.
fn beating(heartbeat: i64) -> Given {
    run().attached(3).head(7).heartbeat(heartbeat).pod(pod(3))
}

fn goes_on() -> crate::words::Expect {
    rests(Summary::Running, Reason::UnderControl)
}

fn leases() -> Vec<Case> {
    vec![
        case("a lease of 15 s has not run out after 15 s", beating(15), goes_on()),
        case("silence on a Ready node is a crash", beating(16), ends(3, Cause::Silent, Crash)),
        case(
            "silence on a node that is not Ready is a disruption",
            beating(16).node_not_ready(2),
            ends(3, Cause::NodeLost, Disruption),
        ),
        case(
            "silence on a node that was not Ready meanwhile is a disruption",
            beating(16).node_ready(3),
            ends(3, Cause::NodeLost, Disruption).says("not Ready all the time"),
        ),
        case(
            "a lease that has not run out outranks a node that is not Ready",
            beating(14).node_not_ready(300),
            goes_on(),
        ),
        case(
            "a worker that never sends a heartbeat is left alone",
            run().attached(3).head(7).committed(600).attached_ago(600).pod(pod(3)),
            goes_on(),
        ),
        case(
            "a longer timeout is obeyed at once",
            beating(16).spec(json!({ "liveness": { "heartbeatTimeoutSeconds": 60 } })),
            goes_on(),
        ),
        case("a shorter one leaves the lease that was promised its end", beating(20).lease(20), goes_on()),
        case("and no more than that", beating(21).lease(20), ends(3, Cause::Silent, Crash)),
        case(
            "a node that was away after the last heartbeat is no less so under a shorter lease",
            beating(21).lease(20).node_ready(3),
            ends(3, Cause::NodeLost, Disruption).says("not Ready all the time"),
        ),
        case("no lease runs out while the gateways are silent", beating(600).last_beat(4), goes_on()),
        case(
            "after an outage of ours a lease has its full length again",
            beating(600).gap(600, 15),
            goes_on(),
        ),
        case("and then it runs out", beating(600).gap(600, 16), ends(3, Cause::Silent, Crash)),
    ]
}

fn deadlines() -> Vec<Case> {
    let starting = |seconds: i64| run().created(3).scheduled(seconds);
    let pulling = || pod(3).waiting("ImagePullBackOff", "Back-off pulling image \"x\"");
    let attached = |seconds: i64| run().attached(3).attached_ago(seconds).pod(pod(3));
    vec![
        case(
            "a worker that has not attached within the start deadline is replaced, uncharged",
            starting(601).pod(pod(3)),
            ends(3, Cause::StartDeadline, Neutral).says("startDeadlineSeconds"),
        ),
        case(
            "until then it is starting",
            starting(600).pod(pod(3).shows('a')).is('a'),
            rests(Summary::Starting, Reason::Starting),
        ),
        case(
            "a worker whose image cannot be had is replaced, uncharged, and says why",
            starting(601).pod(pulling()),
            ends(3, Cause::ImageUnavailable, Neutral).says("ImagePullBackOff: Back-off pulling image"),
        ),
        case(
            "a worker that waits for something else says for what",
            starting(601).pod(pod(3).waiting("CreateContainerConfigError", "secret \"s\" not found")),
            ends(3, Cause::StartDeadline, Neutral).says("CreateContainerConfigError: secret \"s\" not found"),
        ),
        case(
            "time without a node does not count",
            run().created(3).no_node_yet().pod(pod(3).unscheduled("0/2 nodes are available")),
            rests(Summary::Pending, Reason::Unschedulable),
        ),
        case(
            "no start deadline runs out in an outage of ours",
            starting(6_000).gap(6_000, 599).pod(pod(3)),
            rests(Summary::Starting, Reason::Starting),
        ),
        case(
            "a worker that lives and commits nothing is replaced, charged",
            attached(1_801),
            ends(3, Cause::ProgressDeadline, Crash).says("progressDeadlineSeconds"),
        ),
        case("until then it is left alone", attached(1_800), goes_on()),
        case(
            "a boundary begins the progress deadline anew",
            attached(9_000).head(7).committed(1_800),
            goes_on(),
        ),
        case(
            "a boundary of an earlier attempt does not",
            {
                let mut it = attached(1_801).head(7).committed(9_000);
                it.row.head.as_mut().unwrap().attempt = 2;
                it
            },
            ends(3, Cause::ProgressDeadline, Crash),
        ),
        case(
            "after an outage of ours the progress deadline has its full length again",
            attached(9_000).gap(9_000, 1_800),
            goes_on(),
        ),
    ]
}

fn nodes() -> Vec<Case> {
    let silent = || run().attached(3).head(7).pod(pod(3));
    vec![
        case(
            "without a lease, a node that is not Ready for the timeout loses its worker",
            silent().node_not_ready(16),
            ends(3, Cause::NodeLost, Disruption),
        ),
        case("until then it is looked at again soon", silent().node_not_ready(15), goes_on().again(2)),
        case(
            "a boundary since then proves that the worker lives",
            silent().committed(10).node_not_ready(300),
            goes_on().again(2),
        ),
        case(
            "an attach since then proves that the worker lives",
            run().attached(3).attached_ago(10).pod(pod(3)).node_not_ready(300),
            goes_on().again(2),
        ),
        case(
            "a worker that has not attached is lost with its node too",
            run().created(3).pod(pod(3)).node_not_ready(16),
            ends(3, Cause::NodeLost, Disruption),
        ),
        case(
            "a worker without a lease could not commit while the gateways were away",
            silent().node_not_ready(300).gap(300, 15),
            goes_on().again(2),
        ),
        case("nor while they are away", silent().node_not_ready(300).last_beat(4), goes_on().again(2)),
        case(
            "a node that is not known yet proves nothing",
            {
                let mut it = silent();
                it.seen.node = None;
                it
            },
            goes_on(),
        ),
    ]
}

fn being_stopped() -> Vec<Case> {
    vec![
        case(
            "a worker that falls silent while it is evicted was evicted",
            run()
                .attached(3)
                .head(7)
                .heartbeat(16)
                .pod(pod(3).disrupted("EvictionByEvictionAPI", 17).deleted(17)),
            ends(3, Cause::Evicted, Disruption),
        ),
        case(
            "a pod that is stuck in its deletion on a node that is not Ready was driven away",
            run()
                .attached(3)
                .head(7)
                .pod(pod(3).disrupted("DeletionByTaintManager", 20).deleted(20))
                .node_not_ready(30),
            ends(3, Cause::TaintEvicted, Disruption),
        ),
        case(
            "a container that is known to have ended is not silent",
            run().attached(3).head(7).heartbeat(16).pod(pod(3).oom()),
            ends(3, Cause::OOMKilled, Crash),
        ),
        case(
            "a worker that was evicted while nobody looked is not charged with its silence",
            run()
                .attached(3)
                .head(7)
                .heartbeat(900)
                .pod(pod(3).terminated(1).finished(880).disrupted("EvictionByEvictionAPI", 881)),
            ends(3, Cause::Evicted, Disruption),
        ),
    ]
}
