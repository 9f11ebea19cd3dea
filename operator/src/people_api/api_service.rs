//! The APIService: how it is read, written and deleted.

use anyhow::Context as _;
use dalsegno_core::api_registration::{Availability, CurrentRegistration};
use dalsegno_crds::names;
use dalsegno_gateway::{GROUP, VERSION};
use jiff::Timestamp;
use k8s_openapi::api::rbac::v1::ClusterRole;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::{
    APIService, APIServiceCondition, APIServiceSpec, ServiceReference,
};
use k8s_openapi::{ByteString, Resource as _};
use kube::api::{DeleteParams, Patch, PatchParams, Preconditions};
use kube::core::ObjectMeta;
use kube::{Api, Client, ResourceExt as _};

use super::RELEASE;

/// Port of the Service.
pub const SERVICE_PORT: i32 = 443;

/// Priority of the group among all groups. Low: the kinds of `dalsegno.dev` come first.
const GROUP_PRIORITY: i32 = 100;
/// Priority of the version among those of the group.
const VERSION_PRIORITY: i32 = 15;

/// The APIService of the aggregated API.
pub struct Registry {
    services: Api<APIService>,
    roles: Api<ClusterRole>,
    namespace: String,
}

/// What is written to it.
#[derive(Clone, Debug, PartialEq)]
pub struct Target {
    /// The CAs that verify the gateways, in PEM.
    pub ca_bundle: String,
    /// The ClusterRole that owns the registration.
    pub owner: OwnerReference,
}

impl Registry {
    /// Of the release in this namespace.
    pub fn new(client: Client, namespace: &str) -> Self {
        Self { services: Api::all(client.clone()), roles: Api::all(client), namespace: namespace.to_owned() }
    }

    /// The registration, if there is one.
    pub async fn read(&self) -> anyhow::Result<Option<APIService>> {
        self.services.get_opt(&name()).await.context("reading the APIService")
    }

    /// What is to be written. The release's ClusterRole owns it, so that it is deleted with the release; the namespace
    /// cannot own it, since it would wait for it.
    pub async fn target(&self, ca_bundle: String) -> anyhow::Result<Target> {
        let role = self.roles.get_metadata(RELEASE).await.context("reading the release's ClusterRole")?;
        let uid = role.metadata.uid.context("the release's ClusterRole has no UID")?;
        let owner = OwnerReference {
            api_version: ClusterRole::API_VERSION.to_owned(),
            kind: ClusterRole::KIND.to_owned(),
            name: RELEASE.to_owned(),
            uid,
            ..OwnerReference::default()
        };
        Ok(Target { ca_bundle, owner })
    }

    /// Creates the registration, or brings it up to date.
    pub async fn apply(&self, target: &Target) -> anyhow::Result<()> {
        let service = APIService {
            metadata: ObjectMeta {
                name: Some(name()),
                labels: Some([(names::LABEL_MANAGED_BY.to_owned(), names::MANAGED_BY.to_owned())].into()),
                owner_references: Some(vec![target.owner.clone()]),
                ..ObjectMeta::default()
            },
            spec: Some(self.spec(target)),
            status: None,
        };
        let parameters = PatchParams::apply(names::FIELD_MANAGER).force();
        let applied = self.services.patch(&name(), &parameters, &Patch::Apply(&service)).await;
        applied.map(drop).context("writing the APIService")
    }

    /// Deletes exactly this registration. One that is gone is success.
    pub async fn delete(&self, service: &APIService) -> anyhow::Result<()> {
        let preconditions = Preconditions { uid: service.uid(), resource_version: None };
        let parameters = DeleteParams::default().preconditions(preconditions);
        match self.services.delete(&name(), &parameters).await {
            Ok(_) => Ok(()),
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            Err(error) => Err(error).context("deleting the APIService"),
        }
    }

