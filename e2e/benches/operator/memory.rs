//! The operator's memory per idle run.

use std::time::Duration;

use dalsegno_e2e::Result;
use tokio::time::sleep;

use crate::figures::print_table;
use crate::fleet::Fleet;
use crate::program::{Program, Role, free_port};

/// The numbers of runs at which the memory is measured.
const STEPS: [usize; 4] = [0, 250, 500, 1_000];
/// The wait after a step's last start. By then the statuses are written and the memory for that is freed.
const SETTLE: Duration = Duration::from_secs(20);

/// The state of the runs while the memory is measured.
#[derive(Clone, Copy)]
enum Idle {
    /// The run is held and has no pod.
    Held,
    /// The run's pod runs, and its worker is attached and silent.
    Attached,
}

/// Prints the memory at each step and per run, for both states.
pub async fn measure() -> Result {
    for (idle, what) in [
        (Idle::Held, "every run held, without a pod"),
        (Idle::Attached, "every run attached and silent, its pod running"),
    ] {
        print_table(
            &format!("Anonymous memory of operator and gateway in one process, SQLite; {what}"),
            ["runs", "memory", "per run beyond the base", "per run since the last line"],
            &measure_steps(idle).await?,
        );
    }
    Ok(())
}

async fn measure_steps(idle: Idle) -> Result<Vec<[String; 4]>> {
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
        let bytes = program.anonymous_memory()?;
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
