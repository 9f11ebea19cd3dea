//! What stands in a call's path and headers: the run, the turn, the call, and who asks.

use axum::extract::{FromRequestParts, RawPathParams};
use axum::http::request::Parts;
use dalsegno_protocol::{Code, Limits};
use dalsegno_store::{Digest, RunId};

use crate::credentials;
use crate::gateway::Gateway;
use crate::limits::shared_limit::{Part, Who};
use crate::response::Refusal;
use crate::validation;

/// Where runs are found.
pub(crate) const RUNS: &str = "/v1/runs/";

/// The run that a call is about.
pub(crate) struct Run(pub(crate) RunId);

/// A worker that has attached, by its own word: the store judges its capability.
pub(crate) struct Worker {
    pub(crate) run: RunId,
    pub(crate) capability: Digest,
    _place: Part,
}

/// Whoever reads a run: its worker, by its own word; or a person, who may.
pub(crate) struct Reader {
    pub(crate) run: RunId,
    /// Of the worker; a person needs none.
    pub(crate) capability: Option<Digest>,
    /// Whose share its answers take, once it is judged.
    pub(crate) who: Who,
    _place: Part,
}

/// Number of a turn.
pub(crate) struct Turn(pub(crate) i32);

/// Name of a call.
pub(crate) struct CallId(pub(crate) String);

impl FromRequestParts<Gateway> for Run {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, gateway: &Gateway) -> Result<Self, Refusal> {
        let run = parameter(parts, gateway, "run_id").await?;
        run.parse().map(Self).map_err(|_| Refusal::no_such_run())
    }
}

impl FromRequestParts<Gateway> for Worker {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, gateway: &Gateway) -> Result<Self, Refusal> {
        let Run(run) = Run::from_request_parts(parts, gateway).await?;
        let capability = credentials::bearer_capability(&parts.headers)?;
        let place = gateway.calls.take(Who::Worker(run, capability), 1)?;
        Ok(Self { run, capability, _place: place })
    }
}

impl FromRequestParts<Gateway> for Reader {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, gateway: &Gateway) -> Result<Self, Refusal> {
        if parts.uri.path().starts_with(RUNS) {
            let Worker { run, capability, _place } = Worker::from_request_parts(parts, gateway).await?;
            return Ok(Self { run, capability: Some(capability), who: Who::Run(run), _place });
        }
        let mut place = gateway.readers.take(Who::Stranger, 1)?;
        let namespace = parameter(parts, gateway, "namespace").await?;
        let name = parameter(parts, gateway, "name").await?;
        let person = credentials::person(gateway, &parts.headers, &namespace, &name).await?;
        let who = Who::Person(person.name.clone());
        place.pass_to(who.clone())?;
        let found = gateway.ask("looking for a run", || gateway.store.find(&namespace, &name)).await?;
        let own = found.iter().find(|run| Some(&run.tenant) == person.tenant.as_ref());
        let run = own.ok_or_else(|| no_run_of_this_name(&namespace, &name))?.id;
        tracing::Span::current().record("run", tracing::field::display(run));
        tracing::info!(person = person.name, "a person reads");
        Ok(Self { run, capability: None, who, _place: place })
    }
}

fn no_run_of_this_name(namespace: &str, name: &str) -> Refusal {
    Refusal::new(
        Code::NotFound,
        format!("the store has no run {namespace}/{name} of the namespace that bears this name today"),
    )
}

impl FromRequestParts<Gateway> for Turn {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, gateway: &Gateway) -> Result<Self, Refusal> {
        turn(&parameter(parts, gateway, "turn").await?).map(Self)
    }
}

impl FromRequestParts<Gateway> for CallId {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, gateway: &Gateway) -> Result<Self, Refusal> {
        let id = parameter(parts, gateway, "call").await?;
        validation::name("the call's id", &id)?;
        Ok(Self(id))
    }
}

/// The number of a turn, from a path or a query.
pub(crate) fn turn(text: &str) -> Result<i32, Refusal> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let number = text.parse().ok().filter(|turn| digits && (1..=Limits::TURNS).contains(turn));
    number.ok_or_else(|| {
        let shown: String = text.chars().take(20).collect();
        Refusal::invalid(format!(
            "{shown:?} is not the number of a turn: turns are numbered 1, 2, 3 … up to {}",
            Limits::TURNS
        ))
    })
}

async fn parameter(parts: &mut Parts, gateway: &Gateway, name: &str) -> Result<String, Refusal> {
    let parameters = RawPathParams::from_request_parts(parts, gateway)
        .await
        .map_err(|_| Refusal::invalid("the path is not UTF-8"))?;
    parameters
        .iter()
        .find(|(key, _)| *key == name)
        .map(|(_, value)| value.to_owned())
        .ok_or_else(|| Refusal::invalid("the path is not one of the contract's"))
}
