//! Runs of a namespace that was deleted and created again.

use crate::test_context::{RUN, TestContext, create_run};

#[tokio::test]
async fn the_runs_of_a_namespace_can_be_moved_to_its_new_uid() {
    let context = TestContext::new();
    create_run(&*context.store().await, false).await;
    let (success, text) = context.run(&["show", RUN], true);
    assert!(success && text.contains("namespace UID uid-default)"), "{text}");

    let adopt = ["adopt-namespace", "uid-default", "uid-later", "--reason", "it was restored"];
    let (success, text) = context.run(&adopt, false);
    assert!(success && text.contains("1 run now belongs to the namespace with UID uid-later"), "{text}");
    let (_, text) = context.run(&["show", RUN], true);
    assert!(text.contains("namespace UID uid-later)"), "{text}");

    let (success, text) = context.run(&adopt, false);
    assert!(!success && text.contains("the store has no run of a namespace with UID uid-default"), "{text}");
}
