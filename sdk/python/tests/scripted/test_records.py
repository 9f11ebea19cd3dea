"""Records: what a framework that stores its state in them may rely on."""

import json

from scripted_gateway import NO_ANSWER, Answer, ScriptedGateway, committed, problem


def test_a_batch_of_records_is_sent_as_the_same_bytes_until_it_is_answered(gateway: ScriptedGateway) -> None:
    gateway.script["records"] = [NO_ANSWER, problem(503, "UNAVAILABLE"), Answer(200, {"result": "duplicate"})]
    code, _, err = gateway.run("""
        Run.attach().write(
            Operation.put("s", "k", {"n": 1}),
            Operation.put_if_absent("s", "k", None),
            Operation.append("s", "log", "e1", "a"),
            Operation.delete("s", "old"),
        )
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


def test_records_can_be_written_with_a_boundary(gateway: ScriptedGateway) -> None:
    gateway.script["turns/1"] = [committed(1)]
    code, _, _ = gateway.run("""
        Run.attach().commit(1, state=1, records=[Operation.put("s", "k", 2)])
    """)
    assert code == 0
    records = json.loads(gateway.bodies("turns/1")[0])["records"]
    assert records == [{"put": {"space": "s", "key": "k", "value": {"json": 2}}}]


def test_records_are_read_page_by_page_and_only_as_far_as_needed(gateway: ScriptedGateway) -> None:
    query = "records?space=a%20b&prefix=%C3%A4%2B"
    one, two = ({"key": f"ä+{n}", "value": {"json": value}, "turn": 1} for n, value in ((1, 1), (2, None)))
    image = {"bytes": {"mediaType": "x/y", "base64": "AA=="}}
    three = {"key": "ä+3", "entryId": "e", "value": image, "turn": 2}
    pages = [{"records": [one, two], "next": "1.ä+2"}, {"records": [three]}]
    gateway.script[query] = [Answer(200, pages[0])]
    gateway.script[f"{query}&after=1.%C3%A4%2B2"] = [Answer(200, pages[1])]
    code, out, err = gateway.run("""
        run = Run.attach()
        print(next(run.space("a b").items("ä+")))
        print([(item.key, item.value) for item in run.space("a b").items("ä+")])
    """)
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        "Item(key='ä+1', value=1, turn=1, entry_id=None)",
        "[('ä+1', 1), ('ä+2', None), ('ä+3', {'mediaType': 'x/y', 'base64': 'AA=='})]",
    ]
    read = [path for path, _, _ in gateway.seen if path.startswith("records")]
    assert read == [query, query, f"{query}&after=1.%C3%A4%2B2"]
