"""The results of compare_peers_cuda.py: one per side and workload, as JSON or as Markdown tables."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

import torch
from report import markdown


@dataclass
class Result:
    side: str
    workload: str
    dtype: str
    ms_median: float | None = None
    ms_min: float | None = None
    host_ms_median: float | None = None  # the calling thread, which may run ahead of the GPU
    alone_ms_median: float | None = None  # wall clock of a step on an idle GPU, until it is done
    repeats: int = 0
    state_bytes_per_param: float | None = None
    error: str = ""
    times_ms: list[float] = field(default_factory=list)


@dataclass
class Outcome:
    gpu: str
    copy_gb_per_s: list[float]  # before and after the sides
    results: list[Result] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)  # the reason, by side
    torch: str = torch.__version__

    def json(self) -> str:
        return json.dumps(asdict(self), indent=2) + "\n"

    def text(self, dtypes: Sequence[str], workloads: Sequence[str], base: str) -> str:
        low, high = min(self.copy_gb_per_s), max(self.copy_gb_per_s)
        parts = [f"{self.gpu}, torch {self.torch}, copy {low:.0f} to {high:.0f} GB/s (read and written)"]
        parts += [self.markdown(dtype, workloads, base) for dtype in dtypes]
        parts += [f"missing: {name}: {why}" for name, why in self.missing.items()]
        failed = [r for r in self.results if r.error]
        parts += [f"error: {r.side}, {r.dtype} {r.workload}: {r.error}" for r in failed]
        return "\n\n".join(parts)

    def markdown(self, dtype: str, workloads: Sequence[str], base_name: str) -> str:
        """Returns a table of each side's ms and its ratio to the base side, for every workload."""
        results = {(r.side, r.workload): r for r in self.results if r.dtype == dtype}
        titles = [f"{dtype} params and grads", "state B/param"]
        for workload in workloads:
            titles += [f"{workload} ms", f"x of {base_name}", "host ms", "alone ms"]
        rows = []
        for name in dict.fromkeys(side for side, _ in results):
            sizes = [
                r.state_bytes_per_param
                for workload in workloads
                if (r := results.get((name, workload))) and r.state_bytes_per_param is not None
            ]
            row = [name, f"{sizes[-1]:.2f}" if sizes else "-"]
            for workload in workloads:
                own, base = results.get((name, workload)), results.get((base_name, workload))
                if own is None or own.ms_median is None:
                    row += ["error" if own is not None and own.error else "-", "-", "-", "-"]
                    continue
                ratio = f"{own.ms_median / base.ms_median:.2f}" if base and base.ms_median else "-"
                host, alone = own.host_ms_median or 0, own.alone_ms_median or 0
                row += [f"{own.ms_median:.3f}", ratio, f"{host:.3f}", f"{alone:.3f}"]
            rows.append(row)
        return markdown(titles, rows)
