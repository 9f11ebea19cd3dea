//! `POST attach` waits for the verdict on its image, and obeys it.

use std::time::{Duration, Instant};

use dalsegno_store::{Operator as _, Verdict};
use serde_json::json;

use crate::world::*;

#[tokio::test]
async fn an_image_that_is_not_judged_yet_waits_and_then_is_told_to_try_again() {
    let world = World::reserved(quick()).await;
    world.record_pod(1, "pod-1", None).await;
    let started = Instant::now();
    let answer = world.attach("pod-1", INSTANCE).await;
    assert_eq!((answer.status, answer.code().as_str()), (503, "VERSION_PENDING"));
    assert!(started.elapsed() >= quick().verdict_wait);
}

#[tokio::test]
async fn an_image_that_is_judged_meanwhile_attaches() {
    let world = World::reserved(patient()).await;
    world.record_pod(1, "pod-1", None).await;
    let judge = async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        world.store.record_identity(world.run, 1, &accepted()).await.unwrap();
    };
    let (answer, ()) = tokio::join!(world.attach("pod-1", INSTANCE), judge);
    assert_eq!(answer.ok()["attempt"], 1);
}

#[tokio::test]
async fn an_image_that_is_refused_exits_and_knows_why() {
    let world = World::reserved(quick()).await;
    let refused = identity(Verdict::Refused, "the checkpoint is of version 1.0, this image is 2.0");
    world.record_pod(1, "pod-1", Some(refused)).await;
    let answer = world.attach("pod-1", INSTANCE).await;
    assert_eq!((answer.status, answer.code().as_str()), (409, "VERSION_INCOMPATIBLE"));
    assert!(answer.detail().contains("this image is 2.0") && answer.detail().contains("exit"));
}

#[tokio::test]
async fn an_image_that_is_allowed_gets_a_warning() {
    let world = World::reserved(quick()).await;
    let remark = "the checkpoint is of version 1.0, this image is 2.0, and the policy is Allow";
    world.record_pod(1, "pod-1", Some(identity(Verdict::Allowed, remark))).await;
    let answer = world.attach("pod-1", INSTANCE).await.ok();
    assert_eq!(answer["warnings"], json!([{ "code": "VERSION_ALLOWED", "message": remark }]));
}
