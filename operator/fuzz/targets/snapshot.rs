//! A snapshot's document and its only chunk: the length of the document, the document, the chunk. A parsed document is
//! written back unchanged, and an assembled text is the one that the document names.

#![no_main]

use dalsegno_format::codec;
use dalsegno_format::manifest::Manifest;
use dalsegno_model::Digest;
use libfuzzer_sys::fuzz_target;

fn plain(digest: Digest) -> Digest {
    digest
}

fuzz_target!(|data: &[u8]| {
    let Some((length, rest)) = data.split_first_chunk::<2>() else { return };
    let (document, payload) = rest.split_at(rest.len().min(u16::from_be_bytes(*length).into()));
    if let Ok(manifest) = Manifest::parse(document) {
        assert_eq!(manifest.document(), document);
        if let Ok(text) = manifest.assemble(&plain, |_| Some(payload)) {
            assert_eq!(text.len() as u64, manifest.length);
            assert_eq!(Manifest::cut(&text, &plain).0.digest, manifest.digest);
        }
    }
    let (manifest, pieces) = Manifest::cut(payload, &plain);
    let decoded: Vec<_> = pieces.into_iter().map(codec::encode).collect();
    let find = |hash: &Digest| {
        manifest.chunks.iter().position(|chunk| chunk == hash).map(|at| decoded[at].as_slice())
    };
    assert_eq!(manifest.assemble(&plain, find).unwrap(), payload);
});
