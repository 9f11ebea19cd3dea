"""How this process ends: on SIGTERM, on a fence, or with a message why it failed."""

from __future__ import annotations

import json
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NoReturn

from dalsegno._errors import StoreUnavailable

GRACE_SECONDS: float = 10
"""From SIGTERM to the end of the process, in seconds, whatever its loop is doing."""

SIGTERM_EXIT_CODE = 143  # 128 + 15, as a shell reports it
MAX_MESSAGE_CHARACTERS = 512


class Termination:
    """Whether SIGTERM has come, and the hard end that follows it.

    Invariant: once SIGTERM has come, the process ends within `dalsegno.GRACE_SECONDS`, whatever its loop is doing.
    """

    def __init__(self) -> None:
        # SimpleQueue.put may be interrupted by another put: a second SIGTERM may interrupt the handler of the first.
        self._received: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._restore: Callable[[], None] | None = None

    @property
    def requested(self) -> bool:
        """Whether SIGTERM has come."""
        return not self._received.empty()

    def install(self) -> None:
        """Installs the handler. Errors: `ValueError` outside of the main thread.

        A forked process has no thread that waits: SIGTERM ends it at once. It gets the default handler back, because a
        handler in Python does not run while the process blocks in C, and a signal just before that is not seen in time.
        """
        owner = os.getpid()

        def on_sigterm(*_: object) -> None:
            if os.getpid() != owner:
                os._exit(SIGTERM_EXIT_CODE)
            self._received.put(None)

        threading.Thread(target=self._exit_after_grace, daemon=True).start()
        previous = signal.signal(signal.SIGTERM, on_sigterm)

        def restore() -> None:
            if signal.getsignal(signal.SIGTERM) is on_sigterm:
                signal.signal(signal.SIGTERM, previous)

        self._restore = restore

        def restore_default() -> None:
            if signal.getsignal(signal.SIGTERM) is on_sigterm:
                signal.signal(signal.SIGTERM, signal.SIG_DFL)

        os.register_at_fork(after_in_child=restore_default)

    def uninstall(self) -> None:
        """Gives SIGTERM back to the handler that was there before, if this one is still installed."""
        if self._restore and threading.current_thread() is threading.main_thread():
            self._restore()

    def _exit_after_grace(self) -> NoReturn:
        self._received.put(self._received.get())  # wait for the signal, and leave it there for `requested`
        time.sleep(_setting("GRACE_SECONDS"))
        os._exit(SIGTERM_EXIT_CODE)


def say(text: str) -> None:
    """Writes a line to stderr, past any buffer. Nothing depends on its being read: errors are ignored."""
    with suppress(OSError):
        os.write(2, f"dalsegno: {text}\n".encode("utf-8", "replace"))


def exit_over(code: str, detail: str) -> NoReturn:
    """Ends the process at once, without cleanup, with 0 where the run is finished, and with 1 otherwise."""
    say(f"{code}: {detail}")
    os._exit(0 if code == "FINISHED" else 1)


def fail(message: str, fatal: bool) -> NoReturn:
    """Writes the termination message, if there is a file for it, and raises `SystemExit` with code 1."""
    kind = "fatal" if fatal else "crash"
    _write_message(kind, message)
    sys.exit(f"dalsegno: {kind}: {message}")


def leave_store(name: str, reason: str) -> NoReturn:
    """Ends the process because the store was unavailable for too long. The run is not charged for that.

    Errors: always `StoreUnavailable`.
    """
    message = f"{name}: no answer within the store's timeout ({reason})"
    _write_message("disruption", message)
    raise StoreUnavailable(message)


def _write_message(kind: str, message: str) -> None:
    """Writes the termination message, if there is a file for it."""
    log = _setting("TERMINATION_LOG")
    if log.exists():
        word = {"dalsegno": 1, "class": kind, "message": message[:MAX_MESSAGE_CHARACTERS]}
        log.write_bytes(json.dumps(word, ensure_ascii=False).encode("utf-8", "replace"))


def _setting(name: str) -> Any:
    """A public constant, read from the package when it is needed: an agent may assign `dalsegno.GRACE_SECONDS`."""
    return getattr(sys.modules["dalsegno"], name)
