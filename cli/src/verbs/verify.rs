//! `verify`: whether a bundle is as it was signed.

use std::fs::File;
use std::io::BufReader;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use dalsegno_proof::PublicKey;
use dalsegno_proof::bundle::{self, Verified};
use serde_json::json;

use crate::args::VerifyArgs;
use crate::failure::{Exit, Failure, Result};
use crate::output::Output;

/// Verifies a bundle. It needs no cluster.
pub fn run(args: &VerifyArgs, output: &mut Output) -> Result {
    let VerifyArgs { file: path, public_key } = args;
    let key = public_key.as_deref().map(parse_key).transpose()?;
    let failed = |error: &std::io::Error| Failure::of_file("reading", path, error);
    let file = File::open(path).map_err(|error| failed(&error))?;
    let found = bundle::verify(BufReader::new(file), key).map_err(|error| failed(&error))?;
    if output.format.is_document() {
        let problems: Vec<_> = found.problems.iter().map(ToString::to_string).collect();
        let named = found.public_key.map(|it| STANDARD.encode(it));
        output.document(&json!({
            "run": found.run, "publicKey": named, "boundaries": found.boundaries, "events": found.events,
            "calls": found.calls, "waits": found.waits, "messages": found.messages, "audit": found.audit,
            "shredded": found.shredded, "problems": problems,
        }))?;
    } else {
        found.report(key.is_some()).iter().for_each(|line| output.print(line));
    }
    judge(&found)
}

fn judge(found: &Verified) -> Result {
    if found.problems.is_empty() {
        return Ok(());
    }
    Err(Failure::new(
        Exit::Differs,
        "the bundle differs from what was written",
        "export the run again, and compare; if that differs too, check the store (docs/guides/audit.md)",
    ))
}

fn parse_key(text: &str) -> Result<PublicKey> {
    let key = STANDARD.decode(text).ok().and_then(|bytes| PublicKey::try_from(bytes).ok());
    key.ok_or_else(|| {
        Failure::usage(
            format!("{text:?} is not a public key"),
            "give the 32 bytes of the key in base64, as `dalsegno export` prints them",
        )
    })
}
