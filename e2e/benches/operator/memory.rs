//! What a run takes of the operator's memory while nothing happens in it.

use std::time::Duration;

use dalsegno_e2e::Result;
use tokio::time::sleep;

use crate::figures::print_table;
use crate::fleet::Fleet;
use crate::program::{Program, Role, free_port};

/// At how many runs the memory is read.
const STEPS: [usize; 4] = [0, 250, 500, 1_000];
/// After the last start of a step: the runs are mirrored, and what that took is given back.
const SETTLE: Duration = Duration::from_secs(20);

/// What a run does while its memory is read.
#[derive(Clone, Copy)]
enum Idle {
    /// It is held and has no pod.
    Held,
    /// Its pod runs, and its worker is attached and silent.
    Attached,
}

/// Prints the memory at each step, and what each run added, of both kinds of idle runs.
pub async fn measure() -> Result {
    for (idle, what) in [
        (Idle::Held, "every run held, without a pod"),
        (Idle::Attached, "every run attached and silent, its pod running"),
    ] {
        print_table(
            &format!("Anonymous memory of operator and gateway in one process, SQLite; {what}"),
            ["runs", "memory", "per run beyond the base", "per run since the last line"],
            &of(idle).await?,
        );
    }
    Ok(())
}

async fn of(idle: Idle) -> Result<Vec<[String; 4]>> {
    let folder = tempfile::tempdir()?;
    let database = format!("sqlite://{}", folder.path().join("runs.db").display());
    let role = Role { command: "all", user: "operator", database: &database, gateway: free_port()? };
    let program = Program::start(&role).await?;
    let mut fleet = Fleet::new("memory").await?;
    let mut rows = Vec::new();
    let (mut base, mut before) = (0, (0, 0));
    for runs in STEPS {
        let names = (before.0..runs).map(|i| format!("idle-{i}"));
        match idle {
            Idle::Held => fleet.hold(names).await?,
            Idle::Attached => fleet.start(names).await?,
        }
        sleep(SETTLE).await;
        let bytes = program.own_memory()?;
        if runs == 0 {
            (base, before) = (bytes, (0, bytes));
        }
        let per = |from: u64, runs: usize| match runs {
            0 => "—".to_owned(),
            runs => format!("{:.1} KB", bytes.saturating_sub(from) as f64 / 1e3 / runs as f64),
        };
        let memory = format!("{:.1} MB", bytes as f64 / 1e6);
        rows.push([runs.to_string(), memory, per(base, runs), per(before.1, runs - before.0)]);
        before = (runs, bytes);
    }
    fleet.end().await?;
    Ok(rows)
}
