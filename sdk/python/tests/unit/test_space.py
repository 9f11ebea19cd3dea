"""Spaces: entries, their order, and blobs."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from dalsegno import Operation, Refused, Space, _records
from dalsegno._space import CHUNK_BYTES
from dalsegno.testing.memory import MemoryGateway
from test_turn import in_process


@pytest.fixture
def space(dalsegno_gateway: MemoryGateway) -> Iterator[Space]:
    with in_process() as run:
        yield run.space("s")
        run.finish()


def test_entries_are_put_appended_read_and_deleted(space: Space) -> None:
    space.put("b", {"n": 1})
    space.put_if_absent("b", "late")
    space.append("log", "e1", "first")
    space.append("log", "e2", "second")
    space.append("log", "e1", "again")
    assert [(it.key, it.entry_id, it.value, it.turn) for it in space.items()] == [
        ("b", None, {"n": 1}, 1),
        ("log", "e1", "first", 1),
        ("log", "e2", "second", 1),
    ]
    assert [it.value for it in space.items("lo", reverse=True)] == ["second", "first"]
    assert (space.get("log"), space.get("lo"), space.get("none", 7)) == ("first", None, 7)
    space.delete("log")
    assert [it.key for it in space.items()] == ["b"]


def test_more_than_a_page_is_read_in_order_and_backwards(dalsegno_gateway: MemoryGateway) -> None:
    with in_process() as run:
        space = run.space("s")
        for at in range(0, 2_500, 1_000):
            run.write(*(Operation.put("s", f"{n:04}", n) for n in range(at, min(at + 1_000, 2_500))))
        assert [it.value for it in space.items()] == [*range(2_500)]
        assert [it.value for it in space.items("1", reverse=True)] == [*range(1_999, 999, -1)]
        run.finish()


@pytest.mark.parametrize("size", [0, 1, CHUNK_BYTES, 4 * CHUNK_BYTES + 1])
def test_a_blob_of_any_length_comes_back(space: Space, size: int) -> None:
    content = hashlib.shake_128(b"x").digest(min(size, 4096)) * (size // 4096 + 1)
    space.blob_put("b", content[:size])
    assert space.blob_get("b") == content[:size]


def test_a_blob_is_replaced_and_deleted_with_its_chunks(space: Space) -> None:
    space.put("b.other", 1)
    space.blob_put("b", b"old")
    space.blob_put("b", b"new")
    assert space.blob_get("b") == b"new" and len([*space.items("b/")]) == 1
    space.delete("b")
    assert space.blob_get("b") is None and [it.key for it in space.items()] == ["b.other"]
    assert space.blob_get("b.other") is None, "it is no blob"


def test_a_blob_is_old_until_its_pointer_is_written(
    dalsegno_gateway: MemoryGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[list[str]] = []
    seen: list[bytes | None] = []
    write = _records.write

    def watched(transport: Any, operations: Iterable[Operation]) -> None:
        operations = list(operations)
        seen.append(blobs.blob_get("b"))
        write(transport, operations)
        written.append([f"{it.kind} {it.fields['key']}" for it in operations])

    with in_process() as run:
        blobs = run.space("s")
        old, new = b"o" * (4 * CHUNK_BYTES), b"n" * (4 * CHUNK_BYTES)
        blobs.blob_put("b", old)
        monkeypatch.setattr(_records, "write", watched)
        blobs.blob_put("b", new)
        prefixes = [f"b/.chunk.{hashlib.sha256(content).hexdigest()[:16]}." for content in (old, new)]
        assert written == [
            [f"put {prefixes[1]}00000{number}" for number in range(3)],
            [f"put {prefixes[1]}000003"],
            ["put b"],
            [f"delete {prefixes[0]}00000{number}" for number in range(4)],
        ]
        assert [content == new for content in seen] == [False, False, False, True]
        assert blobs.blob_get("b") == new
        run.finish()


def test_a_blob_whose_chunks_are_missing_is_an_error(dalsegno_gateway: MemoryGateway) -> None:
    with in_process() as run:
        space = run.space("s")
        space.blob_put("b", b"content")
        for place in [place for place in dalsegno_gateway.rows.records if place[1].startswith("b/")]:
            del dalsegno_gateway.rows.records[place]
        with pytest.raises(ValueError, match="the chunks of the blob"):
            space.blob_get("b")
        run.finish()


def test_a_write_that_the_gateway_refuses_is_refused(space: Space) -> None:
    with pytest.raises(Refused) as refused:
        space.put("x" * 513, 1)
    assert refused.value.code == "INVALID"
