"""What programs do with states and weights while steps of offloaded states are under way, in a process that a
defect may crash: test_offload_lifetimes.py runs it.

    OCTAVO_OFFLOAD_DELAYS=1:3000 python offload_uses.py host|stream

uses: every one is done right after a step, then training continues. interrupts: KeyboardInterrupt is raised
at a Python line of a step, at another one in every step, then training continues. threads: another thread
calls the optimizer or the model meanwhile. Weights and states must
have the bytes of an optimizer without offload. Each line of the output ends with "right" where they have.
"""

from __future__ import annotations

import collections
import copy
import functools
import gc
import itertools
import sys
import threading
import warnings
from collections.abc import Callable
from typing import Any

import conftest  # noqa: F401  (the way to the package)
import torch
from models import frozen
from octavo import optim
from torch import Tensor, nn

Use = Callable[[nn.Module, Any], None]


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(64, 300), nn.Linear(300, 64)
        self.last = nn.Linear(64, 64, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.second(self.first(x).tanh()).tanh())


def clear(model: Any, optimizer: Any) -> None:
    optimizer.state.clear()


def delete(model: Any, optimizer: Any) -> None:
    for param in list(optimizer.state):
        del optimizer.state[param]


def empty(model: Any, optimizer: Any) -> None:
    for param in list(optimizer.state):
        optimizer.state[param] = {}


def pop(model: Any, optimizer: Any) -> None:
    for param in list(optimizer.state):
        optimizer.state.pop(param)


def pop_items(model: Any, optimizer: Any) -> None:
    while optimizer.state:
        optimizer.state.popitem()


def update(model: Any, optimizer: Any) -> None:
    optimizer.state.update({param: {} for param in optimizer.state})


def update_in_place(model: Any, optimizer: Any) -> None:
    optimizer.state |= {param: {} for param in optimizer.state}


def replace(model: Any, optimizer: Any) -> None:
    optimizer.state = collections.defaultdict(dict)


def delete_keys(model: Any, optimizer: Any) -> None:
    for entry in optimizer.state.values():
        for key in list(entry.keys()):
            del entry[key]


def set_keys(model: Any, optimizer: Any) -> None:
    for entry in optimizer.state.values():
        for key in list(entry.keys()):
            entry[key] = torch.zeros_like(entry[key])


def load(model: Any, optimizer: Any) -> None:
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))


def set_state(model: Any, optimizer: Any) -> None:
    groups = optimizer.param_groups
    optimizer.__setstate__({"state": collections.defaultdict(dict), "param_groups": groups})
    optimizer.attach(model)


MUTATORS: list[Use] = [clear, delete, empty, pop, pop_items, update, update_in_place, replace]
MUTATORS += [delete_keys, set_keys, load, set_state]


def to_bfloat16(model: Any, optimizer: Any) -> None:
    model.bfloat16()


def to_half_and_back(model: Any, optimizer: Any) -> None:
    model.half().float()


def a_part_to_bfloat16(model: Any, optimizer: Any) -> None:
    model.second.to(torch.bfloat16).to(torch.float32)


def waits_and_replaces_data(model: Any, optimizer: Any) -> None:
    optimizer.wait()
    for param in model.parameters():
        param.data = param.data.clone()


def copies(model: Any, optimizer: Any) -> None:
    model.load_state_dict(copy.deepcopy(model).state_dict())


MOVES: list[Use] = [to_bfloat16, to_half_and_back, a_part_to_bfloat16, waits_and_replaces_data, copies]


def step(model: nn.Module, optimizer: Any, seed: int) -> None:
    x = torch.randn(4, 64, generator=torch.Generator().manual_seed(seed))
    model(x.to(next(model.parameters()).dtype)).square().mean().backward()
    optimizer.step()


def run(use: Use, attach: bool, **options: Any) -> Any:
    model = Model()
    optimizer = optim.AdamW(model.parameters(), lr=1e-2, **options)
    if attach:
        optimizer.attach(model)
    for number in range(2):
        step(model, optimizer, number)
        if number == 0:
            use(model, optimizer)
            junk = [torch.full((64, 300), torch.nan) for _ in range(8)]  # takes freed memory
            del junk
        optimizer.zero_grad()
    optimizer.wait()
    return frozen([list(model.parameters()), optimizer.state_dict()["state"]])


def uses(residence: str) -> None:
    """8-bit states are attached with both residences, fp32 states with one and not with the other."""
    cases = [("fp32", residence == "host"), ("8bit", True)]
    for use, (state, attach) in itertools.product([*MUTATORS, *MOVES], cases):
        expected = run(use, False, state=state)
        print(f"{use.__name__} {state} attach={attach}: ", end="", flush=True)
        found = run(use, attach, state=state, offload=residence)
        print("right" if found == expected else "wrong", flush=True)
        gc.collect()


class Interrupt:
    """Raises KeyboardInterrupt at one line of the package, by its number among those that are run."""

    def __init__(self, line: int) -> None:
        self.left, self.at = line, ""

    def __call__(self, frame: Any, event: str, given: Any) -> Any:
        return self.trace if "octavo" in frame.f_code.co_filename else None

    def trace(self, frame: Any, event: str, given: Any) -> Any:
        if event == "line":
            self.left -= 1
            if self.left < 0 and not self.at:
                self.at = f"{frame.f_code.co_filename.rpartition('/')[2]}:{frame.f_lineno}"
                raise KeyboardInterrupt
        return self.trace


def loss_of(model: nn.Module, seed: int) -> Tensor:
    return model(torch.randn(4, 64, generator=torch.Generator().manual_seed(seed))).square().mean()


