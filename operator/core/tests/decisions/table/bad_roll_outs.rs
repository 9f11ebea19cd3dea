//! Under Pin a new image or command that does not work never stops a run.

use dalsegno_crds::Cause;
use serde_json::json;

use super::versions::{after_a, old};
use crate::fixtures::{Case, Given, IMAGE_BY_TAG, case, check_all, digest, expect_effect, neutral, run};

#[test]
fn pin_survives_a_bad_roll_out() {
    check_all(bad_roll_outs());
}

fn bad_roll_outs() -> Vec<Case> {
    let (current, pinned) =
        (|| expect_effect("create triage-3"), || expect_effect("create triage-3, pinned"));
    let renamed = || after_a().image("registry.test:5000/agent:2");
    let command = || json!({ "spec": { "containers": [{ "name": "agent", "image": IMAGE_BY_TAG, "command": ["/new"] }] } });
    let other_command = || after_a().agent(command());
    let pinned_to = |given: &Given| given.document().clone().pinned(&digest('a'), &given.document()).hash();
    let failed = |given: Given, cause: Cause| {
        let revision = given.document().hash();
        let mut given = given;
        given.row.past.insert(0, neutral(2, cause).ago(900).made_from(&revision).0);
        given
    };
    let cases = [Cause::ImageUnavailable, Cause::StartFailed, Cause::StartDeadline].map(|cause| {
        case("a template that failed to start is not tried again", failed(other_command(), cause), pinned())
    });
    let others = vec![
        case("an image with another name whose version is not known", renamed(), pinned()),
        case(
            "the template that wrote the checkpoint is read first",
            run().reserved(3).head(7).image("registry.test:5000/agent:2"),
            expect_effect(format!("read template {}", old().hash())),
        ),
        case(
            "without the template that wrote the checkpoint the current one is used",
            run().reserved(3).head(7).image("registry.test:5000/agent:2").template_missing(&old().hash()),
            current(),
        ),
        case("an image with the same name and another command", other_command(), current()),
        case(
            "an image with another name that lists the checkpoint's version",
            renamed().compatible_with(&digest('a')),
            current(),
        ),
        case(
            "a listed image that cannot be pulled",
            failed(renamed().compatible_with(&digest('a')), Cause::ImageUnavailable),
            pinned(),
        ),
        case(
            "after a granted budget the template is tried again",
            failed(other_command(), Cause::StartFailed).budget_reset(1, 2),
            current(),
        ),
        case(
            "after a pinned attempt the name of its image is still the one in the definition",
            after_a().template_stored(&old().pinned(&digest('a'), &old())).head_revision(&pinned_to(&run())),
            current(),
        ),
        case(
            "an image with another name, if no registry knows the digest of the old one",
            renamed().head_image_in_no_registry(),
            pinned(),
        ),
        case(
            "a template that failed to start is used again if it is the one that wrote the checkpoint, in no registry",
            failed(after_a().head_image_in_no_registry(), Cause::StartFailed),
            current(),
        ),
        case(
            "a digest that no registry has is replaced by the recorded name",
            {
                let given = renamed();
                let by_digest = old().pinned(&digest('a'), &given.document()).hash();
                let mut given = failed(given, Cause::ImageUnavailable);
                given
                    .row
                    .past
                    .insert(0, neutral(2, Cause::ImageUnavailable).ago(900).made_from(&by_digest).0);
                given
            },
            pinned(),
        ),
    ];
    cases.into_iter().chain(others).collect()
}
