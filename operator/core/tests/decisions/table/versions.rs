//! The check of the deployed version against the checkpoint's version, before the pod is created and before the attach.

use dalsegno_core::Effect;
use dalsegno_core::revision::Document;
use dalsegno_crds::ConditionType::VersionCompatible;
use dalsegno_crds::{Cause, Reason, Summary};
use serde_json::json;

use crate::fixtures::{
    Case, Given, IMAGE_BY_TAG, case, check_all, digest, disrupted, expect_effect, expect_status,
    image_by_digest, neutral, pod, run,
};

#[test]
fn a_run_resumes_only_with_a_compatible_version() {
    check_all(before_the_pod());
    check_all(pinning());
    check_all(refused_at_attach());
    check_all(at_attach());
}

/// Image of the pod that is created next.
fn next_image(given: &Given) -> Option<String> {
    let effects = given.decide().effects;
    let created = effects.iter().find_map(|it| match it {
        Effect::CreateWorker { pod, .. } => Some(pod),
        _ => None,
    })?;
    created["spec"]["containers"][0]["image"].as_str().map(str::to_owned)
}

#[test]
fn pin_names_an_image_by_digest_only_if_a_registry_knows_the_digest() {
    let pinned = || after_a().image("registry.test:5000/agent:2");
    assert_eq!(next_image(&pinned()), Some(image_by_digest('a')));
    assert_eq!(next_image(&pinned().head_image_in_no_registry()), Some(IMAGE_BY_TAG.to_owned()));
    let before = || {
        let mut given = pinned();
        given.row.head.as_mut().unwrap().identity.as_mut().unwrap().in_registry = None;
        given
    };
    assert_eq!(next_image(&before()), Some(image_by_digest('a')), "an earlier version did not look");
}

#[test]
fn it_is_recorded_whether_a_registry_knows_the_digest_of_the_image() {
    for (seen, in_registry) in [
        (pod(3).kubelet_shows('a'), true),
        (pod(3).kubelet_shows_loaded('a'), false),
        (pod(3).named_by_digest('a').kubelet_shows_loaded('b'), true),
    ] {
        let effects = run().created(3).pod(seen).decide().effects;
        let [Effect::RecordIdentity { identity, .. }] = effects.as_slice() else { panic!("{effects:?}") };
        assert_eq!((identity.image_digest.clone(), identity.in_registry), (digest('a'), Some(in_registry)));
    }
}

#[test]
fn the_recorded_verdict_on_another_version_names_both_versions_as_key_and_value() {
    let other = || run().created(3).head(7).pod(pod(3).kubelet_shows('b')).image(IMAGE_BY_TAG);
    for given in [other(), other().on_mismatch("Allow"), other().compatible_with(&digest('a'))] {
        let effects = given.decide().effects;
        let [Effect::RecordIdentity { identity, .. }] = effects.as_slice() else { panic!("{effects:?}") };
        let both = format!("(checkpointVersion={} imageVersion={})", digest('a'), digest('b'));
        assert!(identity.remark.contains(&both), "{}", identity.remark);
    }
}

/// The template that wrote the head: image `a`, named by tag, without a declared version.
pub fn old() -> Document {
    run().document()
}

/// Attempt 3 is reserved after turn 7. Image `a` wrote the turn, and its template is in the store.
pub fn after_a() -> Given {
    run()
        .reserved(3)
        .head(7)
        .after(disrupted(2, Cause::Evicted))
        .template_stored(&old())
        .head_revision(&old().hash())
}

