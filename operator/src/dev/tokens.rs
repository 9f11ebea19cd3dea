//! Authentication of the gateway without an API server: tokens that were issued here, one per attempt.

use std::collections::HashMap;
use std::sync::Mutex;

use async_trait::async_trait;
use dalsegno_gateway::{AuthError, Authenticator, PodIdentity};
use uuid::Uuid;

use crate::mutex::lock;

/// Tokens of the attempts whose processes run, and their pods.
#[derive(Default)]
pub struct Tokens(Mutex<HashMap<String, PodIdentity>>);

impl Tokens {
    /// Issues a token for this pod.
    pub fn issue(&self, namespace: &str, pod_name: &str, pod_uid: &str) -> String {
        let token = format!("{}{}", Uuid::new_v4().simple(), Uuid::new_v4().simple());
        let pod = PodIdentity {
            namespace: namespace.to_owned(),
            pod_name: pod_name.to_owned(),
            pod_uid: pod_uid.to_owned(),
            service_account: "default".to_owned(),
        };
        lock(&self.0).insert(token.clone(), pod);
        token
    }

    /// Revokes the token of this pod.
    pub fn revoke(&self, pod_uid: &str) {
        lock(&self.0).retain(|_, pod| pod.pod_uid != pod_uid);
    }
}

#[async_trait]
impl Authenticator for Tokens {
    async fn review(&self, token: &str) -> Result<PodIdentity, AuthError> {
        let known = lock(&self.0).get(token).cloned();
        known.ok_or_else(|| AuthError::Refused("it is not the token of a running attempt".to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_token_is_valid_for_its_own_pod_until_the_pod_has_ended() {
        let tokens = Tokens::default();
        let (first, second) = (tokens.issue("dev", "tern-1", "u1"), tokens.issue("dev", "tern-2", "u2"));
        assert_ne!(first, second);
        assert_eq!(tokens.review(&second).await.unwrap().pod_uid, "u2");
        assert_eq!(tokens.review(&first).await.unwrap().pod_uid, "u1");
        tokens.revoke("u1");
        assert!(matches!(tokens.review(&first).await, Err(AuthError::Refused(_))));
        assert!(tokens.review(&second).await.is_ok());
    }
}
