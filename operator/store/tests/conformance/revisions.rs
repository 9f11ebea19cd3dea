//! Templates, and runs by their name.

use dalsegno_store::OnPrior;

use crate::faces::on_every_face;
use crate::world::*;

on_every_face! {
    a_template_is_kept_by_its_hash,
    runs_are_found_by_their_name,
}

async fn a_template_is_kept_by_its_hash(world: &World) {
    assert_eq!(world.get_revision("sha256:aa").await.unwrap(), None);
    let document = "{\"spec\":  {\"containers\": [\"\u{e9}\"]}}";
    for _ in 0..2 {
        world.put_revision("sha256:aa", document).await.unwrap();
    }
    world.put_revision("sha256:bb", "{}").await.unwrap();
    assert_eq!(world.get_revision("sha256:aa").await.unwrap().as_deref(), Some(document));
    assert_eq!(world.get_revision("sha256:bb").await.unwrap().as_deref(), Some("{}"));
}

async fn runs_are_found_by_their_name(world: &World) {
    let first = new_run();
    world.take_up(&first).await;
    world.mark_deleted(&first.object_uid).await.unwrap();
    pause(5).await;
    let second = namesake(&first, OnPrior::Hold);
    world.take_up(&second).await;
    world.run().await;
    let found = world.find(&first.namespace, &first.name).await.unwrap();
    let ids: Vec<_> = found.iter().map(|run| run.id).collect();
    assert_eq!(ids, [second.id, first.id], "the newest first, deleted ones too");
    assert_eq!(still(found[0].clone()), still(world.look(&second.object_uid).await));
    assert!(world.find("elsewhere", &first.name).await.unwrap().is_empty());
    assert!(world.find(&first.namespace, "nobody").await.unwrap().is_empty());
}
