"""Requests to a server: some at a time, repeated while it is busy, and cancelled by an interrupt."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import threading
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")

_FIRST_WAIT = 0.5  # seconds before the second attempt; doubled before each further one, ...
_LONGEST_WAIT = 30.0  # ... up to this, which also limits what a server asks for
_CONNECT_TIMEOUT = 10.0
_IN_FLIGHT = 4  # requests at a time
_KEY = "NTLOSS_API_KEY"  # the environment variable of a server's key
_LONGEST_REASON = 300  # characters of a server's own message


class ServerError(RuntimeError):
    """A server did not answer, refused a request, or returned something else than it documents."""


class Request(NamedTuple):
    """What to ask: with a body by POST, otherwise by GET."""

    path: str
    body: dict[str, Any] | None = None


@dataclass(frozen=True)
class Connection:
    """How a server is reached; see `ServedModel`. No socket stays open between two calls of `send`."""

    url: str
    timeout: float
    retries: int

    def send(self, requests: Sequence[Request]) -> list[Any]:
        """Return the JSON answers to requests, in their order; a ServerError if one fails."""
        return _run_apart(self._send_all(requests))

    async def _send_all(self, requests: Sequence[Request]) -> list[Any]:
        try:
            http = import_module("httpx2")
        except ImportError as error:
            raise ServerError("servers need an HTTP client: pip install 'ntloss[serve]'") from error
        places = asyncio.Semaphore(_IN_FLIGHT)
        timeout = http.Timeout(self.timeout, connect=min(_CONNECT_TIMEOUT, self.timeout))
        headers = {"Authorization": f"Bearer {key}"} if (key := self._key()) else {}
        async with http.AsyncClient(timeout=timeout, headers=headers) as client:
            tasks = [asyncio.create_task(self._send(client, http, places, each)) for each in requests]
            try:
                return await asyncio.gather(*tasks)
            finally:  # one has failed, or the program is interrupted
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def _send(self, client: Any, http: Any, places: asyncio.Semaphore, request: Request) -> Any:
        route, problem = self.url + request.path, ""
        for attempt in range(self.retries + 1):
            wait = min(_FIRST_WAIT * 2**attempt, _LONGEST_WAIT) * random.uniform(0.5, 1.0)
            try:
                async with places:
                    method = "GET" if request.body is None else "POST"
                    answer = await client.request(method, route, json=request.body)
            except http.TransportError as error:
                problem = f"{type(error).__name__} {error}".strip()
            else:
                if answer.status_code == 200:
                    try:
                        return answer.json()
                    except ValueError:
                        raise ServerError(f"{route} returned no JSON: is it an inference server?") from None
                text = " ".join(answer.text.split())[:_LONGEST_REASON]
                problem = f"{answer.status_code} {text}".replace(self._key() or "\n", "***")
                if answer.status_code in (401, 403):
                    problem += f". Set the environment variable {_KEY} to a key of this server"
                if answer.status_code != 429 and answer.status_code < 500:
                    raise ServerError(f"{route} refused the request: {problem}")
                with contextlib.suppress(ValueError):
                    wait = max(wait, min(float(answer.headers.get("retry-after", 0)), _LONGEST_WAIT))
            if attempt < self.retries:
                await asyncio.sleep(wait)
        raise ServerError(
            f"{route} failed {self.retries + 1} times, the last time with: {problem}. Check that the server "
            "runs, or pass a larger timeout or more retries if it is busy."
        )

    def _key(self) -> str:
        key = os.environ.get(_KEY, "").strip()
        if not (key.isascii() and key.isprintable()):
            raise ServerError(f"{_KEY} holds characters that no key has: correct it")
        return key


def _run_apart(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in a thread: the loop of a notebook runs in this one. An interrupt cancels it."""
    loop, finished = asyncio.new_event_loop(), threading.Event()
    task = loop.create_task(work)

    def drive() -> None:
        with contextlib.suppress(BaseException):  # task.result() raises it
            loop.run_until_complete(task)
        loop.close()
        finished.set()

    threading.Thread(target=drive, daemon=True).start()
    try:
        finished.wait()  # an interrupted join() takes a running thread for a finished one
    except BaseException:
        loop.call_soon_threadsafe(task.cancel)
        finished.wait()
        raise
    return task.result()
