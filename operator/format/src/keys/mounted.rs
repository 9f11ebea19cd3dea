//! Wrapping keys that are mounted as files.
//!
//! ```text
//! wrapped = HMAC-SHA256(key, "dalsegno/key-check/v1") cut to 16 bytes, nonce (12 random bytes),
//!           AES-256-GCM of the data key (32 bytes) with its tag (16 bytes)
//! AAD     = "dalsegno/data-key/v1", the run's id (16 bytes), the key's id
//! ```
//!
//! A data key that seals texts too has `v2` in place of both `v1`. So a version that does not know sealed texts says that
//! the data key was wrapped with another key, and touches nothing of the run.

use std::path::{Path, PathBuf};

use async_trait::async_trait;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use dalsegno_model::{Error, Result, RunId};
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::hmac;

use super::{KeyProvider, Wrapped};
use crate::seal::{DataKey, random};

/// What distinguishes the two formats.
struct Format {
    seals_texts: bool,
    /// The beginning of the AAD.
    tag: &'static [u8],
    /// The message that each key signs, so that another key with the same id is detected.
    check: &'static [u8],
}

const FORMATS: [Format; 2] = [
    Format { seals_texts: false, tag: b"dalsegno/data-key/v1", check: b"dalsegno/key-check/v1" },
    Format { seals_texts: true, tag: b"dalsegno/data-key/v2", check: b"dalsegno/key-check/v2" },
];

/// Keys in a folder, such as a mounted Secret: one file per key, named by the key's id, with 32 bytes in base64. If
/// there are several keys, the file `current` contains the id of the one that wraps new data keys. Names that begin
/// with a dot belong to the kubelet and are ignored. The folder is read again for each data key, so that a replaced
/// Secret needs no restart.
#[derive(Clone, Debug)]
pub struct MountedKeys {
    folder: PathBuf,
}

/// The file that names the current key.
const CURRENT: &str = "current";

/// A key that wraps data keys.
struct Key {
    id: String,
    signing: hmac::Key,
    aead: LessSafeKey,
}

const CHECK_LEN: usize = 16;

impl Key {
    /// Distinguishes the key from another one with the same id, and reveals nothing else.
    fn check(&self, format: &Format) -> [u8; CHECK_LEN] {
        let mut check = [0; CHECK_LEN];
        check.copy_from_slice(&hmac::sign(&self.signing, format.check).as_ref()[..CHECK_LEN]);
        check
    }
}

impl MountedKeys {
    /// The keys in this folder. Reads the folder once, to check that the keys are valid.
    pub fn open(folder: &Path) -> Result<Self> {
        let keys = Self { folder: folder.to_owned() };
        keys.current_key()?;
        Ok(keys)
    }

    /// The key that wraps new data keys.
    fn current_key(&self) -> Result<Key> {
        let mut keys = self.read()?;
        let id = match keys.iter().position(|(id, _)| id == CURRENT) {
            Some(at) => keys.swap_remove(at).1.trim().to_owned(),
            None => match keys.as_slice() {
                [] => return Err(self.fault("it holds no key: a file for each, with 32 bytes in base64")),
                [(id, _)] => id.clone(),
                _ => {
                    let why = format!("it holds several keys, and no file {CURRENT:?} with the id of one");
                    return Err(self.fault(&why));
                }
            },
        };
        let text = keys.into_iter().find(|(known, _)| *known == id).map(|(_, text)| text);
        let text = text.ok_or_else(|| self.fault(&format!("{CURRENT:?} names {id:?}, which is missing")))?;
        self.key(id, &text)
    }

    /// The key with this id.
    fn key_of(&self, id: &str) -> Result<Option<Key>> {
        let found = self.read()?.into_iter().find(|(known, _)| known == id && known != CURRENT);
        found.map(|(id, text)| self.key(id, &text)).transpose()
    }

    /// Names and contents of all files.
    fn read(&self) -> Result<Vec<(String, String)>> {
        let fault = |error: std::io::Error| self.fault(&error.to_string());
        let mut files = Vec::new();
        for file in std::fs::read_dir(&self.folder).map_err(fault)? {
            let file = file.map_err(fault)?;
            let Ok(name) = file.file_name().into_string() else { continue };
            if !name.starts_with('.') {
                let text = std::fs::read_to_string(file.path());
                files.push((name.clone(), text.map_err(|error| self.fault(&format!("{name}: {error}")))?));
            }
        }
        Ok(files)
    }

