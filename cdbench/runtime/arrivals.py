"""Requests that are not resident yet: those still to arrive, and those waiting for a place."""

from __future__ import annotations

import heapq
from collections import deque

from cdbench.runtime.core import Request


class Arrivals:
    """First come, first served; requests that arrive together keep their submission order."""

    def __init__(self) -> None:
        self.waiting: deque[Request] = deque()
        self._future: list[tuple[float, int, Request]] = []
        self._submitted = 0

    @property
    def pending_count(self) -> int:
        return len(self.waiting) + len(self._future)

    @property
    def next_s(self) -> float | None:
        """When the next request arrives; None where none is still to come."""
        return self._future[0][0] if self._future else None

    def submit(self, request: Request) -> None:
        """Expect a request at its arrival time."""
        heapq.heappush(self._future, (request.arrival_s, self._submitted, request))
        self._submitted += 1

    def arrive(self, now_s: float) -> None:
        """Let those wait whose time has come."""
        while self._future and self._future[0][0] <= now_s:
            self.waiting.append(heapq.heappop(self._future)[-1])

    def withdraw(self, request_id: str) -> Request | None:
        """Take out the request of this id, if it is here."""
        for request in self.waiting:
            if request.id == request_id:
                self.waiting.remove(request)
                return request
        for entry in self._future:
            if entry[-1].id == request_id:
                self._future.remove(entry)
                heapq.heapify(self._future)
                return entry[-1]
        return None
