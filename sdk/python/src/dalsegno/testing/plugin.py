"""Fixtures of pytest for agents on Dal Segno. An installed package brings them; otherwise `-p dalsegno.testing.plugin`.

`dalsegno_gateway` is a `MemoryGateway` whose first attempt has begun in this process, so that a test can attach:

```python
def test_a_page_is_written(dalsegno_gateway):
    with dalsegno.attach(sigterm=False) as run:
        ...
```

`crash_matrix` runs an agent with a kill at each of its requests. `answer` answers what it waits for:

```python
def test_nothing_is_paid_twice(crash_matrix, ledger):
    def approve(gateway):
        gateway.approve(gateway.open_waits[0])

    for point, gateway, ended in crash_matrix(["agent.py"], before_each=ledger.clear, answer=approve):
        assert gateway.finish and ledger.entries == ["1", "2", "3"], (point, ended.output)
```
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import pytest

from dalsegno.testing.memory import CrashPoint, Ended, MemoryGateway, crash_points


class CrashMatrix(Protocol):
    """What the fixture `crash_matrix` gives."""

    def __call__(
        self,
        command: Sequence[str | os.PathLike[str]],
        *,
        input: Any = None,
        every: int = 1,
        before_each: Callable[[], object] | None = None,
        environment: Mapping[str, str] | None = None,
        answer: Callable[[MemoryGateway], object] | None = None,
    ) -> Iterator[tuple[CrashPoint | None, MemoryGateway, Ended]]:
        """Runs an agent once without a crash, and then with a crash before and after each of its requests.

        Yields where the agent was killed (`None` at first), the gateway, and how the run ended.

        command, every, environment, answer: see `crash_points`.
        input: the run's input, any JSON. before_each: called before each run of the agent.
        """
        ...


@pytest.fixture
def dalsegno_gateway(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[MemoryGateway]:
    """A gateway in memory whose first attempt is this process. `@pytest.mark.dalsegno(input=…)` gives the run an input."""
    marker = request.node.get_closest_marker("dalsegno")
    with MemoryGateway(**(marker.kwargs if marker else {})) as gateway:
        gateway.start_attempt()
        for name, value in gateway.environment.items():
            monkeypatch.setenv(name, value)
        yield gateway


@pytest.fixture
def crash_matrix() -> CrashMatrix:
    """Kill -9 before and after each request of an agent: see `CrashMatrix`."""

    def run(
        command: Sequence[str | os.PathLike[str]],
        *,
        input: Any = None,
        every: int = 1,
        before_each: Callable[[], object] | None = None,
        environment: Mapping[str, str] | None = None,
        answer: Callable[[MemoryGateway], object] | None = None,
    ) -> Iterator[tuple[CrashPoint | None, MemoryGateway, Ended]]:
        def new_gateway() -> MemoryGateway:
            if before_each is not None:
                before_each()
            return MemoryGateway(input)

        return crash_points(new_gateway, command, every=every, environment=environment, answer=answer)

    return run


def pytest_configure(config: pytest.Config) -> None:
    """Declares the marker."""
    config.addinivalue_line("markers", "dalsegno(input=…, name=…): the run of the fixture dalsegno_gateway")
