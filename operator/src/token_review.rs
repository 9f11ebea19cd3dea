//! Authentication of the gateway in a cluster: TokenReview for workers, and SubjectAccessReview for users.

use std::collections::BTreeMap;

use async_trait::async_trait;
use dalsegno_crds::{AgentRun, names};
use dalsegno_gateway::{Access, AuthError, Authenticator, PodIdentity, RunName, User};
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

    async fn authorize(&self, token: &str, run: &RunName, access: Access) -> Result<User, AuthError> {
        let RunName { namespace, name } = run;
        let Access { document, verb } = access;
        let UserInfo { username, uid, groups, extra } = self.user(token).await?;
        let person = username.clone().unwrap_or_default();
        let pod_uid = pod_uid(extra.as_ref());
        let review = SubjectAccessReview {
            spec: SubjectAccessReviewSpec {
                user: username,
                uid,
                groups,
                extra,
                resource_attributes: Some(ResourceAttributes {
                    group: Some(names::SUBRESOURCES_GROUP.to_owned()),
                    resource: Some(AgentRun::plural(&()).into_owned()),
                    subresource: Some(document.to_owned()),
                    verb: Some(verb.name().to_owned()),
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
                "{person} may not do this with what this run has committed; that needs the verb {} on {}/{document} of {} \
                 in the namespace {namespace}",
                verb.name(),
                AgentRun::plural(&()),
                names::SUBRESOURCES_GROUP
            )));
        }
        Ok(User { name: person, pod_uid, tenant: self.namespace_uid(namespace).await? })
    }

    async fn namespace_uid(&self, namespace: &str) -> Result<Option<String>, AuthError> {
        let namespace = self.namespaces.get_metadata_opt(namespace).await.map_err(unavailable)?;
        Ok(namespace.and_then(|it| it.metadata.uid))
    }
}

fn unavailable(error: kube::Error) -> AuthError {
    AuthError::Unavailable(Box::new(error))
}

fn one(extra: &BTreeMap<String, Vec<String>>, key: &str) -> Option<String> {
    extra.get(key).and_then(|values| values.first()).cloned()
}

/// UID of the pod that a token is bound to.
fn pod_uid(extra: Option<&BTreeMap<String, Vec<String>>>) -> Option<String> {
    one(extra?, "authentication.kubernetes.io/pod-uid")
}

fn pod_of(user: UserInfo) -> Option<PodIdentity> {
    let name = user.username?;
    let (namespace, service_account) = name.strip_prefix("system:serviceaccount:")?.split_once(':')?;
    let extra = user.extra?;
    Some(PodIdentity {
        namespace: namespace.to_owned(),
        service_account: service_account.to_owned(),
        pod_name: one(&extra, "authentication.kubernetes.io/pod-name")?,
        pod_uid: pod_uid(Some(&extra))?,
    })
}
