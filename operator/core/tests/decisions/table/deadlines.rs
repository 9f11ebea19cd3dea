//! Expired deadlines, nodes that are not Ready, and outages of the gateways.

use dalsegno_crds::{Cause, Reason, Summary};
use dalsegno_model::Class::{Crash, Disruption, Neutral};
use serde_json::json;

use crate::fixtures::{Case, Expect, Given, case, check_all, expect_end, expect_status, pod, run};

pub fn cases() -> Vec<Case> {
    [leases(), deadlines(), sandboxes(), nodes(), being_stopped()].into_iter().flatten().collect()
}

#[test]
fn deadlines_are_checked_last_and_an_outage_of_the_gateways_is_not_charged() {
    check_all(cases());
}

/// An attached worker on a Ready node. The built-in deadlines are 15 s, 600 s and 1800 s.
fn attached_with_heartbeat(heartbeat: i64) -> Given {
    run().attached(3).head(7).heartbeat(heartbeat).pod(pod(3))
}

fn running() -> Expect {
    expect_status(Summary::Running, Reason::UnderControl)
}

fn leases() -> Vec<Case> {
    vec![
        case("a lease of 15 s has not expired after 15 s", attached_with_heartbeat(15), running()),
        case(
            "a missed heartbeat on a Ready node is a crash",
            attached_with_heartbeat(16),
            expect_end(3, Cause::Silent, Crash),
        ),
        case(
            "a missed heartbeat on a node that is not Ready is a disruption",
            attached_with_heartbeat(16).node_not_ready(2),
            expect_end(3, Cause::NodeLost, Disruption),
        ),
        case(
            "a missed heartbeat on a node that was not Ready in between is a disruption",
            attached_with_heartbeat(16).node_ready(3),
            expect_end(3, Cause::NodeLost, Disruption).message_contains("not always Ready"),
        ),
        case(
            "while the lease is valid, a node that is not Ready does not count",
            attached_with_heartbeat(14).node_not_ready(300),
            running(),
        ),
        case(
            "a worker that never sent a heartbeat has no lease",
            run().attached(3).head(7).committed(600).attached_ago(600).pod(pod(3)),
            running(),
        ),
        case(
            "while the gateway that renewed the lease is unavailable, the lease is longer by one heartbeat",
            attached_with_heartbeat(20).lease_gateway_lost(18),
            running(),
        ),
        case(
            "a heartbeat that was missed because its gateway was lost is not charged",
            attached_with_heartbeat(21).lease_gateway_lost(18),
            expect_end(3, Cause::Silent, Neutral).message_contains("not charged"),
        ),
        case(
            "a gateway that served all the time does not make a lease longer",
            attached_with_heartbeat(16).lease_gateway_lost(0),
            expect_end(3, Cause::Silent, Crash),
        ),
        case(
            "a longer timeout applies at once",
            attached_with_heartbeat(16).spec(json!({ "liveness": { "heartbeatTimeoutSeconds": 60 } })),
            running(),
        ),
        case(
            "a shorter timeout does not shorten the promised lease",
            attached_with_heartbeat(20).promised_lease(20),
            running(),
        ),
        case(
            "after the promised lease the worker is replaced",
            attached_with_heartbeat(21).promised_lease(20),
            expect_end(3, Cause::Silent, Crash),
        ),
        case(
            "a node that was not Ready after the last heartbeat counts with a promised lease too",
            attached_with_heartbeat(21).promised_lease(20).node_ready(3),
            expect_end(3, Cause::NodeLost, Disruption).message_contains("not always Ready"),
        ),
        case(
            "no lease expires during an outage of the gateways",
            attached_with_heartbeat(600).last_beat(4),
            running(),
        ),
        case(
            "after an outage of the gateways a lease has its full length again",
            attached_with_heartbeat(600).gateway_outage(600, 15),
            running(),
        ),
        case(
            "after that length it expires",
            attached_with_heartbeat(600).gateway_outage(600, 16),
            expect_end(3, Cause::Silent, Crash),
        ),
    ]
}

