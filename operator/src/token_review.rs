//! Authentication of the gateway in a cluster: TokenReview for workers, and SubjectAccessReview for users who read a run.

use async_trait::async_trait;
use dalsegno_crds::{AgentRun, names};
use dalsegno_gateway::{AuthError, Authenticator, PodIdentity, RunName, User};
use dalsegno_protocol::AUDIENCE;
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec, UserInfo};
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use k8s_openapi::api::core::v1::Namespace;
use kube::api::PostParams;
use kube::{Api, Client, Resource};

/// Reviews tokens and permissions at the API server.
pub struct TokenReviews {
    tokens: Api<TokenReview>,
    access: Api<SubjectAccessReview>,
    namespaces: Api<Namespace>,
}

impl TokenReviews {
    /// Uses this client.
    pub fn new(client: Client) -> Self {
        Self {
            tokens: Api::all(client.clone()),
            access: Api::all(client.clone()),
            namespaces: Api::all(client),
        }
    }

    /// The user of a token.
    async fn user(&self, token: &str) -> Result<UserInfo, AuthError> {
        let review = TokenReview {
            spec: TokenReviewSpec { token: token.to_owned(), audiences: Some(vec![AUDIENCE.to_owned()]) },
            ..TokenReview::default()
        };
        let review = self.tokens.create(&PostParams::default(), &review).await.map_err(unavailable)?;
        let status = review.status.unwrap_or_default();
        let audiences = status.audiences.unwrap_or_default();
        if status.authenticated != Some(true) || !audiences.iter().any(|it| it == AUDIENCE) {
            return Err(AuthError::Refused(
                status.error.unwrap_or_else(|| format!("it is not for the audience {AUDIENCE:?}")),
            ));
        }
        status.user.ok_or_else(|| AuthError::Refused("it names no user".to_owned()))
    }
}

#[async_trait]
impl Authenticator for TokenReviews {
    async fn review(&self, token: &str) -> Result<PodIdentity, AuthError> {
        let user = self.user(token).await?;
        pod_of(user).ok_or_else(|| AuthError::Refused("it is not bound to a pod".to_owned()))
    }

    async fn may_read(&self, token: &str, run: &RunName) -> Result<User, AuthError> {
        let RunName { namespace, name } = run;
        let UserInfo { username, uid, groups, extra } = self.user(token).await?;
        let person = username.clone().unwrap_or_default();
        let review = SubjectAccessReview {
            spec: SubjectAccessReviewSpec {
                user: username,
                uid,
                groups,
                extra,
                resource_attributes: Some(ResourceAttributes {
                    group: Some(AgentRun::group(&()).into_owned()),
                    resource: Some(AgentRun::plural(&()).into_owned()),
                    subresource: Some(names::SUBRESOURCE_CHECKPOINTS.to_owned()),
                    verb: Some("get".to_owned()),
                    namespace: Some(namespace.to_owned()),
                    name: Some(name.to_owned()),
                    ..ResourceAttributes::default()
                }),
                ..SubjectAccessReviewSpec::default()
            },
            ..SubjectAccessReview::default()
        };
        let review = self.access.create(&PostParams::default(), &review).await.map_err(unavailable)?;
        if !review.status.is_some_and(|status| status.allowed && status.denied != Some(true)) {
            return Err(AuthError::Denied(format!(
                "{person} may not read what this run has committed; that needs the verb get on {}/{} of {} in the \
                 namespace {namespace}",
                AgentRun::plural(&()),
                names::SUBRESOURCE_CHECKPOINTS,
                AgentRun::group(&())
            )));
        }
        let namespace = self.namespaces.get_metadata_opt(namespace).await.map_err(unavailable)?;
        Ok(User { name: person, tenant: namespace.and_then(|it| it.metadata.uid) })
    }
}

fn unavailable(error: kube::Error) -> AuthError {
    AuthError::Unavailable(Box::new(error))
}

fn pod_of(user: UserInfo) -> Option<PodIdentity> {
    let name = user.username?;
    let (namespace, service_account) = name.strip_prefix("system:serviceaccount:")?.split_once(':')?;
    let extra = user.extra?;
    let one = |key: &str| extra.get(key).and_then(|values| values.first()).cloned();
    Some(PodIdentity {
        namespace: namespace.to_owned(),
        service_account: service_account.to_owned(),
        pod_name: one("authentication.kubernetes.io/pod-name")?,
        pod_uid: one("authentication.kubernetes.io/pod-uid")?,
    })
}
