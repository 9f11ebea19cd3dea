//! The deployed image against the version that wrote the checkpoint: before the pod, and at its attach.

use dalsegno_core::revision::Document;
use dalsegno_crds::ConditionType::VersionCompatible;
use dalsegno_crds::{Cause, Reason, Summary};
use serde_json::json;

use crate::words::{
    Case, Given, TAGGED, acts, by_digest, case, digest, disrupted, nobodys, pod, rests, run, try_all,
};

#[test]
fn a_run_goes_on_only_under_a_version_that_fits_its_checkpoint() {
    try_all(before_the_pod());
    try_all(pinning());
    try_all(refused_at_attach());
    try_all(at_attach());
}

/// The template that wrote the head: image `a`, by its tag, and nothing declared.
fn old() -> Document {
    run().document()
}

/// Attempt 3 is reserved after turn 7, which image `a` wrote; the template that did is in the store.
fn after_a() -> Given {
    run().reserved(3).head(7).after(disrupted(2, Cause::Evicted)).stored(&old()).head_made_from(&old().hash())
}

/// The table of what is known before the pod.
fn before_the_pod() -> Vec<Case> {
    let same_digest = || after_a().image(&by_digest('a'));
    let other_digest = || after_a().image(&by_digest('b'));
    let same_declared = || after_a().head_declared("1.0").image(&by_digest('b')).declares("1.0");
    let other_declared = || after_a().head_declared("1.0").image(&by_digest('a')).declares("2.0");
    let compatible = || other_declared().compatible_with("1.0");
    let compatible_digest = || other_digest().compatible_with(&digest('a'));
    let unknown = || after_a().image("registry.test:5000/agent:2");
    let current = || acts("create triage-3");
    let pinned = || acts("create triage-3, pinned");
    let held = || rests(Summary::Held, Reason::VersionBlocked);
    let mut cases = Vec::new();
    for policy in ["Pin", "Block", "Allow"] {
        cases.extend([
            case("the same digest", same_digest().on_mismatch(policy), current()),
            case(
                "the same declared version, whatever the image",
                same_declared().on_mismatch(policy),
                current(),
            ),
            case("a compatible declared version", compatible().on_mismatch(policy), current()),
            case("a compatible digest", compatible_digest().on_mismatch(policy), current()),
            case("a tag of which nothing is known", unknown().on_mismatch(policy), current()),
        ]);
    }
    cases.extend([
        case("another digest under Pin", other_digest().on_mismatch("Pin"), pinned()),
        case("another declared version under Pin", other_declared().on_mismatch("Pin"), pinned()),
        case("Pin is built in", other_digest(), pinned()),
        case(
            "another digest under Block",
            other_digest().on_mismatch("Block"),
            held()
                .says("turn 7 was written by agent version ".to_owned() + &digest('a'))
                .says("the deployed image is ".to_owned() + &digest('b'))
                .says("compatibleWith")
                .is(VersionCompatible, "False", Reason::Mismatch),
        ),
        case(
            "another declared version under Block",
            other_declared().on_mismatch("Block"),
            held().says("agent version 1.0, the deployed image is 2.0"),
        ),
        case("another digest under Allow", other_digest().on_mismatch("Allow"), current()),
        case("another declared version under Allow", other_declared().on_mismatch("Allow"), current()),
        case(
            "a run without a checkpoint fits any version",
            run().image(&by_digest('b')).on_mismatch("Block"),
            acts("create triage-1"),
        ),
    ]);
    cases
}

fn pinning() -> Vec<Case> {
    let other = || run().reserved(3).head(7).image(&by_digest('b')).head_made_from(&old().hash());
    let failed = |n: i32| nobodys(n, Cause::ImageUnavailable).said("ErrImagePull: gone").ago(9_000);
    vec![
        case(
            "the template that wrote the checkpoint is read from the store when it is needed",
            other(),
            acts(format!("read template {}", old().hash())),
        ),
        case(
            "one that the store has lost leaves the decision to a person",
            other().lost(&old().hash()),
            rests(Summary::Held, Reason::VersionBlocked)
                .says("the template that wrote it is not in the store"),
        ),
        case(
            "another template than the head's, read before the head moved, is not taken for it",
            other().stored(&run().declares("0.9").document()),
            acts(format!("read template {}", old().hash())),
        ),
        case(
            "a pinned image that cannot be had is tried three times, then told as such",
            [5, 4, 3].into_iter().fold(other().stored(&old()).reserved(6), |it, n| it.after(failed(n))),
            rests(Summary::Held, Reason::PinnedImageUnavailable)
                .says("ErrImagePull: gone")
                .says("Push the image again"),
        ),
        case(
            "the current image that cannot be had is told otherwise",
            [5, 4, 3].into_iter().fold(run().reserved(6).head(7), |it, n| it.after(failed(n))),
            rests(Summary::Held, Reason::CannotStart),
        ),
    ]
}

