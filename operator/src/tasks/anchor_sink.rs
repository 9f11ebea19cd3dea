//! Where anchors are kept besides the store: nowhere, on standard output, in a file, or in a ConfigMap.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::{Read as _, Seek as _, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{ObjectMeta, PostParams};
use kube::{Api, Client};

use crate::config::{AnchorSinkKind, OperatorArgs};
use crate::kube_client::with_timeout;

/// Name of the ConfigMap.
pub const CONFIG_MAP: &str = "dalsegno-anchors";
/// Its key with the lines.
const LINES: &str = "anchors.jsonl";
/// The lines that it keeps: an hour at the built-in interval. The last line alone vouches for all anchors before it.
const KEPT_LINES: usize = 60;
/// Timeout of a request for the ConfigMap.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// Where anchors are kept besides the store.
pub enum AnchorSink {
    /// Nowhere.
    None,
    /// A stream, such as standard output.
    Stream(Box<dyn Write + Send + Sync>),
    /// A file of its own.
    File(PathBuf),
    /// A ConfigMap.
    ConfigMap(Box<Api<ConfigMap>>),
}

impl AnchorSink {
    /// The sink of these arguments.
    pub fn new(args: &OperatorArgs, client: Client) -> Self {
        match (args.anchor_sink, &args.anchor_file) {
            (AnchorSinkKind::Stdout, _) => Self::Stream(Box::new(std::io::stdout())),
            (AnchorSinkKind::File, Some(path)) => Self::File(path.clone()),
            (AnchorSinkKind::ConfigMap, _) => {
                let client = with_timeout(client, REQUEST_TIMEOUT);
                Self::ConfigMap(Box::new(Api::namespaced(client, &args.namespace)))
            }
            (AnchorSinkKind::None | AnchorSinkKind::File, _) => Self::None,
        }
    }

    /// Its name, for metrics.
    pub fn name(&self) -> &'static str {
        let kind = match self {
            Self::None => AnchorSinkKind::None,
            Self::Stream(_) => AnchorSinkKind::Stdout,
            Self::File(_) => AnchorSinkKind::File,
            Self::ConfigMap(_) => AnchorSinkKind::ConfigMap,
        };
        kind.name()
    }

    /// The last line that the sink has, if it can be read.
    ///
    /// # Errors
    ///
    /// The API server does not answer.
    pub async fn last_line(&self) -> anyhow::Result<Option<String>> {
        let Self::ConfigMap(api) = self else { return Ok(None) };
        let found = api.get_opt(CONFIG_MAP).await.context("reading the ConfigMap of the anchors")?;
        Ok(found.as_ref().and_then(|found| lines(found).last().cloned()))
    }

    /// Adds a line.
    ///
    /// # Errors
    ///
    /// The line could not be written.
    pub async fn add(&mut self, line: &str) -> anyhow::Result<()> {
        match self {
            Self::None => Ok(()),
            Self::Stream(stream) => {
                writeln!(stream, "{line}").and_then(|()| stream.flush()).context("printing an anchor")
            }
            Self::File(path) => {
                let (path, line) = (path.clone(), line.to_owned());
                let name = path.display().to_string();
                tokio::task::spawn_blocking(move || append(&path, &line))
                    .await?
                    .with_context(|| format!("writing an anchor to {name}"))
            }
            Self::ConfigMap(api) => add_to_config_map(api, line).await,
        }
    }
}

/// Appends a line to a file. A line that was written in part, before a crash, is ended first.
fn append(path: &Path, line: &str) -> std::io::Result<()> {
    let mut file = OpenOptions::new().create(true).read(true).append(true).open(path)?;
    let mut last = [b'\n'];
    if file.metadata()?.len() > 0 {
        file.seek(SeekFrom::End(-1))?;
        file.read_exact(&mut last)?;
    }
    let end = if last == *b"\n" { "" } else { "\n" };
    file.write_all(format!("{end}{line}\n").as_bytes())?;
    file.sync_data()
}

fn lines(config_map: &ConfigMap) -> Vec<String> {
    let text = config_map.data.as_ref().and_then(|data| data.get(LINES));
    text.map(|text| text.lines().map(str::to_owned).collect()).unwrap_or_default()
}

/// Fails if somebody else has changed the ConfigMap since it was read.
async fn add_to_config_map(api: &Api<ConfigMap>, line: &str) -> anyhow::Result<()> {
    let found = api.get_opt(CONFIG_MAP).await.context("reading the ConfigMap of the anchors")?;
    let mut kept = found.as_ref().map(lines).unwrap_or_default();
    if kept.last().is_some_and(|last| last == line) {
        return Ok(());
    }
    kept.push(line.to_owned());
    let first = kept.len().saturating_sub(KEPT_LINES);
    let text = kept.split_off(first).join("\n") + "\n";
    let params = PostParams::default();
    let written = match found {
        Some(mut found) => {
            found.data.get_or_insert_default().insert(LINES.into(), text);
            api.replace(CONFIG_MAP, &params, &found).await
        }
        None => {
            let metadata = ObjectMeta { name: Some(CONFIG_MAP.into()), ..ObjectMeta::default() };
            let data = Some(BTreeMap::from([(LINES.into(), text)]));
            api.create(&params, &ConfigMap { metadata, data, ..ConfigMap::default() }).await
        }
    };
    written.map(drop).context("writing the ConfigMap of the anchors")
}
