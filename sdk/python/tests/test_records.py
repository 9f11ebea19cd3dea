"""Records: what an SDK that sits on them may rely on."""

import json

from gateway import Gateway, committed, problem


def test_records_are_written_as_the_same_bytes_until_they_are_there(gateway):
    gateway.script["records"] = [Gateway.CUT, problem(503, "UNAVAILABLE"), (200, {"result": "duplicate"})]
    code, _, err = gateway.run("""
        Run.attach().write_records([
            {"put": {"space": "s", "key": "k", "value": {"n": 1}}}, {"putIfAbsent": {"space": "s", "key": "k", "value": None}},
            {"append": {"space": "s", "key": "log", "entryId": "e1", "value": "a"}}, {"delete": {"space": "s", "key": "old"}},
        ])
    """)
    assert (code, err) == (0, "")
    first, *others = gateway.bodies("records")
    assert others == [first, first]
    batch = json.loads(first)
    assert len(batch.pop("batchId")) == 36
    assert batch == {"operations": [
        {"put": {"space": "s", "key": "k", "value": {"json": {"n": 1}}}},
        {"putIfAbsent": {"space": "s", "key": "k", "value": {"json": None}}},
        {"append": {"space": "s", "key": "log", "entryId": "e1", "value": {"json": "a"}}},
        {"delete": {"space": "s", "key": "old"}},
    ]}


def test_records_may_go_with_a_boundary(gateway):
    gateway.script["turns/1"] = [committed(1)]
    code, _, _ = gateway.run("""
        Run.attach().commit(1, state=1, records=[{"put": {"space": "s", "key": "k", "value": 2}}])
    """)
    assert code == 0
    records = json.loads(gateway.bodies("turns/1")[0])["records"]
    assert records == [{"put": {"space": "s", "key": "k", "value": {"json": 2}}}]


def test_records_are_read_page_by_page_and_only_as_far_as_one_reads(gateway):
    query = "records?space=a%20b&prefix=%C3%A4%2B"
    pages = [
        {"records": [{"key": "ä+1", "value": {"json": 1}, "turn": 1}, {"key": "ä+2", "value": {"json": None}, "turn": 1}], "next": "1.ä+2"},
        {"records": [{"key": "ä+3", "entryId": "e", "value": {"bytes": {"mediaType": "x/y", "base64": "AA=="}}, "turn": 2}]},
    ]
    gateway.script[query], gateway.script[f"{query}&after=1.%C3%A4%2B2"] = [(200, pages[0])], [(200, pages[1])]
    code, out, err = gateway.run("""
        run = Run.attach()
        print(next(run.records("a b", "ä+")))
        print([(record["key"], record["value"]) for record in run.records("a b", "ä+")])
    """)
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        "{'key': 'ä+1', 'value': 1, 'turn': 1}",
        "[('ä+1', 1), ('ä+2', None), ('ä+3', {'mediaType': 'x/y', 'base64': 'AA=='})]",
    ]
    assert [path for path, _, _ in gateway.seen if path.startswith("records")] == [query, query, f"{query}&after=1.%C3%A4%2B2"]
