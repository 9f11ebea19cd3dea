"""The HTTP contract as tables: what is sent, what an answer means, and what follows from a refusal."""

import itertools
import json

import pytest

from dalsegno import OVER, Refused
from dalsegno._wire import (
    MAX_BODY_BYTES, Again, Ok, Outcome, Reaction, Refusal, backoff, classify, encode, log_name, react, retry_after,
)

FENCED = b'{"code": "FENCED", "detail": "because"}'


@pytest.mark.parametrize(("status", "body", "outcome"), [
    (200, b"{}", Ok({})),
    (200, b'{"result": "ok"}', Ok({"result": "ok"})),
    (200, b"null", Again("200")),
    (429, FENCED, Again("429")),
    (500, FENCED, Again("500")),
    (503, b"", Again("503")),
    (409, FENCED, Refusal(409, "FENCED", "because")),
    (204, b"", Refusal(204, "HTTP_204", "b''")),
    (302, b"", Refusal(302, "HTTP_302", "b''")),
    (404, b"nginx", Refusal(404, "HTTP_404", "b'nginx'")),
    (403, b'{"code": "DENIED"}', Refusal(403, "HTTP_403", """b'{"code": "DENIED"}'""")),
    (403, b"[]", Refusal(403, "HTTP_403", "b'[]'")),
    (403, b"\xff", Refusal(403, "HTTP_403", r"b'\xff'")),
])
def test_an_answer_is_success_or_worth_another_try_or_a_refusal(status: int, body: bytes, outcome: Outcome) -> None:
    assert classify(status, body) == outcome


@pytest.mark.parametrize("body", [b"", b"<html>", b'{"head": {"turn"', b"\x1f\x8b"])
def test_a_success_with_a_garbled_body_is_an_error(body: bytes) -> None:
    with pytest.raises((json.JSONDecodeError, UnicodeDecodeError)):
        classify(200, body)


@pytest.mark.parametrize("code", OVER)
def test_a_code_after_which_nothing_is_accepted_ends_the_process(code: str) -> None:
    refusal = Refusal(409, code, "because")
    assert react("turns/1", refusal, ended=False) is Reaction.EXIT
    assert react("turns/1", refusal, ended=True) is Reaction.EXIT
    expected = Reaction.RAISE if code == "FINISHED" else Reaction.EXIT
    assert react("heartbeat", refusal, ended=False) is expected
    assert react("heartbeat", refusal, ended=True) is Reaction.RAISE


def test_any_other_refusal_is_raised_and_that_of_a_heartbeat_is_no_answer() -> None:
    refusal = Refusal(401, "UNAUTHENTICATED", "because")
    assert react("turns/1", refusal, ended=False) is Reaction.RAISE
    assert react("heartbeat", refusal, ended=False) is Reaction.RETRY


def test_a_body_has_the_fields_that_are_not_none() -> None:
    assert encode("turns/1", {"a": 1, "b": None, "c": []}) == b'{"a": 1, "c": []}'
    assert encode("heartbeat", None) is None


def test_a_body_may_have_exactly_the_limit() -> None:
    envelope = len(b'{"a": ""}')
    assert encode("turns/1", {"a": "x" * (MAX_BODY_BYTES - envelope)})
    with pytest.raises(Refused) as refused:
        encode("turns/1", {"a": "x" * (MAX_BODY_BYTES - envelope + 1)})
    assert refused.value.code == "TOO_LARGE"


@pytest.mark.parametrize(("path", "name"), [
    ("turns/1/plan", "turns/1/plan"),
    ("calls/pay%2F1/claim", "calls/*/claim"),
    ("records?space=s&prefix=p", "records"),
])
def test_a_name_for_the_log_has_neither_the_id_of_a_call_nor_the_key_of_a_record(path: str, name: str) -> None:
    assert log_name(path) == name


def test_the_backoff_begins_at_once_and_stays_at_five_seconds() -> None:
    assert [*itertools.islice(backoff(), 9)] == [0, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5, 5]


@pytest.mark.parametrize(("header", "seconds"), [
    ("", 0),
    ("1", 1),
    ("60", 30),
    ("9" * 5000, 30),
    ("-1", 0),
    ("1.5", 0),
    ("\xb2", 0),
    ("Fri, 31 Dec 2100 23:59:59 GMT", 0),
])
def test_retry_after_is_capped_and_a_date_is_ignored(header: str, seconds: float) -> None:
    assert retry_after(header, 30) == seconds
