//! The labels of the operator's metrics.

use dalsegno_model::NotificationKind;
use prometheus_client::encoding::EncodeLabelSet;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct NamespaceLabel {
    pub namespace: String,
}

/// Label of all namespaces that have no series of their own. No namespace can have this name.
pub(super) const OTHER_NAMESPACES: &str = "(others)";

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct EffectLabel {
    pub effect: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct CauseLabel {
    pub cause: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct OutcomeLabel {
    pub outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct ResultLabel {
    pub result: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct KindLabel {
    pub kind: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct WatchLabel {
    pub kind: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct NotificationLabel {
    pub kind: &'static str,
    pub outcome: &'static str,
}

/// What became of a try of a notification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotificationOutcome {
    /// The receiver has it.
    Delivered,
    /// It is tried again.
    Failed,
    /// It is not tried again.
    GivenUp,
    /// Nobody wants it.
    Unwanted,
}

impl NotificationOutcome {
    pub(super) const ALL: [Self; 4] = [Self::Delivered, Self::Failed, Self::GivenUp, Self::Unwanted];

    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Delivered => "delivered",
            Self::Failed => "failed",
            Self::GivenUp => "given-up",
            Self::Unwanted => "unwanted",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct SinkLabel {
    pub sink: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct PlaceLabel {
    pub place: &'static str,
}

pub(super) fn notification_label(kind: NotificationKind, outcome: NotificationOutcome) -> NotificationLabel {
    NotificationLabel { kind: kind.as_str(), outcome: outcome.as_str() }
}

pub(super) fn outcome(ok: bool) -> OutcomeLabel {
    OutcomeLabel { outcome: if ok { "ok" } else { "error" } }
}
