"""What a durable agent takes longer than the same agent without: the time from one question for the model to the next.

    overhead.py FRAMEWORK [--turns 200] [--seconds 1.0]

The model is a fake server that answers after so many seconds, each time with one call of a tool. Two processes run at the
same time, each with a model of its own: the agent as its framework runs it, and the agent on `dalsegno dev`
(`DALSEGNO_PROGRAM`). It prints a row of a table. The frameworks' packages have to be installed (hack/adapters.sh).
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import http.client
import itertools
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dalsegno.testing.models import FakeAnthropic, FakeOpenAI, Reply, ToolCall

SOURCES = Path(__file__).parents[1] / "src"
TASK = "Write notes."


class Timed:
    """A fake model that notes when it was asked."""

    def __init__(self, framework: str, turns: int, seconds: float) -> None:
        self.asked: list[float] = []
        numbers = itertools.count(1)

        def reply(_: dict[str, Any]) -> Reply:
            self.asked.append(time.monotonic())
            number = next(numbers)
            time.sleep(seconds)
            name = "mcp__notes__note" if framework == "claude" else "note"
            return Reply(tool_calls=[ToolCall(name, {"number": number})]) if number <= turns else Reply("done")

        self.server = (FakeAnthropic if framework == "claude" else FakeOpenAI)(reply)

    def turns(self) -> list[float]:
        """The seconds of each turn, without the first one, in which clients connect."""
        return [later - earlier for earlier, later in itertools.pairwise(self.asked)][1:]


def main() -> None:
    """Runs both agents, or one of them as their process."""
    parser = argparse.ArgumentParser()
    parser.add_argument("framework", choices=[*AGENTS])
    parser.add_argument("--turns", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--agent", choices=["own", "durable"])
    given = parser.parse_args()
    if given.agent is None:
        print(measure(given.framework, given.turns, given.seconds), flush=True)
        return
    if given.agent == "durable":
        count_requests()
    AGENTS[given.framework](given.agent == "durable", given.turns)


def measure(framework: str, turns: int, seconds: float) -> str:
    """Runs the two agents side by side, and returns a row of a table."""
    own, durable = Timed(framework, turns, seconds), Timed(framework, turns, seconds)
    with tempfile.TemporaryDirectory() as folder:
        counts = Path(folder, "counts")
        agent = [sys.executable, __file__, framework, "--turns", str(turns), "--agent"]
        on_dev = [os.environ.get("DALSEGNO_PROGRAM", "dalsegno"), "dev", "--", *agent, "durable"]
        processes = [
            start([*agent, "own"], own, folder, {}),
            start(on_dev, durable, folder, {"OVERHEAD_COUNTS": str(counts)}),
        ]
        for process, model in zip(processes, (own, durable)):
            output, _ = process.communicate()
            assert process.returncode == 0 and len(model.asked) == turns + 1, output
        requests: dict[str, int] = json.loads(counts.read_text())
    first, second = statistics.median(own.turns()), statistics.median(durable.turns())
    p95 = [statistics.quantiles(model.turns(), n=20)[-1] for model in (own, durable)]
    each = ", ".join(f"{count / turns:.2f} {name}" for name, count in sorted(requests.items()) if count * 50 >= turns)
    writes = sum(count for name, count in requests.items()) / turns
    return (
        f"| {framework} | {first * 1000:.1f} ms | {second * 1000:.1f} ms | {(second - first) * 1000:+.1f} ms"
        f" | {(second / first - 1) * 100:+.2f} % | {p95[0] * 1000:.0f} / {p95[1] * 1000:.0f} ms | {writes:.2f} | {each} |"
    )


def start(command: list[str], model: Timed, folder: str, more: dict[str, str]) -> subprocess.Popen[str]:
    quiet = {"OPENAI_AGENTS_DISABLE_TRACING": "1", "PYTHONPATH": str(SOURCES)}
    variables = {**os.environ, **quiet, **model.server.environment, **more}
    return subprocess.Popen(
        command, cwd=folder, env=variables, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )


def count_requests() -> None:
    """Counts the writes that this process sends to the gateway, by kind, and stores the counts at its end."""
    import atexit

    counts: collections.Counter[str] = collections.Counter()
    place = os.environ["DALSEGNO_URL"].partition("//")[2].partition("/")[0]
    send = http.client.HTTPConnection.request

    def request(self: http.client.HTTPConnection, method: str, url: str, *rest: Any, **named: Any) -> None:
        kind = re.sub(r".*/v1/", "", url.partition("?")[0]).rsplit("/", 1)
        name = kind[-1] if not kind[-1].isdigit() else "commit"
        if f"{self.host}:{self.port}" == place and method != "GET" and name not in ("heartbeat", "attach", "finish"):
            counts[name] += 1
        send(self, method, url, *rest, **named)

    setattr(http.client.HTTPConnection, "request", request)
    atexit.register(lambda: Path(os.environ["OVERHEAD_COUNTS"]).write_text(json.dumps(counts)))


def plain(durable: bool, turns: int) -> None:
    """A loop of one's own: ask, call the tool."""

    def ask(said: int) -> int:
        body = {"messages": [{"role": "user", "content": TASK}] + [{"role": "assistant", "content": ""}] * said}
        url = f"{os.environ['OPENAI_BASE_URL']}/chat/completions"
        with urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode())) as answer:
            calls = json.load(answer)["choices"][0]["message"].get("tool_calls")
        return json.loads(calls[0]["function"]["arguments"])["number"] if calls else 0

    if not durable:
        notes: list[int] = []
        while number := ask(len(notes)):
            notes.append(number)
        return
    import dalsegno

    @dalsegno.tool(policy="retrySameKey")
    def note(number: int, *, key: str = "") -> int:
        return number

    with dalsegno.attach() as run:
        stored = run.state.setdefault("notes", [])
        while True:
            with run.turn() as turn:
                number = turn.step("ask", ask, len(stored))
                if number == 0:
                    turn.finish()
                    return
                stored.append(note(number))