fn deadlines() -> Vec<Case> {
    let starting = |seconds: i64| run().created(3).scheduled(seconds);
    let pulling = || pod(3).waiting("ImagePullBackOff", "Back-off pulling image \"x\"");
    let attached = |seconds: i64| run().attached(3).attached_ago(seconds).pod(pod(3));
    vec![
        case(
            "a worker that has not attached within the start deadline is replaced and not charged",
            starting(601).pod(pod(3)),
            expect_end(3, Cause::StartDeadline, Neutral).message_contains("startDeadlineSeconds"),
        ),
        case(
            "until the start deadline the worker is starting",
            starting(600).pod(pod(3).kubelet_shows('a')).image_is('a'),
            expect_status(Summary::Starting, Reason::Starting),
        ),
        case(
            "a worker whose image cannot be pulled is replaced and not charged, and the message says why",
            starting(601).pod(pulling()),
            expect_end(3, Cause::ImageUnavailable, Neutral)
                .message_contains("ImagePullBackOff: Back-off pulling image"),
        ),
        case(
            "the message says what else the pod waits for",
            starting(601).pod(pod(3).waiting("CreateContainerConfigError", "secret \"s\" not found")),
            expect_end(3, Cause::StartDeadline, Neutral)
                .message_contains("CreateContainerConfigError: secret \"s\" not found"),
        ),
        case(
            "a worker whose volume cannot be attached is replaced, and that is no failed start",
            starting(601)
                .pod(pod(3).no_container_yet("FailedAttachVolume", "Multi-Attach error for volume \"data\"")),
            expect_end(3, Cause::VolumeUnavailable, Neutral)
                .message_contains("FailedAttachVolume: Multi-Attach error for volume \"data\""),
        ),
        case(
            "a volume that cannot be mounted is a failed start, and the message names it",
            starting(601).pod(pod(3).no_container_yet("FailedMount", "secret \"s\" not found")),
            expect_end(3, Cause::StartDeadline, Neutral)
                .message_contains("FailedMount: secret \"s\" not found"),
        ),
        case(
            "the time without a node does not count",
            run().created(3).no_node_yet().pod(pod(3).unscheduled("0/2 nodes are available")),
            expect_status(Summary::Pending, Reason::Unschedulable),
        ),
        case(
            "the start deadline starts again after an outage of the gateways",
            starting(6_000).gateway_outage(6_000, 599).pod(pod(3)),
            expect_status(Summary::Starting, Reason::Starting),
        ),
        case(
            "a worker that is alive and commits nothing is replaced and charged",
            attached(1_801),
            expect_end(3, Cause::ProgressDeadline, Crash).message_contains("progressDeadlineSeconds"),
        ),
        case("until the progress deadline it is not touched", attached(1_800), running()),
        case(
            "a boundary restarts the progress deadline",
            attached(9_000).head(7).committed(1_800),
            running(),
        ),
        case(
            "a boundary of an earlier attempt does not restart it",
            {
                let mut it = attached(1_801).head(7).committed(9_000);
                it.row.head.as_mut().unwrap().attempt = 2;
                it
            },
            expect_end(3, Cause::ProgressDeadline, Crash),
        ),
        case(
            "an outage of the gateways does not count to the progress deadline",
            attached(9_000).gateway_outage(9_000, 1_800),
            running(),
        ),
        case(
            "the progress deadline pauses during an outage of the gateways",
            attached(2_000).gateway_outage(600, 400),
            running(),
        ),
        case(
            "the progress deadline does not start again after an outage of the gateways",
            attached(2_001).gateway_outage(600, 400),
            expect_end(3, Cause::ProgressDeadline, Crash),
        ),
        case(
            "after several outages of the gateways a worker that hangs is found",
            attached(2_201).gateway_outage(1_500, 1_300).gateway_outage(600, 400),
            expect_end(3, Cause::ProgressDeadline, Crash),
        ),
        case(
            "right after an outage of the gateways a worker has 30 s to connect again",
            attached(9_000).gateway_outage(60, 30),
            running(),
        ),
    ]
}

