//! What a call's path and headers hold: the run, the turn, the call's id, and the caller.

use axum::extract::{FromRequestParts, RawPathParams};
use axum::http::request::Parts;
use dalsegno_model::{Digest, RunId, RunRecord};
use dalsegno_protocol::{Code, Limits};

use crate::authenticator::{Access, RunName, User, Verb};
use crate::credentials;
use crate::gateway::Gateway;
use crate::limits::connections::peer_of;
use crate::limits::shared_limit::{LimitOwner, LimitPermit};
use crate::response::ApiProblem;
use crate::validation::TextField;

/// Prefix of the paths that workers call; the run's id follows. Users call other paths.
pub(crate) const RUNS: &str = "/v1/runs/";

/// The run of a call.
pub(crate) struct Run(pub(crate) RunId);

/// A worker that has attached, as it names itself. Its capability is not verified: the store does that.
pub(crate) struct Worker {
    pub(crate) run: RunId,
    pub(crate) capability: Digest,
    /// Counts among the calls under way.
    _call: LimitPermit,
}

/// Who reads a run: its worker, with a capability that is not verified yet; or a user, who is authorized.
pub(crate) struct Reader {
    pub(crate) run: RunId,
    /// `None`: a user.
    pub(crate) capability: Option<Digest>,
    /// Who is charged for the response. For a worker this holds only once its capability is verified.
    pub(crate) owner: LimitOwner,
    /// Counts among the calls under way.
    _call: LimitPermit,
}

/// A user who writes to a run, and is authorized. A worker is no user of its own run.
pub(crate) struct Writer {
    pub(crate) run: RunId,
    /// The authenticated name.
    pub(crate) user: String,
    /// Who is charged for the request.
    pub(crate) owner: LimitOwner,
    /// Counts among the calls under way.
    _call: LimitPermit,
}