def langgraph(durable: bool, turns: int) -> None:
    """A graph of a model and a node of tools."""
    import dalsegno
    from dalsegno.langgraph import RecordSaver, guard, run_graph
    from langchain_openai import ChatOpenAI
    from langgraph.graph import START, MessagesState, StateGraph
    from langgraph.prebuilt import ToolNode, tools_condition

    def note(number: int) -> str:
        """Writes a note."""
        return f"note {number}"

    model = ChatOpenAI(model="gpt-5-mini").bind_tools([note])

    def build(saver: Any = None, **options: Any) -> Any:
        graph = StateGraph(MessagesState)
        graph.add_node("think", lambda state: {"messages": [model.invoke(state["messages"])]})
        graph.add_node("tools", ToolNode([note], **options))
        graph.add_edge(START, "think")
        graph.add_conditional_edges("think", tools_condition)
        graph.add_edge("tools", "think")
        return graph.compile(checkpointer=saver)

    question, config = {"messages": [("user", TASK)]}, {"recursion_limit": 3 * turns + 10}
    if not durable:
        build().invoke(question, config)
        return
    with dalsegno.attach() as run:
        agent = build(RecordSaver(run), wrap_tool_call=guard(run, note="retrySameKey"))
        run_graph(run, agent, question, config=config)
        run.finish()


def claude(durable: bool, turns: int) -> None:
    """A conversation with the CLI, and a tool in this process."""
    import dalsegno.aio
    from claude_agent_sdk import ClaudeAgentOptions, create_sdk_mcp_server, query, tool
    from dalsegno.claude import Session

    @tool("note", "Writes a note.", {"number": int})
    async def note(args: dict[str, Any]) -> dict[str, Any]:
        return {"content": [{"type": "text", "text": f"note {args['number']}"}]}

    def options(**more: Any) -> Any:
        quiet = {"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1"}
        given = {"model": "claude-sonnet-4-5", "tools": [], "setting_sources": [], "env": quiet, "system_prompt": "You note."}
        return ClaudeAgentOptions(**given, **more)

    async def own() -> None:
        servers = {"notes": create_sdk_mcp_server("notes", tools=[note])}
        async for _ in query(prompt=TASK, options=options(mcp_servers=servers, allowed_tools=["mcp__notes__note"])):
            pass

    async def on_dalsegno() -> None:
        async with await dalsegno.aio.attach() as run:
            session = Session(run, options(), tools={"notes": [note]}, policies={"mcp__notes__note": "retrySameKey"})
            async for _ in session.run(TASK):
                pass
            await run.finish()

    asyncio.run(on_dalsegno() if durable else own())


def openai(durable: bool, turns: int) -> None:
    """An agent of the SDK with one tool."""
    import dalsegno.aio
    from agents import Agent, Runner, function_tool
    from dalsegno.openai import guard, run_agent

    @function_tool
    def note(number: int) -> str:
        """Writes a note."""
        return f"note {number}"

    agent = Agent[Any](name="Writer", tools=[note])

    async def on_dalsegno() -> None:
        async with await dalsegno.aio.attach() as run:
            await run_agent(run, guard(run, agent, note="retrySameKey"), TASK, max_turns=turns + 10)
            await run.finish()

    asyncio.run(on_dalsegno() if durable else Runner.run(agent, TASK, max_turns=turns + 10))


def pydantic_ai(durable: bool, turns: int) -> None:
    """An agent run with one tool: one turn of the run, so its calls are what makes it durable."""
    import dalsegno.aio
    from dalsegno.pydantic_ai import Durability
    from pydantic_ai import Agent
    from pydantic_ai.usage import UsageLimits

    def note(number: int) -> str:
        """Writes a note."""
        return f"note {number}"

    limits = UsageLimits(request_limit=None)

    async def on_dalsegno() -> None:
        agent = Agent("openai-chat:gpt-5.2", name="writer", tools=[note], capabilities=[Durability(tools={"note": "retrySameKey"})])
        async with await dalsegno.aio.attach() as run:
            async with run.turn() as turn:
                await agent.run(TASK, usage_limits=limits)
                turn.finish()

    async def own() -> None:
        await Agent("openai-chat:gpt-5.2", name="writer", tools=[note]).run(TASK, usage_limits=limits)

    asyncio.run(on_dalsegno() if durable else own())


AGENTS: dict[str, Callable[[bool, int], None]] = {
    "plain": plain, "langgraph": langgraph, "claude": claude, "openai": openai, "pydantic_ai": pydantic_ai,
}

if __name__ == "__main__":
    main()
