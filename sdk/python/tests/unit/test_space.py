"""Spaces: entries, their order, and blobs."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from dalsegno import Operation, Refused, Run, Space, _records
from dalsegno._space import CHUNK_BYTES
from dalsegno.testing.memory import MemoryGateway
from test_turn import in_process


def space_of(run: Run[Any], version: int) -> Space:
    """A space, as a client of gateways of this version of the contract uses it."""
    run._transport._contract = version
    return run.space("s")


@pytest.fixture(params=[2, 3])
def space(dalsegno_gateway: MemoryGateway, request: pytest.FixtureRequest) -> Iterator[Space]:
    with in_process() as run:
        yield space_of(run, request.param)
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


@pytest.mark.parametrize("version", [2, 3])
def test_a_blob_is_old_until_its_pointer_is_written(
    dalsegno_gateway: MemoryGateway, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    written: list[list[str]] = []
    seen: list[bytes | None] = []
    write = _records.write

    def watched(transport: Any, operations: Iterable[Operation]) -> None:
        operations = list(operations)
        seen.append(blobs.blob_get("b"))
        write(transport, operations)
        written.append([f"{it.kind} {it.fields.get('key') or it.fields['prefix']}" for it in operations])

    with in_process() as run:
        blobs = space_of(run, version)
        old, new = b"o" * (4 * CHUNK_BYTES), b"n" * (4 * CHUNK_BYTES)
        blobs.blob_put("b", old)
        monkeypatch.setattr(_records, "write", watched)
        blobs.blob_put("b", new)
        prefixes = [f"b/.chunk.{hashlib.sha256(content).hexdigest()[:16]}." for content in (old, new)]
        deletes = [f"delete {prefixes[0]}00000{number}" for number in range(4)]
        if version == 3:
            deletes = [f"deletePrefix {prefixes[0]}"]
        assert written == [
            [f"put {prefixes[1]}00000{number}" for number in range(3)],
            [f"put {prefixes[1]}000003"],
            ["put b", *deletes],
        ]
        assert [content == new for content in seen] == [False, False, False]
        assert blobs.blob_get("b") == new
        run.finish()


def test_replacing_a_blob_does_not_read_the_old_one(space: Space, dalsegno_gateway: MemoryGateway) -> None:
    space.blob_put("b", b"o" * (4 * CHUNK_BYTES))
    before = len(dalsegno_gateway.requests)
    space.blob_put("b", b"n")
    assert len(dalsegno_gateway.requests) - before == 3, "the pointer is read, and two batches are written"
    assert len([*space.keys()]) == 2


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


def test_keys_are_read_without_values_and_values_by_keys(space: Space) -> None:
    for key in "b", "a/1", "a/2":
        space.put(key, key)
    space.append("log", "e1", "first")
    space.append("log", "e2", "second")
    assert [*space.keys()] == ["a/1", "a/2", "b", "log"]
    assert [*space.keys("a/", reverse=True)] == ["a/2", "a/1"] and [*space.keys("c")] == []
    assert space.get_many(["log", "a", "b", "none", "a/1"]) == {"log": "first", "b": "b", "a/1": "a/1"}
    assert space.get_many([]) == {}
    space.delete_prefix("a/")
    assert [*space.keys()] == ["b", "log"]
    with pytest.raises(ValueError, match="the prefix is empty"):
        space.delete_prefix("")


def test_more_than_a_page_of_keys(dalsegno_gateway: MemoryGateway) -> None:
    names = [f"{n:04}" for n in range(2_100)]
    for version in 2, 3:
        dalsegno_gateway.start_attempt()
        with in_process() as run:
            space = space_of(run, version)
            for at in range(0, 2_100, 700):
                run.write(*(Operation.put("s", name, name) for name in names[at : at + 700]))
            assert [*space.keys()] == names and [*space.keys(reverse=True)] == names[::-1]
            assert space.get_many(names) == {name: name for name in names}
            assert [it.key for it in space.items(reverse=True)] == names[::-1]
            before = len(dalsegno_gateway.requests)
            space.delete_prefix("0")
            space.delete_prefix("1")
            assert len(dalsegno_gateway.requests) - before == (2 if version == 3 else 4)
            assert [*space.keys()] == names[2_000:]
            run._lease.ended = True


def test_backwards_a_newer_gateway_sends_the_last_page_first(dalsegno_gateway: MemoryGateway) -> None:
    with in_process() as run:
        space = space_of(run, 3)
        for at in 0, 1_000:
            run.write(*(Operation.put("s", f"{n:04}", n) for n in range(at, at + 1_000)))
        before = len(dalsegno_gateway.requests)
        assert next(space.items(reverse=True)).value == 1_999
        assert len(dalsegno_gateway.requests) == before + 1
        run.finish()


def test_a_prefix_is_deleted_with_a_turn(dalsegno_gateway: MemoryGateway) -> None:
    with in_process() as run:
        space = space_of(run, 3)
        space.put("a/1", 1)
        with run.turn() as turn:
            turn.record(Operation.put("s", "a/2", 2), Operation.delete_prefix("s", "a/"), Operation.put("s", "a/3", 3))
            assert [*space.keys()] == ["a/1"]
        assert [*space.keys()] == ["a/3"]
        run.finish()


@pytest.fixture
def three_keys_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dalsegno.testing.memory._records.PREFIX_KEYS", 3)


@pytest.mark.usefixtures("three_keys_at_once")
def test_a_prefix_of_too_many_keys_is_deleted_page_by_page(dalsegno_gateway: MemoryGateway) -> None:
    with in_process() as run:
        space = space_of(run, 3)
        for first in range(0, 2_100, 700):
            run.write(*(Operation.put("s", f"a/{n:04}", n) for n in range(first, first + 700)))
        space.put("b", 1)
        before = len(dalsegno_gateway.requests)
        space.delete_prefix("a/")
        assert [*space.keys()] == ["b"]
        assert len(dalsegno_gateway.requests) - before == 1 + 3 + 3 + 1, "refused, pages, batches, and the look"
        run.finish()


@pytest.mark.usefixtures("three_keys_at_once")
def test_a_turn_with_a_prefix_of_too_many_keys_says_what_to_do(dalsegno_gateway: MemoryGateway) -> None:
    with in_process() as run:
        space = space_of(run, 3)
        run.write(*(Operation.put("s", f"{part}/{n}", n) for part in "ab" for n in range(2)))
        with pytest.raises(Refused, match="delete the keys before, in batches of their own") as refused, run.turn() as turn:
            turn.record(Operation.delete_prefix("s", "a/"), Operation.delete_prefix("s", "b/"))
        assert refused.value.code == "TOO_LARGE"
        assert [*space.keys()] == ["a/0", "a/1", "b/0", "b/1"], "nothing was written"
        space.delete_prefix("a/")
        with run.turn() as turn:
            turn.record(Operation.delete_prefix("s", "b/"), Operation.delete_prefix("s", "b/1"))
        assert [*space.keys()] == []
        run.finish()


def test_deleting_a_blob_is_one_request_of_one_batch(space: Space, dalsegno_gateway: MemoryGateway) -> None:
    space.blob_put("b", b"x" * (4 * CHUNK_BYTES))
    before = len(dalsegno_gateway.requests)
    space.delete("b")
    requests = len(dalsegno_gateway.requests) - before
    assert requests == 1 if space._transport.has_additions else requests <= 5, "the chunks are read, and one batch"
    assert [*space.keys()] == []


def test_the_key_of_a_blob_has_room_for_its_chunks(space: Space) -> None:
    space.blob_put("k" * 481, b"x")
    assert space.blob_get("k" * 481) == b"x"
    with pytest.raises(ValueError, match="at most 481 bytes"):
        space.blob_put("k" * 482, b"x")
    space.put("k" * 512, 1)
    space.delete("k" * 512)
    space.delete("k" * 481)
    assert [*space.keys()] == []
