"""The worker's contract in memory: a gateway in this process, for tests of agents.

`MemoryGateway` serves one run on a port of 127.0.0.1. It takes the part of the operator and of people too: it starts
processes of an agent one after the other, kills them at any request, approves, sends messages, suspends and cancels.

It follows the contract as far as an agent can see it, without most of its limits of size and number, its audit,
checkpoints and bundles. Nothing is stored: the run ends with the process.
"""

from dalsegno.testing.memory._gateway import MemoryGateway
from dalsegno.testing.memory._process import CrashPoint, Ended, crash_points

__all__ = ["CrashPoint", "Ended", "MemoryGateway", "crash_points"]
