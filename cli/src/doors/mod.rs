//! The doors to what a run has committed. Both have the same documents, by the same names and the same rights.
//!
//! - The *aggregated API* of the API server needs nothing but a kubeconfig. It exists once it is registered.
//! - The *gateway* needs a port-forward to its pod, and the token of a ServiceAccount: a person's own token is for the API
//!   server alone.

mod aggregated;
mod answer;
mod document;
mod forward;
mod gateway;

use dalsegno_crds::names::SUBRESOURCES_GROUP;
use http::Method;
use http_body_util::BodyExt as _;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::args::DoorChoice;
use crate::failure::{Exit, Failure, Result};
use crate::session::Session;
use answer::{Answer, Body};
pub use document::Document;

/// Largest answer that is read at once.
const LARGEST_ANSWER: usize = 256 << 20;

/// An open door.
pub struct Door {
    way: Way,
    namespace: String,
}

enum Way {
    Aggregated(kube::Client),
    Gateway(Box<gateway::Gateway>),
}

impl Door {
    /// Opens the door that the user has chosen, or the first one that is there.
    pub async fn open(session: &Session) -> Result<Self> {
        let namespace = session.namespace.clone();
        let is_registered = match session.global.door {
            DoorChoice::Gateway => false,
            DoorChoice::Aggregated | DoorChoice::Auto => aggregated::is_registered(&session.client).await?,
        };
        let way = match session.global.door {
            _ if is_registered => Way::Aggregated(session.client.clone()),
            DoorChoice::Aggregated => {
                return Err(Failure::new(
                    Exit::NoDoor,
                    format!("the API group {SUBRESOURCES_GROUP} is not registered in this cluster"),
                    "use `--door gateway`, or ask an administrator to set peopleApi.aggregated of the chart",
                ));
            }
            DoorChoice::Auto | DoorChoice::Gateway => {
                Way::Gateway(Box::new(gateway::Gateway::find(session).await?))
            }
        };
        Ok(Self { way, namespace })
    }

    /// Reads a document.
    pub async fn get<T: DeserializeOwned>(&self, document: &Document<'_>) -> Result<T> {
        let text = self.read(Method::GET, document, String::new()).await?;
        parse(document, &text)
    }

    /// Sends a document.
    pub async fn post<T: DeserializeOwned>(
        &self,
        document: &Document<'_>,
        body: &impl Serialize,
    ) -> Result<T> {
        let body = serde_json::to_string(body).map_err(|error| {
            Failure::new(
                Exit::Failed,
                format!("the request cannot be written: {error}"),
                "check what you send",
            )
        })?;
        let text = self.read(Method::POST, document, body).await?;
        parse(document, &text)
    }

    /// Reads a document that may be large, piece by piece.
    pub async fn stream(&self, document: &Document<'_>, mut sink: impl FnMut(&[u8]) -> Result) -> Result {
        let mut body = self.send(Method::GET, document, String::new()).await?;
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| broken_off(document, &*error))?;
            if let Some(data) = frame.data_ref() {
                sink(data)?;
            }
        }
        Ok(())
    }

    async fn read(&self, method: Method, document: &Document<'_>, body: String) -> Result<Vec<u8>> {
        let body = self.send(method, document, body).await?;
        let limited = http_body_util::Limited::new(body, LARGEST_ANSWER);
        let collected = limited.collect().await.map_err(|error| broken_off(document, &*error))?;
        Ok(collected.to_bytes().to_vec())
    }

    /// Sends a request. An answer that is an error becomes a failure.
    async fn send(&self, method: Method, document: &Document<'_>, body: String) -> Result<Body> {
        let answer = match &self.way {
            Way::Aggregated(client) => {
                let path = document.path_and_query(aggregated::PREFIX, &self.namespace);
                aggregated::send(client, method, &path, body).await?
            }
            Way::Gateway(gateway) => {
                let path = document.path_and_query(gateway::PREFIX, &self.namespace);
                gateway.send(method, &path, body).await?
            }
        };
        let Answer { status, body } = answer;
        if status.is_success() {
            return Ok(body);
        }
        let text = http_body_util::Limited::new(body, 1 << 20).collect().await.map(|it| it.to_bytes());
        Err(answer::failure(document, &self.namespace, (status, &text.unwrap_or_default())))
    }
}

fn parse<T: DeserializeOwned>(document: &Document<'_>, text: &[u8]) -> Result<T> {
    serde_json::from_slice(text).map_err(|error| {
        Failure::new(
            Exit::Failed,
            format!("the answer to {} cannot be read: {error}", document.name),
            "use the plugin of the version that is installed in the cluster",
        )
    })
}

fn broken_off(document: &Document<'_>, error: &dyn std::error::Error) -> Failure {
    let why = crate::failure::chain(error);
    Failure::new(
        Exit::Unavailable,
        format!("the answer to {} broke off: {why}", document.name),
        "repeat the command in a few seconds",
    )
}
