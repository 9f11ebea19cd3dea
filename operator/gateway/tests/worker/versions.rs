//! `POST attach` waits for the verdict on its image's version and applies it.

use std::time::{Duration, Instant};

use dalsegno_model::{Operator as _, Verdict};
use serde_json::json;

use crate::context::*;

#[tokio::test]
async fn an_attach_before_the_verdict_times_out_with_version_pending() {
    let ctx = TestContext::reserved(test_config()).await;
    ctx.record_pod(1, "pod-1", None).await;
    let started = Instant::now();
    let answer = ctx.attach("pod-1", INSTANCE).await;
    assert_eq!((answer.status, answer.code().as_str()), (503, "VERSION_PENDING"));
    assert!(started.elapsed() >= test_config().version_verdict_timeout);
}

#[tokio::test]
async fn an_attach_succeeds_once_the_image_is_accepted() {
    let ctx = TestContext::reserved(long_attach_timeouts()).await;
    ctx.record_pod(1, "pod-1", None).await;
    let record = async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        ctx.store.record_identity(ctx.run, 1, &accepted()).await.unwrap();
    };
    let (answer, ()) = tokio::join!(ctx.attach("pod-1", INSTANCE), record);
    assert_eq!(answer.ok()["attempt"], 1);
}

#[tokio::test]
async fn a_refused_image_is_version_incompatible_with_a_reason() {
    let ctx = TestContext::reserved(test_config()).await;
    let refused = identity(Verdict::Refused, "the checkpoint is of version 1.0, this image is 2.0");
    ctx.record_pod(1, "pod-1", Some(refused)).await;
    let answer = ctx.attach("pod-1", INSTANCE).await;
    assert_eq!((answer.status, answer.code().as_str()), (409, "VERSION_INCOMPATIBLE"));
    assert!(answer.detail().contains("this image is 2.0") && answer.detail().contains("exit"));
}

#[tokio::test]
async fn an_image_of_another_version_attaches_with_a_warning_that_has_the_operators_words() {
    for (verdict, code) in [(Verdict::Allowed, "VERSION_ALLOWED"), (Verdict::Accepted, "VERSION_COMPATIBLE")]
    {
        let ctx = TestContext::reserved(test_config()).await;
        let remark = "2.0 resumes 1.0 (checkpointVersion=1.0 imageVersion=2.0)";
        ctx.record_pod(1, "pod-1", Some(identity(verdict, remark))).await;
        let answer = ctx.attach("pod-1", INSTANCE).await.ok();
        assert_eq!(answer["warnings"], json!([{ "code": code, "message": remark }]));
    }
}

#[tokio::test]
async fn an_image_of_the_same_version_attaches_without_a_warning() {
    let ctx = TestContext::reserved(test_config()).await;
    ctx.record_pod(1, "pod-1", Some(identity(Verdict::Accepted, ""))).await;
    assert_eq!(ctx.attach("pod-1", INSTANCE).await.ok()["warnings"], json!([]));
}
