//! The gateway's certificate: what is due, from what stands.

use std::collections::BTreeSet;

use dalsegno_core::certificates::{
    Authority, CertificatePlan, CertificateSettings, CertificateSource, CertificateStep,
    ObservedCertificates, PodTrust, PublishedBundle, RotationState, ServedCertificate, SourceCertificate,
    dns_names, ids_text, parse_ids,
};
use jiff::{SignedDuration, Timestamp};

const HOUR: SignedDuration = SignedDuration::from_hours(1);
const MINUTE: SignedDuration = SignedDuration::from_mins(1);
const DAY: SignedDuration = SignedDuration::from_hours(24);

fn now() -> Timestamp {
    "2026-11-26T12:00:00Z".parse().unwrap()
}

fn ids(text: &str) -> BTreeSet<String> {
    parse_ids(text)
}

fn authority(id: &str, age: SignedDuration) -> Authority {
    let not_before = now() - age;
    Authority { id: id.into(), not_before, not_after: not_before + DAY * 365 }
}

/// A certificate of these CAs, since when the gateway serves it.
fn served(authorities: &str, age: SignedDuration) -> ServedCertificate {
    let not_before = now() - age;
    ServedCertificate {
        id: format!("leaf-of-{authorities}"),
        authorities: ids(authorities),
        not_before,
        not_after: not_before + DAY * 90,
        since: not_before,
        names: ["gateway.svc".to_owned()].into(),
        plain_open: Some(false),
    }
}

/// A pod with these CAs, since `age` ago. `None`: since its creation.
fn pod(name: &str, authorities: &str, age: Option<SignedDuration>) -> PodTrust {
    PodTrust {
        namespace: "shop".into(),
        name: name.into(),
        uid: format!("uid-{name}"),
        authorities: Some(ids(authorities)),
        since: age.map(|age| now() - age),
    }
}

fn plain_pod() -> PodTrust {
    PodTrust { authorities: None, ..pod("old", "", None) }
}

/// A steady gateway with the CA `a`, 30 days old.
fn steady() -> ObservedCertificates {
    ObservedCertificates {
        now: now(),
        settings: CertificateSettings::default(),
        source: CertificateSource::Own {
            newest: Some(authority("a", DAY * 30)),
            previous: None,
            rotate: false,
        },
        served: Some(served("a", DAY * 30)),
        published: Some(PublishedBundle { authorities: ids("a"), since: now() - DAY * 30 }),
        names: vec!["gateway.svc".into()],
        pods: vec![pod("p", "a", None)],
    }
}

/// The CA `b` was made, while the gateway serves a certificate of `a`.
fn rotating(bundle: &str, published: SignedDuration, pods: Vec<PodTrust>) -> ObservedCertificates {
    ObservedCertificates {
        source: CertificateSource::Own {
            newest: Some(authority("b", HOUR)),
            previous: Some(authority("a", DAY * 244)),
            rotate: false,
        },
        published: Some(PublishedBundle { authorities: ids(bundle), since: now() - published }),
        pods,
        ..steady()
    }
}

/// The gateway serves a certificate of `b` since `age` ago.
fn rotated(age: SignedDuration, previous: Option<Authority>, bundle: &str) -> ObservedCertificates {
    ObservedCertificates {
        served: Some(served("b", age)),
        source: CertificateSource::Own { newest: Some(authority("b", age + HOUR)), previous, rotate: false },
        ..rotating(bundle, age + HOUR, vec![pod("p", bundle, Some(age + HOUR))])
    }
}

fn from_secret(id: &str, authorities: &str) -> CertificateSource {
    CertificateSource::Secret(Some(SourceCertificate { id: id.into(), authorities: ids(authorities) }))
}

fn text(plan: &CertificatePlan) -> Vec<String> {
    let step = |step: &CertificateStep| match step {
        CertificateStep::Publish(ids) => format!("publish {}", ids_text(ids)),
        CertificateStep::UpdatePods(pods) => {
            format!("update {}", pods.iter().map(|it| &*it.name).collect::<Vec<_>>().join(","))
        }
        CertificateStep::Issue(id) => format!("issue {id}"),
        CertificateStep::SetPlainOpen(open) => format!("plain {open}"),
        CertificateStep::CreateAuthority | CertificateStep::ForgetPrevious | CertificateStep::Copy => {
            step.name().to_owned()
        }
    };
    plan.steps.iter().map(step).collect()
}

