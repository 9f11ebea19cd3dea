//! The roles of people: each of them, with each verb, on each resource, as the API server decides.

use std::collections::BTreeSet;

use dalsegno_e2e::{Result, TestContext};
use futures::future::try_join_all;
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use kube::Client;
use kube::api::{Api, PostParams};

const KINDS: &str = "dalsegno.dev";
const PAYLOADS: &str = "subresources.dalsegno.dev";
const READ: &[&str] = &["get", "list", "watch"];
const VERBS: [&str; 9] =
    ["get", "list", "watch", "create", "update", "patch", "delete", "deletecollection", "approve"];
const SUBRESOURCES: [&str; 14] = [
    "audit",
    "calls",
    "checkpoint",
    "events",
    "export",
    "facts",
    "log",
    "memory-delta",
    "messages",
    "proposal",
    "records",
    "settle",
    "state",
    "turns",
];

/// A right: group, resource with its subresource, verb.
type Right = (&'static str, String, &'static str);

fn rights(group: &'static str, resources: &[&str], verbs: &[&'static str]) -> Vec<Right> {
    let of =
        |resource: &&str| verbs.iter().map(|verb| (group, (*resource).to_owned(), *verb)).collect::<Vec<_>>();
    resources.iter().flat_map(of).collect()
}

/// What anybody could want to do.
fn all() -> Vec<Right> {
    let mut all = rights(KINDS, &["agentruns", "agentdefinitions", "agentapprovals"], &VERBS);
    all.extend(rights(
        KINDS,
        &["agentruns/status", "agentdefinitions/status", "agentapprovals/status"],
        &VERBS,
    ));
    for name in SUBRESOURCES {
        all.extend(rights(PAYLOADS, &[&format!("agentruns/{name}")], &VERBS));
    }
    all.extend(rights(PAYLOADS, &["agentruns"], &VERBS));
    all.extend(rights("", &["secrets", "pods"], &VERBS));
    all
}

/// What a role may do, and nothing else.
fn expected(role: &str) -> BTreeSet<Right> {
    let mut expected = rights(KINDS, &["agentruns", "agentdefinitions"], READ);
    expected.extend(rights(PAYLOADS, &["agentruns/facts"], &["get"]));
    match role {
        "viewer" => {}
        "inspector" => {
            expected.extend(rights(KINDS, &["agentapprovals"], READ));
            for name in SUBRESOURCES.iter().filter(|name| **name != "settle") {
                expected.extend(rights(PAYLOADS, &[&format!("agentruns/{name}")], &["get"]));
            }
        }
        "operator" => {
            expected.extend(rights(KINDS, &["agentruns"], &["update", "patch"]));
            expected.extend(rights(PAYLOADS, &["agentruns/messages", "agentruns/settle"], &["create"]));
        }
        "approver" => {
            let verbs = ["get", "list", "watch", "update", "patch", "approve"];
            expected.extend(rights(KINDS, &["agentapprovals"], &verbs));
            expected.extend(rights(PAYLOADS, &["agentruns/proposal"], &["get"]));
        }
        "author" => {
            let verbs = ["create", "update", "patch", "delete", "deletecollection"];
            expected.extend(rights(KINDS, &["agentruns", "agentdefinitions"], &verbs));
            expected.extend(rights("", &["pods"], &["create"]));
        }
        // What the built-in roles get of all that.
        "view" => {}
        "edit" | "admin" => {
            for role in ["inspector", "operator", "author"] {
                expected.extend(self::expected(role));
            }
        }
        _ => unreachable!("{role} is no role"),
    }
    expected.into_iter().collect()
}

async fn may(client: &Client, user: &str, namespace: &str, right: &Right) -> Result<bool> {
    let (group, resource, verb) = right;
    let (resource, subresource) = match resource.split_once('/') {
        Some((resource, subresource)) => (resource.to_owned(), Some(subresource.to_owned())),
        None => (resource.clone(), None),
    };
    let review = SubjectAccessReview {
        spec: SubjectAccessReviewSpec {
            user: Some(user.to_owned()),
            resource_attributes: Some(ResourceAttributes {
                group: Some((*group).to_owned()),
                resource: Some(resource),
                subresource,
                verb: Some((*verb).to_owned()),
                namespace: Some(namespace.to_owned()),
                ..ResourceAttributes::default()
            }),
            ..SubjectAccessReviewSpec::default()
        },
        ..SubjectAccessReview::default()
    };
    let reviews: Api<SubjectAccessReview> = Api::all(client.clone());
    let review = reviews.create(&PostParams::default(), &review).await?;
    Ok(review.status.is_some_and(|status| status.allowed))
}

#[tokio::test(flavor = "multi_thread")]
async fn each_role_may_do_exactly_what_the_table_of_roles_says() -> Result {
    let ctx = TestContext::new("roles").await?;
    let built_in = ["view", "edit", "admin"];
    let roles = ["viewer", "inspector", "operator", "approver", "author"];
    for role in roles.iter().chain(&built_in) {
        let name = if built_in.contains(role) { (*role).to_owned() } else { format!("dalsegno-{role}") };
        let user = format!("user-{role}");
        let bind = ["create", "rolebinding", &user, "--clusterrole", &name, "--user", &user];
        dalsegno_e2e::process::kubectl([&bind[..], &["--namespace", &ctx.namespace]].concat()).await?;
    }
    // The last binding counts: so do the ones before it.
    dalsegno_e2e::wait::eventually("the bindings to take effect", dalsegno_e2e::wait::secs(30), async || {
        let right = (KINDS, "agentruns".to_owned(), "get");
        Ok(may(&ctx.client, "user-admin", &ctx.namespace, &right).await?.then_some(()))
    })
    .await?;
    for role in roles.iter().chain(&built_in) {
        let is_built_in = built_in.contains(role);
        // The built-in roles have rights to pods and Secrets of their own.
        let asked: Vec<Right> = all().into_iter().filter(|it| !is_built_in || !it.0.is_empty()).collect();
        let user = format!("user-{role}");
        let reviews = asked.iter().map(|right| may(&ctx.client, &user, &ctx.namespace, right));
        let answers = try_join_all(reviews).await?;
        let allowed: BTreeSet<Right> =
            asked.into_iter().zip(answers).filter(|(_, allowed)| *allowed).map(|(right, _)| right).collect();
        let wanted: BTreeSet<Right> =
            expected(role).into_iter().filter(|it| !is_built_in || !it.0.is_empty()).collect();
        let (more, less): (Vec<_>, Vec<_>) =
            (allowed.difference(&wanted).collect(), wanted.difference(&allowed).collect());
        assert!(more.is_empty() && less.is_empty(), "{role} may also {more:?}, and may not {less:?}");
    }
    let refused = may(&ctx.client, "user-viewer", "default", &(KINDS, "agentruns".to_owned(), "get")).await?;
    assert!(!refused, "a right counts in its namespace");
    ctx.end().await
}
