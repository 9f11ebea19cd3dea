//! Random edits of one column of one row: each is found, or changes nothing that anybody reads.

use std::fmt::Write as _;

use dalsegno_protocol::Boundary;
use dalsegno_store::verify;
use dalsegno_store::{Error, Place, Rewind, RunId, RunRecord};
use sqlx::{AssertSqlSafe, Connection as _, Executor as _, Row as _, SqliteConnection};

use crate::edits::run;
use crate::world::World;
use crate::{Face, Rows};

/// A generator that gives the same numbers each time.
pub struct Numbers(u64);

impl From<u64> for Numbers {
    fn from(seed: u64) -> Self {
        Self(seed)
    }
}

impl Numbers {
    pub fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % limit as u64) as usize
    }
}

/// All that anybody reads of the run's boundaries, or that it cannot be read.
async fn read(world: &World, run: RunId, turns: i32) -> Vec<Result<String, ()>> {
    let mut all = Vec::new();
    for turn in std::iter::once(None).chain((1..=turns).map(Some)) {
        all.push(seen(world.state(run, turn).await));
    }
    all.push(seen(world.boundaries(run, 1, turns).await));
    all
}

fn seen<T: std::fmt::Debug>(answer: Result<T, Error>) -> Result<String, ()> {
    match answer {
        Ok(answer) => Ok(format!("{answer:?}")),
        Err(Error::Corrupt { .. }) => Err(()),
        Err(error) => panic!("{error}"),
    }
}

/// Whether a survey finds damage; a row that cannot be read at all is damage.
async fn is_found(world: &World, run: &RunRecord) -> bool {
    match verify::survey(&*world.store, run).await {
        Ok(findings) => !findings.damage.is_empty(),
        Err(Error::Corrupt { .. }) => true,
        Err(error) => panic!("{error}"),
    }
}

/// Eight turns, of which one is the full state, a rewind to turn 5, and two more turns.
async fn subject(world: &World) -> RunRecord {
    let before = run(world, "one", 8, &[3]).await;
    let to = Place { turn: 5, boundary: Boundary::Result, epoch: 1 };
    let rewind = Rewind { epoch: before.epoch, to, reason: "to try".into(), actor: "ada".into() };
    world.rewind(before.id, &rewind).await.unwrap();
    let worker = world.work_on(&world.look(&before.object_uid).await).await;
    let plan = dalsegno_store::Commit { ops: None, full: false, ..worker.plan(6) };
    world.commit(&plan).await.unwrap();
    for turn in 6..=7 {
        let delta = format!(r#"{{"append":{{"log":[{{"json":{turn}}}]}}}}"#);
        let commit = dalsegno_store::Commit { ops: Some(delta.into()), full: false, ..worker.result(turn) };
        world.commit(&commit).await.unwrap();
    }
    world.of(&worker).await
}

/// Bytes as SQL has them.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").unwrap();
        text
    })
}

/// One edit of this column, as SQL.
fn edit(numbers: &mut Numbers, kind: &str, column: &str, old: Option<&[u8]>) -> String {
    match (kind, old) {
        ("INTEGER", _) => match numbers.below(4) {
            0 => format!("{column} = {column} + 1"),
            1 => format!("{column} = {column} - 1"),
            2 => format!("{column} = NOT {column}"),
            _ => format!("{column} = {}", numbers.below(9)),
        },
        ("BLOB", Some(bytes)) if !bytes.is_empty() => {
            let mut bytes = bytes.to_vec();
            match numbers.below(4) {
                0 => bytes.truncate(numbers.below(bytes.len())),
                1 => bytes.push(numbers.below(256) as u8),
                2 => return format!("{column} = NULL"),
                _ => {
                    let bit = numbers.below(bytes.len() * 8);
                    bytes[bit / 8] ^= 1 << (bit % 8);
                }
            }
            format!("{column} = x'{}'", hex(&bytes))
        }
        ("BLOB", _) => format!("{column} = content_hash"),
        _ => format!("{column} = 'X{}'", numbers.below(9)),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_edits_are_found_or_change_nothing() {
    let face = Face::file().await;
    let world = &face.world;
    let run = subject(world).await;
    let Rows::Sqlite(path) = &face.rows else { unreachable!() };
    let mut conn = SqliteConnection::connect(&format!("sqlite://{}", path.display())).await.unwrap();
    for statement in ["PRAGMA synchronous = OFF", "CREATE TABLE backup AS SELECT * FROM boundaries"] {
        conn.execute(statement).await.unwrap();
    }
    let columns: Vec<(String, String)> =
        sqlx::query("SELECT name, type FROM pragma_table_info('boundaries') WHERE name <> 'run'")
            .fetch_all(&mut conn)
            .await
            .unwrap()
            .iter()
            .map(|row| (row.get(0), row.get(1)))
            .collect();
    let rows = run_rows(&mut conn).await;
    assert_eq!(rows, 11);
    assert!(!is_found(world, &run).await, "nothing is damaged yet");
    let before = read(world, run.id, 7).await;
    assert!(before.iter().all(Result::is_ok));

    let mut numbers = Numbers::from(0x0dd_ba11);
    let (mut found, mut harmless) = (0, 0);
    let edits = tamperings();
    while found + harmless < edits {
        let (column, kind) = &columns[numbers.below(columns.len())];
        let row = numbers.below(rows as usize);
        let target =
            format!("(SELECT rowid FROM boundaries ORDER BY turn, boundary, epoch LIMIT 1 OFFSET {row})");
        let sql = if numbers.below(40) == 0 {
            format!("DELETE FROM boundaries WHERE rowid = {target}")
        } else {
            let old: Option<Vec<u8>> = sqlx::query_scalar(AssertSqlSafe(format!(
                "SELECT CAST({column} AS BLOB) FROM boundaries WHERE rowid = {target}"
            )))
            .fetch_one(&mut conn)
            .await
            .unwrap();
            let edit = edit(&mut numbers, kind, column, old.as_deref());
            format!("UPDATE boundaries SET {edit} WHERE rowid = {target}")
        };
        // What the table itself refuses is no edit.
        if conn.execute(AssertSqlSafe(sql.clone())).await.is_ok() {
            let after = read(world, run.id, 7).await;
            if is_found(world, &run).await {
                found += 1;
            } else {
                harmless += 1;
                assert_eq!(after, before, "unseen: {sql}");
            }
            for (after, before) in after.iter().zip(&before) {
                assert!(after.is_err() || after == before, "another state was read: {sql}");
            }
            conn.execute("DELETE FROM boundaries").await.unwrap();
            conn.execute("INSERT INTO boundaries SELECT * FROM backup").await.unwrap();
        }
    }
    assert!(found * 10 > edits * 7, "only {found} of {edits} edits were found, {harmless} changed nothing");
    assert!(!is_found(world, &run).await, "all edits were taken back");
}

async fn run_rows(conn: &mut SqliteConnection) -> i64 {
    sqlx::query_scalar("SELECT count(*) FROM boundaries").fetch_one(conn).await.unwrap()
}

/// How many edits are tried: a slice, unless `make tamper` wants them all.
pub fn tamperings() -> usize {
    std::env::var("DALSEGNO_TAMPERINGS").map_or(1_000, |number| number.parse().unwrap())
}
