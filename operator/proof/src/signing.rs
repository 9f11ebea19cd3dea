//! Ed25519 signatures: anybody who has the public key can verify that a bundle was created by a process with the
//! private key.

use std::path::Path;

use dalsegno_model::{Error, Result, Store};
use ring::rand::SystemRandom;
use ring::signature::{ED25519, Ed25519KeyPair, KeyPair as _, UnparsedPublicKey};
use rustls_pki_types::PrivatePkcs8KeyDer;
use rustls_pki_types::pem::PemObject as _;

/// A public key.
pub type PublicKey = [u8; 32];

/// A private key that signs.
#[derive(Debug)]
pub struct Signer(Ed25519KeyPair);

impl Signer {
    /// Loads the key from this file (PKCS#8 in PEM, as from `openssl genpkey -algorithm ed25519`). Without a file
    /// this is the store's own key, which is created on its first use.
    pub async fn load(store: &dyn Store, file: Option<&Path>) -> Result<Self> {
        let pkcs8 = match file {
            Some(path) => PrivatePkcs8KeyDer::from_pem_file(path)
                .map_err(|error| {
                    Error::Unusable(format!("cannot read a key from {}: {error}", path.display()))
                })?
                .secret_pkcs8_der()
                .to_vec(),
            None => store.signing_key(&fresh()?).await?,
        };
        Self::from_pkcs8(&pkcs8)
    }

    /// The key in a PKCS#8 document, with or without its public key.
    pub fn from_pkcs8(pkcs8: &[u8]) -> Result<Self> {
        Ed25519KeyPair::from_pkcs8_maybe_unchecked(pkcs8)
            .map(Self)
            .map_err(|error| Error::Unusable(format!("the signing key is not one of Ed25519: {error}")))
    }

    /// The public key that verifies the signatures.
    pub fn public_key(&self) -> PublicKey {
        let mut key = [0; 32];
        key.copy_from_slice(self.0.public_key().as_ref());
        key
    }

    /// Signs a message.
    pub fn sign(&self, message: &[u8]) -> [u8; 64] {
        let mut signature = [0; 64];
        signature.copy_from_slice(self.0.sign(message).as_ref());
        signature
    }
}

/// Whether this is a valid signature of the message by the key.
pub fn is_signed(key: &PublicKey, message: &[u8], signature: &[u8]) -> bool {
    UnparsedPublicKey::new(&ED25519, key).verify(message, signature).is_ok()
}

fn fresh() -> Result<Vec<u8>> {
    let made = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new());
    made.map(|it| it.as_ref().to_vec())
        .map_err(|_| Error::Unusable("the system gives no random bytes".into()))
}
