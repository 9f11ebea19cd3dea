//! `logs`: what the pods of a run have written.

use std::collections::BTreeSet;
use std::time::Duration;

use dalsegno_crds::{AgentRun, names};
use futures::{AsyncBufReadExt as _, StreamExt as _};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use kube::api::{ListParams, LogParams};

use crate::advice::Need;
use crate::args::LogsArgs;
use crate::failure::{Exit, Failure, Result};
use crate::output::{Output, Style, escape, print_error};
use crate::runs;
use crate::session::Session;

/// Pause until the next pod of a run is looked for.
const PAUSE: Duration = Duration::from_secs(1);

/// Shows logs.
pub async fn run(session: &Session, args: &LogsArgs, output: &mut Output) -> Result {
    let run = runs::get(session, &args.run).await?;
    let mut shown = BTreeSet::new();
    loop {
        let run = if shown.is_empty() { run.clone() } else { runs::get(session, &args.run).await? };
        let pods = pods(session, &run).await?;
        let chosen = choose(&pods, args);
        let fresh: Vec<_> = chosen.into_iter().filter(|pod| !shown.contains(&pod.uid())).collect();
        for pod in fresh {
            let has_heading = args.all_attempts || args.follow;
            match print_log(session, pod, (args, has_heading), output).await {
                Err(failure) if args.follow && failure.exit == Exit::Refused => continue,
                printed => printed?,
            }
            shown.insert(pod.uid());
        }
        if !args.follow {
            break;
        }
        if Need::of(&run) == Need::Over {
            return Ok(());
        }
        tokio::time::sleep(PAUSE).await;
    }
    if shown.is_empty() { Err(no_pod(session, args)) } else { Ok(()) }
}

/// The pods of this AgentRun, by attempt. Pods of a deleted run of the same name do not count.
async fn pods(session: &Session, run: &AgentRun) -> Result<Vec<Pod>> {
    let selector = format!("{}={}", names::LABEL_RUN_UID, run.uid().unwrap_or_default());
    let listed = session.api::<Pod>().list(&ListParams::default().labels(&selector)).await;
    let mut pods = listed.map_err(|error| Failure::of_api("listing the pods", &error))?.items;
    pods.sort_by_key(attempt);
    Ok(pods)
}

fn attempt(pod: &Pod) -> i32 {
    pod.labels().get(names::LABEL_ATTEMPT).and_then(|it| it.parse().ok()).unwrap_or_default()
}

fn choose<'a>(pods: &'a [Pod], args: &LogsArgs) -> Vec<&'a Pod> {
    match args.attempt {
        Some(wanted) => pods.iter().filter(|pod| attempt(pod) == wanted).collect(),
        None if args.all_attempts => pods.iter().collect(),
        None => pods.last().into_iter().collect(),
    }
}

async fn print_log(
    session: &Session,
    pod: &Pod,
    (args, has_heading): (&LogsArgs, bool),
    output: &mut Output,
) -> Result {
    let name = pod.name_any();
    let container = args.container.clone().or_else(|| worker_container(pod));
    let params = LogParams { follow: args.follow, tail_lines: args.tail, container, ..LogParams::default() };
    let stream = session.api::<Pod>().log_stream(&name, &params).await;
    let stream = stream.map_err(|error| Failure::of_api(&format!("reading the log of {name}"), &error))?;
    if has_heading {
        output.print_styled(Style::Bold, &format!("attempt {}, pod {name}", attempt(pod)));
    }
    let mut lines = stream.lines();
    while let Some(line) = lines.next().await {
        match line {
            Ok(line) => output.print(&escape::line(&line.replace('\t', "    "))),
            Err(error) => {
                print_error(&format!("the log of {name} broke off: {error}"));
                break;
            }
        }
    }
    Ok(())
}

/// The worker's container: admission may have added others.
fn worker_container(pod: &Pod) -> Option<String> {
    let marked = pod.annotations().get(names::ANNOTATION_WORKER).cloned();
    let containers = pod.spec.as_ref().map(|it| it.containers.as_slice()).unwrap_or_default();
    let named = || containers.iter().find(|it| it.name == names::WORKER_CONTAINER).map(|it| it.name.clone());
    marked.or_else(named).or_else(|| containers.first().map(|it| it.name.clone()))
}

fn no_pod(session: &Session, args: &LogsArgs) -> Failure {
    let options = session.options();
    let what = match args.attempt {
        Some(attempt) => format!("attempt {attempt} of {} has no pod any more, or none yet", args.run),
        None => format!("the run {} has no pod", args.run),
    };
    Failure::new(
        Exit::NotFound,
        what,
        format!(
            "see why with `kubectl dalsegno status {0}{options}`; its events are kept: `kubectl dalsegno events {0}{options}`",
            args.run
        ),
    )
}
