"""States and weights outlive the steps that use them, whatever a program does between two calls: with states,
with weights, with threads, with Ctrl-C.

offload_uses.py runs in a process with random delays, because what these tests look for are crashes.
"""

from __future__ import annotations

import gc
import os
import pathlib
import subprocess
import sys
import weakref
from typing import Any

import pytest
import torch
from octavo import _engine, optim
from octavo._engine import GRADIENTS, WEIGHTS
from octavo.optim import device_buffers
from octavo.optim.offload import offloaded_steps
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

AWAY = ("host", "stream")


@pytest.mark.parametrize("residence", AWAY)
def test_uses_of_states_and_weights(residence: str) -> None:
    script = pathlib.Path(__file__).with_name("offload_uses.py")
    environment = {**os.environ, "OCTAVO_OFFLOAD_DELAYS": "1:1000"}
    command = [sys.executable, str(script), residence]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=300)
    lines = done.stdout.splitlines()
    assert done.returncode == 0, f"{done.returncode} after {lines[-1:]}: {done.stderr[-2000:]}"
    assert [line for line in lines if not line.endswith("right")] == ["done"]


@pytest.mark.parametrize("residence", AWAY)
def test_memory_that_is_replaced_while_a_step_writes_it(
    residence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error, and nothing is written to freed memory. The old memory is freed after the wait."""
    monkeypatch.setenv("OCTAVO_OFFLOAD_DELAYS", "1:3000")
    model = nn.Linear(70, 70)
    optimizer = optim.AdamW(model.named_parameters(), offload=residence)
    optimizer.attach(model)
    for use in (optimizer.wait, lambda: model(torch.ones(1, 70)), model.state_dict, optimizer.step):
        model(torch.ones(1, 70)).sum().backward()
        optimizer.step()
        weight = model._parameters.get("weight")
        memory = StorageWeakRef(weight.untyped_storage())
        weight.data = weight.data.clone()
        assert not memory.expired()
        with pytest.raises(
            RuntimeError, match=r"'weight': its memory was replaced \(param.data = ...\) while a"
        ):
            use()
        assert memory.expired()
        model(torch.ones(1, 70))
    for wait in (optimizer.wait, optimizer.settle):
        model(torch.ones(1, 70)).sum().backward()
        optimizer.step()
        wait()
        weight.data = weight.data.clone()
    model(torch.ones(1, 70))


@pytest.mark.parametrize("residence", AWAY)
def test_gradients_of_an_interrupted_step_are_kept_until_they_were_read(residence: str) -> None:
    """zero_grad() drops them while a queue still copies them, and the step that was to use them never ran."""
    model = nn.Sequential(nn.Linear(70, 70), nn.Linear(70, 70))
    optimizer = optim.AdamW(model.parameters(), offload=residence, offload_gradients=True)
    optimizer.attach(model)
    for _ in range(2):
        model(torch.ones(1, 70)).sum().backward()
        optimizer.step()
    engine, away = optimizer._engine, optimizer._offload
    assert away is not None
    model(torch.ones(1, 70)).sum().backward()
    taken = [grad for read in away._queue for grad in read.grads]

    def interrupted(args: Any) -> None:
        raise KeyboardInterrupt

    waits: list[tuple[int, bool]] = []

    def wait(handles: Any, what: int, device: torch.device) -> None:
        type(engine).wait(engine, handles, what, device)
        waits.append((what, bool(away._queue)))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "step", interrupted)
        with pytest.raises(KeyboardInterrupt):
            optimizer.step()
        patch.setattr(engine, "wait", wait)
        optimizer.zero_grad()
        model(torch.ones(1, 70))
    assert taken
    assert away._queue or (GRADIENTS, True) in waits, "freed before they were read"


def test_attach_keeps_no_memory_between_steps() -> None:
    model = nn.Linear(70, 70)
    optimizer = optim.AdamW8bit(model.parameters(), offload="stream")
    optimizer.attach(model)
    for _ in range(2):
        model(torch.ones(1, 70)).sum().backward()
        optimizer.step()
    optimizer.wait()
    memory = StorageWeakRef(model.weight.untyped_storage())
    states = [weakref.ref(t) for t in optimizer.state[model.weight].values() if t.dim()]
    model.half()
    optimizer.state.clear()
    gc.collect()
    assert memory.expired()
    assert [ref() for ref in states] == [None] * len(states)


def test_another_threads_stream_waits_for_itself_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it waits for is still pending for the stream that steps."""
    model = nn.Linear(70, 70)
    optimizer = optim.AdamW(model.parameters(), offload="stream")
    optimizer.attach(model)
    current = [7]
    monkeypatch.setattr(offloaded_steps, "stream_of", lambda device: current[0])
    monkeypatch.setattr(offloaded_steps, "record_use", lambda tensor, stream: None)
    for stream, pending in ((8, True), (7, False)):
        current[0] = 7
        model(torch.ones(1, 70)).sum().backward()
        optimizer.step()
        current[0] = stream
        optimizer.wait()
        assert bool(optimizer._offload.pending) == pending


def test_staging_memory_goes_back_to_its_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's allocator may give it to the stream that it was allocated on, while another one still reads."""
    calls = list[Any]()

    class Engine:
        size = 1000

        def staging_bytes(self, *_: Any) -> int:
            return self.size

        def wait(self, handles: Any, what: int, device: torch.device) -> None:
            calls.append(("wait", what))

    class Slot:
        stream: int | None = None
        staging = staging_bytes = 0

    engine = Engine()
    buffers = device_buffers.DeviceBuffers(engine)  # type: ignore[arg-type]
    cpu = torch.device("cpu")
    buffers.add_devices([cpu])
    buffer, slot = buffers.by_device[cpu], Slot()
    monkeypatch.setattr(
        device_buffers, "record_use", lambda tensor, stream: calls.append((tensor.numel(), stream))
    )
    for engine.size, slot.stream in ((1000, 7), (1000, 8), (2000, 8), (3000, 9)):
        buffers._ensure_staging(buffer, slot)
    waits = [("wait", WEIGHTS), ("wait", GRADIENTS)]
    assert calls == [*waits, (1256, 7), *waits, (2256, 8)]


def test_a_use_on_another_stream_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    used = list[Any]()

    class Memory:
        device = torch.device("cpu")

        def record_stream(self, stream: Any) -> None:
            used.append(stream)

    monkeypatch.setattr(_engine, "stream_of", lambda device: 8)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: "current")
    for stream in (None, 8, 7):
        _engine.record_use(Memory(), stream)  # type: ignore[arg-type]
    assert used == ["current"]