#[test]
fn each_step_is_due_by_what_stands() {
    let waits = |pods| RotationState::Waiting { pods };
    let old = authority("a", DAY * 244);
    let table: Vec<(&str, ObservedCertificates, &[&str], RotationState)> = vec![
        ("a steady gateway needs nothing", steady(), &[], RotationState::Steady),
        (
            "the first CA is made before everything else",
            ObservedCertificates {
                source: CertificateSource::Own { newest: None, previous: None, rotate: false },
                served: None,
                published: None,
                pods: vec![],
                ..steady()
            },
            &["create-authority"],
            RotationState::Starting,
        ),
        (
            "the first bundle is published before the first certificate",
            ObservedCertificates { served: None, published: None, ..steady() },
            &["publish a"],
            RotationState::Starting,
        ),
        (
            "the first certificate waits for nobody",
            ObservedCertificates {
                served: None,
                published: Some(PublishedBundle { authorities: ids("a"), since: now() }),
                ..steady()
            },
            &["issue a"],
            RotationState::Starting,
        ),
        (
            "a certificate is renewed after two thirds of its life",
            ObservedCertificates { served: Some(served("a", DAY * 60)), ..steady() },
            &["issue a"],
            RotationState::Steady,
        ),
        (
            "and not before",
            ObservedCertificates { served: Some(served("a", DAY * 60 - MINUTE)), ..steady() },
            &[],
            RotationState::Steady,
        ),
        (
            "a certificate that lacks a name is issued again",
            ObservedCertificates { names: vec!["gateway.svc".into(), "api.svc".into()], ..steady() },
            &["issue a"],
            RotationState::Steady,
        ),
        (
            "a CA is replaced after two thirds of its life",
            ObservedCertificates {
                source: CertificateSource::Own {
                    newest: Some(authority("a", DAY * 365 * 2 / 3)),
                    previous: None,
                    rotate: false,
                },
                ..steady()
            },
            &["create-authority"],
            RotationState::Steady,
        ),
        (
            "a person asks for another CA",
            ObservedCertificates {
                source: CertificateSource::Own {
                    newest: Some(authority("a", DAY)),
                    previous: None,
                    rotate: true,
                },
                ..steady()
            },
            &["create-authority"],
            RotationState::Steady,
        ),
        (
            "both CAs are published before the certificate changes",
            rotating("a", DAY, vec![pod("p", "a", None)]),
            &["publish a,b"],
            waits(1),
        ),
        (
            "the pods that lack the new CA get it; the certificate waits",
            rotating(
                "a,b",
                HOUR,
                vec![pod("p", "a", None), pod("q", "a,b", Some(HOUR)), pod("r", "a,b", None)],
            ),
            &["update p"],
            waits(1),
        ),
        (
            "a pod that has the new CA for a minute is waited for",
            rotating("a,b", HOUR, vec![pod("p", "a,b", Some(MINUTE)), pod("q", "a,b", Some(HOUR))]),
            &[],
            waits(1),
        ),
        (
            "a pod may be created with the old bundle just after another one was published",
            rotating("a,b", MINUTE, vec![]),
            &[],
            waits(0),
        ),
        (
            "every pod has had the new CA for two minutes: the certificate changes",
            rotating("a,b", HOUR, vec![pod("p", "a,b", Some(MINUTE * 2)), pod("q", "a,b", None)]),
            &["issue b"],
            waits(0),
        ),
        (
            "a pod without TLS keeps nothing waiting, and is served on",
            rotating("a,b", HOUR, vec![plain_pod()]),
            &["issue b", "plain true"],
            waits(0),
        ),
        (
            "while pods are waited for, the old CA renews the certificate",
            ObservedCertificates {
                served: Some(served("a", DAY * 70)),
                ..rotating("a,b", HOUR, vec![pod("p", "a,b", Some(MINUTE))])
            },
            &["issue a"],
            waits(1),
        ),
        (
            "without the old CA's key the certificate waits until it is about to expire",
            ObservedCertificates {
                served: Some(served("a", DAY * 80)),
                source: CertificateSource::Own {
                    newest: Some(authority("b", HOUR)),
                    previous: None,
                    rotate: false,
                },
                ..rotating("a,b", HOUR, vec![pod("p", "a,b", Some(MINUTE))])
            },
            &[],
            waits(1),
        ),
        (
            "a certificate about to expire changes although a pod lacks the new CA",
            ObservedCertificates {
                served: Some(served("a", DAY * 81)),
                ..rotating("a,b", HOUR, vec![pod("p", "a,b", Some(MINUTE))])
            },
            &["issue b"],
            waits(1),
        ),
        (
            "the old CA's key is deleted once the certificate has changed; the old CA stays trusted",
            rotated(HOUR, Some(old), "a,b"),
            &["forget-previous"],
            RotationState::Closing,
        ),
        ("the old CA is trusted for a day", rotated(DAY - MINUTE, None, "a,b"), &[], RotationState::Closing),
        ("and no longer", rotated(DAY, None, "a,b"), &["publish b"], RotationState::Closing),
        (
            "pods lose the old CA too",
            ObservedCertificates { pods: vec![pod("p", "a,b", Some(DAY))], ..rotated(DAY, None, "b") },
            &["update p"],
            RotationState::Steady,
        ),
        (
            "a deleted CA is made again",
            ObservedCertificates {
                source: CertificateSource::Own { newest: None, previous: None, rotate: false },
                ..steady()
            },
            &["create-authority"],
            waits(0),
        ),
        (
            "and replaces the lost one as any other does",
            ObservedCertificates {
                source: CertificateSource::Own {
                    newest: Some(authority("b", MINUTE)),
                    previous: None,
                    rotate: false,
                },
                ..steady()
            },
            &["publish a,b"],
            waits(1),
        ),
        (
            "a Secret of one's own is served at once by the first install",
            ObservedCertificates { source: from_secret("x", "a"), served: None, ..steady() },
            &["copy"],
            RotationState::Starting,
        ),
        (
            "a renewal by the same CA is copied at once",
            ObservedCertificates { source: from_secret("x", "a"), ..steady() },
            &["copy"],
            RotationState::Steady,
        ),
        (
            "the Secret's certificate is served already",
            ObservedCertificates { source: from_secret("leaf-of-a", "a"), ..steady() },
            &[],
            RotationState::Steady,
        ),
        (
            "a certificate of another CA waits for the pods",
            ObservedCertificates { source: from_secret("x", "b"), ..steady() },
            &["publish a,b"],
            waits(1),
        ),
        (
            "and is copied once all of them have that CA",
            ObservedCertificates {
                source: from_secret("x", "b"),
                ..rotating("a,b", HOUR, vec![pod("p", "a,b", Some(HOUR))])
            },
            &["copy"],
            waits(0),
        ),
        (
            "a missing Secret changes nothing",
            ObservedCertificates { source: CertificateSource::Secret(None), ..steady() },
            &[],
            RotationState::Steady,
        ),
        (
            "workers without TLS are served while there are any",
            ObservedCertificates { pods: vec![plain_pod()], ..steady() },
            &["plain true"],
            RotationState::Steady,
        ),
        (
            "nobody has decided yet whether there are any",
            ObservedCertificates {
                served: Some(ServedCertificate { plain_open: None, ..served("a", DAY) }),
                ..steady()
            },
            &["plain false"],
            RotationState::Steady,
        ),
    ];
    for (case, observed, steps, state) in table {
        let plan = observed.plan();
        assert_eq!(
            (text(&plan), plan.state),
            (steps.iter().map(|it| (*it).to_owned()).collect(), state),
            "{case}"
        );
    }
}

