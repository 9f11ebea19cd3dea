"""TLS to the gateway. The CA file is read for each new connection, because the operator replaces it."""

from __future__ import annotations

import ssl
from http.client import HTTPSConnection
from pathlib import Path

from dalsegno import _env


class TlsConnection(HTTPSConnection):
    """A connection that trusts the CAs in `DALSEGNO_CA_FILE` and no others."""

    def connect(self) -> None:
        """Connects, and does the handshake.

        Errors: `LookupError` where the CA file cannot be read; `ssl.SSLError`, with what to do about it; `OSError`.
        """
        file = _env.ca_file()
        self._context = _context(file)
        try:
            super().connect()
        except ssl.SSLCertVerificationError as error:
            trusted = (
                f"a CA in {file}" if file else "a CA that this machine trusts; set DALSEGNO_CA_FILE to the gateway's CA"
            )
            raise ssl.SSLError(
                f"the certificate of {self.host}:{self.port} is not valid for this name and from {trusted}"
                f" ({error.verify_message})"
            ) from error
        except ssl.SSLError as error:
            if error.reason != "WRONG_VERSION_NUMBER":
                raise
            raise ssl.SSLError(
                f"{self.host}:{self.port} does not speak TLS: DALSEGNO_URL must name the gateway's port for TLS"
            ) from error


def _context(file: Path | None) -> ssl.SSLContext:
    if file is None:
        return ssl.create_default_context()
    try:
        text = file.read_text("ascii")
    except (OSError, UnicodeDecodeError) as error:
        raise LookupError(
            f"the gateway's CA cannot be read: {error}; DALSEGNO_CA_FILE must name a file with certificates in PEM"
        ) from error
    return ssl.create_default_context(cadata=text)
