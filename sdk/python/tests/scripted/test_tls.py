"""TLS: the CA file is read for each new connection, and errors say what to do."""

from __future__ import annotations

import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from scripted_gateway import LONGEST_SECONDS, ScriptedGateway, attached, committed


class Authority:
    """A CA with a certificate for 127.0.0.1, made by openssl."""

    def __init__(self, directory: Path, name: str) -> None:
        self.ca, self.chain, self.key = (directory / f"{name}.{kind}" for kind in ("ca", "crt", "key"))
        ca_key, request, names = (directory / f"{name}.{kind}" for kind in ("cakey", "csr", "ext"))
        names.write_text("subjectAltName=IP:127.0.0.1\n")
        curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
        _openssl("req", "-x509", *curve, "-keyout", ca_key, "-out", self.ca, "-days", "1", "-subj", f"/CN={name}")
        _openssl("req", *curve, "-keyout", self.key, "-out", request, "-subj", "/CN=gateway")
        _openssl("x509", "-req", "-in", request, "-CA", self.ca, "-CAkey", ca_key, "-CAcreateserial", "-days", "1",
                 "-extfile", names, "-out", self.chain)

    def serve(self, gateway: ScriptedGateway) -> None:
        """New connections of this gateway get this certificate."""
        self.context.load_cert_chain(self.chain, self.key)

    context: ssl.SSLContext


def _openssl(*arguments: str | Path) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True)


@pytest.fixture
def authorities(tmp_path: Path) -> list[Authority]:
    return [Authority(tmp_path, "first"), Authority(tmp_path, "second")]


@pytest.fixture
def secured(gateway: ScriptedGateway, authorities: list[Authority], tmp_path: Path) -> Iterator[ScriptedGateway]:
    """The scripted gateway with TLS and a certificate of the first CA, which its agents trust."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    for authority in authorities:
        authority.context = context
    authorities[0].serve(gateway)
    gateway.use_tls(context)
    (tmp_path / "ca.crt").write_text(authorities[0].ca.read_text())
    gateway.env["DALSEGNO_CA_FILE"] = str(tmp_path / "ca.crt")
    yield gateway


def test_an_agent_works_over_tls(secured: ScriptedGateway) -> None:
    secured.script["attach"] = [attached(heartbeatSeconds=0.05)]
    secured.script["turns/1"] = [committed(1).but(until=lambda: secured.beats_since("attach") > 1)]
    code, _, err = secured.run("Run.attach().commit(1, state=1)")
    assert (code, err) == (0, "")


def test_a_new_connection_trusts_the_ca_that_the_file_has_then(
    secured: ScriptedGateway, authorities: list[Authority], tmp_path: Path
) -> None:
    secured.script |= {"turns/1": [committed(1).but(closes=True)], "turns/2": [committed(2)]}
    agent = secured.start("""
        run = Run.attach(heartbeat=False)
        run.commit(1, state=1)
        print("ready", flush=True)
        sys.stdin.readline()
        run.commit(2, state=2)
    """)
    assert agent.stdout is not None and agent.stdout.readline() == "ready\n"
    authorities[1].serve(secured)
    (tmp_path / "ca.crt").write_text(authorities[1].ca.read_text())
    _, err = agent.communicate("\n", timeout=LONGEST_SECONDS)
    assert (agent.returncode, err) == (0, "")
    assert len(secured.bodies("turns/2")) == 1 and secured.ports["turns/1"] != secured.ports["turns/2"]


def test_a_ca_file_that_is_missing_ends_the_agent_with_its_name(secured: ScriptedGateway) -> None:
    secured.env["DALSEGNO_CA_FILE"] = "/nowhere/ca.crt"
    code, _, err = secured.run("Run.attach()")
    assert code == 1 and "LookupError" in err and "/nowhere/ca.crt" in err and "DALSEGNO_CA_FILE" in err
    assert not secured.seen


CONNECT = """
    from dalsegno._tls import TlsConnection
    port = int(os.environ["DALSEGNO_URL"].split(":")[2].split("/")[0])
    try:
        TlsConnection("127.0.0.1", port, timeout=30).connect()
    except OSError as error:
        print(error)
"""


def test_a_wrong_ca_is_named(secured: ScriptedGateway, authorities: list[Authority]) -> None:
    secured.env["DALSEGNO_CA_FILE"] = str(authorities[1].ca)
    _, out, _ = secured.run(CONNECT)
    assert "is not valid for this name and from a CA in" in out and str(authorities[1].ca) in out


def test_a_port_without_tls_is_named(gateway: ScriptedGateway, authorities: list[Authority]) -> None:
    gateway.env["DALSEGNO_CA_FILE"] = str(authorities[0].ca)
    _, out, _ = gateway.run(CONNECT)
    assert "does not speak TLS: DALSEGNO_URL must name the gateway's port for TLS" in out
