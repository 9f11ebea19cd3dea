//! The generated files match the types.

use std::fs;
use std::path::Path;

use dalsegno_crds::{crds, generated_files};

#[test]
fn generated_files_are_up_to_date() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    for file in generated_files() {
        let found = fs::read_to_string(root.join(&file.path)).unwrap_or_default();
        assert!(found == file.content, "{} is stale: run `make generate`", file.path);
    }
}

#[test]
fn crds_fit_into_the_annotation_of_kubectl_apply() {
    for crd in crds() {
        let bytes = serde_json::to_vec(&crd).unwrap().len();
        assert!(bytes < 128 << 10, "{} has {bytes} bytes", crd.spec.names.plural);
    }
}

#[test]
fn braces_in_descriptions_are_escaped_for_helm() {
    for file in generated_files().iter().filter(|file| file.path.starts_with("charts/")) {
        let allowed = [
            "{{- if .Values.crds.install }}",
            "    {{- include \"dalsegno.labels\" . | nindent 4 }}",
            "{{- end }}",
        ];
        for line in file.content.lines().filter(|line| line.contains("{{")) {
            assert!(allowed.contains(&line), "{}: {line}", file.path);
        }
    }
}
