//! A ServiceAccount that sends messages to a run.

use dalsegno_protocol::{AUDIENCE, CommitResult, SendResponse};
use serde_json::json;

use crate::http::Request;
use crate::process::kubectl;
use crate::{Result, Rights, Run, TestContext, Worker};

/// The right to send messages and to read them.
const RIGHTS: Rights<'static> = Rights {
    group: "subresources.dalsegno.dev",
    resources: &["agentruns/messages"],
    verbs: &["create", "get"],
};

/// A sender, with the run's URL for people.
pub struct Sender {
    /// The name of the ServiceAccount.
    pub name: &'static str,
    /// The name of its user, as the API server authenticates it.
    pub user: String,
    /// Its token.
    pub token: String,
    /// The run's base URL.
    pub url: String,
}

impl Sender {
    /// Creates the ServiceAccount of this name. The worker is one of the same release, at any run.
    pub async fn new(
        ctx: &TestContext,
        worker: &Worker,
        (run, name): (&Run<'_>, &'static str),
    ) -> Result<Self> {
        let namespace = &ctx.namespace;
        kubectl(["create", "serviceaccount", name, "--namespace", namespace]).await?;
        let create = ["create", "token", name, "--audience", AUDIENCE, "--namespace", namespace];
        let token = kubectl(create).await?.trim().to_owned();
        let user = format!("system:serviceaccount:{namespace}:{name}");
        ctx.grant(&user, RIGHTS).await?;
        let url = format!("{}/{namespace}/agentruns/{}", worker.user_api_url(), run.name);
        Ok(Self { name, user, token, url })
    }

    /// Sends a message twice, as a sender does that got no answer. Returns its position and its id.
    pub async fn send(&self, number: i32, topic: &str) -> Result<(i64, String)> {
        let id = format!("{}-{number}", self.name);
        let body = json!({ "id": id, "topic": topic, "value": { "number": number } }).to_string();
        let send = async || -> Result<SendResponse> {
            let post = Request::post(format!("{}/messages", self.url), body.clone()).bearer(&self.token);
            post.send().await?.json()
        };
        let (first, second) = (send().await?, send().await?);
        anyhow::ensure!(first.result == CommitResult::Ok, "{id}: {first:?}");
        anyhow::ensure!(
            second.result == CommitResult::Duplicate && second.position == first.position,
            "{id}"
        );
        Ok((first.position, id))
    }
}
