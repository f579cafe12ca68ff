"""The owner of sessions: implements SessionService over Redis, a Router and engines.

Everything that decides is pure and elsewhere (tree, plan, output); this class does the I/O in between:
locate -> (answer a retry) -> plan -> sample -> record -> answer.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from rlrun.errors import DeadlineExceeded, Internal, InvalidRequest, RlrunError, SessionGone, SessionMoved
from rlrun.ids import new_completion_id
from rlrun.proto import common_pb2, inference_pb2, router_pb2, session_pb2
from rlrun.rpc.interfaces import InferenceService, RouterService
from rlrun.store import SessionState, Store
from rlrun_dataproxy import metrics
from rlrun_dataproxy.calls import RunningCall
from rlrun_dataproxy.engine import EngineCall, sample
from rlrun_dataproxy.history import export, session_detail
from rlrun_dataproxy.options import DataProxyOptions
from rlrun_dataproxy.output import OutputReader
from rlrun_dataproxy.plan import Located, Plan, Planner
from rlrun_dataproxy.prompt import PromptBuilder
from rlrun_dataproxy.sessions import AssignedWorker, Session, SessionCache, load_session
from rlrun_dataproxy.tokenizer import ChatTokenizer
from rlrun_dataproxy.tree import Node

log = logging.getLogger(__name__)

RECORD_SCHEMA = 1
# Longer texts are tokenised in a thread, since others wait meanwhile: about a millisecond, some thirty times what the thread costs.
MIN_BYTES_FOR_THREAD = 16 * 1024

Connect = Callable[[str], InferenceService]


@dataclass(frozen=True, slots=True)
class _Replay:
    """A retry's answer, from the record."""

    response: session_pb2.GenerateResponse