    /// Parses a key. Errors do not contain the file's contents.
    fn key(&self, id: String, text: &str) -> Result<Key> {
        let parse = || {
            let bytes = STANDARD.decode(text.trim()).ok()?;
            let signing = hmac::Key::new(hmac::HMAC_SHA256, &bytes);
            Some((signing, LessSafeKey::new(UnboundKey::new(&AES_256_GCM, &bytes).ok()?)))
        };
        match parse() {
            Some((signing, aead)) => Ok(Key { id, signing, aead }),
            None => Err(self.fault(&format!(
                "{id:?} is not 32 bytes in base64, as `openssl rand -base64 32` makes them"
            ))),
        }
    }

    fn fault(&self, why: &str) -> Error {
        Error::Unusable(format!("the encryption keys in {}: {why}", self.folder.display()))
    }
}

#[async_trait]
impl KeyProvider for MountedKeys {
    async fn current(&self) -> Result<String> {
        Ok(self.current_key()?.id)
    }

    async fn wrap(&self, run: RunId, data_key: &DataKey) -> Result<Wrapped> {
        let key = self.current_key()?;
        let format = &FORMATS[usize::from(data_key.seals_texts)];
        let nonce: [u8; NONCE_LEN] = random()?;
        let mut body = data_key.bytes.to_vec();
        let aad = Aad::from(aad(format, run, &key.id));
        let sealed = key.aead.seal_in_place_append_tag(Nonce::assume_unique_for_key(nonce), aad, &mut body);
        sealed.map_err(|_| Error::Unusable("a data key could not be wrapped".into()))?;
        let bytes = [&key.check(format), nonce.as_slice(), &body].concat();
        Ok(Wrapped { key_id: key.id, bytes })
    }

    async fn unwrap(&self, run: RunId, wrapped: &Wrapped) -> Result<DataKey> {
        let Wrapped { key_id, bytes } = wrapped;
        let Some(key) = self.key_of(key_id)? else {
            let why =
                format!("the data key of run {run} is wrapped with {key_id:?}, which is missing: restore it");
            return Err(self.fault(&why));
        };
        let damaged = || Error::Corrupt {
            operation: "unwrapping a data key",
            detail: format!("run {run}: it is not what {key_id:?} wrapped for this run"),
        };
        let (check, sealed) = bytes.split_first_chunk::<CHECK_LEN>().ok_or_else(damaged)?;
        let Some(format) = FORMATS.iter().find(|format| key.check(format) == *check) else {
            let why =
                format!("{key_id:?} is not the key that wrapped the data key of run {run}: restore that key");
            return Err(self.fault(&why));
        };
        let open = || {
            let (nonce, body) = sealed.split_first_chunk::<NONCE_LEN>()?;
            let mut body = body.to_vec();
            let aad = Aad::from(aad(format, run, key_id));
            let opened = key.aead.open_in_place(Nonce::assume_unique_for_key(*nonce), aad, &mut body).ok()?;
            Some(DataKey { bytes: <[u8; 32]>::try_from(&*opened).ok()?, seals_texts: format.seals_texts })
        };
        open().ok_or_else(damaged)
    }
}

