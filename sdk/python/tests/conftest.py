"""Each test has its own scripted gateway."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from scripted_gateway import ScriptedGateway


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[ScriptedGateway]:
    gateway = ScriptedGateway(tmp_path)
    yield gateway
    gateway.close()