/// A tag that was pushed again: the template is the same, and the image `b`.
fn refused_at_attach() -> Vec<Case> {
    let refused =
        |n: i32| nobodys(n, Cause::VersionIncompatible).said("the versions differ").was(&old().hash(), 'b');
    let once = || run().reserved(4).head(7).head_made_from(&old().hash()).stored(&old()).after(refused(3));
    vec![
        case(
            "a tag that was refused is known, and Pin goes back by digest",
            once(),
            acts("create triage-4, pinned"),
        ),
        case(
            "Block holds, and names both versions",
            once().on_mismatch("Block"),
            rests(Summary::Held, Reason::VersionBlocked).says(digest('a')).says(digest('b')),
        ),
        case("Allow lets the tag go on", once().on_mismatch("Allow"), acts("create triage-4")),
        case("a granted budget forgets it", once().reset(1, 3), acts("create triage-4")),
        case(
            "another template is not known by it",
            once().image("registry.test:5000/agent:3"),
            acts("create triage-4"),
        ),
        case(
            "it stays known when the pinned attempt was disrupted",
            run()
                .reserved(5)
                .head(7)
                .head_made_from(&old().hash())
                .stored(&old())
                .after(disrupted(4, Cause::Evicted).was("sha256:pinned", 'a'))
                .after(refused(3)),
            acts("create triage-5, pinned"),
        ),
        case(
            "a tag that was accepted may have been pushed again since: it is not known",
            run()
                .reserved(4)
                .head(7)
                .on_mismatch("Block")
                .after(disrupted(3, Cause::Evicted).was(&old().hash(), 'b')),
            acts("create triage-4"),
        ),
        case(
            "two refusals in a row are held",
            run().reserved(5).head(7).after(refused(4)).after(refused(3)),
            rests(Summary::Held, Reason::VersionBlocked).says("refused 2 times in a row; attempt 4"),
        ),
    ]
}

fn at_attach() -> Vec<Case> {
    let shows = |image: char| run().created(3).head(7).pod(pod(3).shows(image));
    let verdict = |version: &str, verdict: &str| acts(format!("identify {version}: {verdict}"));
    let other = || shows('b').image(TAGGED);
    vec![
        case(
            "the first image of a run is accepted",
            run().created(1).pod(pod(1).shows('b')),
            verdict(&digest('b'), "Accepted"),
        ),
        case("the checkpoint's image is accepted", shows('a'), verdict(&digest('a'), "Accepted")),
        case("another image is refused under Pin", other(), verdict(&digest('b'), "Refused")),
        case(
            "another image is refused under Block",
            other().on_mismatch("Block"),
            verdict(&digest('b'), "Refused"),
        ),
        case(
            "another image is allowed under Allow",
            other().on_mismatch("Allow"),
            verdict(&digest('b'), "Allowed"),
        ),
        case(
            "a listed image is accepted",
            other().compatible_with(&digest('a')),
            verdict(&digest('b'), "Accepted"),
        ),
        case(
            "the declared version is what the pod's own template declared, not today's",
            run()
                .created(3)
                .head(7)
                .head_declared("1.0")
                .declares("2.0")
                .pod(pod(3).shows('b').declares("1.0")),
            verdict("1.0", "Accepted"),
        ),
        case(
            "an image named by digest has that digest, whatever the kubelet shows",
            run().created(3).head(7).pod(pod(3).named_by('a').shows('b')),
            verdict(&digest('a'), "Accepted"),
        ),
        case(
            "an image that is not shown yet is waited for",
            run().created(3).head(7).pod(pod(3)),
            rests(Summary::Starting, Reason::Starting).is(VersionCompatible, "Unknown", Reason::NotYetKnown),
        ),
        case(
            "a definition that is missing is not taken for a refusal",
            other().no_definition(),
            rests(Summary::Starting, Reason::Starting),
        ),
        case(
            "the checkpoint's own image needs no definition to be accepted",
            shows('a').no_definition(),
            verdict(&digest('a'), "Accepted"),
        ),
        case(
            "a verdict is given once",
            other().is('b').spec(json!({})),
            rests(Summary::Starting, Reason::Starting),
        ),
    ]
}
