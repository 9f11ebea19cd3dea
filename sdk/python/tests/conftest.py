"""The gateways that tests run against: one that answers from a script, one in memory, and a real one."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from contract_gateways import ContractGateway, DevWorker, MemoryWorker
from scripted_gateway import ScriptedGateway

pytest_plugins = ["dalsegno.testing.plugin"]


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[ScriptedGateway]:
    gateway = ScriptedGateway(tmp_path)
    yield gateway
    gateway.close()


@pytest.fixture(params=["memory", "dev"])
def contract(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ContractGateway]:
    """A gateway with one run: the one in memory, and that of `dalsegno dev`."""
    worker: ContractGateway
    if request.param == "memory":
        worker = MemoryWorker()
    else:
        worker = DevWorker(dev_program(), tmp_path)
    yield worker
    worker.close()


def dev_program() -> str:
    """The program `dalsegno`: what `DALSEGNO_BIN` names, or the first one in the path. Skips the test without one."""
    program = os.environ.get("DALSEGNO_BIN") or shutil.which("dalsegno")
    if program is None:
        pytest.skip(
            "there is no `dalsegno`, and DALSEGNO_BIN names none: nothing compares the gateway in memory with a real one"
        )
    return program
