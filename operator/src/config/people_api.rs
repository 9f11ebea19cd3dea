//! Arguments for the registration of the aggregated API.

use std::time::Duration;

use clap::Args;
use dalsegno_core::api_registration::RegistrationSettings;
use jiff::SignedDuration;

use super::values::duration;

/// The registration of the aggregated API at the API server (docs/guides/kubectl-access.md).
#[derive(Clone, Debug, Args)]
pub struct PeopleApiArgs {
    /// Register the aggregated API at the API server, so that people reach the payloads of runs with a kubeconfig alone.
    #[arg(long, env = "DALSEGNO_PEOPLE_API", default_value_t = false, action = clap::ArgAction::Set)]
    pub people_api: bool,
    /// Withdraw the registration when the API server has reached no gateway for so long: meanwhile no namespace of the
    /// cluster can be deleted.
    #[arg(long, env = "DALSEGNO_PEOPLE_API_UNAVAILABLE_AFTER", default_value = "60s", value_name = "DURATION",
          value_parser = duration)]
    pub people_api_unavailable_after: Duration,
    /// Register again so long after a withdrawal. Each further time it is twice as long, up to 12 times this.
    #[arg(long, env = "DALSEGNO_PEOPLE_API_RETRY_AFTER", default_value = "5m", value_name = "DURATION",
          value_parser = duration)]
    pub people_api_retry_after: Duration,
}

impl PeopleApiArgs {
    /// The deadlines of the registration.
    pub fn settings(&self) -> RegistrationSettings {
        let signed = |it: Duration| SignedDuration::try_from(it).unwrap_or(SignedDuration::MAX);
        RegistrationSettings {
            unavailable_after: signed(self.people_api_unavailable_after),
            retry_after: signed(self.people_api_retry_after),
        }
    }
}

impl Default for PeopleApiArgs {
    fn default() -> Self {
        Self {
            people_api: false,
            people_api_unavailable_after: Duration::from_secs(60),
            people_api_retry_after: Duration::from_secs(300),
        }
    }
}
