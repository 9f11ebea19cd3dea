//! Keys of the digests of sealed payloads. `dalsegno_format::seal` creates them.

/// The key of the digests of one boundary's payloads, or of one call.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct DigestKey(pub [u8; 32]);

/// Shows nothing of the key.
impl std::fmt::Debug for DigestKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("DigestKey")
    }
}

/// How the digests of a call's key, arguments and result in the audit are computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallDigests {
    /// SHA-256: the run has no data key.
    Plain,
    /// With the call's own key. What was written before the run had a data key has a plain digest.
    Keyed(DigestKey),
    /// They cannot be computed any more: the run's data key was deleted.
    Lost,
}
