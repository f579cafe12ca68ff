"""One output from as many engines as it takes: a worker that is lost is replaced, and the next one goes on after the last token."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import aclosing

import msgspec

from rlrun.errors import Unavailable
from rlrun.proto import common_pb2, inference_pb2, session_pb2
from rlrun_dataproxy.output import OutputReader
from rlrun_dataproxy.sessions import AssignedWorker

log = logging.getLogger(__name__)

Assign = Callable[[str], Awaitable[AssignedWorker]]
"""Gives a worker; the argument is one that just failed (empty: none)."""

Publish = Callable[[session_pb2.GenerateDelta], None]


class EngineCall(msgspec.Struct, frozen=True, kw_only=True):
    """What to sample: `prompt_ids` packed, at most `max_new_tokens` after them."""

    call_id: str
    prompt_ids: bytes
    sampling: common_pb2.SamplingParams
    max_new_tokens: int
    num_top_logprobs: int


async def sample(
    call: EngineCall,
    reader: OutputReader,
    *,
    assign: Assign,
    publish: Publish | None,
    on_worker: Callable[[], None],
    max_attempts: int,
    pause_seconds: float,
) -> common_pb2.FinishReason.ValueType:
    """Feeds `reader` until the output ends. With `publish` the engine streams.

    Leaving this coroutine cancels the engine's work.

    Raises:
        Unavailable: `max_attempts` workers in a row gave no token.
    """
    failed, attempts, last_num_tokens, number = "", 0, 0, 0
    while True:
        worker = await assign(failed)
        on_worker()
        lost: Unavailable | None = None
        try:
            finish = await _attempt(call, number, worker, reader, publish)
            if finish != common_pb2.FINISH_REASON_ABORT:
                return finish
            failed = ""  # the worker lives and gave the sequence back
        except Unavailable as error:
            lost, failed = error, worker.id
            log.warning("call %s lost worker %s after %d tokens: %s", call.call_id, worker.id, reader.num_tokens, error)
        if (reached := _finish_of_what_is_there(call, reader)) is not None:
            return reached
        number += 1
        attempts = 1 if reader.num_tokens > last_num_tokens else attempts + 1
        last_num_tokens = reader.num_tokens
        if attempts >= max_attempts:
            raise lost or Unavailable(f"The engine of worker {worker.id} aborted the call {attempts} times in a row")
        await asyncio.sleep(pause_seconds * 2 ** (attempts - 1))


async def _attempt(
    call: EngineCall, number: int, worker: AssignedWorker, reader: OutputReader, publish: Publish | None
) -> common_pb2.FinishReason.ValueType:
    request = inference_pb2.InferRequest(
        request_id=f"{call.call_id}.{number}",
        prompt_ids=call.prompt_ids + reader.output_ids,
        sampling=call.sampling,
        max_new_tokens=call.max_new_tokens - reader.num_tokens,
        top_logprobs=call.num_top_logprobs,
    )
    if publish is None:
        answer = await worker.service.infer(request)
        reader.feed(answer)
        return _finished(answer, worker)
    last: inference_pb2.InferResponse | None = None
    # A generator that is only dropped would cancel the engine's work when the garbage collector comes to it.
    async with aclosing(worker.service.infer_stream(request)) as pieces:  # type: ignore[type-var]
        async for last in pieces:
            if (delta := reader.feed(last)) is not None:
                publish(delta)
    return _finished(last, worker)


def _finished(last: inference_pb2.InferResponse | None, worker: AssignedWorker) -> common_pb2.FinishReason.ValueType:
    if last is None or last.finish_reason == common_pb2.FINISH_REASON_UNSPECIFIED:
        raise Unavailable(f"Worker {worker.id} ended its answer without a finish reason")
    return last.finish_reason


def _finish_of_what_is_there(call: EngineCall, reader: OutputReader) -> common_pb2.FinishReason.ValueType | None:
    """An output that was complete before its worker was lost."""
    if reader.ended and not call.sampling.ignore_eos:
        return common_pb2.FINISH_REASON_STOP
    return common_pb2.FINISH_REASON_LENGTH if reader.num_tokens >= call.max_new_tokens else None
