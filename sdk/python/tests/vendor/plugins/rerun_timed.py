"""A pytest plugin: a vendor's test that sleeps or reads a clock is run again if it fails, at most twice.

Many of them expect something within tenths of a second, which a busy machine does not always do.
"""

from __future__ import annotations

import inspect
import re

import pytest

TIMED = re.compile(r"\bsleep\(|\b(time|monotonic|perf_counter)\(\)")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if isinstance(item, pytest.Function) and TIMED.search(inspect.getsource(item.function)):
            item.add_marker(pytest.mark.flaky(reruns=2))
