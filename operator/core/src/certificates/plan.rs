//! The plan: the steps that are due, and when to look again.

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};

use super::observed::{
    Authority, CaId, CertificateSource, ObservedCertificates, PodTrust, PublishedBundle, ServedCertificate,
    SourceCertificate,
};

/// One write. Each is due by what was observed alone, so that one that fails keeps no other from being done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CertificateStep {
    /// Make a CA. The newest one becomes the one before.
    CreateAuthority,
    /// Delete the key of the CA before.
    ForgetPrevious,
    /// Publish this bundle of CAs for new pods.
    Publish(BTreeSet<CaId>),
    /// Give these pods the published bundle.
    UpdatePods(Vec<PodTrust>),
    /// Issue the served certificate by this CA of the operator.
    Issue(CaId),
    /// Serve the certificate of the Secret.
    Copy,
    /// Say whether the gateway serves workers without TLS.
    SetPlainOpen(bool),
}

/// How far a change of the CA is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RotationState {
    /// There is no certificate yet.
    Starting,
    /// The served certificate is of the newest CA, and no other one is trusted.
    Steady,
    /// This many pods do not have the newest CA yet, or not for long enough.
    Waiting {
        /// Number of pods.
        pods: usize,
    },
    /// The served certificate is of the newest CA, and the one before is still trusted.
    Closing,
}

/// What to do now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificatePlan {
    /// The writes that are due, in order.
    pub steps: Vec<CertificateStep>,
    /// When to look again at the latest, if a time is known at which something becomes due.
    pub next: Option<Timestamp>,
    /// How far a change of the CA is.
    pub state: RotationState,
    /// Workers that were started without TLS.
    pub plain_workers: usize,
}

impl CertificateStep {
    /// Its name in the log.
    pub fn name(&self) -> &'static str {
        match self {
            Self::CreateAuthority => "create-authority",
            Self::ForgetPrevious => "forget-previous",
            Self::Publish(_) => "publish",
            Self::UpdatePods(_) => "update-pods",
            Self::Issue(_) => "issue",
            Self::Copy => "copy",
            Self::SetPlainOpen(_) => "set-plain-open",
        }
    }
}

impl ObservedCertificates {
    /// The plan.
    pub fn plan(&self) -> CertificatePlan {
        let mut due = Due { now: self.now, next: None };
        let mut steps = self.authority_steps(&mut due);
        let wanted = self.wanted();
        steps.extend(self.publish_step(&wanted, &mut due));
        steps.extend(self.pods_step());
        let waiting = self.pods.iter().filter(|pod| !self.has_settled(pod, &wanted, &mut due)).count();
        let is_published = self.has_published(&wanted, &mut due);
        let may_switch = is_published && waiting == 0;
        steps.extend(self.serve_step(&wanted, may_switch, &mut due));
        let plain_workers = self.pods.iter().filter(|pod| pod.authorities.is_none()).count();
        let plain_open = plain_workers > 0;
        if self.served.as_ref().is_some_and(|served| served.plain_open != Some(plain_open)) {
            steps.push(CertificateStep::SetPlainOpen(plain_open));
        }
        let state = match (&self.served, &self.published) {
            (None, _) => RotationState::Starting,
            (Some(served), _) if served.authorities != wanted => RotationState::Waiting { pods: waiting },
            (Some(_), Some(published)) if published.authorities != wanted => RotationState::Closing,
            (Some(_), _) => RotationState::Steady,
        };
        CertificatePlan { steps, next: due.next, state, plain_workers }
    }

    /// The CAs that verify the next certificate.
    fn wanted(&self) -> BTreeSet<CaId> {
        match &self.source {
            CertificateSource::Own { newest, .. } => newest.iter().map(|it| it.id.clone()).collect(),
            CertificateSource::Secret(Some(source)) => source.authorities.clone(),
            // Nothing is known of the next one, so nothing changes.
            CertificateSource::Secret(None) => {
                self.served.as_ref().map(|it| it.authorities.clone()).unwrap_or_default()
            }
        }
    }

    /// A CA is made if there is none, if the newest one is old, or if a person asks for it. There are never more than two.
    fn authority_steps(&self, due: &mut Due) -> Vec<CertificateStep> {
        let CertificateSource::Own { newest, previous, rotate } = &self.source else { return Vec::new() };
        let Some(newest) = newest else { return vec![CertificateStep::CreateAuthority] };
        let serves_newest =
            self.served.as_ref().is_some_and(|it| it.authorities == [newest.id.clone()].into());
        if !serves_newest {
            return Vec::new();
        }
        if previous.is_some() {
            return vec![CertificateStep::ForgetPrevious];
        }
        let is_old = due.is_reached(two_thirds(newest.not_before, newest.not_after));
        (is_old || *rotate).then_some(CertificateStep::CreateAuthority).into_iter().collect()
    }

