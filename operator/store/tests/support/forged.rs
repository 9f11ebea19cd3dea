//! A forged snapshot: valid in form, with a state that no boundary made.

use dalsegno_format::codec;
use dalsegno_model::{BoundaryRow, RunId};
use sha2::{Digest as _, Sha256};

/// The SQL that stores a forged snapshot after this boundary, which must be the only one of its turn. Anybody can compute
/// the chunk, the hash and the digest without a key.
pub fn snapshot(run: RunId, after: &BoundaryRow, text: &str, is_postgres: bool) -> [String; 2] {
    let chunk = Sha256::digest(text);
    let length = (text.len() as u64).to_be_bytes();
    let document = [&[1], length.as_slice(), &chunk, &chunk].concat();
    let fields = [b"dalsegno/snapshot/v1", run.as_bytes().as_slice(), &after.content_hash, &document];
    let digest = fields.iter().fold(Sha256::new(), |hash, field| {
        hash.chain_update((field.len() as u32).to_be_bytes()).chain_update(field)
    });
    let sql = |bytes: &[u8]| {
        let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        if is_postgres { format!("'\\x{digits}'::bytea") } else { format!("x'{digits}'") }
    };
    let (hash, payload) = (sql(&chunk), sql(&codec::encode(text.as_bytes())));
    let (document, digest, turn) = (sql(&document), sql(&digest.finalize()), after.turn);
    [
        format!(
            "INSERT INTO chunks (run, hash, payload, created_at) \
             SELECT run, {hash}, {payload}, 0 FROM boundaries WHERE turn = {turn} ON CONFLICT DO NOTHING"
        ),
        format!(
            "INSERT INTO snapshots (run, content_hash, turn, boundary, epoch, document, digest, created_at) \
             SELECT run, content_hash, turn, boundary, epoch, {document}, {digest}, 0 FROM boundaries WHERE turn = {turn} \
             ON CONFLICT (run, content_hash) DO UPDATE SET document = excluded.document, digest = excluded.digest"
        ),
    ]
}
