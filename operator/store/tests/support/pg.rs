//! A real PostgreSQL for tests: one server for the test process, and a database of its own for each test.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use dalsegno_store::ConnectionOptions;
use dalsegno_store::postgres::Postgres;
use sqlx::{AssertSqlSafe, Connection as _, Executor as _, PgConnection};
use tokio::sync::OnceCell;

/// Creates a server in a new directory and serves until standard input ends, which it does when the test process ends,
/// even by a signal. Then stops the server and removes the directory. With `PRIMARY`, the socket of another server, it is
/// a streaming standby of that server. A line on standard input stops the server like
/// `pg_ctl stop -m immediate`, without a clean shutdown, and starts it again.
const SERVE: &str = r#"
    set -eu
    PATH="$PATH:$(printf '%s:' /usr/lib/postgresql/*/bin)"
    dir=$(mktemp -d "${TMPDIR:-/tmp}/dalsegno-pg.XXXXXX")
    trap 'rm -rf "$dir"' EXIT
    if [ -n "${PRIMARY:-}" ]; then
        pg_basebackup -h "$PRIMARY" -p "$PRIMARY_PORT" -U postgres -D "$dir/data" -R -c fast --no-sync
    else
        initdb -D "$dir/data" -U postgres --auth=trust --encoding=UTF8 --locale=C --no-sync
    fi >"$dir/log" 2>&1 || { cat "$dir/log" >&2; exit 1; }
    while :; do
        postgres -D "$dir/data" -k "$dir" -c listen_addresses= -c max_connections=400 "$@" >>"$dir/log" 2>&1 &
        server=$!
        until psql -h "$dir" -U postgres -qc 'SELECT 1' >/dev/null 2>&1; do
            kill -0 "$server" || { cat "$dir/log" >&2; exit 1; }
            sleep 0.1
        done
        echo "$dir"
        more=yes
        read -r _ || more=no
        kill -QUIT "$server"
        wait "$server" || true
        [ "$more" = yes ] || exit 0
    done
"#;

/// The port in the name of a server's socket, unless another is given.
const DEFAULT_PORT: u16 = 5432;

/// A server of its own. It stops when this value is dropped.
pub struct Server {
    socket: PathBuf,
    port: u16,
    databases: AtomicU32,
    template: OnceCell<()>,
    child: Child,
    /// Yields a line after each start.
    started: BufReader<ChildStdout>,
    /// The server runs as long as this is open.
    alive: Option<ChildStdin>,
}

impl Server {
    /// Starts a server with these further arguments, such as `-c fsync=off`.
    pub fn start(arguments: &[&str]) -> Self {
        Self::serve(&mut shell(), DEFAULT_PORT, arguments)
    }

    /// Starts a server that also listens on this port of 127.0.0.1.
    #[allow(dead_code)]
    pub fn start_at(port: u16, arguments: &[&str]) -> Self {
        let arguments = [&["-c", "listen_addresses=127.0.0.1"], arguments].concat();
        Self::serve(&mut shell(), port, &arguments)
    }

    /// Starts a standby that streams from this server, and listens on this port of 127.0.0.1.
    #[allow(dead_code)]
    pub fn standby_at(&self, port: u16) -> Self {
        let mut command = shell();
        command.env("PRIMARY", &self.socket).env("PRIMARY_PORT", self.port.to_string());
        Self::serve(&mut command, port, &["-c", "listen_addresses=127.0.0.1"])
    }

    fn serve(command: &mut Command, port: u16, arguments: &[&str]) -> Self {
        let mut child = command
            .env("PGPORT", port.to_string())
            .args(["-c", SERVE, "sh"])
            .args(arguments)
            .current_dir("/")
            // An interrupt from the terminal goes to the test process only; the server stops with it.
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a shell, and setpriv for root");
        let mut socket = String::new();
        let mut started = BufReader::new(child.stdout.take().unwrap());
        started.read_line(&mut socket).unwrap();
        assert!(!socket.is_empty(), "PostgreSQL did not start: is it installed?");
        Self {
            socket: socket.trim_end().into(),
            port,
            databases: AtomicU32::new(0),
            template: OnceCell::new(),
            alive: child.stdin.take(),
            started,
            child,
        }
    }

    /// Stops the server without a clean shutdown, and waits until it has started again.
    #[allow(dead_code)]
    pub fn crash(&mut self) {
        let mut back = String::new();
        self.alive.as_mut().unwrap().write_all(b"crash\n").unwrap();
        self.started.read_line(&mut back).unwrap();
        assert!(!back.is_empty(), "PostgreSQL did not come back");
    }

    /// The URL of a database of this server.
    pub fn url(&self, database: &str) -> String {
        let port = if self.port == DEFAULT_PORT { String::new() } else { format!(":{}", self.port) };
        format!("postgres://postgres@localhost{port}/{database}?host={}", self.socket.display())
    }

    /// What the server has logged.
    #[allow(dead_code)]
    pub fn log(&self) -> String {
        let bytes = std::fs::read(self.socket.join("log")).unwrap();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Creates an empty database.
    #[allow(dead_code)]
    pub async fn empty_database(&self) -> String {
        let name = self.next();
        self.execute(&format!("CREATE DATABASE {name}")).await;
        self.url(&name)
    }

    /// Creates a migrated database.
    pub async fn database(&self) -> String {
        self.template
            .get_or_init(|| async {
                self.execute("CREATE DATABASE migrated").await;
                Postgres::migrate(&self.url("migrated")).await.unwrap();
            })
            .await;
        let name = self.next();
        self.execute(&format!("CREATE DATABASE {name} TEMPLATE migrated")).await;
        self.url(&name)
    }

    fn next(&self) -> String {
        format!("test_{}", self.databases.fetch_add(1, Ordering::Relaxed))
    }

    /// Runs a statement in the database `postgres`.
    async fn execute(&self, sql: &str) {
        let mut conn = PgConnection::connect(&self.url("postgres")).await.unwrap();
        conn.execute(AssertSqlSafe(sql.to_owned())).await.unwrap();
        conn.close().await.unwrap();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.alive.take());
        // If a failed test ends here, report the test's failure and not this one.
        let _ = self.child.wait();
    }
}

/// Creates a migrated database on the shared server of this process.
pub async fn database() -> String {
    shared().database().await
}

/// Creates an empty database on the shared server of this process.
#[allow(dead_code)]
pub async fn empty_database() -> String {
    shared().empty_database().await
}

/// A store that waits longer than a busy machine pauses. By default a statement that takes 5 s and a transaction that
/// pauses for 3 s are ended.
#[allow(dead_code)]
pub async fn patient(url: &str) -> Postgres {
    let options = ConnectionOptions { statement_timeout: Duration::from_secs(60), ..Default::default() };
    Postgres::connect_with(url, &options).await.unwrap()
}

fn shared() -> &'static Server {
    static SHARED: OnceLock<Server> = OnceLock::new();
    SHARED.get_or_init(|| Server::start(&[]))
}

/// A shell of the user that runs the server: PostgreSQL refuses to run as root, so root uses the user `postgres`.
pub fn shell() -> Command {
    let id = Command::new("id").arg("-u").output().expect("id");
    if id.stdout != b"0\n" {
        return Command::new("sh");
    }
    let mut command = Command::new("setpriv");
    command.args(["--reuid=postgres", "--regid=postgres", "--clear-groups", "sh"]);
    command
}
