"""Each test has a scripted gateway of its own."""

import pytest

from gateway import Gateway


@pytest.fixture
def gateway(tmp_path):
    gateway = Gateway(tmp_path)
    yield gateway
    gateway.server.shutdown()
    gateway.server.server_close()