    /// What the decision needs of a registration. `target`: what it shall have; `None`: it is not known yet, and the
    /// registration stays as it is.
    pub fn facts(&self, service: &APIService, target: Option<&Target>) -> CurrentRegistration {
        let is_current = target.is_none_or(|target| {
            service.spec.as_ref() == Some(&self.spec(target))
                && service.owner_references().iter().any(|it| it.uid == target.owner.uid)
        });
        CurrentRegistration {
            is_ours: is_ours(service),
            is_deleted: service.metadata.deletion_timestamp.is_some(),
            is_current,
            availability: availability(service),
        }
    }

    fn spec(&self, target: &Target) -> APIServiceSpec {
        APIServiceSpec {
            ca_bundle: Some(ByteString(target.ca_bundle.clone().into_bytes())),
            group: Some(GROUP.to_owned()),
            group_priority_minimum: GROUP_PRIORITY,
            insecure_skip_tls_verify: None,
            service: Some(ServiceReference {
                name: Some(names::AGGREGATED_SERVICE.to_owned()),
                namespace: Some(self.namespace.clone()),
                port: Some(SERVICE_PORT),
            }),
            version: Some(VERSION.to_owned()),
            version_priority: VERSION_PRIORITY,
        }
    }
}

/// Name of the APIService.
pub fn name() -> String {
    format!("{VERSION}.{GROUP}")
}

/// Whether the operator has made this registration.
pub fn is_ours(service: &APIService) -> bool {
    service.labels().get(names::LABEL_MANAGED_BY).is_some_and(|it| it == names::MANAGED_BY)
}

/// What the API server says about the backend.
pub fn available_condition(service: &APIService) -> Option<&APIServiceCondition> {
    let conditions = service.status.as_ref()?.conditions.as_ref()?;
    conditions.iter().find(|condition| condition.type_ == "Available")
}

/// A registration without the condition has not been tried since it was created.
fn availability(service: &APIService) -> Availability {
    let created = service.metadata.creation_timestamp.as_ref().map(|it| it.0);
    let condition = available_condition(service);
    let changed = condition.and_then(|it| it.last_transition_time.as_ref()).map(|it| it.0);
    let since = changed.or(created).unwrap_or(Timestamp::UNIX_EPOCH);
    match condition.is_some_and(|it| it.status == "True") {
        true => Availability::Available(since),
        false => Availability::Unavailable(since),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn service(conditions: serde_json::Value) -> APIService {
        serde_json::from_value(json!({
            "metadata": { "name": name(), "creationTimestamp": "2027-01-01T00:00:00Z",
                "labels": { "app.kubernetes.io/managed-by": "dalsegno" } },
            "status": { "conditions": conditions },
        }))
        .expect("an APIService")
    }

    #[test]
    fn the_availability_is_that_of_the_condition_or_unavailable_since_the_creation() {
        let at = |text: &str| text.parse::<Timestamp>().expect("a time");
        let condition = |status| json!([{ "type": "Available", "status": status, "lastTransitionTime": "2027-01-01T01:00:00Z" }]);
        for (conditions, expected) in [
            (json!([]), Availability::Unavailable(at("2027-01-01T00:00:00Z"))),
            (condition("True"), Availability::Available(at("2027-01-01T01:00:00Z"))),
            (condition("False"), Availability::Unavailable(at("2027-01-01T01:00:00Z"))),
            (condition("Unknown"), Availability::Unavailable(at("2027-01-01T01:00:00Z"))),
        ] {
            assert_eq!(availability(&service(conditions.clone())), expected, "{conditions}");
        }
    }

    #[test]
    fn only_the_label_makes_a_registration_ours_and_the_names_are_those_of_the_crds() {
        let ours = service(json!([]));
        assert!(is_ours(&ours));
        let mut foreign = ours;
        foreign.metadata.labels = None;
        assert!(!is_ours(&foreign));
        assert_eq!(GROUP, names::SUBRESOURCES_GROUP);
    }
}
