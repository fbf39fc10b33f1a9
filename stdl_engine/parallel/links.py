"""A one-way link from one stage to the next: messages are sent while both sides compute, a bounded number ahead.

Each end has a thread, so that neither computation waits for the transfer. A sender blocks once `ahead` messages wait to
be sent; a receiver reads one message before it is asked for it. Nothing is ever sent the other way.
"""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from .faults import LinkError, first_line
from .wire import Wire, payload_bytes

CLOSED = "closed"
"""The kind of the last message of a link, which the link itself sends and reads."""
LENGTH_BYTES = 8
"""Of the number that says how long a header is."""


class Transport(Protocol):
    """What a link needs from the layer below it: bytes in order from one rank to another."""

    def send(self, payload: Tensor) -> None:
        """Returns when the bytes are on their way and the tensor may be freed."""

    def receive(self, payload: Tensor) -> None:
        """Fills the tensor, which has the size of what was sent."""


@dataclass(frozen=True)
class Message:
    """Tensors with a word that says what they are for, and plain values."""

    kind: str
    wires: Sequence[Wire] = ()
    values: dict[str, Any] = field(default_factory=dict)


@dataclass
class Traffic:
    """The traffic at one end of a link."""

    messages: int = 0
    payload_bytes: int = 0
    """Bytes of the tensors in the form in which they were sent."""
    header_bytes: int = 0
    dense_bytes: int = 0
    """Bytes of the same tensors in their own dtypes."""
    waited_seconds: float = 0.0
    """How long the computation at this end waited for the link."""


class _End:
    def __init__(self, transport: Transport, name: str) -> None:
        self.transport, self.traffic = transport, Traffic()
        self._state = threading.Condition()
        self._error: BaseException | None = None
        self._messages: deque[Message] = deque()
        self._closing = False
        self._thread = threading.Thread(target=self._run_safely, name=name, daemon=True)
        self._thread.start()

    def _run_safely(self) -> None:
        try:
            self._run()
        except BaseException as error:  # whatever it is, the computation has to be told
            with self._state:
                self._error = error
                self._state.notify_all()

    def _run(self) -> None:
        raise NotImplementedError

    def _wait_until(self, ready: Callable[[], bool], timeout: float | None = None) -> None:
        """To be called with the lock held; counts the time that passes."""
        start = time.perf_counter()
        try:
            if not self._state.wait_for(lambda: ready() or self._error is not None, timeout):
                raise LinkError(f"nothing has moved for {timeout:g} seconds")
        finally:
            self.traffic.waited_seconds += time.perf_counter() - start
        if self._error is not None and not ready():
            raise LinkError(first_line(self._error)) from self._error

    def _count(self, message: Message, header: int) -> None:
        self.traffic.messages += 1
        self.traffic.header_bytes += header
        self.traffic.payload_bytes += payload_bytes(message.wires)
        self.traffic.dense_bytes += sum(wire.dense_bytes for wire in message.wires)


class Sender(_End):
    """The sending end."""

    def __init__(self, transport: Transport, *, ahead: int = 2, timeout: float | None = None) -> None:
        if not isinstance(ahead, int) or isinstance(ahead, bool) or ahead < 1:
            raise ValueError(f"ahead is {ahead!r}: the batches that may wait to be sent are a whole number from 1 up.")
        self.ahead, self.timeout = ahead, timeout
        super().__init__(transport, "stage sender")

    def send(self, message: Message) -> None:
        """Hand over a message; waits only while `ahead` messages have not been sent yet."""
        with self._state:
            self._wait_until(lambda: len(self._messages) < self.ahead, self.timeout)
            if self._error is not None:
                raise LinkError(first_line(self._error)) from self._error
            self._messages.append(message)
            self._state.notify_all()

    def flush(self) -> None:
        """Wait until everything has been sent."""
        with self._state:
            self._wait_until(lambda: not self._messages, self.timeout)

    def close(self) -> None:
        """End both threads of the link, once everything has been sent."""
        self.send(Message(CLOSED))
        self.flush()
        with self._state:
            self._closing = True
            self._state.notify_all()
        self._thread.join()

    def _run(self) -> None:
        while self._send_next():
            pass

    def _send_next(self) -> bool:
        """Send a message; returns whether there may be more. A function of its own, so that nothing in this thread
        keeps a message alive while it waits for the next one."""
        with self._state:
            self._state.wait_for(lambda: self._messages or self._closing)
            if not self._messages:
                return False
            message = self._messages[0]  # stays in the queue, and takes up its place, until it has been sent
        header = _header(message)
        self.transport.send(torch.tensor([header.numel()], dtype=torch.int64).view(torch.uint8))
        self.transport.send(header)
        for wire in message.wires:
            if wire.payload.numel():
                self.transport.send(wire.payload)
        with self._state:
            self._count(message, header.numel() + LENGTH_BYTES)
            self._messages.popleft()
            self._state.notify_all()
        return True


class Receiver(_End):
    """The receiving end."""

    def __init__(self, transport: Transport, *, timeout: float | None = None) -> None:
        self.timeout = timeout
        super().__init__(transport, "stage receiver")

    def receive(self) -> Message:
        """The next message."""
        with self._state:
            self._wait_until(lambda: bool(self._messages), self.timeout)
            message = self._messages.popleft()
            self._state.notify_all()
            return message

    def close(self) -> None:
        """Wait until the other end has closed the link."""
        self._thread.join(self.timeout)

    def _run(self) -> None:
        while True:
            self._receive_next()

    def _receive_next(self) -> None:
        """Receive a message, once the last one has been taken. A function of its own, so that whoever takes the message
        decides how long it lives."""
        with self._state:
            self._state.wait_for(lambda: not self._messages)
        size = torch.empty(LENGTH_BYTES, dtype=torch.uint8)
        self.transport.receive(size)
        header = torch.empty(int(size.view(torch.int64)), dtype=torch.uint8)
        self.transport.receive(header)
        found = json.loads(bytes(header.tolist()))
        wires = []
        for meta, count in found["wires"]:
            payload = torch.empty(count, dtype=torch.uint8)
            if count:
                self.transport.receive(payload)
            wires.append(Wire(payload, meta))
        message = Message(found["kind"], wires, found["values"])
        with self._state:
            if message.kind == CLOSED:
                raise LinkError("it has ended its work")
            self._count(message, header.numel() + LENGTH_BYTES)
            self._messages.append(message)
            self._state.notify_all()


def header_bytes(message: Message) -> int:
    """Bytes of what is sent before the tensors of a message."""
    return len(_words(message)) + LENGTH_BYTES


def _header(message: Message) -> Tensor:
    return torch.frombuffer(bytearray(_words(message)), dtype=torch.uint8)


def _words(message: Message) -> bytes:
    content = {
        "kind": message.kind,
        "values": message.values,
        "wires": [[wire.meta, wire.payload.numel()] for wire in message.wires],
    }
    return json.dumps(content).encode()