class DataProxy:
    """One replica. Share one tokenizer between replicas of a process."""

    def __init__(
        self,
        *,
        store: Store,
        router: RouterService,
        connect: Connect,
        tokenizer: ChatTokenizer,
        options: DataProxyOptions,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._store = store
        self._router = router
        self._connect = connect
        self._options = options
        self._clock = clock
        self._planner = Planner(tokenizer, PromptBuilder(tokenizer), options=options)
        self._sessions = SessionCache(
            store, member_id=options.member_id, limit=options.max_cached_sessions, ephemeral=options.ephemeral_tail
        )

    @property
    def num_cached_sessions(self) -> int:
        return len(self._sessions)

    @property
    def num_running_calls(self) -> int:
        return self._sessions.num_running_calls

    async def generate(self, request: session_pb2.GenerateRequest, /) -> session_pb2.GenerateResponse:
        begun = await self._begin(request, streams=False)
        if isinstance(begun, _Replay):
            return begun.response
        with begun.waiting():
            return await begun.response()

    async def generate_stream(self, request: session_pb2.GenerateRequest, /) -> AsyncIterator[session_pb2.GenerateEvent]:
        begun = await self._begin(request, streams=True)
        if isinstance(begun, _Replay):
            yield _start(begun.response.interaction_id, begun.response.created_unix_seconds)
            yield session_pb2.GenerateEvent(delta=_whole(begun.response))
            yield session_pb2.GenerateEvent(done=_without_text(begun.response))
            return
        with begun.waiting():
            await begun.ready()
            yield _start(begun.interaction_id, begun.created_unix_seconds)
            async for delta in begun.deltas():
                yield session_pb2.GenerateEvent(delta=delta)
            response = await begun.response()
            if not begun.streams:  # a retry that streams joined a call that does not
                yield session_pb2.GenerateEvent(delta=_whole(response))
            yield session_pb2.GenerateEvent(done=_without_text(response))

    async def set_reward(self, request: session_pb2.SetRewardRequest, /) -> session_pb2.SetRewardResponse:
        if not math.isfinite(request.reward):
            raise InvalidRequest(f"reward is {request.reward}; must be a finite number", param="reward")
        ref = request.session
        with self._forgetting(ref):
            interaction_id = await self._store.sessions.set_reward(
                ref.session_id, ref.fence, request.interaction_id, request.reward, queue=self._options.queue_trajectories
            )
        return session_pb2.SetRewardResponse(interaction_id=interaction_id)

    async def end_session(self, request: session_pb2.EndSessionRequest, /) -> session_pb2.EndSessionResponse:
        ref = request.session
        with self._forgetting(ref):
            info = await self._store.sessions.finish(
                ref.session_id, fence=ref.fence, queue=self._options.queue_trajectories, default_reward=None
            )
        if (session := self._sessions.drop(ref.session_id)) is not None:
            for call in list(session.running):
                call.abort(SessionGone(f"Session {ref.session_id} was ended while this call ran"))
        return session_pb2.EndSessionResponse(interaction_count=info.num_interactions)

    async def export_trajectories(self, request: session_pb2.ExportTrajectoriesRequest, /) -> session_pb2.ExportTrajectoriesResponse:
        data = await load_session(self._store, request.session, member_id=self._options.member_id)
        exported = export(data, request, style=self._options.reward_style)
        if data.info.state is SessionState.FINISHED:  # what the trainer has stays the trainer's; others are read only
            await self._store.sessions.mark_exported(request.session.session_id)
        return session_pb2.ExportTrajectoriesResponse(interactions=exported)

    async def get_session(self, request: session_pb2.GetSessionRequest, /) -> session_pb2.GetSessionResponse:
        return session_detail(await load_session(self._store, request.session, member_id=self._options.member_id))

    # A call

    async def _begin(self, request: session_pb2.GenerateRequest, *, streams: bool) -> RunningCall | _Replay:
        """From the look-up to the running call nothing waits, so of two equal retries one finds the other."""
        session = await self._sessions.get(request.session)
        located = self._planner.locate(session.tree, request)
        if request.idempotency_key or request.retry_count > 0:
            for running in session.running:
                if running.answers(located.request_hash, request.idempotency_key):
                    metrics.REPLAYS.labels("running").inc()
                    return running
            if (node := session.tree.answered(located.request_hash, request.idempotency_key)) is not None:
                metrics.REPLAYS.labels("record").inc()
                return _Replay(self._answer_again(node, request))
        call = RunningCall(
            interaction_id=new_completion_id(),
            created_unix_seconds=int(self._clock()),
            request_hash=located.request_hash,
            idempotency_key=request.idempotency_key,
            streams=streams,
        )
        session.running.append(call)
        call.start(self._run(session, call, located, request)).add_done_callback(lambda _: session.running.remove(call))
        return call

    async def _run(
        self, session: Session, call: RunningCall, located: Located, request: session_pb2.GenerateRequest
    ) -> session_pb2.GenerateResponse:
        outcome = "cancelled"
        try:
            async with asyncio.timeout(self._options.call_timeout_seconds):
                plan = await self._plan(located, request)
                response = await self._answer(session, call, plan, request)
            outcome = "ok"
            return response
        except TimeoutError:
            outcome = DeadlineExceeded.code
            raise DeadlineExceeded(
                f"The call {call.interaction_id} took longer than {self._options.call_timeout_seconds:g} s; ask for fewer tokens"
            ) from None
        except Exception as error:
            outcome = error.code if isinstance(error, RlrunError) else Internal.code
            raise
        finally:
            metrics.CALLS.labels(outcome).inc()

    async def _plan(self, located: Located, request: session_pb2.GenerateRequest) -> Plan:
        new_messages = request.messages[located.position.num_parent_messages :]
        if sum(map(len, new_messages)) < MIN_BYTES_FOR_THREAD:
            plan = self._planner.plan(located, request)
        else:
            plan = await asyncio.to_thread(self._planner.plan, located, request)
        metrics.TOKENISED_CHARACTERS.inc(plan.new_prompt.num_characters)
        if plan.forked:
            metrics.FORKS.inc()
        return plan

    async def _answer(
        self, session: Session, call: RunningCall, plan: Plan, request: session_pb2.GenerateRequest
    ) -> session_pb2.GenerateResponse:
        reader = OutputReader(plan.reading, streams=call.streams)

        async def assign(failed_worker_id: str) -> AssignedWorker:
            return await self._worker(session, failed_worker_id)

        finish = await sample(
            EngineCall(
                call_id=call.interaction_id,
                prompt_ids=plan.prompt_ids,
                sampling=self._sampling(request.sampling),
                max_new_tokens=plan.max_new_tokens,
                num_top_logprobs=request.top_logprobs if request.logprobs else 0,
            ),
            reader,
            assign=assign,
            publish=call.publish if call.streams else None,
            on_worker=call.set_ready,
            max_attempts=self._options.max_worker_attempts,
            pause_seconds=self._options.retry_pause_seconds,
        )
        if (delta := reader.finish()) is not None:
            call.publish(delta)
        if reader.tool_calls and finish == common_pb2.FINISH_REASON_STOP:
            finish = common_pb2.FINISH_REASON_TOOL_CALLS
        if request.store:
            await self._record(session, call, plan, request, reader, finish)
        return _response(call, plan, reader, finish)

    async def _worker(self, session: Session, failed_worker_id: str) -> AssignedWorker:
        """Sticky: the Router is asked again only after a failure."""
        if session.worker is not None and session.worker.id == failed_worker_id:
            session.worker = None
        if session.worker is None:
            assigned = await self._router.assign_worker(
                router_pb2.AssignWorkerRequest(session_id=session.id, exclude_worker_id=failed_worker_id)
            )
            session.worker = AssignedWorker(assigned.worker_id, self._connect(assigned.address))
        return session.worker

    def _sampling(self, given: common_pb2.SamplingParams) -> common_pb2.SamplingParams:
        """Names the model's end tokens, whether or not the engine knows them."""
        if given.ignore_eos:
            return given
        sampling = common_pb2.SamplingParams()
        sampling.CopyFrom(given)
        sampling.stop_token_ids.extend(sorted(self._planner.end_ids.difference(given.stop_token_ids)))
        return sampling

    async def _record(
        self,
        session: Session,
        call: RunningCall,
        plan: Plan,
        request: session_pb2.GenerateRequest,
        reader: OutputReader,
        finish: common_pb2.FinishReason.ValueType,
    ) -> None:
        call.committing = True
        is_root = plan.parent is None
        record = session_pb2.InteractionRecord(
            schema=RECORD_SCHEMA,
            id=call.interaction_id,
            parent_id=plan.parent.id if plan.parent else "",
            index=session.take_index(),
            new_messages=request.messages[plan.num_parent_messages :],
            tools=request.tools if is_root else b"",
            chat_template_kwargs=request.chat_template_kwargs if is_root else b"",
            new_prompt_ids=plan.new_prompt.ids,
            output_ids=reader.output_ids,
            output_logprobs=reader.output_logprobs,
            versions=reader.versions,
            content=reader.content,
            reasoning_content=reader.reasoning,
            tool_calls=reader.tool_calls,
            finish_reason=finish,
            temperature=request.sampling.temperature if request.sampling.HasField("temperature") else 1.0,
            created_unix_seconds=call.created_unix_seconds,
            request_hash=plan.request_hash,
            idempotency_key=request.idempotency_key,
            cached_tokens=reader.cached_tokens,
            num_parent_messages=plan.num_parent_messages,
        )
        try:
            await self._store.sessions.record(session.id, session.fence, record)
        except (SessionMoved, SessionGone) as error:
            log.info("session %s: interaction %s is refused: %s", session.id, record.id, error)
            self._sessions.drop_this(session)
            raise
        except BaseException:
            session.stale = True  # it may have been written all the same
            raise
        session.tree.add(record, parent=plan.parent, link=plan.link, key_link=plan.key_link)
        metrics.OUTPUT_TOKENS.inc(reader.num_tokens)

    def _answer_again(self, node: Node, request: session_pb2.GenerateRequest) -> session_pb2.GenerateResponse:
        """The recorded answer. Top logprobs are not recorded, so a replay has none."""
        record = node.record
        reader = OutputReader(self._planner.reading_of_record(record, request), streams=False)
        reader.feed(inference_pb2.InferResponse(output_ids=record.output_ids, logprobs=record.output_logprobs, versions=record.versions))
        reader.finish()
        num_output = reader.num_tokens
        return session_pb2.GenerateResponse(
            interaction_id=record.id,
            created_unix_seconds=record.created_unix_seconds,
            content=record.content,
            reasoning_content=record.reasoning_content,
            tool_calls=record.tool_calls,
            finish_reason=record.finish_reason,
            usage=common_pb2.Usage(
                prompt_tokens=node.num_tokens - num_output,
                completion_tokens=num_output,
                cached_tokens=record.cached_tokens,
                reasoning_tokens=reader.num_reasoning_tokens(),
            ),
            logprobs=reader.token_logprobs(),
            policy_version=record.versions[-1].version if record.versions else -1,
            replayed=True,
        )

    @contextmanager
    def _forgetting(self, ref: session_pb2.SessionRef) -> Iterator[None]:
        """Drops what memory knows of a session that turns out to have moved or ended."""
        try:
            yield
        except (SessionMoved, SessionGone):
            if (session := self._sessions.peek(ref)) is not None:
                self._sessions.drop_this(session)
            raise


def _start(interaction_id: str, created_unix_seconds: int) -> session_pb2.GenerateEvent:
    start = session_pb2.GenerateStart(interaction_id=interaction_id, created_unix_seconds=created_unix_seconds)
    return session_pb2.GenerateEvent(start=start)


def _whole(response: session_pb2.GenerateResponse) -> session_pb2.GenerateDelta:
    return session_pb2.GenerateDelta(
        content=response.content,
        reasoning_content=response.reasoning_content,
        tool_calls=response.tool_calls,
        logprobs=response.logprobs if response.HasField("logprobs") else None,
    )


def _without_text(response: session_pb2.GenerateResponse) -> session_pb2.GenerateResponse:
    done = session_pb2.GenerateResponse()
    done.CopyFrom(response)
    for field in ("content", "reasoning_content", "tool_calls", "logprobs"):
        done.ClearField(field)
    return done


def _response(
    call: RunningCall, plan: Plan, reader: OutputReader, finish: common_pb2.FinishReason.ValueType
) -> session_pb2.GenerateResponse:
    return session_pb2.GenerateResponse(
        interaction_id=call.interaction_id,
        created_unix_seconds=call.created_unix_seconds,
        content=reader.content,
        reasoning_content=reader.reasoning,
        tool_calls=reader.tool_calls,
        finish_reason=finish,
        usage=common_pb2.Usage(
            prompt_tokens=plan.num_prompt_tokens,
            completion_tokens=reader.num_tokens,
            cached_tokens=reader.cached_tokens,
            reasoning_tokens=reader.num_reasoning_tokens(),
        ),
        logprobs=reader.token_logprobs(),
        policy_version=reader.versions[-1].version if reader.versions else -1,
    )
