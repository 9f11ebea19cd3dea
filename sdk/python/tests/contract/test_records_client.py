"""The client's records, at the gateway in memory and at a real one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from contract_gateways import ContractGateway
from dalsegno import Operation, Run


@pytest.fixture
def run(contract: ContractGateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run[Any]:
    token = tmp_path / "token"
    token.write_text(contract.token)
    monkeypatch.setenv("DALSEGNO_URL", contract.url)
    monkeypatch.setenv("DALSEGNO_TOKEN_FILE", str(token))
    return Run.attach(heartbeat=False, sigterm=False)


def test_the_client_reads_what_it_wrote(run: Run[Any]) -> None:
    run.write(*(Operation.append("a b", "ä+", f"e{n}", n) for n in range(1_000)))
    run.write(Operation.put_if_absent("a b", "ä+", "late"), Operation.delete("a b", "x"))
    run.commit(1, state=1, records=[Operation.put("a b", "b", {"of": "a turn"})])
    assert [item.value for item in run.space("a b").items("ä")] == list(range(1_000))
    entry, *others = run.space("a b").items("b")
    assert (entry.key, entry.value, entry.turn, others) == ("b", {"of": "a turn"}, 1, [])


def test_the_client_reads_and_deletes_by_keys_on_every_gateway(run: Run[Any]) -> None:
    space = run.space("a b")
    names = [f"ä/{n:04}" for n in range(1_500)]
    for at in 0, 750:
        run.write(*(Operation.put("a b", name, name) for name in names[at : at + 750]))
    space.append("z", "e1", 1)
    space.append("z", "e2", 2)
    assert [*space.keys()] == ["z", *names] and [*space.keys("ä", reverse=True)] == names[::-1]
    assert [it.value for it in space.items(reverse=True)] == [*names[::-1], 2, 1]
    assert space.get_many(["z", *names[:1_200], "none"]) == {"z": 1, **{name: name for name in names[:1_200]}}
    space.blob_put("blob", b"old")
    space.blob_put("blob", b"new")
    assert space.blob_get("blob") == b"new" and len([*space.keys("blob/")]) == 1
    space.delete("blob")
    space.delete_prefix("ä/")
    assert [*space.keys()] == ["z"]


def test_a_call_has_its_tool_and_its_usage_on_every_gateway(run: Run[Any]) -> None:
    calls = run._calls
    begun = calls.begin("pay", "ask", None, [5], None, "pay")
    begun.usage["tokensIn"] = 5
    calls.end(begun, "completed", "receipt")
    again = calls.begin("pay", "ask", None, [5], None, "pay")
    assert (again.must_run, again.result) == (False, "receipt")
    assert calls._uncounted == ({} if run._transport.has_additions else {"tokensIn": 5})
    run.commit(1, state=1, usage={"tokensOut": 1})
    assert calls._uncounted == {}