    /// The bundle has the CAs of the next certificate and of the served one, and for a while those of the one before.
    fn publish_step(&self, wanted: &BTreeSet<CaId>, due: &mut Due) -> Option<CertificateStep> {
        let mut bundle = wanted.clone();
        if let Some(served) = &self.served {
            bundle.extend(served.authorities.iter().cloned());
        }
        if let (Some(PublishedBundle { authorities, .. }), Some(served)) = (&self.published, &self.served)
            && !authorities.is_subset(&bundle)
            && !due.is_reached(served.since + self.settings.keep_old)
        {
            bundle.extend(authorities.iter().cloned());
        }
        let is_published = self.published.as_ref().is_some_and(|it| it.authorities == bundle);
        (!bundle.is_empty() && !is_published).then_some(CertificateStep::Publish(bundle))
    }

    /// Pods that were started with TLS and have another bundle than the published one.
    fn pods_step(&self) -> Option<CertificateStep> {
        let published = &self.published.as_ref()?.authorities;
        let differs = |pod: &&PodTrust| pod.authorities.as_ref().is_some_and(|it| it != published);
        let pods: Vec<_> = self.pods.iter().filter(differs).cloned().collect();
        (!pods.is_empty()).then_some(CertificateStep::UpdatePods(pods))
    }

    /// Whether a pod has had all of these CAs for long enough. A pod without TLS needs none.
    fn has_settled(&self, pod: &PodTrust, wanted: &BTreeSet<CaId>, due: &mut Due) -> bool {
        let Some(authorities) = &pod.authorities else { return true };
        wanted.is_subset(authorities)
            && pod.since.is_none_or(|since| due.is_reached(since + self.settings.settle))
    }

    /// Whether new pods have had all of these CAs for so long that no pod without them is being created.
    fn has_published(&self, wanted: &BTreeSet<CaId>, due: &mut Due) -> bool {
        let Some(published) = &self.published else { return false };
        wanted.is_subset(&published.authorities) && due.is_reached(published.since + self.settings.settle)
    }

    /// The served certificate: the first one, a renewal by the same CA, or one by the next CA.
    fn serve_step(
        &self,
        wanted: &BTreeSet<CaId>,
        may_switch: bool,
        due: &mut Due,
    ) -> Option<CertificateStep> {
        let is_published =
            !wanted.is_empty() && self.published.as_ref().is_some_and(|it| wanted.is_subset(&it.authorities));
        if !is_published {
            return None;
        }
        let same_ca = self.served.as_ref().is_none_or(|served| served.authorities == *wanted);
        let may_use = same_ca || may_switch || self.must_switch(due);
        match &self.source {
            CertificateSource::Own { newest, previous, .. } => {
                let issuer = if may_use { newest.as_ref() } else { self.other_issuer(previous.as_ref()) };
                let is_due = (may_use && !same_ca) || self.is_renewal_due(issuer, due);
                issuer.filter(|_| is_due).map(|it| CertificateStep::Issue(it.id.clone()))
            }
            CertificateSource::Secret(Some(SourceCertificate { id, .. })) => {
                let is_served = self.served.as_ref().is_some_and(|it| it.id == *id);
                (may_use && !is_served).then_some(CertificateStep::Copy)
            }
            CertificateSource::Secret(None) => None,
        }
    }

    /// The CA before, if the served certificate is its own.
    fn other_issuer<'a>(&self, previous: Option<&'a Authority>) -> Option<&'a Authority> {
        let served = self.served.as_ref()?;
        previous.filter(|it| served.authorities == [it.id.clone()].into())
    }

    /// Whether the served certificate is about to expire: then workers lose the gateway in any case, and those that have the
    /// next CA shall not.
    fn must_switch(&self, due: &mut Due) -> bool {
        self.served.as_ref().is_some_and(|ServedCertificate { not_before, not_after, .. }| {
            due.is_reached(*not_after - part(*not_before, *not_after, 1, 10))
        })
    }

    /// Whether the certificate is missing, old, or lacks a name. One that reaches to the end of its CA cannot be renewed by it.
    fn is_renewal_due(&self, issuer: Option<&Authority>, due: &mut Due) -> bool {
        let (Some(issuer), Some(served)) = (issuer, &self.served) else { return self.served.is_none() };
        let lacks_name = !self.names.iter().all(|name| served.names.contains(name));
        let can_be_longer = served.not_after < issuer.not_after;
        lacks_name || (can_be_longer && due.is_reached(two_thirds(served.not_before, served.not_after)))
    }
}

/// Compares deadlines with the clock, and remembers the next one.
struct Due {
    now: Timestamp,
    next: Option<Timestamp>,
}

impl Due {
    fn is_reached(&mut self, deadline: Timestamp) -> bool {
        let is_reached = deadline <= self.now;
        if !is_reached {
            self.next = Some(self.next.map_or(deadline, |next| next.min(deadline)));
        }
        is_reached
    }
}

fn part(from: Timestamp, to: Timestamp, numerator: i32, denominator: i32) -> SignedDuration {
    to.duration_since(from) / denominator * numerator
}

fn two_thirds(from: Timestamp, to: Timestamp) -> Timestamp {
    from + part(from, to, 2, 3)
}
