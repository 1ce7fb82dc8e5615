"""A client that takes nothing is cut off, and one that goes ends what is computed for it."""

from __future__ import annotations

import asyncio

import pytest

SCOPE = {"method": "POST", "path": "/v1/completions\x1b", "client": ("127.0.0.1", 9), "headers": []}


@pytest.fixture
def http_call(load):
    load("terminal")
    load("serving/openai_requests", "openai_requests")
    load("serving/openai_answers", "openai_answers")
    return load("serving/http_call", "http_call")


def test_a_reader_that_takes_nothing_is_cut_off(http_call):
    async def wait_for_ever(message) -> None:
        await asyncio.Event().wait()

    async def run() -> str:
        call = http_call.Call(SCOPE, None, wait_for_ever, send_seconds=0.05)
        with pytest.raises(http_call.ClientGone):
            await call.begin_stream()
        return call.describe()

    line = asyncio.run(run())
    assert "slow_reader" in line and "\\x1b" in line and "\x1b" not in line


def test_work_ends_when_its_client_goes(http_call):
    ended = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    async def receive() -> dict:
        return {"type": "http.disconnect"}

    async def run() -> None:
        call = http_call.Call(SCOPE, receive, None, send_seconds=1)
        with pytest.raises(http_call.ClientGone):
            await call.run_until_gone(work())

    asyncio.run(asyncio.wait_for(run(), 10))
    assert ended == [True]


@pytest.mark.parametrize(("others", "seconds", "status"), [(1, 30, 429), (0, 0.05, 408)])
def test_a_body_that_gives_way_to_others_is_no_slow_one(http_call, monkeypatch, others, seconds, status):
    """429, which says when to come again; 408 is for who has had the time."""
    monkeypatch.setattr(http_call, "BODY_SECONDS", seconds)
    incoming = http_call.Incoming(1)

    async def receive() -> dict:
        await asyncio.Event().wait()
        return {}

    async def read() -> None:
        await http_call.Call(SCOPE, receive, None, send_seconds=1).read_body(100, incoming)

    async def run() -> int:
        tasks = [asyncio.create_task(read()) for _ in range(1 + others)]
        with pytest.raises(http_call.Refused) as refused:
            await tasks[0]
        for task in tasks:
            task.cancel()
        return refused.value.status

    assert asyncio.run(asyncio.wait_for(run(), 10)) == status