/// The wrapped data key is bound to its run and to the wrapping key's id.
fn aad(format: &Format, run: RunId, key_id: &str) -> Vec<u8> {
    [format.tag, run.as_bytes(), key_id.as_bytes()].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    const RUN: RunId = RunId::from_u128(1);
    const DATA_KEY: DataKey = DataKey { bytes: [7; 32], seals_texts: true };

    /// Files with these names and texts.
    fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        write(&folder, files);
        folder
    }

    fn write(folder: &tempfile::TempDir, files: &[(&str, &str)]) {
        for (name, text) in files {
            std::fs::write(folder.path().join(name), text).unwrap();
        }
    }

    fn key(byte: u8) -> String {
        format!("{}\n", STANDARD.encode([byte; 32]))
    }

    #[tokio::test]
    async fn a_data_key_is_unwrapped_with_the_key_that_wrapped_it_even_if_another_is_current() {
        let folder = folder(&[("old", &key(1)), ("..data", "the kubelet's")]);
        let keys = MountedKeys::open(folder.path()).unwrap();
        let wrapped = keys.wrap(RUN, &DATA_KEY).await.unwrap();
        assert_eq!(wrapped.key_id, "old");
        write(&folder, &[("new", &key(2)), ("current", "new\n")]);
        assert_eq!(keys.current().await.unwrap(), "new");
        assert_eq!(keys.unwrap(RUN, &wrapped).await.unwrap(), DATA_KEY);
        assert_eq!(keys.wrap(RUN, &DATA_KEY).await.unwrap().key_id, "new");
    }

    /// A version that knows the first format only compares the check of that format.
    #[tokio::test]
    async fn a_data_key_that_seals_texts_is_wrapped_in_a_format_that_an_earlier_version_refuses() {
        let keys = folder(&[("k", &key(1))]);
        let keys = MountedKeys::open(keys.path()).unwrap();
        let first = DataKey { seals_texts: false, ..DATA_KEY };
        let (old, new) = (keys.wrap(RUN, &first).await.unwrap(), keys.wrap(RUN, &DATA_KEY).await.unwrap());
        assert_eq!(
            (keys.unwrap(RUN, &old).await.unwrap(), keys.unwrap(RUN, &new).await.unwrap()),
            (first, DATA_KEY)
        );
        let known_before = keys.current_key().unwrap().check(&FORMATS[0]);
        assert!(old.bytes.starts_with(&known_before) && !new.bytes.starts_with(&known_before));
        assert_eq!(old.bytes.len(), new.bytes.len());
    }

    #[tokio::test]
    async fn a_missing_or_replaced_key_is_no_damage_and_the_error_says_what_to_do() {
        let folder = folder(&[("k", &key(1))]);
        let keys = MountedKeys::open(folder.path()).unwrap();
        let wrapped = keys.wrap(RUN, &DATA_KEY).await.unwrap();
        let fails = async |says: &str| match keys.unwrap(RUN, &wrapped).await {
            Err(Error::Unusable(why)) => assert!(why.contains(says) && why.contains("restore"), "{why}"),
            other => panic!("{other:?}"),
        };
        write(&folder, &[("k", &key(2))]);
        fails("is not the key that wrapped").await;
        std::fs::rename(folder.path().join("k"), folder.path().join("other")).unwrap();
        fails("which is missing").await;
    }

    #[tokio::test]
    async fn a_data_key_moved_to_another_run_or_changed_is_corrupt() {
        let folder = folder(&[("k", &key(1)), ("twin", &key(1)), ("current", "k")]);
        let keys = MountedKeys::open(folder.path()).unwrap();
        let wrapped = keys.wrap(RUN, &DATA_KEY).await.unwrap();
        let refused = async |run, wrapped: Wrapped| {
            assert!(matches!(keys.unwrap(run, &wrapped).await, Err(Error::Corrupt { .. })), "{wrapped:?}");
        };
        refused(RunId::from_u128(2), wrapped.clone()).await;
        refused(RUN, Wrapped { key_id: "twin".into(), ..wrapped.clone() }).await;
        for at in CHECK_LEN..wrapped.bytes.len() {
            let mut bent = wrapped.clone();
            bent.bytes[at] ^= 1;
            refused(RUN, bent).await;
        }
        refused(RUN, Wrapped { bytes: wrapped.bytes[..CHECK_LEN + 5].into(), ..wrapped.clone() }).await;
        refused(RUN, Wrapped { bytes: Vec::new(), ..wrapped }).await;
    }

    #[test]
    fn a_folder_without_a_valid_current_key_is_rejected_without_revealing_its_contents() {
        let (secret, other) = (key(1), key(2));
        let short = STANDARD.encode([1; 31]);
        let cases: [(&[(&str, &str)], &str); 6] = [
            (&[], "it holds no key"),
            (&[("..data", &secret)], "it holds no key"),
            (&[("k", "not-base64!")], "is not 32 bytes in base64"),
            (&[("k", &short)], "is not 32 bytes in base64"),
            (&[("a", &secret), ("b", &other)], "it holds several keys"),
            (&[("a", &secret), ("current", "b")], "which is missing"),
        ];
        for (files, says) in cases {
            let refused = MountedKeys::open(folder(files).path()).unwrap_err().to_string();
            assert!(refused.contains(says), "{refused}");
            let reveals = [secret.trim(), &short, "base64!"].iter().any(|text| refused.contains(*text));
            assert!(!reveals, "{refused}");
        }
        assert!(MountedKeys::open(Path::new("/nowhere/keys")).is_err());
    }
}
