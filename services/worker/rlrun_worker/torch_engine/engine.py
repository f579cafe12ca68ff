"""The torch engine behind asyncio: one thread owns model and sequences, the event loop only passes messages.

To the thread: a queue of closures, run between two forwards. To the loop: one callback per step with all its chunks.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from tokenizers import Tokenizer

from rlrun.errors import Conflict, ContextLengthExceeded, Internal, InvalidRequest, Overloaded, RlrunError, Unavailable
from rlrun.weights import MANIFEST_NAME, Manifest, read_manifest
from rlrun_worker.engine import MAX_TOP_LOGPROBS, MIN_TEMPERATURE, Chunk, EngineStatus, Ids, Sampling, Scores
from rlrun_worker.torch_engine.core import Delivery, EngineCore, Sequence
from rlrun_worker.torch_engine.model import SlotModel, read_eos_ids
from rlrun_worker.torch_engine.options import TorchEngineOptions
from rlrun_worker.torch_engine.sampling import scaled_logprobs
from rlrun_worker.weights import read_safetensors_directory, read_verified, weight_fingerprint

logger = logging.getLogger(__name__)
Result = TypeVar("Result")

RATE_SAMPLE_SECONDS = 1.0
NUM_RATE_SAMPLES = 5


@dataclass(eq=False, slots=True)
class _Stream:
    """The reader's end of one request, used on the event loop only."""

    request_id: str
    chunks: asyncio.Queue[Chunk | RlrunError] = field(default_factory=asyncio.Queue)


