//! The flag `limit` in the gateway's answers.

use dalsegno_model::{Operator as _, RunLimits};
use serde_json::json;

use crate::context::*;

impl TestContext {
    async fn limit_turns(&self, turns: i64) {
        let limits = RunLimits { turns: Some(turns), ..RunLimits::default() };
        self.store.set_limits(self.run, &limits).await.unwrap();
    }
}

#[tokio::test]
async fn a_limit_is_in_the_flags_of_every_answer_until_it_is_raised() {
    let ctx = TestContext::attached().await;
    ctx.limit_turns(2).await;
    assert_eq!(ctx.post("turns/1", commit(1, "1")).await.ok()["limit"], false);
    assert_eq!(ctx.post("heartbeat", "").await.ok()["limit"], false);
    let last = ctx.post("turns/2", commit(2, "2")).await.ok();
    assert_eq!((&last["result"], &last["limit"]), (&json!("ok"), &json!(true)), "the turn is accepted");
    assert_eq!(ctx.post("turns/2", commit(2, "2")).await.ok()["limit"], true, "the answer to a retry");
    assert_eq!(ctx.post("heartbeat", "").await.ok()["limit"], true);
    assert_eq!(ctx.attach("pod-1", INSTANCE).await.ok()["limit"], true);

    ctx.limit_turns(4).await;
    assert_eq!(ctx.post("heartbeat", "").await.ok()["limit"], false);
    assert_eq!(ctx.post("turns/3", commit(3, "3")).await.ok()["limit"], false);
    assert_eq!(ctx.post("turns/4", commit(4, "4")).await.ok()["limit"], true);
}
