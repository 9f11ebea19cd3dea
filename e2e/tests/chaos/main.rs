//! Tests that break the cluster or Dal Segno itself. They run one after the other (`--test-threads=1`).

mod aggregated;
mod approvals;
mod corruption;
mod external;
mod fleet;
mod fork;
mod healthy;
mod nodes;
mod notifications;
mod operator_crash;
mod operator_scaled_down;
mod outages;
mod parked;
mod postgres;
mod prior_run;
mod release;
mod rewound_approvals;
mod soak;
mod stamps;
mod suspend;
mod tls;
mod upgrade;
