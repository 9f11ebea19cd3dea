//! The gateway's certificate: how it is issued, where it is kept, and how the gateway and the workers get it.
//!
//! | object | holds | read by |
//! |---|---|---|
//! | Secret `dalsegno-ca` | the operator's CA with its key, and the one before while it is replaced | the operator that leads |
//! | Secret `dalsegno-tls` | the certificate that the gateway serves, its key, and its CA | the gateway |
//! | ConfigMap `dalsegno-ca` | the bundle of CAs that workers and users trust | everybody |

pub mod bundle;
pub mod issue;
pub mod objects;
pub mod serving;

/// Secret with the operator's CA, and ConfigMap with the bundle of trusted CAs.
pub const CA: &str = "dalsegno-ca";

/// Secret with the certificate that the gateway serves.
pub const SERVED: &str = "dalsegno-tls";

/// Key of a certificate's CA, as in every Secret of type `kubernetes.io/tls`.
pub const CA_CERTIFICATE: &str = "ca.crt";

/// Key of a certificate.
pub const CERTIFICATE: &str = "tls.crt";

/// Key of a certificate's private key.
pub const PRIVATE_KEY: &str = "tls.key";

/// Annotation of [`SERVED`] and of the ConfigMap: since when the gateway serves a certificate of this CA, or since when the
/// bundle has these CAs.
pub const SINCE: &str = "dalsegno.dev/since";

/// Annotation of [`SERVED`]: whether the gateway serves workers without TLS.
pub const PLAIN_HTTP: &str = "dalsegno.dev/plain-http";

/// Value of [`PLAIN_HTTP`] while some workers were started without TLS.
pub const OPEN: &str = "open";

/// Value of [`PLAIN_HTTP`] while none was.
pub const CLOSED: &str = "closed";
