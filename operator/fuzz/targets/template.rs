//! Stored templates, and what a pod and its worker report of themselves.

#![no_main]

use dalsegno_core::pod;
use dalsegno_core::revision::{Document, ImageDigest};
use dalsegno_core::termination_message::parse;
use k8s_openapi::api::core::v1::Pod;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    if let Ok(document) = Document::parse(text) {
        assert_eq!(Document::parse(&document.text()).unwrap().hash(), document.hash());
        let digest = format!("sha256:{}", "0".repeat(64));
        let pinned = document.clone().pinned(&digest, &document);
        if document.image().is_some() {
            assert_eq!(pinned.image().as_deref().and_then(ImageDigest::of).map(|it| it.digest), Some(digest.as_str()));
        }
    }
    if let Some(end) = parse(text) {
        assert!(end.into_ending(1).message.len() <= 512);
    }
    if let Ok(seen) = serde_json::from_str::<Pod>(text) {
        let _ = (
            pod::worker_container_name(&seen).len(),
            pod::worker_has_ended(&seen),
            pod::all_containers_ended(&seen),
            pod::is_disrupted(&seen),
        );
    }
});