class TorchEngine:
    """Implements `rlrun_worker.engine.EngineAdapter` with PyTorch and transformers. CUDA is untested."""

    def __init__(self, options: TorchEngineOptions) -> None:
        self._options = options
        self._commands: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._load_lock = asyncio.Lock()
        self._streams: dict[int, _Stream] = {}
        self._keys: dict[str, int] = {}
        self._next_key = 0
        self._paused = False
        self._closed = False
        self._fingerprint = ""
        self._rate_samples: deque[tuple[float, int]] = deque(maxlen=NUM_RATE_SAMPLES)
        self._core: EngineCore
        self._model: SlotModel

    async def start(self) -> None:
        """Raises: InvalidRequest or ConfigError when the model directory or an option does not fit."""
        assert self._thread is None, "start is called once"
        self._loop = asyncio.get_running_loop()
        started: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, args=(started,), name="torch-engine", daemon=True)
        self._thread.start()
        try:
            await asyncio.wrap_future(started)
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        for stream in self._streams.values():
            stream.chunks.put_nowait(Unavailable("the engine is shutting down; retry on another worker"))
        self._commands.put(None)
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join)

    async def generate(
        self,
        prompt_ids: Ids,
        sampling: Sampling,
        *,
        max_new_tokens: int,
        top_logprobs: int = 0,
        request_id: str = "",
        stream: bool = True,
    ) -> AsyncGenerator[Chunk, None]:
        sequence = self._make_sequence(prompt_ids, sampling, max_new_tokens, top_logprobs, stream)
        reader = self._register(sequence.key, request_id)
        done = False
        try:
            self._commands.put(lambda: self._core.submit(sequence))
            while not done:
                item = await reader.chunks.get()
                # An error or a last chunk: the engine has let go of the sequence.
                done = isinstance(item, RlrunError) or item.finish_reason is not None
                if isinstance(item, RlrunError):
                    raise item
                yield item
        finally:
            del self._streams[sequence.key]
            if request_id:
                del self._keys[request_id]
            if not done:
                self._commands.put(lambda: self._send(self._core.abort(sequence.key)))

    async def score(self, ids: Ids, *, temperature: float = 1.0, top_logprobs: int = 0) -> Scores:
        self._check_ids(ids, "ids", room_tokens=0)
        self._check_top(top_logprobs)
        if not temperature >= MIN_TEMPERATURE:
            raise InvalidRequest(f"temperature is {temperature:g}; scoring needs at least {MIN_TEMPERATURE:g}", param="temperature")
        return await self._on_thread(lambda: self._score(ids, temperature, top_logprobs))

    async def pause(self) -> None:
        await self._on_thread(lambda: self._set_paused(True))

    async def resume(self) -> None:
        await self._on_thread(lambda: self._set_paused(False))

    async def load_weights(self, version: int, path: Path) -> None:
        async with self._load_lock:
            manifest = await asyncio.to_thread(read_manifest, path)
            if manifest.version != version:
                raise InvalidRequest(f"{path} holds version {manifest.version}, asked for {version}", param="version")
            if version == self._core.version:
                if manifest.fingerprint == self._fingerprint:
                    return
                raise Conflict(f"version {version} is in service with fingerprint {self._fingerprint}", param="version")
            # Reading and hashing take seconds for large models; sampling goes on meanwhile.
            verified, state = await asyncio.to_thread(read_verified, path)
            await self._on_thread(lambda: self._install(verified, state))

    async def abort(self, request_id: str) -> None:
        key = self._keys.get(request_id)
        if key is not None:
            await self._on_thread(lambda: self._send(self._core.abort(key)))

    async def status(self) -> EngineStatus:
        core = self._core
        return EngineStatus(
            engine="torch",
            model=self._options.name or self._options.model_path.name,
            policy_version=core.version,
            fingerprint=self._fingerprint,
            running=core.num_running,
            # Requests on their way to the thread wait, too.
            waiting=max(0, len(self._streams) - core.num_running),
            paused=self._paused,
            max_total_tokens=self._options.num_slots * self._options.max_len_tokens,
            tokens_per_second=self._tokens_per_second(),
            total_output_tokens=core.num_output_tokens,
        )

    # On the event loop.

    def _make_sequence(self, prompt_ids: Ids, sampling: Sampling, max_new_tokens: int, top_logprobs: int, stream: bool) -> Sequence:
        self._check_ids(prompt_ids, "prompt_ids", room_tokens=1)
        self._check_top(top_logprobs)
        room = self._options.max_len_tokens - prompt_ids.size
        self._next_key += 1
        return Sequence(
            key=self._next_key,
            prompt_ids=prompt_ids,
            sampling=sampling,
            limit_tokens=prompt_ids.size + (min(max_new_tokens, room) if max_new_tokens > 0 else room),
            top_logprobs=top_logprobs,
            stream=stream,
        )

    def _check_ids(self, ids: Ids, param: str, *, room_tokens: int) -> None:
        if self._closed:
            raise Unavailable("the engine is shut down; retry on another worker")
        if ids.ndim != 1 or ids.dtype != np.int32 or ids.size == 0:
            raise InvalidRequest(f"{param} must be a non-empty int32 vector, got {ids.dtype} {list(ids.shape)}", param=param)
        if ids.size + room_tokens > self._options.max_len_tokens:
            raise ContextLengthExceeded(
                f"{param} has {ids.size} tokens; the engine takes at most {self._options.max_len_tokens - room_tokens}", param=param
            )
        low, high = int(ids.min()), int(ids.max())
        if low < 0 or high >= self._model.vocab_size:
            raise InvalidRequest(f"{param} holds id {low if low < 0 else high}; ids are 0 to {self._model.vocab_size - 1}", param=param)

    def _check_top(self, top_logprobs: int) -> None:
        limit = min(MAX_TOP_LOGPROBS, self._model.vocab_size)
        if not 0 <= top_logprobs <= limit:
            raise InvalidRequest(f"top_logprobs is {top_logprobs}; it must be 0 to {limit}", param="top_logprobs")

    def _register(self, key: int, request_id: str) -> _Stream:
        limit = self._options.num_slots + self._options.max_waiting
        if len(self._streams) >= limit:
            raise Overloaded(f"the engine has {len(self._streams)} requests, its limit is {limit}; retry later or add workers")
        if request_id:
            if request_id in self._keys:
                raise Conflict(f"request {request_id!r} is already running", param="request_id")
            self._keys[request_id] = key
        stream = self._streams[key] = _Stream(request_id)
        return stream

    def _deliver(self, deliveries: list[Delivery]) -> None:
        for delivery in deliveries:
            if (stream := self._streams.get(delivery.key)) is not None:
                stream.chunks.put_nowait(delivery.chunk)

    def _fail_all(self) -> None:
        for stream in self._streams.values():
            stream.chunks.put_nowait(Internal("the engine failed on this batch; see the worker's log"))

    async def _on_thread(self, function: Callable[[], Result]) -> Result:
        """Run `function` between two forwards and wait for its result."""
        if self._closed:
            raise Unavailable("the engine is shut down; retry on another worker")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Result] = loop.create_future()

        def settle(result: Result | None, error: BaseException | None) -> None:
            if future.done():
                return
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(result)  # type: ignore[arg-type]

        def command() -> None:
            try:
                result = function()
            except Exception as error:
                loop.call_soon_threadsafe(settle, None, error)
            else:
                loop.call_soon_threadsafe(settle, result, None)

        self._commands.put(command)
        return await future

    # On the engine thread.

    def _run(self, started: Future[None]) -> None:
        if self._options.num_threads:
            torch.set_num_threads(self._options.num_threads)
        with torch.inference_mode():
            try:
                self._load_model()
            except Exception as error:
                started.set_exception(error)
                return
            started.set_result(None)
            while self._run_commands():
                if self._is_busy():
                    self._step()

    def _is_busy(self) -> bool:
        return not self._paused and self._core.has_work

    def _run_commands(self) -> bool:
        """Run what is queued; wait for a command when there is nothing else to do. False: shut down."""
        try:
            command = self._commands.get(block=not self._is_busy())
            while command is not None:
                self._guard(command)
                command = self._commands.get(block=not self._is_busy())
        except queue.Empty:
            return True
        return False

    def _step(self) -> None:
        now = time.monotonic()
        self._guard(lambda: self._send(self._core.step(now)))
        if not self._rate_samples or now - self._rate_samples[-1][0] >= RATE_SAMPLE_SECONDS:
            self._rate_samples.append((now, self._core.num_output_tokens))

    def _guard(self, work: Callable[[], None]) -> None:
        """What fails fails all requests, which may be half-done, and not the thread."""
        try:
            work()
        except Exception:
            logger.exception("the engine failed; all its requests are answered with an error")
            self._core.drop_all()
            self._call_loop(self._fail_all)

    def _send(self, deliveries: list[Delivery]) -> None:
        if deliveries:
            self._call_loop(lambda: self._deliver(deliveries))

    def _call_loop(self, function: Callable[[], None]) -> None:
        assert self._loop is not None
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(function)

    def _load_model(self) -> None:
        directory = self._options.model_path
        self._model = SlotModel(self._options)
        version = 0
        if (directory / MANIFEST_NAME).exists():
            manifest, _ = read_verified(directory)
            version, self._fingerprint = manifest.version, manifest.fingerprint
        else:
            self._fingerprint = weight_fingerprint(read_safetensors_directory(directory))
        tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
        self._core = EngineCore(self._options, self._model, tokenizer, read_eos_ids(directory), version)

    def _install(self, manifest: Manifest, state: dict[str, torch.Tensor]) -> None:
        self._model.check_state(state)
        self._core.load(manifest.version, state)
        self._fingerprint = manifest.fingerprint

    def _set_paused(self, paused: bool) -> None:
        self._paused = paused

    def _score(self, ids: Ids, temperature: float, num_top: int) -> Scores:
        logits = self._model.score(ids)[:-1]
        logprobs = scaled_logprobs(logits, torch.full((logits.shape[0],), temperature, device=logits.device))
        targets = torch.from_numpy(ids[1:].astype(np.int64)).to(logits.device)
        scores = np.zeros(ids.size, np.float32)
        scores[1:] = logprobs.gather(1, targets[:, None])[:, 0].cpu().numpy()
        if not num_top:
            return Scores(logprobs=scores, version=self._core.version)
        top_ids, top_logprobs = np.zeros((ids.size, num_top), np.int32), np.zeros((ids.size, num_top), np.float32)
        values, indices = torch.topk(logprobs, num_top, dim=-1)
        top_ids[1:], top_logprobs[1:] = indices.cpu().numpy(), values.cpu().numpy()
        return Scores(logprobs=scores, version=self._core.version, top_ids=top_ids, top_logprobs=top_logprobs)

    def _tokens_per_second(self) -> float:
        if not self._rate_samples:
            return 0.0
        start_seconds, start_tokens = self._rate_samples[0]
        elapsed = time.monotonic() - start_seconds
        # An idle engine stops sampling: its rate fades with the growing window.
        return (self._core.num_output_tokens - start_tokens) / elapsed if elapsed > 0 else 0.0
