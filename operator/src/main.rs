//! `dalsegno`: one program, the only place where effects meet.

mod act;
mod anchors;
mod asked;
mod capacity;
mod client;
mod cluster;
mod config;
mod context;
mod controller;
mod crash;
mod definitions;
mod dev;
mod error;
mod ground;
mod kept;
mod leader;
mod log;
mod nodes;
mod observe;
mod operate;
mod output;
mod people;
mod pods;
mod pulse;
mod retention;
mod serve;
mod store_args;
mod sync;
mod telemetry;
mod tokens;
mod unreadable;
#[cfg(test)]
mod world;

use std::process::ExitCode;

use anyhow::Context as _;
use clap::Parser;

use crate::config::{AuditCommand, Cli, Command, DatabaseArgs, KeysCommand, StoreArgs};
use crate::output::{mention, print};
use crate::people::verify::Target;
use crate::serve::{Parts, folder_of, serve};

/// What the program logs.
const LOG: &str = "DALSEGNO_LOG";

#[tokio::main]
async fn main() -> ExitCode {
    let cli = Cli::parse();
    // One TLS provider for the whole process; two in one graph make the client panic.
    if rustls::crypto::ring::default_provider().install_default().is_err() {
        mention("dalsegno: a TLS provider is installed already");
        return ExitCode::FAILURE;
    }
    match run(cli.command).await {
        Ok(code) => code,
        Err(error) => {
            mention(&format!("dalsegno: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

async fn run(command: Command) -> anyhow::Result<ExitCode> {
    let done = match command {
        Command::Dev(args) => {
            // What the parts say of themselves would hide what the agent says.
            if std::env::var_os(LOG).is_some() {
                log()?;
            }
            return dev::dev(args).await;
        }
        Command::All { store, gateway, operator, health, key } => {
            log()?;
            migrate(&store.database).await?;
            run_parts(&store, Some(gateway), Some(operator), health, key).await
        }
        Command::Operator { store, operator, health, key } => {
            log()?;
            run_parts(&store, None, Some(operator), health, key).await
        }
        Command::Gateway { store, gateway, health, key } => {
            log()?;
            run_parts(&store, Some(gateway), None, health, key).await
        }
        Command::Migrate { store, grant_to } => {
            log()?;
            migrate(&store).await?;
            match grant_to {
                Some(role) => {
                    dalsegno_store::grant(&store.database_url, &role).await.context("granting rights")
                }
                None => Ok(()),
            }
        }
        Command::Crds => {
            for crd in dalsegno_crds::crds() {
                print(format_args!("---\n{}", serde_yaml::to_string(&crd)?));
            }
            Ok(())
        }
        Command::Show { store, run, turn, since, calls, follow } => {
            people::show::run(&store, &run, people::show::What { turn, since, calls, follow }).await
        }
        Command::Export { store, run, output, key } => {
            let key = key.signing_key.as_deref();
            people::export::export(&store, &run, output.as_deref(), key).await
        }
        Command::Verify { target: Target::File(path), turn, public_key, .. } => {
            people::verify::bundle(&path, public_key, turn)
        }
        Command::Verify { target: Target::Run(run), database_url, encryption, turn, public_key } => {
            people::verify::refuse_of_bundle(turn, public_key)?;
            let database_url = database_url.context("to verify a run, name its store: --database-url")?;
            let store = StoreArgs { database: DatabaseArgs { database_url }, encryption };
            people::verify::run(&store, &run).await
        }
        Command::Audit { what: AuditCommand::Verify { store, anchors, public_key } } => {
            people::audit::verify(&store, anchors.as_deref(), public_key).await
        }
        Command::Keys { what: KeysCommand::Rewrap { store } } => people::keys::rewrap(&store).await,
        Command::Keys { what: KeysCommand::Shred { store, run, reason, by } } => {
            people::keys::shred(&store, &run, &reason, &by).await
        }
        Command::Audit { what: AuditCommand::Prune { store, before, anchors, public_key, reason, by } } => {
            let word = people::audit::Word { reason, by };
            people::audit::prune(&store, &anchors, public_key, before, &word).await
        }
        Command::AdoptNamespace { store, old_uid, new_uid, reason, by } => {
            people::adopt_namespace(&store, &old_uid, &new_uid, &reason, &by).await
        }
        Command::Settle { store, run, call, outcome, result, reason, by } => {
            let result = result.map(std::fs::read_to_string).transpose().context("reading the result")?;
            people::settle(&store, &run, people::Word { call, outcome, result, reason, by }).await
        }
    };
    done.map(|()| ExitCode::SUCCESS)
}

fn log() -> anyhow::Result<()> {
    let what = std::env::var(LOG).unwrap_or_else(|_| "info".to_owned());
    log::begin(&what).context(LOG)
}

async fn migrate(store: &DatabaseArgs) -> anyhow::Result<()> {
    dalsegno_store::migrate(&store.database_url).await.context("migrating the store")
}

async fn run_parts(
    store: &StoreArgs,
    gateway: Option<config::GatewayArgs>,
    operator: Option<config::OperatorArgs>,
    health: config::HealthArgs,
    key: config::KeyArgs,
) -> anyhow::Result<()> {
    let opened = store.open().await?;
    serve(opened, Parts { gateway, operator, health, key, folder: folder_of(store.url()) }).await
}
