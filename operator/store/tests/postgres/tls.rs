//! TLS: with `sslmode=verify-full` the server's certificate is verified.

use std::fs::Permissions;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;

use dalsegno_model::Error;
use dalsegno_store::postgres::Postgres;
use tempfile::TempDir;

use crate::pg::{self, Server};

/// Makes a CA, its certificate for 127.0.0.1, and another CA.
const CERTIFY: &str = r#"
    set -eu
    cd "$1"
    set -- -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2
    openssl req -x509 "$@" -subj /CN=ca -keyout ca.key -out ca.crt
    openssl req -x509 "$@" -subj /CN=server -CA ca.crt -CAkey ca.key -extensions usr_cert \
        -addext subjectAltName=IP:127.0.0.1 -keyout server.key -out server.crt
    openssl req -x509 "$@" -subj /CN=other -keyout other.key -out other.crt
"#;

/// A folder with the certificates. The server's user makes them, because a key must belong to it.
fn certificates() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), Permissions::from_mode(0o777)).unwrap();
    let made = pg::shell().args(["-c", CERTIFY, "sh"]).arg(folder.path()).output().unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    folder
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_is_accepted_only_with_its_host_name_and_its_ca() {
    let folder = certificates();
    let file = |name| folder.path().join(name).display().to_string();
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let (cert, key) =
        (format!("ssl_cert_file={}", file("server.crt")), format!("ssl_key_file={}", file("server.key")));
    let _server = Server::start_at(port, &["-c", "ssl=on", "-c", &cert, "-c", &key]);
    let url = |host, ca| {
        let ca = file(ca);
        format!("postgres://postgres@{host}:{port}/postgres?sslmode=verify-full&sslrootcert={ca}")
    };
    Postgres::migrate(&url("127.0.0.1", "ca.crt")).await.unwrap();
    Postgres::connect(&url("127.0.0.1", "ca.crt")).await.unwrap();
    for (host, ca, why) in
        [("127.0.0.1", "other.crt", "UnknownIssuer"), ("localhost", "ca.crt", "only valid for")]
    {
        let url = url(host, ca);
        for refused in [Postgres::migrate(&url).await, Postgres::connect(&url).await.map(drop)] {
            let Err(Error::Unusable(message)) = refused else { panic!("{host}, {ca}: {refused:?}") };
            assert!(message.contains(why) && message.contains("postgres.caSecret"), "{message}");
        }
    }
}
