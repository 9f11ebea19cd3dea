"""`AsyncSpace`: a space of a run's records, in the thread of the requests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from dalsegno._portal import Portal
from dalsegno._records import Item
from dalsegno._space import Space


class AsyncSpace:
    """A space of a run's records, for asyncio. See `Space`."""

    def __init__(self, portal: Portal, space: Space) -> None:
        self._portal = portal
        self.sync = space
        """The space below."""
        self.name = space.name

    async def put(self, key: str, value: Any) -> None:
        """See `Space.put`."""
        await self._portal.call(self.sync.put, key, value)

    async def put_if_absent(self, key: str, value: Any) -> None:
        """See `Space.put_if_absent`."""
        await self._portal.call(self.sync.put_if_absent, key, value)

    async def append(self, key: str, entry_id: str, value: Any) -> None:
        """See `Space.append`."""
        await self._portal.call(self.sync.append, key, entry_id, value)

    async def delete(self, key: str) -> None:
        """See `Space.delete`."""
        await self._portal.call(self.sync.delete, key)

    async def items(self, prefix: str = "", reverse: bool = False) -> AsyncIterator[Item]:
        """See `Space.items`: `async for item in space.items()`."""
        items = self.sync.items(prefix, reverse)
        while (item := await self._portal.call(next, items, None)) is not None:
            yield item

    async def get(self, key: str, default: Any = None) -> Any:
        """See `Space.get`."""
        return await self._portal.call(self.sync.get, key, default)

    async def blob_put(self, key: str, content: bytes) -> None:
        """See `Space.blob_put`."""
        await self._portal.call(self.sync.blob_put, key, content)

    async def blob_get(self, key: str) -> bytes | None:
        """See `Space.blob_get`."""
        return await self._portal.call(self.sync.blob_get, key)
