//! The cluster that the kubeconfig names, as the user.

use dalsegno_crds::names;
use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use kube::api::{Api, PatchParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};

use crate::args::GlobalArgs;
use crate::failure::{Exit, Failure, Result};

/// Field manager of the plugin's writes.
const FIELD_MANAGER: &str = "kubectl-dalsegno";

/// A client of the cluster, and the options of the command.
pub struct Session {
    /// The client.
    pub client: Client,
    /// The namespace of the command.
    pub namespace: String,
    /// The options of every verb.
    pub global: GlobalArgs,
    /// Name of the context, for messages. Empty inside of a pod.
    context: String,
}

impl Session {
    /// Connects as the kubeconfig says, or as the pod's ServiceAccount where there is no kubeconfig.
    pub async fn connect(global: &GlobalArgs) -> Result<Self> {
        let mut config = config(global).await?;
        config.auth_info.impersonate.clone_from(&global.impersonate);
        if !global.impersonate_groups.is_empty() {
            config.auth_info.impersonate_groups = Some(global.impersonate_groups.clone());
        }
        let namespace = global.namespace.clone().unwrap_or_else(|| config.default_namespace.clone());
        let client = Client::try_from(config).map_err(|error| {
            Failure::new(
                Exit::Unavailable,
                format!("the kubeconfig cannot be used: {}", crate::failure::chain(&error)),
                "check it with `kubectl version`, and choose another context with --context",
            )
        })?;
        let context = global.context.clone().unwrap_or_default();
        Ok(Self { client, namespace, global: global.clone(), context })
    }

    /// The options that name this namespace and this context again, for a command that the user copies.
    pub fn options(&self) -> String {
        let mut options = String::new();
        if self.global.namespace.is_some() {
            options.push_str(&format!(" -n {}", self.namespace));
        }
        if !self.context.is_empty() {
            options.push_str(&format!(" --context {}", dalsegno_core::text::shell_quoted(&self.context)));
        }
        options
    }

    /// The API of a kind in the command's namespace.
    pub fn api<K>(&self) -> Api<K>
    where
        K: kube::Resource<Scope = kube::core::NamespaceResourceScope, DynamicType = ()>,
    {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// Parameters of a patch.
    pub fn patch_params() -> PatchParams {
        PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() }
    }

    /// The user's name, as the API server knows it.
    pub async fn user(&self) -> Result<String> {
        let review: Api<SelfSubjectReview> = Api::all(self.client.clone());
        let asked = review.create(&PostParams::default(), &SelfSubjectReview::default()).await;
        let answer = asked.map_err(|error| Failure::of_api("asking the API server who you are", &error))?;
        let name = answer.status.and_then(|it| it.user_info).and_then(|it| it.username);
        name.filter(|name| !name.is_empty()).ok_or_else(|| {
            Failure::new(
                Exit::Forbidden,
                "the API server does not know who you are",
                "log in to the cluster, then check with `kubectl auth whoami`",
            )
        })
    }
}

/// The annotation of a change: the reason, or none, so that the reason of an earlier change does not count for this one.
pub fn reason_annotation(reason: Option<&str>) -> serde_json::Value {
    serde_json::json!({ "annotations": { names::ANNOTATION_REASON: reason } })
}

async fn config(global: &GlobalArgs) -> Result<Config> {
    let failed = |error: &dyn std::error::Error| {
        Failure::new(
            Exit::Unavailable,
            format!("there is no usable kubeconfig: {}", crate::failure::chain(error)),
            "set KUBECONFIG or --kubeconfig to the file of your cluster, and --context to one of \
             `kubectl config get-contexts`",
        )
    };
    let options = KubeConfigOptions { context: global.context.clone(), ..KubeConfigOptions::default() };
    match &global.kubeconfig {
        Some(path) => {
            let file = Kubeconfig::read_from(path).map_err(|error| failed(&error))?;
            Config::from_custom_kubeconfig(file, &options).await.map_err(|error| failed(&error))
        }
        None => match Config::from_kubeconfig(&options).await {
            Ok(config) => Ok(config),
            // In a pod there is no kubeconfig.
            Err(error) => Config::incluster().map_err(|_| failed(&error)),
        },
    }
}
