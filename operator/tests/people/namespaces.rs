//! The runs of a namespace that was deleted and created again.

use crate::place::{Place, RUN, run};

#[tokio::test]
async fn the_namespace_that_a_run_belongs_to_is_shown_and_can_be_adopted() {
    let place = Place::new();
    run(&*place.store().await, false).await;
    let (shown, text) = place.dalsegno(&["show", RUN], true);
    assert!(shown && text.contains("namespace UID uid-default)"), "{text}");

    let adopt = ["adopt-namespace", "uid-default", "uid-later", "--reason", "it was restored"];
    let (done, text) = place.dalsegno(&adopt, false);
    assert!(done && text.contains("1 runs now belong to the namespace with UID uid-later"), "{text}");
    let (_, text) = place.dalsegno(&["show", RUN], true);
    assert!(text.contains("namespace UID uid-later)"), "{text}");

    let (again, text) = place.dalsegno(&adopt, false);
    assert!(!again && text.contains("the store has no run of a namespace with UID uid-default"), "{text}");
}
