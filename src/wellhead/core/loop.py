"""The engine on a thread of its own: an inbox of commands, and a function per request that takes its outputs.

Nobody else touches the ``Core``. Every request that was accepted gets exactly one terminal output, also if the thread dies
or is closed; whoever waits is told.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from wellhead.core.engine import Core
from wellhead.errors import EngineClosed, InternalError, Overloaded, WellheadError
from wellhead.types import FinishReason, Output, Request, Usage

log = logging.getLogger("wellhead")

Deliver = Callable[[Output], None]
"""Called on the engine's thread with each output of a request, the terminal one last. It must not block."""


@dataclass(frozen=True, slots=True)
class _Submit:
    requests: tuple[Request, ...]
    deliver: Deliver
    patient: bool
    done: Future[None]


@dataclass(frozen=True, slots=True)
class _Call:
    function: Callable[[Core], Any]
    done: Future[Any]


class EngineLoop:
    """Runs a core until it is closed. Methods may be called from any thread."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._inbox: queue.SimpleQueue[_Submit | _Call | WellheadError | None] = queue.SimpleQueue()
        self._callers: dict[str, tuple[Request, Deliver]] = {}
        #: Patient requests that found the queue full, in order of arrival. They are among ``_callers``.
        self._patient: dict[str, Request] = {}
        self._error: WellheadError | None = None
        #: Done when the engine has ended and every request has its last output; with an exception if it died.
        self.ended: Future[None] = Future()
        self._lock = threading.Lock()
        self._closing = False
        self._process = os.getpid()
        self._thread = threading.Thread(target=self._run, name="wellhead-engine", daemon=True)
        self._thread.start()

    # --- any thread ---------------------------------------------------------------------------------------------

    @property
    def healthy(self) -> bool:
        return self._error is None and self._thread.is_alive()

    @property
    def error(self) -> WellheadError | None:
        """Why the engine does not run, if it does not."""
        return self._error

    def submit(self, requests: tuple[Request, ...], deliver: Deliver, *, patient: bool = False) -> Future[None]:
        """Hand over requests as a whole; ``deliver`` gets their outputs. The future fails (``Overloaded``, ``EngineClosed``)
        if they were not taken, in which case there are no outputs.

        ``patient``: a full queue is no reason to refuse them. They wait before it, first come, first served, and a
        request's time limit begins when it enters."""
        done: Future[None] = Future()
        self._post(_Submit(requests, deliver, patient, done), done)
        return done

    def call(self, function: Callable[[Core], Any]) -> Future[Any]:
        """Run a function on the core, between two steps."""
        done: Future[Any] = Future()
        self._post(_Call(function, done), done)
        return done

    def abort(self, rid: str) -> Future[int]:
        """End all samples of a request; how many sequences that were."""
        return self.call(lambda core: self._abort_patient(lambda request: request.rid == rid) + core.abort(rid))

    def abort_keys(self, keys: Iterable[str]) -> Future[int]:
        """End single sequences, by ``Request.key``; how many of them were there."""
        mine = frozenset(keys)
        if not mine:
            none: Future[int] = Future()
            none.set_result(0)
            return none
        return self.call(lambda core: self._abort_patient(lambda request: request.key in mine) + core.abort_keys(mine))

    def abort_all(self) -> Future[int]:
        """End every request there is; how many sequences that were."""
        return self.call(lambda core: self._abort_patient(lambda _: True) + core.abort_all())

    def close(self, timeout: float | None = 30.0) -> None:
        """Stop after the step that runs; requests that are still there end with ``EngineClosed``. Harmless if repeated."""
        if os.getpid() != self._process:
            return
        with self._lock:
            if not self._closing:
                self._closing = True
                self._inbox.put(None)
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout)

    def fail(self, error: WellheadError) -> None:
        """Die of this error, after the step that runs."""
        self._inbox.put(error)

    def _post(self, message: _Submit | _Call, done: Future[Any]) -> None:
        if os.getpid() != self._process:  # the thread stayed there, and perhaps the lock as well
            done.set_exception(EngineClosed(f"this engine runs in process {self._process}; a child of fork cannot use it"))
            return
        with self._lock:
            if not self._closing and self._error is None:
                self._inbox.put(message)
                return
        done.set_exception(self._error or EngineClosed("the engine was shut down"))

    # --- the engine's thread --------------------------------------------------------------------------------------

    def _run(self) -> None:
        died: WellheadError | None = None
        try:
            while self._take_messages():
                for output in self._core.step():
                    self._deliver(output)
        except EngineClosed as error:
            log.error("the engine died: %s", error.message)
            died = error
        except BaseException as crash:
            log.exception("the engine's thread died")
            died = EngineClosed(f"the engine died: {crash!r}")
        self._end(died or EngineClosed("the engine was shut down"))
        self.ended.set_result(None) if died is None else self.ended.set_exception(died)

    def _take_messages(self) -> bool:
        """Handle what came in; wait for it if there is nothing else to do. False: close."""
        while True:
            self._let_in()
            try:
                message = self._inbox.get(block=self._core.idle)
            except queue.Empty:
                return True
            if message is None:
                return False
            if isinstance(message, WellheadError):
                raise message
            if isinstance(message, _Submit):
                self._accept(message)
            else:
                self._carry_out(message)

    def _accept(self, message: _Submit) -> None:
        if not message.done.set_running_or_notify_cancel():
            return
        taken: list[Request] = []
        try:
            for request in message.requests:
                if message.patient:
                    self._patient[request.key] = request
                else:
                    self._core.submit(request)
                self._callers[request.key] = request, message.deliver
                taken.append(request)
        except Exception as error:
            for request in taken:
                del self._callers[request.key]
            self._core.abort_keys(request.key for request in taken)
            message.done.set_exception(_typed(error))
            return
        message.done.set_result(None)

    def _let_in(self) -> None:
        """Hand patient requests to the core, as many as its queue has room for."""
        for request in list(self._patient.values()) if self._patient else ():
            try:
                self._core.submit(request)
            except Overloaded:
                return
            except Exception as error:
                self._deliver(Output(key=request.key, rid=request.rid, error=_typed(error)))
            del self._patient[request.key]

    def _abort_patient(self, meant: Callable[[Request], bool]) -> int:
        mine = [request for request in self._patient.values() if meant(request)]
        for request in mine:
            del self._patient[request.key]
            finish = FinishReason("abort", message=f"request {request.rid!r} was aborted")
            self._deliver(Output(key=request.key, rid=request.rid, finish=finish, usage=Usage(request.prompt_tokens)))
        return len(mine)

    def _carry_out(self, message: _Call) -> None:
        if not message.done.set_running_or_notify_cancel():
            return
        try:
            message.done.set_result(message.function(self._core))
        except Exception as error:
            message.done.set_exception(error)

    def _deliver(self, output: Output) -> None:
        caller = self._callers.pop(output.key, None) if output.terminal else self._callers.get(output.key)
        if caller is None:
            return
        try:
            caller[1](output)
        except Exception:
            log.exception("the outputs of request %s could not be delivered", output.rid)

    def _end(self, error: WellheadError) -> None:
        with self._lock:
            self._error = error
        try:
            self._core.close()
            for output in self._core.fail_all(error):
                self._deliver(output)
        except Exception:
            log.exception("could not end all requests in order")
        self._patient.clear()
        for request, _ in list(self._callers.values()):
            self._deliver(Output(key=request.key, rid=request.rid, error=error))
        while True:
            try:
                message = self._inbox.get_nowait()
            except queue.Empty:
                return
            if isinstance(message, (_Submit, _Call)) and message.done.set_running_or_notify_cancel():
                message.done.set_exception(error)


def _typed(error: Exception) -> WellheadError:
    return error if isinstance(error, WellheadError) else InternalError(f"the request could not be taken: {error!r}")