/// The document of a user's call, by which RBAC names it. The route table adds it to each request.
#[derive(Clone, Copy)]
pub(crate) struct Document(pub(crate) &'static str);

/// Number of a turn.
pub(crate) struct Turn(pub(crate) i32);

/// Id of a tool call.
pub(crate) struct CallId(pub(crate) String);

/// Id of a wait.
pub(crate) struct WaitId(pub(crate) String);

impl FromRequestParts<Gateway> for Run {
    type Rejection = ApiProblem;

    async fn from_request_parts(parts: &mut Parts, gateway: &Gateway) -> Result<Self, ApiProblem> {
        let run = path_parameter(parts, gateway, "run_id").await?;
        run.parse().map(Self).map_err(|_| ApiProblem::no_such_run())
    }
}

impl FromRequestParts<Gateway> for Worker {
    type Rejection = ApiProblem;

    async fn from_request_parts(parts: &mut Parts, gateway: &Gateway) -> Result<Self, ApiProblem> {
        let Run(run) = Run::from_request_parts(parts, gateway).await?;
        let capability = credentials::bearer_capability(&parts.headers)?;
        let call = gateway.worker_calls.acquire(LimitOwner::Worker(run, capability), 1)?;
        Ok(Self { run, capability, _call: call })
    }
}

impl FromRequestParts<Gateway> for Reader {
    type Rejection = ApiProblem;

    async fn from_request_parts(parts: &mut Parts, gateway: &Gateway) -> Result<Self, ApiProblem> {
        if parts.uri.path().starts_with(RUNS) {
            let Worker { run, capability, _call } = Worker::from_request_parts(parts, gateway).await?;
            return Ok(Self { run, capability: Some(capability), owner: LimitOwner::Run(run), _call });
        }
        let Caller { user, run, owner, call } = Caller::authenticate(parts, gateway, Verb::Get).await?;
        tracing::info!(user = user.name, "a user reads a run");
        Ok(Self { run: run.id, capability: None, owner, _call: call })
    }
}

impl FromRequestParts<Gateway> for Writer {
    type Rejection = ApiProblem;

    async fn from_request_parts(parts: &mut Parts, gateway: &Gateway) -> Result<Self, ApiProblem> {
        let Caller { user, run, owner, call } = Caller::authenticate(parts, gateway, Verb::Create).await?;
        if user.pod_uid.as_deref().is_some_and(|pod| is_pod_of(&run, pod)) {
            tracing::warn!(user = user.name, "a worker tried to act as a user of its own run");
            return Err(ApiProblem::new(
                Code::Forbidden,
                "the token belongs to a pod of this run itself: what a person decides is not decided by the agent",
            ));
        }
        tracing::info!(user = user.name, "a user writes to a run");
        Ok(Self { run: run.id, user: user.name, owner, _call: call })
    }
}

/// A user who is authorized, and the run.
struct Caller {
    user: User,
    run: RunRecord,
    owner: LimitOwner,
    call: LimitPermit,
}

impl Caller {
    async fn authenticate(parts: &mut Parts, gateway: &Gateway, verb: Verb) -> Result<Self, ApiProblem> {
        let Some(&Document(document)) = parts.extensions.get() else {
            return Err(ApiProblem::invalid("the path is not one of the contract's"));
        };
        let namespace = path_parameter(parts, gateway, "namespace").await?;
        let name = path_parameter(parts, gateway, "name").await?;
        let name = RunName { namespace, name };
        // Before this the reviews of tokens are limited by peer address, so that strangers take no place of a user.
        let peer = peer_of(&parts.extensions);
        let access = Access { document, verb };
        let user = credentials::authenticate_user(gateway, &parts.headers, peer, (&name, access)).await?;
        let owner = LimitOwner::User(user.name.clone());
        let call = gateway.user_calls.acquire(owner.clone(), 1)?;
        let run = find_run(gateway, &name, user.tenant.as_deref()).await?;
        tracing::Span::current().record("run", tracing::field::display(run.id));
        Ok(Self { user, run, owner, call })
    }
}

/// Whether this is the pod of one of the run's latest attempts. Tokens of earlier pods are refused: the pods are deleted.
fn is_pod_of(run: &RunRecord, pod_uid: &str) -> bool {
    let mut attempts = std::iter::once(&run.attempt).chain(&run.past);
    attempts.any(|attempt| attempt.pod_uid.as_deref() == Some(pod_uid))
}

/// The run of this name whose namespace has the UID `tenant`.
async fn find_run(gateway: &Gateway, name: &RunName, tenant: Option<&str>) -> Result<RunRecord, ApiProblem> {
    let RunName { namespace, name } = name;
    let find = || gateway.store.find(namespace, name);
    let runs = gateway.call_with_retry("finding a run by name", find).await?;
    let run = runs.into_iter().find(|run| Some(run.tenant.as_str()) == tenant);
    run.ok_or_else(|| {
        ApiProblem::new(
            Code::NotFound,
            format!(
                "the store has no run {namespace}/{name} of the namespace that has this name now; runs of an earlier \
                 namespace of the same name are not shown"
            ),
        )
    })
}

impl FromRequestParts<Gateway> for Turn {
    type Rejection = ApiProblem;

    async fn from_request_parts(parts: &mut Parts, gateway: &Gateway) -> Result<Self, ApiProblem> {
        parse_turn(&path_parameter(parts, gateway, "turn").await?).map(Self)
    }
}

impl FromRequestParts<Gateway> for CallId {
    type Rejection = ApiProblem;

    async fn from_request_parts(parts: &mut Parts, gateway: &Gateway) -> Result<Self, ApiProblem> {
        let id = path_parameter(parts, gateway, "call").await?;
        TextField { label: "the call's id", text: &id }.check_name()?;
        Ok(Self(id))
    }
}

impl FromRequestParts<Gateway> for WaitId {
    type Rejection = ApiProblem;

    async fn from_request_parts(parts: &mut Parts, gateway: &Gateway) -> Result<Self, ApiProblem> {
        let id = path_parameter(parts, gateway, "wait").await?;
        TextField { label: "the wait's id", text: &id }.check_name()?;
        Ok(Self(id))
    }
}

/// Number of a turn, from a path or a query.
pub(crate) fn parse_turn(text: &str) -> Result<i32, ApiProblem> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let number = text.parse().ok().filter(|turn| digits && (1..=Limits::TURNS).contains(turn));
    number.ok_or_else(|| {
        let shown: String = text.chars().take(20).collect();
        ApiProblem::invalid(format!(
            "{shown:?} is not the number of a turn: turns are numbered 1, 2, 3 … up to {}",
            Limits::TURNS
        ))
    })
}

async fn path_parameter(parts: &mut Parts, gateway: &Gateway, name: &str) -> Result<String, ApiProblem> {
    let parameters = RawPathParams::from_request_parts(parts, gateway)
        .await
        .map_err(|_| ApiProblem::invalid("the path is not UTF-8"))?;
    parameters
        .iter()
        .find(|(key, _)| *key == name)
        .map(|(_, value)| value.to_owned())
        .ok_or_else(|| ApiProblem::invalid("the path is not one of the contract's"))
}
