//! A wire to PostgreSQL that counts, that may change servers between transactions, as pgbouncer does, and that may tear.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

/// What becomes of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(dead_code)]
pub enum Fate {
    /// It is answered.
    Pass,
    /// The wire is cut before the server has it whole: nothing is committed.
    CutBefore,
    /// The wire is cut when the server has done it: committed, and nobody is told.
    CutAfter,
    /// The answer takes its time.
    Stall(Duration),
    /// The server has it only after a while, and also if nobody waits any more.
    Late(Duration),
}

/// Says what becomes of the next request.
type Fates = Arc<dyn Fn() -> Fate + Send + Sync>;

/// A loopback port that leads to a database.
pub struct Wire {
    port: u16,
    database: String,
    exchanges: Arc<AtomicU64>,
    silences: Arc<AtomicU64>,
}

impl Wire {
    /// A wire to the database of this URL (as `pg.rs` makes them). Each client gets as many server connections as
    /// `servers`, and another one of them after each transaction.
    pub fn to(url: &str, servers: usize) -> Self {
        Self::with(url, servers, Arc::new(|| Fate::Pass))
    }

    /// A wire that does to each request what `fates` says.
    #[allow(dead_code)]
    pub fn torn(url: &str, fates: impl Fn() -> Fate + Send + Sync + 'static) -> Self {
        Self::with(url, 1, Arc::new(fates))
    }

    fn with(url: &str, servers: usize, fates: Fates) -> Self {
        let (rest, socket) = url.split_once("?host=").unwrap();
        let database = rest.rsplit_once('/').unwrap().1.to_owned();
        let socket = PathBuf::from(socket).join(".s.PGSQL.5432");
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let (exchanges, silences) = (Arc::<AtomicU64>::default(), Arc::<AtomicU64>::default());
        let (counter, silent) = (Arc::clone(&exchanges), Arc::clone(&silences));
        thread::spawn(move || {
            for client in listener.incoming() {
                let (socket, counter, fates) = (socket.clone(), Arc::clone(&counter), Arc::clone(&fates));
                let (silent, before) = (Arc::clone(&silent), silent.load(Ordering::SeqCst));
                let is_silent = move || silent.load(Ordering::SeqCst) != before;
                // A client that goes away ends its thread, and closes its servers.
                thread::spawn(move || serve(client?, &socket, servers, &counter, &fates, &is_silent));
            }
        });
        Self { port, database, exchanges, silences }
    }

    /// From now on nothing passes on the connections that there are, and nobody is told. New ones are as ever.
    #[allow(dead_code)]
    pub fn fall_silent(&self) {
        self.silences.fetch_add(1, Ordering::SeqCst);
    }

    /// The database's URL by this wire.
    pub fn url(&self) -> String {
        format!("postgres://postgres@127.0.0.1:{}/{}?sslmode=disable", self.port, self.database)
    }

    /// How often a client has waited for a server: each wait ends with the server's being ready for a query.
    pub fn exchanges(&self) -> u64 {
        self.exchanges.load(Ordering::SeqCst)
    }
}

fn serve(
    mut client: TcpStream,
    socket: &PathBuf,
    servers: usize,
    exchanges: &AtomicU64,
    fates: &Fates,
    is_silent: &dyn Fn() -> bool,
) -> io::Result<()> {
    client.set_nodelay(true)?;
    let mut startup = vec![0; 4];
    client.read_exact(&mut startup)?;
    let length = u32::from_be_bytes([startup[0], startup[1], startup[2], startup[3]]) as usize;
    startup.resize(length, 0);
    client.read_exact(&mut startup[4..])?;

    let mut idle = Vec::new();
    for number in 0..servers {
        let mut server = UnixStream::connect(socket)?;
        server.write_all(&startup)?;
        let greeting = until_ready(&mut server)?.0;
        if number == 0 {
            client.write_all(&greeting)?;
        }
        idle.push(server);
    }
    loop {
        // What a client sends up to a Sync or a Query is answered by one server, and by the same one while a
        // transaction is open.
        let mut server = idle.remove(0);
        let mut open = true;
        while open {
            let request = request(&mut client)?;
            if is_silent() {
                return io::copy(&mut client, &mut io::sink()).map(drop);
            }
            let fate = fates();
            match fate {
                Fate::CutBefore => return server.write_all(&request[..request.len() / 2]),
                Fate::Late(time) => thread::sleep(time),
                Fate::Pass | Fate::CutAfter | Fate::Stall(_) => {}
            }
            server.write_all(&request)?;
            let (answer, status) = until_ready(&mut server)?;
            match fate {
                Fate::CutAfter => return Ok(()),
                Fate::Stall(time) => thread::sleep(time),
                Fate::Pass | Fate::CutBefore | Fate::Late(_) => {}
            }
            exchanges.fetch_add(1, Ordering::SeqCst);
            client.write_all(&answer)?;
            open = status != b'I';
        }
        idle.push(server);
    }
}

/// Messages of a client up to one that the server answers by being ready.
fn request(client: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut all = Vec::new();
    loop {
        let (kind, _) = message(client, &mut all)?;
        if matches!(kind, b'S' | b'Q') {
            return Ok(all);
        }
    }
}

/// Messages of a server up to its being ready, and the state of its transaction.
fn until_ready(server: &mut impl Read) -> io::Result<(Vec<u8>, u8)> {
    let mut all = Vec::new();
    loop {
        let (kind, last) = message(server, &mut all)?;
        if kind == b'Z' {
            return Ok((all, last));
        }
    }
}

/// Reads one message: its kind and its last byte.
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
