"""`Session` with the real CLI and a fake model: tools, approvals, stops, and where a conversation goes on."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("claude_agent_sdk")

import dalsegno
from claude_context import LOOK, PAY, Bank, answer, attempt, pays, results, session
from dalsegno.aio import AsyncRun
from dalsegno.claude import Session, SessionFailed, _session
from dalsegno.testing.memory import MemoryGateway
from dalsegno.testing.models import FakeAnthropic, Reply, ToolCall


class Lost(Exception):
    """The process is lost while the tool runs."""


def lose(_: Any) -> None:
    raise Lost


def test_a_prompt_is_answered_and_each_call_and_answer_is_a_turn() -> None:
    bank = Bank()
    with MemoryGateway() as gateway, FakeAnthropic([pays(5), Reply("Paid.")]) as model:
        said = attempt(gateway, lambda run: answer(run, session(run, model, bank)))
        assert (said, bank.cents, len(model.requests)) == ("Paid.", [5], 2)
        assert gateway.events == [{"tool": PAY, "id": "toolu_0_0"}, {"answer": "Paid."}]
        usage = gateway.rows.usage
        assert (usage["tokensIn"], usage["tokensOut"], usage["toolCalls"]) == (20, 10, 1)
        call, = gateway.calls
        assert (call.id, call.policy, call.state) == (f"claude.{PAY}.toolu_0_0", "retrySameKey", "completed")


def test_after_a_crash_in_a_tool_the_call_is_made_under_its_key_and_the_model_is_not_asked_again() -> None:
    bank = Bank()
    with MemoryGateway() as gateway, FakeAnthropic([pays(5), Reply("Paid.")]) as model:
        bank.before_paying = lose
        assert isinstance(attempt(gateway, lambda run: answer(run, session(run, model, bank))), Lost)
        assert len(model.requests) == 1
        bank.before_paying = lambda _: None
        assert attempt(gateway, lambda run: answer(run, session(run, model, bank))) == "Paid."
        assert (bank.cents, len(bank.paid), len(model.requests)) == ([5], 1, 2)
        assert results(model) == {"toolu_0_0": "paid 5"}


def test_after_a_crash_in_the_second_of_three_calls_of_a_message_nothing_is_paid_twice() -> None:
    bank = Bank()
    script = [pays(5, 6, 7), pays(7), Reply("Paid.")]
    with MemoryGateway() as gateway, FakeAnthropic(script) as model:
        bank.before_paying = lambda args: lose(args) if args["cents"] == 6 else None
        assert isinstance(attempt(gateway, lambda run: answer(run, session(run, model, bank))), Lost)
        bank.before_paying = lambda _: None
        assert attempt(gateway, lambda run: answer(run, session(run, model, bank))) == "Paid."
        assert (bank.cents, len(model.requests)) == ([5, 6, 7], 3)
        assert results(model) == {"toolu_0_0": "paid 5", "toolu_0_1": "paid 6", "toolu_1_0": "paid 7"}


def test_where_the_cli_does_not_ask_again_the_model_is_told_the_result_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    bank = Bank()
    said: list[Any] = []

    def script(body: dict[str, Any]) -> Reply:
        said.append(body["messages"][-1]["content"])
        return pays(5) if len(said) == 1 else Reply("Paid.")

    with MemoryGateway() as gateway, FakeAnthropic(script) as model:
        bank.before_paying = lose
        assert isinstance(attempt(gateway, lambda run: answer(run, session(run, model, bank))), Lost)
        bank.before_paying = lambda _: None
        monkeypatch.setattr("dalsegno.claude._transcript.MARKER", "a_marker_that_no_cli_knows")
        monkeypatch.setattr(_session, "MARKER_SECONDS", 2.0)
        assert attempt(gateway, lambda run: answer(run, session(run, model, bank))) == "Paid."
        assert (bank.cents, len(model.requests)) == ([5], 2)
        assert "toolu_0_0" in str(said[-1]) and "paid 5" in str(said[-1])


def test_a_lost_commit_of_the_answer_does_not_ask_the_model_again(monkeypatch: pytest.MonkeyPatch) -> None:
    bank = Bank()
    with MemoryGateway() as gateway, FakeAnthropic([Reply("Done.")]) as model:
        with monkeypatch.context() as patch:
            patch.setattr(Session, "_commit_end", lambda *_: lose(_))
            assert isinstance(attempt(gateway, lambda run: answer(run, session(run, model, bank))), Lost)
        assert gateway.events == []
        assert attempt(gateway, lambda run: answer(run, session(run, model, bank))) == "Done."
        assert (len(model.requests), gateway.events) == (1, [{"answer": "Done."}])
        assert gateway.rows.usage["tokensIn"] == 10


def test_prompts_that_are_answered_are_not_sent_again() -> None:
    bank = Bank()
    with MemoryGateway() as gateway, FakeAnthropic([Reply("One."), pays(5), Reply("Two.")]) as model:

        async def work(run: AsyncRun[Any]) -> list[str]:
            of = session(run, model, bank)
            said: list[str] = []
            for prompt in ("First.", "Second."):
                async for _ in of.run(prompt):
                    pass
                said.append(of.result)
            await run.finish()
            return said

        bank.before_paying = lose
        assert isinstance(attempt(gateway, work), Lost)
        bank.before_paying = lambda _: None
        assert attempt(gateway, work) == ["One.", "Two."]
        assert (len(model.requests), bank.cents) == (3, [5])


def test_another_prompt_than_in_an_earlier_attempt_is_an_error() -> None:
    bank = Bank()
    with MemoryGateway() as gateway, FakeAnthropic([Reply("One."), Reply("Two.")]) as model:

        async def work(run: AsyncRun[Any]) -> None:
            async for _ in session(run, model, bank).run("First."):
                pass
            raise Lost

        assert isinstance(attempt(gateway, work), Lost)
        error = attempt(gateway, lambda run: answer(run, session(run, model, bank), "Another."))
        assert isinstance(error, dalsegno.Error) and "another one in an earlier attempt" in str(error)


def test_a_call_waits_for_a_person_without_a_process_and_goes_on_when_it_is_approved() -> None:
    bank = Bank()
    with MemoryGateway() as gateway, FakeAnthropic([pays(5), Reply("Paid.")]) as model:

        def work(run: AsyncRun[Any]) -> Any:
            return answer(run, session(run, model, bank, approve=[PAY]))

        assert isinstance(attempt(gateway, work), dalsegno.Parked)
        assert (bank.paid, gateway.open_waits) == ([], ["claude.toolu_0_0"])
        assert gateway.rows.waits["claude.toolu_0_0"].request["proposal"] == {"cents": 5}
        gateway.approve("claude.toolu_0_0")
        assert attempt(gateway, work) == "Paid."
        assert (bank.cents, len(model.requests)) == ([5], 2)
        assert gateway.rows.waits["claude.toolu_0_0"].used_by == gateway.calls[0].id


def test_the_cli_asks_for_a_title_and_says_that_it_continues_after_a_park() -> None:
    bank = Bank()
    with MemoryGateway() as gateway, FakeAnthropic([pays(5), Reply("Paid.")]) as model:
        titled = {"env": {"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": ""}}

        def work(run: AsyncRun[Any]) -> Any:
            return answer(run, session(run, model, bank, approve=[PAY], options=titled))

        assert isinstance(attempt(gateway, work), dalsegno.Parked)
        gateway.approve("claude.toolu_0_0")
        assert attempt(gateway, work) == "Paid."
        assert (bank.cents, len(model.requests), len(model.title_requests)) == ([5], 2, 1)
        *_, result, said = model.requests[-1]["messages"][-1]["content"]
        assert (result["type"], said["text"]) == ("tool_result", "Continue from where you left off.")


def test_a_person_changes_a_call_and_the_changed_call_is_made() -> None:
    bank = Bank()
    with MemoryGateway() as gateway, FakeAnthropic([pays(5), Reply("Paid.")]) as model:

        def work(run: AsyncRun[Any]) -> Any:
            return answer(run, session(run, model, bank, approve=[PAY]))

        assert isinstance(attempt(gateway, work), dalsegno.Parked)
        gateway.approve("claude.toolu_0_0", changes={"cents": 4})
        bank.before_paying = lose
        assert isinstance(attempt(gateway, work), Lost)
        bank.before_paying = lambda _: None
        assert attempt(gateway, work) == "Paid."
        assert (bank.cents, results(model)) == ([4], {"toolu_0_0": "paid 4"})


def test_a_denied_call_is_not_made_and_the_model_reads_the_reason() -> None:
    bank = Bank()
    with MemoryGateway() as gateway, FakeAnthropic([pays(5), Reply("Then not.")]) as model:

        def work(run: AsyncRun[Any]) -> Any:
            return answer(run, session(run, model, bank, approve=[PAY]))

        assert isinstance(attempt(gateway, work), dalsegno.Parked)
        gateway.deny("claude.toolu_0_0", by="ann", reason="too much")
        assert attempt(gateway, work) == "Then not."
        assert bank.paid == [] and "ann has denied it: too much" in results(model)["toolu_0_0"]


def test_an_approval_that_nobody_gives_in_time_is_a_no() -> None:
    bank = Bank()
    with MemoryGateway() as gateway, FakeAnthropic([pays(5), Reply("Then not.")]) as model:

        def work(run: AsyncRun[Any]) -> Any:
            return answer(run, session(run, model, bank, approve=[PAY], approval_expires=60))

        assert isinstance(attempt(gateway, work), dalsegno.Parked)
        gateway.advance(61)
        assert attempt(gateway, work) == "Then not."
        assert bank.paid == [] and "in time" in results(model)["toolu_0_0"]


def test_of_two_calls_that_need_a_person_in_one_message_the_first_waits_and_none_is_lost() -> None:
    bank = Bank()
    with MemoryGateway() as gateway, FakeAnthropic([pays(5, 6), pays(6), Reply("Paid.")]) as model:

        def work(run: AsyncRun[Any]) -> Any:
            return answer(run, session(run, model, bank, approve=[PAY]))

        assert isinstance(attempt(gateway, work), dalsegno.Parked)
        gateway.approve("claude.toolu_0_0")
        assert isinstance(attempt(gateway, work), dalsegno.Parked)
        gateway.approve("claude.toolu_1_0")
        assert attempt(gateway, work) == "Paid."
        assert bank.cents == [5, 6]


def test_a_tool_that_refuses_is_an_error_for_the_model_and_is_not_called_again() -> None:
    bank, refused = Bank(), []

    def refuse(args: Any) -> None:
        refused.append(args)
        raise dalsegno.CallFailed("no money")

    with MemoryGateway() as gateway, FakeAnthropic([pays(5), pays(6), Reply("No.")]) as model:
        bank.before_paying = lambda args: refuse(args) if args["cents"] == 5 else lose(args)
        assert isinstance(attempt(gateway, lambda run: answer(run, session(run, model, bank))), Lost)
        bank.before_paying = lambda _: None
        assert attempt(gateway, lambda run: answer(run, session(run, model, bank))) == "No."
        assert results(model) == {"toolu_0_0": "no money", "toolu_1_0": "paid 6"}
        assert (len(refused), bank.cents) == (1, [6])


def test_a_probe_finds_out_what_became_of_a_call() -> None:
    bank, asked = Bank(), []

    def probe(arguments: Any, key: str) -> Any:
        asked.append((arguments, key))
        return {"content": [{"type": "text", "text": "it was paid"}]}

    with MemoryGateway() as gateway, FakeAnthropic([pays(5), Reply("Paid.")]) as model:

        def work(run: AsyncRun[Any]) -> Any:
            return answer(run, session(run, model, bank, policies={PAY: "probe"}, probes={PAY: probe}))

        bank.before_paying = lose
        assert isinstance(attempt(gateway, work), Lost)
        assert attempt(gateway, work) == "Paid."
        assert (bank.paid, results(model)) == ([], {"toolu_0_0": "it was paid"})
        assert [arguments for arguments, _ in asked] == [{"cents": 5}]


def test_a_probe_that_finds_nothing_lets_the_tool_run_under_the_same_key() -> None:
    bank = Bank()

    async def probe(arguments: Any, key: str) -> Any:
        raise dalsegno.CallFailed

    with MemoryGateway() as gateway, FakeAnthropic([pays(5), Reply("Paid.")]) as model:

        def work(run: AsyncRun[Any]) -> Any:
            return answer(run, session(run, model, bank, policies={PAY: "probe"}, probes={PAY: probe}))

        bank.before_paying = lose
        assert isinstance(attempt(gateway, work), Lost)
        bank.before_paying = lambda _: None
        assert attempt(gateway, work) == "Paid."
        assert bank.paid == [(gateway.calls[0].key, 5)]


def test_the_error_of_a_read_only_tool_is_for_the_model() -> None:
    bank = Bank()
    script = [Reply("", tool_calls=[ToolCall(PAY, {"cents": 5})]), Reply("It failed.")]
    with MemoryGateway() as gateway, FakeAnthropic(script) as model:
        bank.before_paying = lose
        work = lambda run: answer(run, session(run, model, bank, policies={PAY: "readOnly"}))  # noqa: E731
        assert attempt(gateway, work) == "It failed."
        assert results(model) == {"toolu_0_0": "Lost"}


def test_a_tool_of_the_cli_that_changes_files_is_refused_unless_the_agent_says_otherwise() -> None:
    bank = Bank()
    script = [Reply("", tool_calls=[ToolCall("Bash", {"command": "echo hello"})]), Reply("Done.")]
    for untracked, expected in (([], False), (["Bash"], True)):
        with MemoryGateway() as gateway, FakeAnthropic(script) as model:
            more = {"tools": ["Bash"], "permission_mode": "bypassPermissions", "env": {"IS_SANDBOX": "1"}}
            work = lambda run: answer(run, session(run, model, bank, options=more, untracked=untracked))  # noqa: B023, E731
            assert attempt(gateway, work) == "Done."
            assert ("hello" in results(model)["toolu_0_0"]) is expected
            assert any(it["name"] == "Bash" for it in model.requests[0]["tools"]) is expected


def test_a_suspended_run_parks_and_goes_on_without_asking_the_model_again() -> None:
    bank = Bank()
    with MemoryGateway() as gateway, FakeAnthropic([pays(5), Reply("Paid.")]) as model:

        async def suspend(_: Any) -> None:
            gateway.suspend()
            await asyncio.sleep(0.5)  # the tool runs to its end

        bank.before_paying = suspend
        work = lambda run: answer(run, session(run, model, bank))  # noqa: E731
        assert isinstance(attempt(gateway, work), dalsegno.Suspended)
        assert bank.cents == [5]
        gateway.suspend(on=False)
        asked = len(model.requests)
        assert attempt(gateway, work) == "Paid."
        assert len(bank.paid) == 1 and asked <= 2 and len(model.requests) <= 3


def test_a_rate_limit_of_the_model_parks_the_run() -> None:
    bank = Bank()
    with MemoryGateway() as gateway, FakeAnthropic([pays(5), Reply("Paid.")]) as model:
        work = lambda run: answer(run, session(run, model, bank, options={"env": {"CLAUDE_CODE_MAX_RETRIES": "0"}}))  # noqa: E731
        model.fail_next(429, times=1)
        first = attempt(gateway, work)
        assert isinstance(first, dalsegno.Parked), first
        gateway.advance(120)
        assert attempt(gateway, work) == "Paid."
        assert bank.cents == [5]


def test_an_error_of_the_model_ends_the_attempt_and_the_next_one_goes_on() -> None:
    bank = Bank()
    with MemoryGateway() as gateway, FakeAnthropic([pays(5), Reply("Paid.")]) as model:
        work = lambda run: answer(run, session(run, model, bank, options={"env": {"CLAUDE_CODE_MAX_RETRIES": "0"}}))  # noqa: E731
        bank.before_paying = lambda _: model.fail_next(400, times=3)
        assert isinstance(attempt(gateway, work), SessionFailed)
        assert gateway.finish is None
        model._failures.clear()
        bank.before_paying = lambda _: None
        assert attempt(gateway, work) == "Paid."
        assert len(bank.paid) == 1 and results(model) == {"toolu_0_0": "paid 5"}


def test_what_cannot_be_stored_ends_the_session(monkeypatch: pytest.MonkeyPatch) -> None:
    bank = Bank()
    with MemoryGateway() as gateway, FakeAnthropic([pays(5), Reply("Paid.")]) as model:

        async def work(run: AsyncRun[Any]) -> Any:
            of = session(run, model, bank)

            def refuse(*_: Any) -> None:
                raise dalsegno.Refused("TOO_LARGE", "too large")

            monkeypatch.setattr(of._mirror, "_append", refuse)
            return await answer(run, of)

        error = attempt(gateway, work)
        assert isinstance(error, dalsegno.Refused) and error.code == "TOO_LARGE"
        assert (bank.paid, gateway.events) == ([], [])


def test_an_answer_that_is_missing_from_the_transcript_is_not_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    bank = Bank()
    with MemoryGateway() as gateway, FakeAnthropic([pays(5), Reply("Paid.")]) as model:

        async def work(run: AsyncRun[Any]) -> Any:
            of = session(run, model, bank)
            append = of._mirror.append

            async def lossy(key: Any, entries: list[Any]) -> None:
                await append(key, [entry for entry in entries if "Paid." not in str(entry)])

            monkeypatch.setattr(of._mirror, "append", lossy)
            return await answer(run, of)

        assert "has not handed over" in str(attempt(gateway, work))
        assert gateway.events == [{"tool": PAY, "id": "toolu_0_0"}]
        assert attempt(gateway, lambda run: answer(run, session(run, model, bank))) == "Paid."
        assert bank.cents == [5]


def test_read_only_tools_run_again() -> None:
    bank = Bank()
    script = [Reply("", tool_calls=[ToolCall(LOOK), ToolCall(PAY, {"cents": 5})]), Reply("Paid.")]
    with MemoryGateway() as gateway, FakeAnthropic(script) as model:
        bank.before_paying = lose
        work = lambda run: answer(run, session(run, model, bank))  # noqa: E731
        assert isinstance(attempt(gateway, work), Lost)
        bank.before_paying = lambda _: None
        assert attempt(gateway, work) == "Paid."
        assert (bank.looked, bank.cents, len(model.requests)) == (1, [5], 2)
        assert results(model) == {"toolu_0_0": "9000 cents", "toolu_0_1": "paid 5"}


def test_a_call_with_the_policy_ask_is_settled_by_a_person_and_the_model_reads_what_was_found() -> None:
    bank = Bank()
    with MemoryGateway() as gateway, FakeAnthropic([pays(5), Reply("Paid.")]) as model:
        work = lambda run: answer(run, session(run, model, bank, policies={PAY: "ask"}))  # noqa: E731
        bank.before_paying = lose
        assert isinstance(attempt(gateway, work), Lost)
        assert "is held" in gateway.why_no_process
        found = {"content": [{"type": "text", "text": "the bank has it"}]}
        gateway.settle(gateway.calls[0].id, "completed", result=found)
        assert attempt(gateway, work) == "Paid."
        assert (bank.paid, results(model), len(model.requests)) == ([], {"toolu_0_0": "the bank has it"}, 2)


def test_after_a_crash_in_an_untracked_call_the_model_is_told_that_its_outcome_is_unknown(tmp_path: Path) -> None:
    bank = Bank()

    def script(body: dict[str, Any]) -> Reply:
        if len(body["messages"]) == 1:
            return Reply("", tool_calls=[ToolCall("Bash", {"command": f"touch {tmp_path}/done; sleep 30"})])
        return Reply("I looked.")

    more = {"tools": ["Bash"], "permission_mode": "bypassPermissions", "env": {"IS_SANDBOX": "1"}}
    with MemoryGateway() as gateway, FakeAnthropic(script) as model:

        async def die(run: AsyncRun[Any]) -> None:
            of = session(run, model, bank, options=more, untracked=["Bash"])
            asking = asyncio.ensure_future(answer(run, of))
            while not (tmp_path / "done").exists():
                await asyncio.sleep(0.05)
            of._fail(Lost())
            await asyncio.gather(asking, return_exceptions=True)
            raise Lost

        assert isinstance(attempt(gateway, die), Lost)
        work = lambda run: answer(run, session(run, model, bank, options=more, untracked=["Bash"]))  # noqa: E731
        assert attempt(gateway, work) == "I looked."
        assert "outcome is unknown" in results(model)["toolu_0_0"] and len(model.requests) == 2


def test_a_subagent_uses_the_tools_of_the_process_if_the_agent_allows_it() -> None:
    bank = Bank()

    def script(body: dict[str, Any]) -> Reply:
        spoken: int = sum(message["role"] == "assistant" for message in body["messages"])
        if "the sub task" in str(body["messages"][0]) and "Pay 5 cents." not in str(body["messages"][0]):
            return [Reply("", tool_calls=[ToolCall(LOOK, id="toolu_sub")]), Reply("9000")][spoken]
        sub = {"description": "look", "prompt": "Do the sub task.", "subagent_type": "general-purpose"}
        return [Reply("", tool_calls=[ToolCall("Agent", {**sub, "run_in_background": False})]), Reply("Done.")][min(spoken, 1)]

    with MemoryGateway() as gateway, FakeAnthropic(script) as model:
        more = {"tools": ["Agent"]}
        work = lambda run: answer(run, session(run, model, bank, options=more, untracked=["Agent", "Task"]))  # noqa: E731
        assert attempt(gateway, work) == "Done."
        assert (bank.looked, {"tool": LOOK, "id": "toolu_sub"} in gateway.events) == (1, True)


def test_after_a_rewind_the_conversation_goes_on_where_the_run_does_and_a_person_is_asked_again() -> None:
    bank = Bank()
    with MemoryGateway() as gateway, FakeAnthropic([pays(5), pays(6), Reply("Paid.")]) as model:

        def work(run: AsyncRun[Any]) -> Any:
            return answer(run, session(run, model, bank, approve=[PAY]))

        assert isinstance(attempt(gateway, work), dalsegno.Parked)
        gateway.approve("claude.toolu_0_0")
        assert isinstance(attempt(gateway, work), dalsegno.Parked)
        assert gateway.open_waits == ["claude.toolu_1_0"]
        gateway.rewind(2)  # the end of the first payment
        assert isinstance(attempt(gateway, work), dalsegno.Parked)
        assert gateway.open_waits == ["claude.toolu_1_0"]
        gateway.approve("claude.toolu_1_0")
        assert attempt(gateway, work) == "Paid."
        assert (bank.cents, results(model)) == ([5, 6], {"toolu_0_0": "paid 5", "toolu_1_0": "paid 6"})
