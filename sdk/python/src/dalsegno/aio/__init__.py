"""Dal Segno for asyncio: the same run, whose requests are sent by one thread.

```python
async with await dalsegno.aio.attach(state=dict) as run:
    while run.next_turn <= run.input["pages"]:
        async with run.turn() as turn:
            text = await turn.step("draft", model, run.state)
            entry = await write_page(turn.number, text)
            run.state.setdefault("pages", []).append(entry)
    await run.finish(output={"pages": len(run.state["pages"])})
```

Each method has the name, the parameters and the errors of `dalsegno.Run`, `dalsegno.Turn` and `dalsegno.Space`. What
sends a request is awaited; what does not is called. A cancelled `await` does not take the request back.

A tool that is an `async def` is awaited, and runs on the event loop. A tool that is a plain function blocks the loop
while it runs: call it by `asyncio.to_thread`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, overload

from dalsegno._codec import S
from dalsegno._portal import LoopWatch
from dalsegno._run import Run
from dalsegno._waits import Answer
from dalsegno.aio._run import AsyncRun
from dalsegno.aio._space import AsyncSpace
from dalsegno.aio._turn import AsyncTurn

__all__ = ["AsyncRun", "AsyncSpace", "AsyncTurn", "attach"]


@overload
async def attach(
    *,
    heartbeat: bool = True,
    sigterm: bool = True,
    every: int = 1,
    store_timeout: float | None = None,
    on_resume: Callable[[AsyncRun[dict[str, Any]], dict[str, Answer]], object] | None = None,
) -> AsyncRun[dict[str, Any]]: ...
@overload
async def attach(
    state: type[S],
    *,
    heartbeat: bool = True,
    sigterm: bool = True,
    every: int = 1,
    store_timeout: float | None = None,
    on_resume: Callable[[AsyncRun[S], dict[str, Answer]], object] | None = None,
) -> AsyncRun[S]: ...
async def attach(
    state: type[Any] = dict,
    *,
    heartbeat: bool = True,
    sigterm: bool = True,
    every: int = 1,
    store_timeout: float | None = None,
    on_resume: Callable[[AsyncRun[Any], dict[str, Answer]], object] | None = None,
) -> AsyncRun[Any]:
    """Attaches this process to its run: `async with await attach() as run`. See `dalsegno.attach`.

    on_resume: a function, or an `async def`.
    """
    inner: Run[Any] = Run(state, sigterm=sigterm, store_timeout=store_timeout)
    run = AsyncRun(inner)
    await run._portal.call(inner._begin, heartbeat, every)
    run._watch = LoopWatch()
    judged = inner._judge_again(on_resume and (lambda _, answers: on_resume(run, answers)))
    if inspect.isawaitable(judged):
        await judged
    return run
