//! What digests of sealed payloads are made with. `dalsegno_format::seal` makes them.

/// What the digests of one boundary's payloads, or of one call, are made with.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct DigestKey(pub [u8; 32]);

/// It shows nothing of the key.
impl std::fmt::Debug for DigestKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("DigestKey")
    }
}

/// How the audit's digests of a call's key, arguments and result are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallDigests {
    /// SHA-256: the run has no data key.
    Plain,
    /// With the call's own key; what was written before the run had a data key has a plain one.
    Keyed(DigestKey),
    /// By nobody any more: the run's data key was deleted.
    Lost,
}
