"""The engine's heart: requests in, outputs out, one step at a time, on one thread."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass

from wellhead.cache.space import Space
from wellhead.capture.judges import make_bench
from wellhead.capture.readers import make_readers
from wellhead.config import Resolved
from wellhead.core.flight import Flight, Runway, filled
from wellhead.core.latency import Latencies
from wellhead.errors import EngineClosed, InternalError, Overloaded, RequestAborted, RequestTimeout, WellheadError
from wellhead.metrics.snapshot import Snapshot
from wellhead.requests.text import TextStreams
from wellhead.results.processor import Processor
from wellhead.scheduler.scheduler import Scheduler
from wellhead.scheduler.sequence import Sequence
from wellhead.speculation import Algorithm
from wellhead.speculative.progress import Progress
from wellhead.step import Plan, Runner, StepResult
from wellhead.types import FinishReason, Output, Request

log = logging.getLogger("wellhead")


@dataclass(slots=True)
class Counters:
    """What has happened since the start; read by metrics, never reset."""

    steps: int = 0
    requests: int = 0
    finished: int = 0
    failed: int = 0
    aborted: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    computed_tokens: int = 0
    output_tokens: int = 0
    rows: int = 0
    row_bytes: int = 0
    proposed_tokens: int = 0
    accepted_tokens: int = 0
    verify_steps: int = 0
    verified_tokens: int = 0
    draft_seconds: float = 0.0
    verify_seconds: float = 0.0

    def drafted(self, seconds: float) -> None:
        """Drafts were made, wherever that was."""
        self.draft_seconds += seconds

    def speculated(self, plan: Plan, result: StepResult, seconds: float) -> None:
        """A step ran; of its time, ``result.draft_seconds`` went to a draft model, the rest to judging drafts if it had any."""
        self.drafted(result.draft_seconds)
        judged = [(row.drafts, len(got.tokens)) for row, got in zip(plan.rows, result.rows, strict=True) if row.drafts]
        if judged:
            self.verify_seconds += seconds - result.draft_seconds
            self.verify_steps += len(judged)
            self.verified_tokens += sum(tokens for _, tokens in judged)
            self.proposed_tokens += sum(drafts for drafts, _ in judged)
            self.accepted_tokens += sum(max(0, tokens - 1) for _, tokens in judged)


class Core:
    """Submit, abort, step. Not thread-safe: whoever owns it calls it from one thread.

    Every request that ``submit`` took gets exactly one terminal output from a later ``step`` (or from ``fail_all``).
    """

    def __init__(
        self, config: Resolved, runner: Runner, hidden_size: int, eos_ids: tuple[int, ...], texts: TextStreams | None
    ) -> None:
        self.config = config
        self.runner = runner
        self.space = Space(config.pages, config.page_size, prefix_cache=config.prefix_cache)
        self.results = Processor(config.dtype, eos_ids, texts.decode if texts is not None else None)
        self.counters = Counters()
        self.scheduler = Scheduler(config, self.space, eos_ids, self.counters.drafted)
        self.latencies = Latencies()
        self._hidden_size = hidden_size
        self._texts = texts
        self._order = 0
        self._ended: list[Output] = []
        self._runway = Runway(lambda plan: self.runner.run(plan))
        self._flight: Flight | None = None
        self._told: Callable[[Plan], object] = lambda plan: None

    @property
    def idle(self) -> bool:
        return self.scheduler.idle and not self._ended and self._flight is None

    # --- the door -----------------------------------------------------------------------------------------------

    def submit(self, request: Request) -> None:
        """Take a request, or raise ``Overloaded`` and take nothing."""
        if len(self.scheduler.waiting) >= self.config.max_queued:
            raise Overloaded(f"{self.config.max_queued} requests are waiting already; try again later")
        readers = make_readers(request, self.config.dtype, self._hidden_size)
        bench = make_bench(request, self.config.dtype, self._hidden_size)
        text = self._texts.open(request) if self._texts is not None else None
        spec = self.config.speculation
        progress = Progress(spec) if spec.algorithm is not Algorithm.NONE and request.sampling.max_new_tokens else None
        self.scheduler.add(
            Sequence(
                request,
                order=self._order,
                arrival=time.monotonic(),
                readers=readers,
                text=text,
                speculation=progress,
                bench=bench,
            )
        )
        self._order += 1
        self.counters.requests += 1
        self.latencies.arrive(request.key)

    def abort(self, rid: str) -> int:
        """End every sequence of the request ``rid`` (all its samples); how many there were. Outputs come with the next step."""
        return self._abort(self.scheduler.of_request(rid))

    def abort_keys(self, keys: Iterable[str]) -> int:
        """End these sequences, by ``Request.key``, those that are not done; how many that were. Outputs as for ``abort``."""
        there = (self.scheduler.get(key) for key in dict.fromkeys(keys))
        return self._abort([seq for seq in there if seq is not None])

    def abort_all(self) -> int:
        """End every sequence, in one pass; how many there were. Outputs come with the next step."""
        return self._abort(self.scheduler.all())

    def _abort(self, sequences: list[Sequence]) -> int:
        for seq in sequences:
            self._end(seq, RequestAborted(f"request {seq.request.rid!r} was aborted"))
        self.counters.aborted += len(sequences)
        return len(sequences)

    def fail_all(self, error: WellheadError) -> list[Output]:
        """End everything with this error, for the engine's own end; the terminal outputs."""
        for seq in self.scheduler.all():
            self._end(seq, error)
        ended, self._ended = self._ended, []
        return ended

    def flush_cache(self) -> bool:
        """Forget all cached prefixes; False, and nothing done, while requests run."""
        return self.space.flush()

    def snapshot(self) -> Snapshot:
        """The numbers that others may read of this core; in a step's pause, on its own thread."""
        counters, judged = asdict(self.counters), self.counters.verify_steps
        verified = counters.pop("verified_tokens")
        counters |= {"preemptions": self.scheduler.preemptions, "evictions": self.space.evictions}
        return Snapshot(
            counters=counters,
            running=len(self.scheduler.running),
            waiting=len(self.scheduler.waiting),
            accept_length=verified / judged if judged else 0.0,
            pages=self.space.counts(),
            latencies=self.latencies.copies(),
        )

    # --- one step -----------------------------------------------------------------------------------------------

    def step(self) -> list[Output]:
        """Plan, run, judge, settle. A failure of the step ends its sequences with an error; the engine goes on,
        unless it is ``EngineClosed``, which is raised: what computes is gone.

        With overlap, a call starts a step; or it plans the next one while a step runs, waits for that, and judges it when the
        next is under way.
        """
        self._expire()
        overlap, outputs = self.config.overlap, list[Output]()
        flight = self._flight if self._flight is not None else self._take_off(self.scheduler.plan())
        if flight is None:
            if not self.scheduler.idle and not self._ended:
                self._fail_stuck()
        elif overlap and flight is not self._flight:
            self._flight = flight  # it is under way, and the next call waits for it
        else:
            plan, self._flight = flight.plan, None
            ahead = self.scheduler.plan_ahead(plan) if overlap else None
            try:
                result = self._wait(flight, ahead)
                self._flight = self._take_off(filled(ahead, plan, result)) if ahead is not None else None
                outputs = self.results.process(plan, result, self.scheduler.get)
                self.scheduler.settle(plan)
                self._count_step(plan, result)
            except EngineClosed:
                raise
            except Exception as error:
                log.exception("step %d failed", plan.number)
                outputs = []
                self._fail(plan, error)
        ended, self._ended = self._ended, []
        self._count(ended + outputs)
        return ended + outputs

    def _take_off(self, plan: Plan) -> Flight | None:
        """A step, if there is anything to run. With overlap it runs at once, else when it is waited for."""
        if not plan.rows:
            return None
        self.latencies.begin(plan)
        self._told(plan)
        return self._runway.start(plan) if self.config.overlap else Flight(plan, lambda: self.runner.run(plan))

    def _wait(self, flight: Flight, ahead: Plan | None) -> StepResult:
        """What came of a step. If it failed, a plan that was made ahead holds no longer."""
        started = time.perf_counter()
        try:
            result = flight.result()
        except Exception:
            if ahead is not None:
                self.scheduler.withdraw(ahead)
            raise
        self.counters.speculated(flight.plan, result, time.perf_counter() - started)
        return result

    def _count_step(self, plan: Plan, result: StepResult) -> None:
        self.latencies.end(plan)
        counters = self.counters
        counters.steps += 1
        counters.computed_tokens += plan.tokens
        counters.rows += result.produced

    def wrap(self, around: Callable[[Runner], Runner], told: Callable[[Plan], object] | None = None) -> None:
        """Put a runner around the one there is, between two steps: for tests, and for whoever wants to see plans and results.

        The runner is called where steps run, with overlap on a thread of its own; ``told`` here, with each plan, just before.
        """
        self.runner = around(self.runner)
        if told is not None:
            self._told = told

    def close(self) -> None:
        """Wait for the step that runs, and forget what comes of it. The core is not used afterwards."""
        self._runway.close()
        self._flight = None

    def _fail(self, plan: Plan, error: Exception) -> None:
        wrapped = error if isinstance(error, WellheadError) else InternalError(f"step {plan.number} failed: {error!r}")
        for row in plan.rows:
            seq = self.scheduler.get(row.key)
            if seq is not None:
                self._end(seq, wrapped)

    def _fail_stuck(self) -> None:
        """Nothing can run and nothing will change that: end the head of the queue rather than hang."""
        seq: Sequence = self.scheduler.waiting.values()[0]
        log.error("request %s cannot be scheduled: %s", seq.request.rid, self.space.counts())
        self._end(seq, InternalError(f"request {seq.request.rid!r} could not be scheduled"))

    def _expire(self) -> None:
        for seq in self.scheduler.overdue(time.monotonic()):
            self._end(seq, RequestTimeout(f"request {seq.request.rid!r} ran out of its {seq.request.timeout:g} s"))

    def _end(self, seq: Sequence, error: WellheadError) -> None:
        self.scheduler.drop(seq)
        self._ended.append(self._last_word(seq, error))

    @staticmethod
    def _last_word(seq: Sequence, error: WellheadError) -> Output:
        request = seq.request
        if isinstance(error, RequestAborted):
            finish = FinishReason("abort", message=error.message)
            return Output(key=seq.key, rid=request.rid, finish=finish, usage=seq.usage())
        return Output(key=seq.key, rid=request.rid, error=error, usage=seq.usage())

    def _count(self, outputs: list[Output]) -> None:
        counters = self.counters
        self.latencies.finish(outputs)
        for output in outputs:
            if output.error is not None:
                counters.failed += 1
            elif output.finish is not None and output.finish.kind != "abort":
                counters.finished += 1
                counters.prompt_tokens += output.usage.prompt_tokens
                counters.cached_tokens += output.usage.cached_tokens
                counters.output_tokens += output.usage.completion_tokens
                counters.row_bytes += sum(states.nbytes for states in output.all_states())

    def check_integrity(self) -> None:
        """Raise ``InternalError`` unless pages, leases and sequences agree; for tests, after every engine test."""
        self.space.check_integrity()
        leased = {id(s.lease) for s in self.scheduler.running.values()}
        if len(leased) != self.space.leases or any(s.lease is not None for s in self.scheduler.waiting.values()):
            raise InternalError(f"{self.space.leases} leases are out, {len(leased)} sequences run")