#[test]
fn the_next_look_is_when_the_next_thing_is_due() {
    let at = |observed: ObservedCertificates| observed.plan().next;
    let renewal = now() - DAY * 30 + DAY * 60;
    assert_eq!(at(steady()), Some(renewal));
    let waiting = rotating("a,b", HOUR, vec![pod("p", "a,b", Some(MINUTE))]);
    assert_eq!(at(waiting), Some(now() + MINUTE));
    assert_eq!(at(rotated(DAY - MINUTE, None, "a,b")), Some(now() + MINUTE));
}

/// Performs the steps as the API server and the kubelet would, from nothing through two changes of the CA.
#[test]
fn two_changes_of_the_ca_leave_no_moment_in_which_a_pod_cannot_verify_the_gateway() {
    let mut observed = ObservedCertificates {
        source: CertificateSource::Own { newest: None, previous: None, rotate: false },
        served: None,
        published: None,
        pods: vec![],
        ..steady()
    };
    let (mut made, mut seen) = (0, BTreeSet::new());
    for minute in 0..(3 * 24 * 60) {
        observed.now = now() + MINUTE * minute;
        if minute == 10 || minute == 36 * 60 {
            let CertificateSource::Own { rotate, .. } = &mut observed.source else { unreachable!() };
            *rotate = true;
        }
        if minute == 20 {
            let authorities = observed.published.as_ref().unwrap().authorities.clone();
            let late = PodTrust { authorities: Some(authorities), since: None, ..pod("late", "", None) };
            observed.pods.push(late);
        }
        for step in observed.plan().steps {
            perform(&mut observed, step, &mut made);
        }
        let Some(served) = &observed.served else { continue };
        seen.extend(served.authorities.iter().cloned());
        if minute == 2 {
            observed.pods = vec![pod("early", "ca-1", None)];
        }
        for pod in &observed.pods {
            // The file has an annotation's change after a minute and a half at the latest.
            let is_in_file = pod.since.is_none_or(|since| since + MINUTE * 3 / 2 <= observed.now);
            let authorities = pod.authorities.as_ref().unwrap();
            assert!(!is_in_file || authorities.is_superset(&served.authorities), "minute {minute}: {pod:?}");
        }
    }
    assert_eq!(seen, ids("ca-1,ca-2,ca-3"));
    assert_eq!(observed.plan().state, RotationState::Steady);
    assert!(observed.pods.iter().all(|pod| pod.authorities == Some(ids("ca-3"))), "{:?}", observed.pods);
}

