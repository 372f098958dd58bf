"""The result of octavo.plan."""

from __future__ import annotations

import dataclasses
import json
from typing import Any


@dataclasses.dataclass(frozen=True)
class PlanReport:
    """The forecast of a training step. Memory is in bytes on one GPU, times are in seconds."""

    gpu: str
    memory: int  # of the GPU
    peak: int  # of all tensors: torch.cuda.max_memory_allocated()
    reserved: int  # the peak of torch's allocator: torch.cuda.max_memory_reserved()
    context: int  # of CUDA in the process
    owners: dict[str, int]  # of `peak`
    host: int  # host memory of offload
    parameters: int
    samples: int  # of a step, on all GPUs
    gpu_seconds: float
    host_seconds: float  # to launch everything
    compute_seconds: float  # both overlap, so this is near the larger one
    exposed_seconds: float  # of communication and copies while nothing is computed
    by_bound: dict[str, float]  # of gpu_seconds
    notes: list[str] = dataclasses.field(default_factory=list)
    measured: bool = False

    @property
    def total(self) -> int:
        """The GPU memory of the process."""
        return self.reserved + self.context

    @property
    def fragmentation(self) -> int:
        return self.reserved - self.peak

    @property
    def fits(self) -> bool:
        return self.total <= self.memory

    @property
    def step_seconds(self) -> float:
        return self.compute_seconds + self.exposed_seconds

    @property
    def samples_per_second(self) -> float:
        return self.samples / self.step_seconds if self.step_seconds > 0 else 0.0

    @property
    def bound(self) -> str:
        """The limit of a step's speed: "memory", "arithmetic", "launch" or "host"."""
        if self.host_seconds > self.gpu_seconds:
            return "host"
        return max(self.by_bound, key=self.by_bound.__getitem__)

    def json(self) -> str:
        """Returns all fields and derived values as JSON; `from_json` reads it."""
        derived = ("total", "fragmentation", "fits", "step_seconds", "samples_per_second", "bound")
        return json.dumps({**dataclasses.asdict(self), **{name: getattr(self, name) for name in derived}})

    @classmethod
    def from_json(cls, text: str) -> PlanReport:
        given: dict[str, Any] = json.loads(text)
        return cls(**{field.name: given[field.name] for field in dataclasses.fields(cls)})

    def __str__(self) -> str:
        how = "measured" if self.measured else "planned"
        title = f"{self.gpu}, {self.parameters / 1e6:,.1f}M parameters, {self.samples} samples a step ({how})"
        rows = {name: size for name, size in self.owners.items() if size}
        rows |= {"peak allocated": self.peak, "fragmentation": self.fragmentation}
        rows |= {"reserved": self.reserved, "context": self.context}
        lines = [title, *(_row(name, size) for name, size in rows.items())]
        share = f"{100 * self.total / self.memory:.0f}% of {_gb(self.memory)}" if self.memory else ""
        lines.append(f"{_row('total', self.total)}   {'fits' if self.fits else 'DOES NOT FIT'}: {share}")
        if self.host:
            lines.append(_row("host memory", self.host))
        if self.step_seconds > 0:
            speed = f"{self.samples_per_second:,.1f} samples/s"
            lines.append(f"step {1e3 * self.step_seconds:.1f} ms, {speed}, bound by {self.bound}")
            parts = f"GPU {1e3 * self.gpu_seconds:.1f} ms, host {1e3 * self.host_seconds:.1f} ms"
            if self.exposed_seconds:
                parts += f", exposed {1e3 * self.exposed_seconds:.1f} ms"
            lines.append(f"  {parts}")
        lines += [f"note: {note}" for note in self.notes]
        return "\n".join(lines)


def _gb(size: int) -> str:
    return f"{size / 1e9:.2f} GB"


def _row(name: str, size: int) -> str:
    return f"  {name:<15}{_gb(size):>12}"
