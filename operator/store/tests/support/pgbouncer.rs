//! Debian's pgbouncer in transaction mode, in front of the shared server of this process: each transaction of a client may
//! use another server connection.

use std::io::{BufRead as _, BufReader};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::OnceLock;

/// Serves from a new directory until standard input ends.
const SERVE: &str = r#"
    set -eu
    PATH="$PATH:/usr/sbin:/sbin"
    command -v pgbouncer >/dev/null || { echo "pgbouncer is not installed: apt-get install pgbouncer" >&2; exit 1; }
    dir=$(mktemp -d "${TMPDIR:-/tmp}/dalsegno-pgbouncer.XXXXXX")
    trap 'rm -rf "$dir"' EXIT
    cat >"$dir/pgbouncer.ini" <<END
[databases]
* = host=$1 user=postgres
[pgbouncer]
listen_addr =
unix_socket_dir = $dir
auth_type = any
pool_mode = transaction
default_pool_size = 4
max_client_conn = 2000
server_idle_timeout = 5
server_login_retry = 1
END
    pgbouncer -q "$dir/pgbouncer.ini" >"$dir/log" 2>&1 &
    server=$!
    until [ -S "$dir/.s.PGSQL.6432" ]; do
        kill -0 "$server" || { cat "$dir/log" >&2; exit 1; }
        sleep 0.1
    done
    echo "$dir"
    read -r _ || true
    kill "$server" # not QUIT: a shell starts what is in the background with it ignored
    wait "$server" || true
"#;

/// A running pgbouncer. It stops when this process ends.
struct Bouncer {
    directory: String,
    /// pgbouncer runs as long as this is open.
    _alive: Option<ChildStdin>,
    _child: Child,
}

/// The URL of the same database through pgbouncer, as a user would write it.
pub fn url_through(url: &str) -> String {
    static SHARED: OnceLock<Bouncer> = OnceLock::new();
    let (rest, socket) = url.split_once("?host=").expect("the server listens on a socket");
    let directory = &SHARED.get_or_init(|| start(socket)).directory;
    let rest = rest.replace("@localhost/", "@localhost:6432/");
    format!("{rest}?host={directory}&pgbouncer=true")
}

/// Starts pgbouncer. It refuses to run as root, so root uses the user `postgres`.
fn start(socket: &str) -> Bouncer {
    let mut command = if Command::new("id").arg("-u").output().expect("id").stdout == b"0\n" {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=postgres", "--regid=postgres", "--clear-groups", "sh"]);
        command
    } else {
        Command::new("sh")
    };
    let mut child = command
        .args(["-c", SERVE, "sh", socket])
        .current_dir("/")
        .process_group(0)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("a shell, and setpriv for root");
    let mut directory = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut directory).unwrap();
    assert!(!directory.is_empty(), "pgbouncer did not start: is it installed? apt-get install pgbouncer");
    Bouncer { directory: directory.trim_end().to_owned(), _alive: child.stdin.take(), _child: child }
}