fn perform(observed: &mut ObservedCertificates, step: CertificateStep, made: &mut usize) {
    let now = observed.now;
    let CertificateSource::Own { newest, previous, rotate } = &mut observed.source else { unreachable!() };
    match step {
        CertificateStep::CreateAuthority => {
            *made += 1;
            *previous = newest.take();
            let id = format!("ca-{made}");
            *newest = Some(Authority { id, not_before: now, not_after: now + DAY * 365 });
            *rotate = false;
        }
        CertificateStep::ForgetPrevious => *previous = None,
        CertificateStep::Publish(authorities) => {
            observed.published = Some(PublishedBundle { authorities, since: now });
        }
        CertificateStep::UpdatePods(pods) => {
            let published = observed.published.clone().unwrap().authorities;
            for pod in observed.pods.iter_mut().filter(|it| pods.iter().any(|other| other.uid == it.uid)) {
                (pod.authorities, pod.since) = (Some(published.clone()), Some(now));
            }
        }
        CertificateStep::Issue(id) => {
            observed.served = Some(ServedCertificate {
                id: format!("leaf-{now}"),
                authorities: [id].into(),
                not_before: now,
                not_after: now + DAY * 90,
                since: now,
                names: observed.names.iter().cloned().collect(),
                plain_open: Some(false),
            });
        }
        CertificateStep::Copy | CertificateStep::SetPlainOpen(_) => {}
    }
}

#[test]
fn the_certificate_is_valid_for_both_services_and_for_the_domain_of_the_cluster() {
    assert_eq!(dns_names("ns", None), ["dalsegno-gateway.ns.svc", "dalsegno-aggregated.ns.svc"]);
    let long = "dalsegno-gateway.ns.svc.cluster.local";
    assert!(dns_names("ns", Some("cluster.local")).contains(&long.to_owned()));
}