/// Checks before the pod is created.
fn before_the_pod() -> Vec<Case> {
    let same_digest = || after_a().image(&image_by_digest('a'));
    let other_digest = || after_a().image(&image_by_digest('b'));
    let same_declared = || after_a().head_version("1.0").image(&image_by_digest('b')).declares("1.0");
    let other_declared = || after_a().head_version("1.0").image(&image_by_digest('a')).declares("2.0");
    let compatible = || other_declared().compatible_with("1.0");
    let compatible_digest = || other_digest().compatible_with(&digest('a'));
    let unknown = || after_a().image("registry.test:5000/agent:2");
    let current = || expect_effect("create triage-3");
    let pinned = || expect_effect("create triage-3, pinned");
    let held = || expect_status(Summary::Held, Reason::VersionBlocked);
    let mut cases = Vec::new();
    for policy in ["Pin", "Block", "Allow"] {
        cases.extend([
            case("the same digest", same_digest().on_mismatch(policy), current()),
            case(
                "the same declared version with another image",
                same_declared().on_mismatch(policy),
                current(),
            ),
            case("a compatible declared version", compatible().on_mismatch(policy), current()),
            case("a compatible digest", compatible_digest().on_mismatch(policy), current()),
        ]);
    }
    cases.extend([
        case("a tag whose version is not known under Allow", unknown().on_mismatch("Allow"), current()),
        case("a tag whose version is not known under Block", unknown().on_mismatch("Block"), current()),
        case("another digest under Pin", other_digest().on_mismatch("Pin"), pinned()),
        case("another declared version under Pin", other_declared().on_mismatch("Pin"), pinned()),
        case("Pin is the built-in policy", other_digest(), pinned()),
        case(
            "another digest under Block",
            other_digest().on_mismatch("Block"),
            held()
                .message_contains("turn 7 was written by agent version ".to_owned() + &digest('a'))
                .message_contains("the deployed version is ".to_owned() + &digest('b'))
                .message_contains("compatibleWith")
                .condition(VersionCompatible, "False", Reason::Mismatch),
        ),
        case(
            "another declared version under Block",
            other_declared().on_mismatch("Block"),
            held()
                .message_contains("agent version 1.0, and the deployed version is 2.0")
                .message_contains("checkpointVersion=1.0 imageVersion=2.0"),
        ),
        case("another digest under Allow", other_digest().on_mismatch("Allow"), current()),
        case("another declared version under Allow", other_declared().on_mismatch("Allow"), current()),
        case(
            "any version may start a run without a checkpoint",
            run().image(&image_by_digest('b')).on_mismatch("Block"),
            expect_effect("create triage-1"),
        ),
    ]);
    cases
}

fn pinning() -> Vec<Case> {
    let other = || run().reserved(3).head(7).image(&image_by_digest('b')).head_revision(&old().hash());
    let failed = |n: i32| neutral(n, Cause::ImageUnavailable).message("ErrImagePull: gone").ago(30);
    vec![
        case(
            "the template that wrote the checkpoint is read from the store",
            other(),
            expect_effect(format!("read template {}", old().hash())),
        ),
        case(
            "a template that the store lost holds the run",
            other().template_missing(&old().hash()),
            expect_status(Summary::Held, Reason::VersionBlocked)
                .message_contains("the template that wrote the checkpoint is not in the store"),
        ),
        case(
            "a template that was read before the head moved is not used",
            other().template_stored(&run().declares("0.9").document()),
            expect_effect(format!("read template {}", old().hash())),
        ),
        case(
            "a pinned image that cannot be pulled three times holds the run",
            [5, 4, 3]
                .into_iter()
                .fold(other().template_stored(&old()).reserved(6), |it, n| it.after(failed(n))),
            expect_status(Summary::Held, Reason::PinnedImageUnavailable)
                .message_contains("ErrImagePull: gone")
                .message_contains("Push the image again"),
        ),
        case(
            "a current image that cannot be pulled has another reason",
            [5, 4, 3].into_iter().fold(run().reserved(6).head(7), |it, n| it.after(failed(n))),
            expect_status(Summary::Held, Reason::CannotStart),
        ),
    ]
}

