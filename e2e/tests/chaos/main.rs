//! Stories that break the cluster or Dal Segno itself: one after the other (`--test-threads=1`).

mod corruption;
mod healthy;
mod nodes;
mod operator_away;
mod operator_crash;
mod outages;
mod postgres;
mod prior_run;
mod release;