def interrupts(residence: str) -> None:
    """A step that is interrupted was taken or was not. The next forward pass tells which."""
    cases = [({"state": "8bit"}, {}), ({"clip_grad_norm": 0.5}, {"offload_gradients": True})]
    for options, more in cases:
        model, other = Model(), Model()
        optimizer = optim.AdamW(model.parameters(), lr=1e-2, offload=residence, **options, **more)
        plain = optim.AdamW(other.parameters(), lr=1e-2, **options)
        optimizer.attach(model)
        for number in range(2):
            for one, its in ((model, optimizer), (other, plain)):
                loss_of(one, number).backward()
                its.step()
                its.zero_grad()
        for line in range(0, 5000, 2 if residence == "host" else 1):
            loss_of(model, line).backward()
            interrupt = Interrupt(line)
            sys.settrace(interrupt)
            try:
                optimizer.step()
            except KeyboardInterrupt:
                pass
            finally:
                sys.settrace(None)
            optimizer.zero_grad()
            junk = [torch.full((300, 64), torch.nan) for _ in range(4)]
            loss = loss_of(model, line + 1)
            del junk
            before = loss_of(other, line + 1)
            loss_of(other, line).backward()
            saved = copy.deepcopy((other.state_dict(), plain.state_dict()))
            plain.step()
            plain.zero_grad()
            if not torch.equal(loss, loss_of(other, line + 1)):
                other.load_state_dict(saved[0])
                plain.load_state_dict(saved[1])
                if not torch.equal(loss, before):
                    print(f"{options}: {line} {interrupt.at}: wrong", flush=True)
                    break
            if not interrupt.at:
                break
        optimizer.wait()
        found, expected = (
            frozen([list(m.parameters()), o.state_dict()["state"]])
            for m, o in ((model, optimizer), (other, plain))
        )
        print(f"{options}, {line} lines:", "right" if found == expected else "wrong", flush=True)


def beside(call: Callable[[], Any], train: Callable[[], None]) -> None:
    """Trains while another thread calls `call` again and again."""
    done, failed = threading.Event(), list[BaseException]()

    def calls() -> None:
        try:
            while not done.is_set():
                call()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=calls)
    thread.start()
    try:
        train()
    finally:
        done.set()
        thread.join()
    for error in failed:
        raise error


def together(calls: list[Callable[[], Any]]) -> None:
    """Calls all of these from a thread each, begun together."""
    start, failed = threading.Barrier(len(calls)), list[BaseException]()

    def run(call: Callable[[], Any]) -> None:
        start.wait()
        try:
            call()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=run, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for error in failed:
        raise error


def threads(residence: str) -> None:
    sys.setswitchinterval(1e-5)

    def trained(model: nn.Module, optimizer: Any, steps: int = 25) -> None:
        for number in range(steps):
            loss_of(model, number).backward()
            optimizer.step()
            optimizer.zero_grad()

    def made(**options: Any) -> tuple[Model, Any]:
        model = Model()
        return model, optim.AdamW(model.parameters(), lr=1e-2, state="8bit", **options)

    def bits(model: nn.Module, optimizer: Any) -> Any:
        optimizer.wait()
        return frozen([list(model.parameters()), optimizer.state_dict()["state"]])

    def say(name: str, right: bool) -> None:
        print(f"{name}:", "right" if right else "wrong", flush=True)

    model, optimizer = made()
    trained(model, optimizer)
    expected = bits(model, optimizer)
    for attach in (False, True):
        for name in ("wait", "settle", "both", "optimizer.state_dict", "model.state_dict", "evaluation"):
            model, optimizer = made(offload=residence)
            if attach:
                optimizer.attach(model)

            def both(optimizer: Any = optimizer) -> None:
                optimizer.wait()
                optimizer.settle()

            def evaluation(model: nn.Module = model) -> None:
                with torch.no_grad():
                    model(torch.ones(1, 64))

            calls = {
                "wait": optimizer.wait,
                "settle": optimizer.settle,
                "both": both,
                "evaluation": evaluation,
            }
            calls |= {"optimizer.state_dict": optimizer.state_dict, "model.state_dict": model.state_dict}
            beside(calls[name], functools.partial(trained, model, optimizer))
            say(f"{name} attach={attach}", bits(model, optimizer) == expected)

    plain, its = made()
    for param in plain.parameters():
        param.grad = torch.full_like(param, 0.1)
    for _ in range(4):
        its.step()
    for options in ({}, {"offload": residence}):
        for _ in range(4):
            model, optimizer = made(**options)
            for param in model.parameters():
                param.grad = torch.full_like(param, 0.1)
            together([optimizer.step] * 4)
            say(f"first steps {options}", bits(model, optimizer) == bits(plain, its))

    # Torch adds to .grad in one pass while the other one's hook takes it: only an error can be right.
    model, optimizer = made(offload=residence, offload_gradients=True, min_offload_size=0)
    in_backward, failed = threading.Event(), list[str]()
    losses = [loss_of(model, number) for number in (0, 1)]

    def second() -> None:
        in_backward.wait()
        try:
            losses[1].backward()
        except RuntimeError as error:
            failed.append(str(error))

    other = threading.Thread(target=second)

    def hold(param: Tensor) -> None:
        if threading.current_thread() is not other:
            in_backward.set()
            other.join()

    hook = model.last.weight.register_post_accumulate_grad_hook(hold)
    other.start()
    losses[0].backward()
    hook.remove()
    say("two backward passes", ["two threads run" in each for each in failed] == [True])
    optimizer.zero_grad()
    trained(model, optimizer, 2)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    for tried in (uses, interrupts, threads):
        tried(sys.argv[1])
    print("done")
