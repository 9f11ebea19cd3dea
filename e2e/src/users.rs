//! People who may do less than the stories' administrator.

use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use kube::Client;
use serde_json::json;

use crate::test_context::config;
use crate::{Result, TestContext, objects};

impl TestContext {
    /// A client that asks in this user's name.
    ///
    /// # Errors
    ///
    /// `KUBECONFIG` names no cluster.
    pub async fn as_user(&self, user: &str) -> Result<Client> {
        let mut config = config().await?;
        config.auth_info.impersonate = Some(user.to_owned());
        config.default_retry = false;
        Ok(Client::try_from(config)?)
    }

    /// Lets this user do `verbs` to `resources` of an API group, in this world's namespace.
    ///
    /// # Errors
    ///
    /// The API server refuses it.
    pub async fn grant(&self, user: &str, group: &str, resources: &[&str], verbs: &[&str]) -> Result {
        let name = format!("{user}-{}", resources.join("-")).replace('/', "-");
        let role = json!({
            "metadata": { "name": name },
            "rules": [{ "apiGroups": [group], "resources": resources, "verbs": verbs }],
        });
        objects::create::<Role>(&self.client, &self.namespace, role).await?;
        let api = "rbac.authorization.k8s.io";
        let binding = json!({
            "metadata": { "name": name },
            "roleRef": { "apiGroup": api, "kind": "Role", "name": name },
            "subjects": [{ "apiGroup": api, "kind": "User", "name": user }],
        });
        objects::create::<RoleBinding>(&self.client, &self.namespace, binding).await?;
        Ok(())
    }
}
