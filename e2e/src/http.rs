//! Plain HTTP, for the ledger and the gateway: both are reached by pod IP, so that they answer while the API server
//! is away.

use std::time::Duration;

use anyhow::Context;
use dalsegno_protocol::Problem;
use serde::de::DeserializeOwned;

use crate::Result;

/// An answer, whatever its status.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The HTTP status.
    pub status: u16,
    /// The body as it came.
    pub body: String,
}

impl Answer {
    /// The body as JSON, of an answer 2xx.
    ///
    /// # Errors
    ///
    /// It is no 2xx, or no such JSON.
    pub fn ok<T: DeserializeOwned>(&self) -> Result<T> {
        anyhow::ensure!((200..300).contains(&self.status), "the answer is {}: {}", self.status, self.body);
        serde_json::from_str(&self.body).with_context(|| format!("reading the answer {}", self.body))
    }

    /// The refusal that it is.
    ///
    /// # Errors
    ///
    /// It is no problem document.
    pub fn problem(&self) -> Result<Problem> {
        let problem: Problem = serde_json::from_str(&self.body)
            .with_context(|| format!("the answer {} is no problem document: {}", self.status, self.body))?;
        anyhow::ensure!(problem.status == self.status, "answered {}, but says {problem:?}", self.status);
        Ok(problem)
    }
}

/// One request.
#[derive(Clone, Debug)]
pub struct Request {
    /// `GET` or `POST`.
    pub method: ureq::http::Method,
    /// Where to.
    pub url: String,
    /// Bearer of the request.
    pub bearer: Option<String>,
    /// Body, sent as `application/json`.
    pub body: Vec<u8>,
}

impl Request {
    /// Asks for something.
    pub fn get(url: impl Into<String>) -> Self {
        Self { method: ureq::http::Method::GET, url: url.into(), bearer: None, body: Vec::new() }
    }

    /// Sends something.
    pub fn post(url: impl Into<String>, body: impl Into<Vec<u8>>) -> Self {
        Self { method: ureq::http::Method::POST, url: url.into(), bearer: None, body: body.into() }
    }

    /// With this bearer.
    pub fn bearer(mut self, bearer: impl Into<String>) -> Self {
        self.bearer = Some(bearer.into());
        self
    }

    /// Sends it, once.
    ///
    /// # Errors
    ///
    /// No answer came within thirty seconds.
    pub async fn send(self) -> Result<Answer> {
        tokio::task::spawn_blocking(move || self.send_blocking()).await?
    }

    fn send_blocking(self) -> Result<Answer> {
        let agent: ureq::Agent = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .timeout_global(Some(Duration::from_secs(30)))
            .proxy(None)
            .build()
            .into();
        let mut request = ureq::http::Request::builder()
            .method(self.method)
            .uri(&self.url)
            .header("content-type", "application/json");
        if let Some(bearer) = self.bearer {
            request = request.header("authorization", format!("Bearer {bearer}"));
        }
        let mut response =
            agent.run(request.body(self.body)?).with_context(|| format!("asking {}", self.url))?;
        Ok(Answer { status: response.status().as_u16(), body: response.body_mut().read_to_string()? })
    }
}