fn sandboxes() -> Vec<Case> {
    let starting = || run().created(3).scheduled(40);
    let still_starting = || expect_status(Summary::Starting, Reason::Starting);
    vec![
        case(
            "a pod that lost its sandbox before its worker started is replaced, because no kubelet starts it",
            starting().pod(pod(3).sandbox_lost(31)),
            expect_end(3, Cause::NodeLost, Disruption).message_contains("lost its sandbox"),
        ),
        case(
            "also if it lost it between its init container and its worker",
            starting().pod(pod(3).sandbox_lost_after_init(31)),
            expect_end(3, Cause::NodeLost, Disruption).message_contains("lost its sandbox"),
        ),
        case(
            "a kubelet that creates another sandbox has 30 s",
            starting().pod(pod(3).sandbox_lost(20)),
            still_starting().message_contains("lost its sandbox").requeue_after(10),
        ),
        case(
            "they begin when its node is Ready again",
            starting().pod(pod(3).sandbox_lost(300)).node_ready(20),
            still_starting().requeue_after(10),
        ),
        case(
            "a node that is not Ready creates no sandbox",
            starting().pod(pod(3).sandbox_lost(300)).node_not_ready(5),
            still_starting(),
        ),
        case(
            "a pod with a sandbox waits for the start of its worker",
            starting().pod(pod(3).sandbox_lost(31).sandbox_ready()),
            still_starting(),
        ),
        case(
            "a worker that runs has started, whatever the condition says",
            starting().pod(pod(3).sandbox_lost(31).runs()),
            still_starting(),
        ),
        case(
            "a pod that has had no container waits for its first sandbox",
            starting().pod(pod(3).sandbox_lost(31).no_container_created()),
            still_starting(),
        ),
        case(
            "a worker that is attached has started, even if the watch does not show it yet",
            attached_with_heartbeat(5).pod(pod(3).sandbox_lost(31)),
            running(),
        ),
        case(
            "if it is deleted then, the lost sandbox is the cause",
            starting().pod(pod(3).sandbox_lost(20).deleted(5)),
            expect_end(3, Cause::NodeLost, Disruption),
        ),
        case(
            "if both happen at the same time, by clocks that differ by 10 s at most, that is not certain",
            starting().pod(pod(3).sandbox_lost(15).deleted(5)),
            still_starting(),
        ),
        case(
            "the sandbox of a pod that was deleted before goes with the pod",
            starting().pod(pod(3).sandbox_lost(35).deleted(36)),
            still_starting(),
        ),
    ]
}

fn nodes() -> Vec<Case> {
    let without_lease = || run().attached(3).head(7).pod(pod(3));
    vec![
        case(
            "without a lease, a worker is lost when its node is not Ready for the timeout",
            without_lease().node_not_ready(16),
            expect_end(3, Cause::NodeLost, Disruption),
        ),
        case(
            "while most of its zone is not Ready, a node that is not Ready is no evidence, and it is rechecked",
            without_lease().node_not_ready(3_600).zone_lost(),
            running().requeue_after(2),
        ),
        case(
            "until the timeout the node is rechecked after 2 s",
            without_lease().node_not_ready(15),
            running().requeue_after(2),
        ),
        case(
            "a later boundary proves that the worker is alive",
            without_lease().committed(10).node_not_ready(300),
            running().requeue_after(2),
        ),
        case(
            "a later attach proves that the worker is alive",
            run().attached(3).attached_ago(10).pod(pod(3)).node_not_ready(300),
            running().requeue_after(2),
        ),
        case(
            "a worker that has not attached is lost with its node",
            run().created(3).pod(pod(3)).node_not_ready(16),
            expect_end(3, Cause::NodeLost, Disruption),
        ),
        case(
            "after an outage of the gateways the worker has the full timeout to commit",
            without_lease().node_not_ready(300).gateway_outage(300, 15),
            running().requeue_after(2),
        ),
        case(
            "a worker is not lost during an outage of the gateways",
            without_lease().node_not_ready(300).last_beat(4),
            running().requeue_after(2),
        ),
        case(
            "a node that is not known yet is no evidence",
            {
                let mut it = without_lease();
                it.seen.node = None;
                it
            },
            running(),
        ),
    ]
}

fn being_stopped() -> Vec<Case> {
    vec![
        case(
            "a missed heartbeat during an eviction is an eviction",
            run()
                .attached(3)
                .head(7)
                .heartbeat(16)
                .pod(pod(3).disrupted("EvictionByEvictionAPI", 17).deleted(17)),
            expect_end(3, Cause::Evicted, Disruption),
        ),
        case(
            "a pod whose deletion is stuck on a node that is not Ready was evicted by the taint",
            run()
                .attached(3)
                .head(7)
                .pod(pod(3).disrupted("DeletionByTaintManager", 20).deleted(20))
                .node_not_ready(30),
            expect_end(3, Cause::TaintEvicted, Disruption),
        ),
        case(
            "the end of the container comes before a missed heartbeat",
            run().attached(3).head(7).heartbeat(16).pod(pod(3).oom()),
            expect_end(3, Cause::OOMKilled, Crash),
        ),
        case(
            "an eviction that nobody observed is not charged as a missed heartbeat",
            run()
                .attached(3)
                .head(7)
                .heartbeat(900)
                .pod(pod(3).terminated(1).finished(880).disrupted("EvictionByEvictionAPI", 881)),
            expect_end(3, Cause::Evicted, Disruption),
        ),
    ]
}
