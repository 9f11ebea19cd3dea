//! What a call's path and headers hold: the run, the turn, the call's id, and the caller.

use axum::extract::{FromRequestParts, RawPathParams};
use axum::http::request::Parts;
use dalsegno_model::{Digest, RunId, RunRecord};
use dalsegno_protocol::{Code, Limits};

use crate::aggregated::caller::FrontProxyUser;
use crate::authenticator::{Access, RunName, User, Verb};
use crate::credentials;
use crate::gateway::Gateway;
use crate::limits::connections::peer_of;
use crate::limits::shared_limit::{LimitOwner, LimitPermit};
use crate::response::ApiProblem;
use crate::validation::TextField;

/// Prefix of the paths that workers call; the run's id follows. Users call other paths.
pub(crate) const RUNS: &str = "/v1/runs/";

/// The documents of a run whose agent keeps its own checkpoints: what the operator did.
const OF_EVERY_RUN: [&str; 3] = ["audit", "facts", "export"];

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
    /// The id of the request in the API server's audit log, if it came through the API server.
    pub(crate) audit_id: Option<String>,
    /// Who is charged for the request.
    pub(crate) owner: LimitOwner,
    /// Counts among the calls under way.
    _call: LimitPermit,
}

/// The document of a user's call. The route table adds it to each request.
#[derive(Clone, Copy)]
pub(crate) struct Document {
    /// Its name in RBAC.
    pub(crate) name: &'static str,
    /// By which door the user comes.
    pub(crate) door: Door,
}

/// How a user is authenticated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Door {
    /// By a token, which the API server reviews.
    Token,
    /// By the API server, which forwards the request through its front proxy.
    FrontProxy,
}

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

impl Reader {
    /// A worker that reads its own run.
    pub(crate) fn of_worker(Worker { run, capability, _call }: Worker) -> Self {
        Self { run, capability: Some(capability), owner: LimitOwner::Run(run), _call }
    }
}

impl FromRequestParts<Gateway> for Reader {
    type Rejection = ApiProblem;

    async fn from_request_parts(parts: &mut Parts, gateway: &Gateway) -> Result<Self, ApiProblem> {
        if parts.uri.path().starts_with(RUNS) {
            return Ok(Self::of_worker(Worker::from_request_parts(parts, gateway).await?));
        }
        let Caller { user, run, audit_id: _, owner, call } =
            Caller::authenticate(parts, gateway, Verb::Get).await?;
        tracing::info!(user = user.name, "a user reads a run");
        Ok(Self { run: run.id, capability: None, owner, _call: call })
    }
}

impl FromRequestParts<Gateway> for Writer {
    type Rejection = ApiProblem;

    async fn from_request_parts(parts: &mut Parts, gateway: &Gateway) -> Result<Self, ApiProblem> {
        let Caller { user, run, audit_id, owner, call } =
            Caller::authenticate(parts, gateway, Verb::Create).await?;
        if user.pod_uid.as_deref().is_some_and(|pod| is_pod_of(&run, pod)) {
            tracing::warn!(user = user.name, "a worker tried to act as a user of its own run");
            return Err(ApiProblem::new(
                Code::Forbidden,
                "the token belongs to a pod of this run itself: what a person decides is not decided by the agent",
            ));
        }
        tracing::info!(user = user.name, "a user writes to a run");
        Ok(Self { run: run.id, user: user.name, audit_id, owner, _call: call })
    }
}

/// A user who is authorized, and the run.
struct Caller {
    user: User,
    run: RunRecord,
    audit_id: Option<String>,
    owner: LimitOwner,
    call: LimitPermit,
}

impl Caller {
    async fn authenticate(parts: &mut Parts, gateway: &Gateway, verb: Verb) -> Result<Self, ApiProblem> {
        let Some(&Document { name: document, door }) = parts.extensions.get() else {
            return Err(ApiProblem::invalid("the path is not one of the contract's"));
        };
        let namespace = path_parameter(parts, gateway, "namespace").await?;
        let name = path_parameter(parts, gateway, "name").await?;
        if !is_object_name(&namespace) || !is_object_name(&name) {
            return Err(ApiProblem::new(Code::NotFound, "the path names no namespace and run of Kubernetes"));
        }
        let name = RunName { namespace, name };
        let access = Access { document, verb };
        let AuthenticatedUser { user, audit_id, owner, call } = match door {
            Door::Token => AuthenticatedUser::by_token(parts, gateway, (&name, access)).await?,
            Door::FrontProxy => AuthenticatedUser::by_front_proxy(parts, gateway, &name).await?,
        };
        let run = find_run(gateway, &name, user.tenant.as_deref()).await?;
        if run.is_external && !OF_EVERY_RUN.contains(&document) {
            return Err(ApiProblem::external());
        }
        tracing::Span::current().record("run", tracing::field::display(run.id));
        Ok(Self { user, run, audit_id, owner, call })
    }
}

/// A user who is authorized.
struct AuthenticatedUser {
    user: User,
    audit_id: Option<String>,
    owner: LimitOwner,
    call: LimitPermit,
}

impl AuthenticatedUser {
    async fn by_token(
        parts: &Parts,
        gateway: &Gateway,
        access: (&RunName, Access),
    ) -> Result<Self, ApiProblem> {
        // Before this the reviews of tokens are limited by peer address, so that strangers take no place of a user.
        let peer = peer_of(&parts.extensions);
        let user = credentials::authenticate_user(gateway, &parts.headers, peer, access).await?;
        let owner = LimitOwner::User(user.name.clone());
        let call = gateway.user_calls.acquire(owner.clone(), 1)?;
        Ok(Self { user, audit_id: None, owner, call })
    }

    /// The API server has authorized this path for the user. It does not compare the namespace's UID with the run's.
    async fn by_front_proxy(parts: &mut Parts, gateway: &Gateway, run: &RunName) -> Result<Self, ApiProblem> {
        let Some(FrontProxyUser { name, pod_uid, audit_id }) = parts.extensions.remove() else {
            return Err(ApiProblem::new(Code::Unauthenticated, "the front proxy has named no user"));
        };
        let owner = LimitOwner::User(name.clone());
        let call = gateway.user_calls.acquire(owner.clone(), 1)?;
        let tenant = credentials::namespace_uid(gateway, &run.namespace).await?;
        Ok(Self { user: User { name, pod_uid, tenant }, audit_id, owner, call })
    }
}

/// Whether the text may be the name of an object in Kubernetes: no slash, no `..`, nothing that RBAC could read otherwise.
fn is_object_name(text: &str) -> bool {
    let is_part = |part: &str| {
        !part.is_empty()
            && part.bytes().all(|it| it.is_ascii_lowercase() || it.is_ascii_digit() || it == b'-')
    };
    text.len() <= 253 && text.split('.').all(is_part)
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
