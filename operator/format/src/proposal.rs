//! The hash of a proposal: what a person's decision is bound to.

use dalsegno_model::Digest;

use crate::fields::FramedHasher;

/// What a person decides on.
#[derive(Clone, Copy, Debug)]
pub struct HashedProposal<'a> {
    /// Random bytes, so that nobody can guess the proposal from its hash.
    pub salt: &'a [u8; 16],
    /// The title.
    pub title: &'a str,
    /// What the agent says about it; empty if it says nothing.
    pub summary: &'a str,
    /// The proposal: JSON text, byte for byte as it came.
    pub proposal: &'a str,
}

impl HashedProposal<'_> {
    /// SHA-256 of the fields, each with its length before it.
    pub fn hash(&self) -> Digest {
        let mut framed = FramedHasher::bare();
        framed.field(self.salt);
        framed.field(self.title.as_bytes());
        framed.field(self.summary.as_bytes());
        framed.field(self.proposal.as_bytes());
        framed.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_of_a_proposal_counts_and_none_runs_into_the_next() {
        let of = |title, summary, proposal| HashedProposal { salt: &[1; 16], title, summary, proposal };
        let hashes = [
            of("pay", "the bill", "{}").hash(),
            of("pay", "the bill", "{ }").hash(),
            of("pay", "the bil", "l{}").hash(),
            of("pa", "ythe bill", "{}").hash(),
            HashedProposal { salt: &[2; 16], ..of("pay", "the bill", "{}") }.hash(),
        ];
        for (at, hash) in hashes.iter().enumerate() {
            assert!(!hashes[..at].contains(hash), "{at}");
        }
        assert_eq!(of("pay", "the bill", "{}").hash(), hashes[0]);
    }
}
