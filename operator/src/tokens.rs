//! Whose a worker's token is: asked of the API server by TokenReview.

use async_trait::async_trait;
use dalsegno_gateway::{AuthError, Authenticator, PodIdentity};
use dalsegno_protocol::AUDIENCE;
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec, UserInfo};
use kube::api::PostParams;
use kube::{Api, Client};

/// Reviews tokens at the API server.
pub struct TokenReviews {
    api: Api<TokenReview>,
}

impl TokenReviews {
    /// With this client.
    pub fn new(client: Client) -> Self {
        Self { api: Api::all(client) }
    }
}

#[async_trait]
impl Authenticator for TokenReviews {
    async fn review(&self, token: &str) -> Result<PodIdentity, AuthError> {
        let review = TokenReview {
            spec: TokenReviewSpec { token: token.to_owned(), audiences: Some(vec![AUDIENCE.to_owned()]) },
            ..TokenReview::default()
        };
        let answer = self
            .api
            .create(&PostParams::default(), &review)
            .await
            .map_err(|error| AuthError::Unavailable(Box::new(error)))?;
        let status = answer.status.unwrap_or_default();
        let audiences = status.audiences.unwrap_or_default();
        if status.authenticated != Some(true) || !audiences.iter().any(|it| it == AUDIENCE) {
            return Err(AuthError::Refused(
                status.error.unwrap_or_else(|| format!("it is not for the audience {AUDIENCE:?}")),
            ));
        }
        status.user.and_then(pod_of).ok_or_else(|| AuthError::Refused("it is not bound to a pod".to_owned()))
    }
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
