//! Limits: the worker exits between two steps.

use dalsegno_protocol::Policy;
use dalsegno_sdk::{Commit, Error, Run, ToolCall, ToolError};
use serde_json::json;

use crate::gateway::{Gateway, attached, call, child_run, committed, exit_code};

#[test]
fn a_check_at_a_limit_exits_with_0() {
    if let Some(run) = child_run() {
        run.check().unwrap();
        panic!("the process goes on");
    }
    let gateway = Gateway::new().on("attach", [attached(json!({"limit": true}))]);
    let code = exit_code("limits::a_check_at_a_limit_exits_with_0", &gateway);
    assert_eq!((code, gateway.bodies("park").len()), (Some(0), 0));
}

#[test]
fn a_raised_limit_is_taken_from_the_next_answer() {
    let gateway = Gateway::new()
        .on("attach", [attached(json!({"limit": true}))])
        .on("turns/1", [committed(1, "result")]);
    let mut run: Run = gateway.attach();
    assert!(run.at_limit());
    run.commit(Commit::new(1)).unwrap();
    assert!(!run.at_limit(), "a gateway that does not know limits leaves the flag out");
    run.check().unwrap();
}

#[test]
fn an_open_call_is_completed_before_the_exit() {
    let gateway = Gateway::new()
        .on("attach", [attached(json!({"limit": true}))])
        .on("calls/turn-1/claim", [call("go", "started", json!({}))]);
    let run = gateway.attach();
    let tool = |_: &str, ()| Err::<(), _>(ToolError::from(std::io::Error::other("no answer")));
    assert!(matches!(run.call(ToolCall::new("turn-1", Policy::Ask), (), tool), Err(Error::Tool { .. })));
    run.check().unwrap();
}
