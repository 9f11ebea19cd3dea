//! `dalsegno`: operator, gateway and command line in one program. Only this crate performs effects.

mod cache;
mod certificates;
mod cli;
mod config;
mod controller;
mod dev;
mod health;
mod kube_client;
mod listen;
mod log;
mod manager;
mod metrics;
mod mutex;
mod output;
mod people_api;
mod process_limits;
mod purge;
mod serve;
mod tasks;
#[cfg(test)]
mod test_context;
mod token_review;
mod volume;

use std::process::ExitCode;

use anyhow::Context as _;
use clap::Parser;

use crate::config::{AuditCommand, Cli, Command, DatabaseArgs, KeysCommand, RunsCommand};
use crate::output::{print, print_message};
use crate::serve::{Parts, serve};
use crate::volume::VolumeFailed;

/// Environment variable that selects what is logged.
const LOG_VARIABLE: &str = "DALSEGNO_LOG";

#[tokio::main]
async fn main() -> ExitCode {
    let cli = Cli::parse();
    // One TLS provider for the whole process: with two in one dependency graph the client panics.
    if rustls::crypto::ring::default_provider().install_default().is_err() {
        print_message("a TLS provider is installed already");
        return ExitCode::FAILURE;
    }
    match run(cli.command).await {
        Ok(code) => code,
        Err(error) => {
            print_message(&format!("{error:#}"));
            if error.is::<VolumeFailed>() { ExitCode::from(volume::EXIT_CODE) } else { ExitCode::FAILURE }
        }
    }
}

async fn run(command: Command) -> anyhow::Result<ExitCode> {
    let result = match command {
        Command::Dev(args) => {
            // Off by default: log lines would bury the output of the agent.
            if std::env::var_os(LOG_VARIABLE).is_some() {
                init_log()?;
            }
            return match args.verb {
                None => dev::dev(args.run).await,
                Some(verb) => dev::act_on(verb).await.map(|()| ExitCode::SUCCESS),
            };
        }
        Command::All { store, connections, gateway, operator, tls, health, key } => {
            init_log()?;
            migrate(&store.database).await?;
            let (gateway, operator) = (Some(gateway), Some(operator));
            let parts = Parts { connections, gateway, operator, tls, health, key };
            serve(&store, parts).await
        }
        Command::Operator { store, connections, operator, tls, health, key } => {
            init_log()?;
            serve(&store, Parts { connections, gateway: None, operator: Some(operator), tls, health, key })
                .await
        }
        Command::Gateway { store, connections, gateway, tls, health, key } => {
            init_log()?;
            serve(&store, Parts { connections, gateway: Some(gateway), operator: None, tls, health, key })
                .await
        }
        Command::Migrate { store, grant_to } => {
            init_log()?;
            migrate(&store).await?;
            match grant_to {
                Some(role) => {
                    dalsegno_store::grant(&store.database_url, &role).await.context("granting rights")
                }
                None => Ok(()),
            }
        }
        Command::Crds => print_crds(),
        Command::Show(args) => cli::show::run(args).await,
        Command::Export(args) => cli::export::run(args).await,
        Command::Verify(args) => cli::verify::run(args).await,
        Command::Audit { command: AuditCommand::Show(args) } => cli::audit_show::run(args).await,
        Command::Audit { command: AuditCommand::Verify(args) } => cli::audit::verify(args).await,
        Command::Audit { command: AuditCommand::Prune(args) } => cli::audit::prune(args).await,
        Command::Runs { command: RunsCommand::Purge(args) } => cli::purge::run(args).await,
        Command::Keys { command: KeysCommand::Rewrap { store } } => cli::keys::rewrap(&store).await,
        Command::Keys { command: KeysCommand::Shred(args) } => cli::keys::shred(args).await,
        Command::AdoptNamespace(args) => cli::adopt_namespace::run(args).await,
        Command::Backup(args) => cli::backup::run(args).await,
        Command::Settle(args) => cli::settle::run(args).await,
    };
    result.map(|()| ExitCode::SUCCESS)
}

fn init_log() -> anyhow::Result<()> {
    let filter = std::env::var(LOG_VARIABLE).unwrap_or_else(|_| "info".to_owned());
    log::init(&filter).context(LOG_VARIABLE)
}

async fn migrate(store: &DatabaseArgs) -> anyhow::Result<()> {
    dalsegno_store::migrate(&store.database_url).await.context("migrating the store")
}

fn print_crds() -> anyhow::Result<()> {
    for crd in dalsegno_crds::crds() {
        print(format_args!("---\n{}", serde_yaml::to_string(&crd)?));
    }
    Ok(())
}
