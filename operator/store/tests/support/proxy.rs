//! A proxy to PostgreSQL that counts round trips, can change servers between transactions like pgbouncer, and can inject
//! faults.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

/// What happens to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(dead_code)]
pub enum Fault {
    /// The request is answered.
    Pass,
    /// The connection is cut before the server has the whole request: nothing is committed.
    CutBefore,
    /// The connection is cut after the server has executed the request: it is committed, and the client gets no answer.
    CutAfter,
    /// The answer is delayed.
    Stall(Duration),
    /// The server gets the request after a delay, even if the client no longer waits.
    Late(Duration),
}

/// Decides the fault of the next request.
type Faults = Arc<dyn Fn() -> Fault + Send + Sync>;

/// A loopback port that forwards to a database.
pub struct Proxy {
    port: u16,
    database: String,
    round_trips: Arc<AtomicU64>,
    silenced: Arc<AtomicU64>,
}

impl Proxy {
    /// A proxy to the database of this URL, in the form that `pg.rs` returns. Each client gets `servers` server
    /// connections and uses the next one after each transaction.
    pub fn new(url: &str, servers: usize) -> Self {
        Self::start(url, servers, Arc::new(|| Fault::Pass))
    }

    /// A proxy that applies the faults that `faults` returns.
    #[allow(dead_code)]
    pub fn with_faults(url: &str, faults: impl Fn() -> Fault + Send + Sync + 'static) -> Self {
        Self::start(url, 1, Arc::new(faults))
    }

    fn start(url: &str, servers: usize, faults: Faults) -> Self {
        let (rest, socket) = url.split_once("?host=").unwrap();
        let database = rest.rsplit_once('/').unwrap().1.to_owned();
        let socket = PathBuf::from(socket).join(".s.PGSQL.5432");
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let (round_trips, silenced) = (Arc::<AtomicU64>::default(), Arc::<AtomicU64>::default());
        let database_server =
            Server { socket, connections: servers, round_trips: Arc::clone(&round_trips), faults };
        let silent = Arc::clone(&silenced);
        thread::spawn(move || {
            for client in listener.incoming() {
                let server = database_server.clone();
                let (silent, before) = (Arc::clone(&silent), silent.load(Ordering::SeqCst));
                let is_silent = move || silent.load(Ordering::SeqCst) != before;
                // When a client disconnects, its thread ends and its server connections close.
                thread::spawn(move || serve(client?, &server, &is_silent));
            }
        });
        Self { port, database, round_trips, silenced }
    }

    /// From now on the existing connections carry nothing, and the server never learns that a client is gone. New
    /// connections work.
    #[allow(dead_code)]
    pub fn go_silent(&self) {
        self.silenced.fetch_add(1, Ordering::SeqCst);
    }

    /// The URL of the database through this proxy.
    pub fn url(&self) -> String {
        format!("postgres://postgres@127.0.0.1:{}/{}?sslmode=disable", self.port, self.database)
    }

    /// The number of round trips: each ends when the server is ready for the next query.
    pub fn round_trips(&self) -> u64 {
        self.round_trips.load(Ordering::SeqCst)
    }
}

/// The server that a client's requests are forwarded to.
#[derive(Clone)]
struct Server {
    socket: PathBuf,
    /// Connections for each client.
    connections: usize,
    round_trips: Arc<AtomicU64>,
    faults: Faults,
}

fn serve(mut client: TcpStream, server: &Server, is_silent: &dyn Fn() -> bool) -> io::Result<()> {
    let Server { socket, connections, round_trips, faults } = server;
    client.set_nodelay(true)?;
    let mut startup = vec![0; 4];
    client.read_exact(&mut startup)?;
    let length = u32::from_be_bytes([startup[0], startup[1], startup[2], startup[3]]) as usize;
    startup.resize(length, 0);
    client.read_exact(&mut startup[4..])?;

    let mut idle = Vec::new();
    for number in 0..*connections {
        let mut server = UnixStream::connect(socket)?;
        server.write_all(&startup)?;
        let greeting = until_ready(&mut server)?.0;
        if number == 0 {
            client.write_all(&greeting)?;
        }
        idle.push(server);
    }
    loop {
        // One server answers everything up to a Sync or a Query, and everything inside a transaction.
        let mut server = idle.remove(0);
        let mut open = true;
        while open {
            let request = request(&mut client)?;
            if is_silent() {
                let _ = io::copy(&mut client, &mut io::sink());
                std::mem::forget((server, idle));
                return Ok(());
            }
            let fault = faults();
            match fault {
                Fault::CutBefore => return server.write_all(&request[..request.len() / 2]),
                Fault::Late(time) => thread::sleep(time),
                Fault::Pass | Fault::CutAfter | Fault::Stall(_) => {}
            }
            server.write_all(&request)?;
            let (answer, status) = until_ready(&mut server)?;
            match fault {
                Fault::CutAfter => return Ok(()),
                Fault::Stall(time) => thread::sleep(time),
                Fault::Pass | Fault::CutBefore | Fault::Late(_) => {}
            }
            round_trips.fetch_add(1, Ordering::SeqCst);
            client.write_all(&answer)?;
            open = status != b'I';
        }
        idle.push(server);
    }
}

/// Reads a client's messages up to one that the server answers with ReadyForQuery.
fn request(client: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut all = Vec::new();
    loop {
        let (kind, _) = message(client, &mut all)?;
        if matches!(kind, b'S' | b'Q') {
            return Ok(all);
        }
    }
}

/// Reads a server's messages up to ReadyForQuery. Returns them and the transaction status.
fn until_ready(server: &mut impl Read) -> io::Result<(Vec<u8>, u8)> {
    let mut all = Vec::new();
    loop {
        let (kind, last) = message(server, &mut all)?;
        if kind == b'Z' {
            return Ok((all, last));
        }
    }
}

/// Reads one message. Returns its type and its last byte.
fn message(from: &mut impl Read, all: &mut Vec<u8>) -> io::Result<(u8, u8)> {
    let mut head = [0; 5];
    from.read_exact(&mut head)?;
    let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize;
    let mut body = vec![0; length - 4];
    from.read_exact(&mut body)?;
    all.extend(head);
    all.extend(&body);
    Ok((head[0], body.last().copied().unwrap_or_default()))
}
