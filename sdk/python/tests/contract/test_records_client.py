"""The client's records, at the gateway in memory and at a real one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from contract_gateways import ContractGateway
from dalsegno import Operation, Run


def test_the_client_reads_what_it_wrote(
    contract: ContractGateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = tmp_path / "token"
    token.write_text(contract.token)
    monkeypatch.setenv("DALSEGNO_URL", contract.url)
    monkeypatch.setenv("DALSEGNO_TOKEN_FILE", str(token))
    run: Run[Any] = Run.attach(heartbeat=False, sigterm=False)
    run.write(*(Operation.append("a b", "ä+", f"e{n}", n) for n in range(1_000)))
    run.write(Operation.put_if_absent("a b", "ä+", "late"), Operation.delete("a b", "x"))
    run.commit(1, state=1, records=[Operation.put("a b", "b", {"of": "a turn"})])
    assert [item.value for item in run.space("a b").items("ä")] == list(range(1_000))
    entry, *others = run.space("a b").items("b")
    assert (entry.key, entry.value, entry.turn, others) == ("b", {"of": "a turn"}, 1, [])