/// A tag that was pushed again: the same template has image `b` now.
fn refused_at_attach() -> Vec<Case> {
    let refused = |n: i32| {
        neutral(n, Cause::VersionIncompatible)
            .message("the versions differ")
            .used_template(&old().hash(), 'b')
    };
    let once =
        || run().reserved(4).head(7).head_revision(&old().hash()).template_stored(&old()).after(refused(3));
    vec![
        case(
            "after a refusal Pin uses the old image by digest",
            once(),
            expect_effect("create triage-4, pinned"),
        ),
        case(
            "a refused image that was loaded onto the nodes under the same name holds the run",
            once().head_image_in_no_registry(),
            expect_status(Summary::Held, Reason::VersionBlocked)
                .message_contains("no registry knows its digest"),
        ),
        case(
            "after a refusal Block holds the run, and the message names both versions",
            once().on_mismatch("Block"),
            expect_status(Summary::Held, Reason::VersionBlocked)
                .message_contains(digest('a'))
                .message_contains(digest('b')),
        ),
        case(
            "after a refusal Allow uses the tag",
            once().on_mismatch("Allow"),
            expect_effect("create triage-4"),
        ),
        case(
            "after a granted budget the refusal does not count",
            once().budget_reset(1, 3),
            expect_effect("create triage-4"),
        ),
        case(
            "the refusal does not apply to another template",
            once().image("registry.test:5000/agent:3").on_mismatch("Block"),
            expect_effect("create triage-4"),
        ),
        case(
            "the refusal still applies after the pinned attempt was disrupted",
            run()
                .reserved(5)
                .head(7)
                .head_revision(&old().hash())
                .template_stored(&old())
                .after(disrupted(4, Cause::Evicted).used_template("sha256:pinned", 'a'))
                .after(refused(3)),
            expect_effect("create triage-5, pinned"),
        ),
        case(
            "an accepted version does not count later, because the tag may have been pushed again",
            run()
                .reserved(4)
                .head(7)
                .on_mismatch("Block")
                .after(disrupted(3, Cause::Evicted).used_template(&old().hash(), 'b')),
            expect_effect("create triage-4"),
        ),
        case(
            "two refusals in a row hold the run",
            run().reserved(5).head(7).after(refused(4)).after(refused(3)),
            expect_status(Summary::Held, Reason::VersionBlocked)
                .message_contains("the version was refused 2 times in a row; attempt 4"),
        ),
    ]
}

fn at_attach() -> Vec<Case> {
    let shows = |image: char| run().created(3).head(7).pod(pod(3).kubelet_shows(image));
    let verdict =
        |version: &str, verdict: &str| expect_effect(format!("record identity {version}: {verdict}"));
    let other = || shows('b').image(IMAGE_BY_TAG);
    vec![
        case(
            "the first image of a run is accepted",
            run().created(1).pod(pod(1).kubelet_shows('b')),
            verdict(&digest('b'), "Accepted"),
        ),
        case(
            "the image of a worker beside an injected sidecar is accepted",
            run().created(1).pod(pod(1).kubelet_shows('b').with_injected_sidecar("solo")),
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
            "the declared version comes from the pod's own template, not from the current one",
            run()
                .created(3)
                .head(7)
                .head_version("1.0")
                .declares("2.0")
                .pod(pod(3).kubelet_shows('b').declares("1.0")),
            verdict("1.0", "Accepted"),
        ),
        case(
            "the digest in the image's name wins over the one that the kubelet reports",
            run().created(3).head(7).pod(pod(3).named_by_digest('a').kubelet_shows('b')),
            verdict(&digest('a'), "Accepted"),
        ),
        case(
            "the check waits until the kubelet reports the digest",
            run().created(3).head(7).pod(pod(3)),
            expect_status(Summary::Starting, Reason::Starting).condition(
                VersionCompatible,
                "Unknown",
                Reason::NotYetKnown,
            ),
        ),
        case(
            "a missing definition is not a refusal",
            other().no_definition(),
            expect_status(Summary::Starting, Reason::Starting),
        ),
        case(
            "the checkpoint's image is accepted without a definition",
            shows('a').no_definition(),
            verdict(&digest('a'), "Accepted"),
        ),
        case(
            "the image is checked once",
            other().image_is('b').spec(json!({})),
            expect_status(Summary::Starting, Reason::Starting),
        ),
    ]
}
