"""`AsyncSpace`: a space of a run's records, in the thread of the requests."""

from __future__ import annotations

from collections.abc import AsyncIterator

from dalsegno._portal import Portal
from dalsegno._records import Item
from dalsegno._space import Space
from dalsegno.aio._forward import forwarded


class AsyncSpace:
    """A space of a run's records, for asyncio. See `Space`."""

    def __init__(self, portal: Portal, space: Space) -> None:
        self._portal = portal
        self.sync = space
        """The space below."""
        self.name = space.name

    put = forwarded(Space.put)
    put_if_absent = forwarded(Space.put_if_absent)
    append = forwarded(Space.append)
    delete = forwarded(Space.delete)
    delete_prefix = forwarded(Space.delete_prefix)
    get = forwarded(Space.get)
    get_many = forwarded(Space.get_many)
    blob_put = forwarded(Space.blob_put)
    blob_get = forwarded(Space.blob_get)

    async def items(self, prefix: str = "", reverse: bool = False) -> AsyncIterator[Item]:
        """See `Space.items`: `async for item in space.items()`."""
        items = self.sync.items(prefix, reverse)
        while (item := await self._portal.call(next, items, None)) is not None:
            yield item

    async def keys(self, prefix: str = "", reverse: bool = False) -> AsyncIterator[str]:
        """See `Space.keys`: `async for key in space.keys()`."""
        keys = self.sync.keys(prefix, reverse)
        while (key := await self._portal.call(next, keys, None)) is not None:
            yield key
