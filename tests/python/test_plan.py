"""octavo.plan on a machine without a GPU: bytes against counts by hand and against real optimizers, inputs of
every form, models left as they are, errors that name the operator.

Sizes are multiples of torch's blocks of 512 bytes where a test counts them, so that nothing is rounded.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import pathlib
import sys
import weakref
from collections.abc import Callable
from typing import Any

import octavo
import pytest
import torch
from octavo import optim
from octavo._plan import PlanReport, _core, batch, host, measure, trace
from octavo._plan.attention import choose_attention
from octavo._plan.fake_gpu import fake_gpu
from peers import need
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "benchmarks"))
from vit_model import Config, VisionTransformer

MIB = 1 << 20
SCALAR = 512  # what the allocator gives for any small one
A100 = int(8.125 * MIB)  # of cuBLAS, per thread
WIDTH, ROWS = 512, 1024
WEIGHT, ROW = 4 * WIDTH * WIDTH, 4 * ROWS * WIDTH


def total(output: Tensor) -> Tensor:
    return output.sum()


def chain(layers: int, *between: Callable[[], nn.Module]) -> nn.Sequential:
    parts: list[nn.Module] = []
    for _ in range(layers):
        parts += [nn.Linear(WIDTH, WIDTH, bias=False, device="meta"), *(make() for make in between)]
    return nn.Sequential(*parts)


def planned(model: nn.Module, optimizer: Any = None, given: Any = (ROWS, WIDTH), **more: Any) -> PlanReport:
    return octavo.plan(model, optimizer, given, **{"gpu": "a100", "loss": total, **more})


# --- Memory by hand -------------------------------------------------------------------------------


@pytest.mark.parametrize("layers", [1, 2, 4, 7])
def test_chain_of_linears(layers: int) -> None:
    """Forward keeps every layer's input. Going back, layer k has the gradient of its output, makes that of
    its input and that of its weight, and inputs above are gone.
    """
    steps = [layers * WEIGHT + ROW + layers * ROW + A100 + SCALAR]  # the last output, and the loss
    for k in range(layers, 0, -1):
        rows = 1 + (k - 1) + (k < layers) + (k > 1)  # x, inputs, gradient of the output, of the input
        grads = (layers - k + 1) * WEIGHT
        steps.append(layers * WEIGHT + rows * ROW + grads + 2 * A100 + 2 * SCALAR)
    report = planned(chain(layers))
    # A second step has both workspaces and the loss from the beginning.
    assert report.peak == max(steps[0] + A100, *steps[1:])
    assert report.owners["weights"] == layers * WEIGHT
    assert report.owners["batch"] == ROW
    assert report.owners["rounding"] == (1 if layers == 1 else 2) * (SCALAR - 4)  # the loss, its gradient


def test_weights_gradients_and_states_at_the_peak() -> None:
    # One row: activations are next to nothing, so the peak has all gradients.
    report = planned(chain(4), torch.optim.AdamW, (1, WIDTH))
    assert report.owners["gradients"] >= 3 * WEIGHT
    assert report.owners["states"] == 8 * WEIGHT
    assert report.peak == sum(report.owners.values())
    assert report.reserved >= report.peak
    assert report.total == report.reserved + report.context
    assert report.fits


def test_torch_optimizers_temporaries() -> None:
    """fused has none, foreach has lists as large as the parameters."""
    model, few = chain(4), (1, WIDTH)
    fused = planned(model, lambda p: torch.optim.AdamW(p, fused=True), few)
    foreach = planned(model, lambda p: torch.optim.AdamW(p, foreach=True), few)
    default = planned(model, torch.optim.AdamW, few)
    assert fused.peak + 4 * WEIGHT <= foreach.peak + 2 * MIB
    assert default.peak == foreach.peak, "torch's default on a GPU"
    assert planned(model, lambda p: torch.optim.SGD(p, lr=0.1), few).owners["states"] == 0


def recorded(function: Callable[[torch.device], Any]) -> list[list[int]]:
    """The events of a function of a device."""
    gpu = _core.Gpu("a100")
    with fake_gpu(gpu, []) as (_, device), choose_attention(gpu):
        recorder = trace.Recorder(gpu, device)
        with recorder:
            kept = function(device)
            events = list(recorder.events)
            del kept
    return events


def test_views_and_operators_in_place_take_nothing() -> None:
    def views(device: torch.device) -> Any:
        x = torch.empty(64, 128, device=device)
        y = x.view(128, 64).t()[1:].unsqueeze(0).expand(4, -1, -1)
        return x, y, x.relu_(), x.add_(1), x.detach(), nn.Parameter(x)

    assert [size for _, size, _ in recorded(views)] == [64 * 128 * 4]

    def in_place(device: torch.device) -> Any:
        x = torch.empty(64, 128, device=device, requires_grad=True)
        return nn.ReLU(inplace=True)(x * 2), nn.ReLU()(x * 2)

    sizes = [size for _, size, _ in recorded(in_place)]
    # x; the product, in place; a product, its ReLU, and the product is given back.
    assert sizes == [32768, 32768, 32768, 32768, _core.FREED]


def test_memory_of_the_host_is_not_counted() -> None:
    def moved(device: torch.device) -> Any:
        here = torch.empty(1024, device="cpu")
        return here, here * 2, here.to(device)

    assert [size for _, size, _ in recorded(moved)] == [4096]


class Blocks(nn.Module):
    def __init__(self, checkpointed: bool, reentrant: bool = False) -> None:
        super().__init__()
        self.parts = nn.ModuleList(
            nn.Sequential(
                nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Dropout(0.1), nn.Linear(4 * WIDTH, WIDTH)
            )
            for _ in range(6)
        )
        self.checkpointed, self.reentrant = checkpointed, reentrant

    def forward(self, x: Tensor) -> Tensor:
        for part in self.parts:
            x = checkpoint(part, x, use_reentrant=self.reentrant) if self.checkpointed else part(x)
        return x


def test_checkpointing() -> None:
    plain, saved = planned(Blocks(False)), planned(Blocks(True))
    # A block keeps its input, the inputs of GELU and of the last layer, and a mask: 9 rows and more.
    assert plain.owners["activations"] > 6 * 9 * ROW
    assert saved.owners["activations"] < 6 * ROW + 2 * 16 * ROW
    assert saved.step_seconds > plain.step_seconds, "forward twice"


def test_dropout_saves_a_byte_per_element() -> None:
    """As CUDA's kernel does. A build without CUDA must not take the CPU's, which keeps floats."""
    sizes = [size for _, size, _ in recorded(lambda d: functional.dropout(torch.empty(1024, device=d), 0.5))]
    assert sorted(sizes) == [-1, -1, 1024, 4096, 4096]


def test_accumulation_adds_to_the_gradients() -> None:
    model = chain(4)
    once, often = planned(model, torch.optim.AdamW), planned(model, torch.optim.AdamW, accumulate=5)
    assert often.peak > once.peak, "the second pass has the gradients of the first"
    assert often.peak <= once.peak + 4 * WEIGHT
    assert often.samples == 5 * once.samples
    assert often.gpu_seconds > 3 * once.gpu_seconds


def test_autocast_keeps_casts_of_weights() -> None:
    model = chain(9)
    half, full = planned(model, autocast=torch.bfloat16), planned(model)
    assert half.owners["weights"] == full.owners["weights"]
    assert half.owners["activations"] < full.owners["activations"]
    assert planned(model, dtype=torch.bfloat16).owners["weights"] == full.owners["weights"] // 2


def largest(events: list[list[int]]) -> int:
    """Of what is no library's workspace."""
    return max(size for _, size, owner in events if owner == _core.ACTIVATIONS)


def test_attention_keeps_no_scores() -> None:
    """Flash attention in bf16, efficient attention in fp32 and with a mask: rows, not rows times rows."""
    shape, scores = (2, 4, 1024, 64), 2 * 4 * 1024 * 1024

    for dtype in (torch.bfloat16, torch.float32):

        def attend(device: torch.device, dtype: torch.dtype = dtype) -> Any:
            q, k, v = (torch.empty(shape, device=device, dtype=dtype, requires_grad=True) for _ in range(3))
            return functional.scaled_dot_product_attention(q, k, v, is_causal=True)

        assert largest(recorded(attend)) < scores
    heads = nn.MultiheadAttention(256, 4, batch_first=True, dtype=torch.bfloat16, device="meta")

    def through_a_module(device: torch.device) -> Any:
        x = torch.empty(2, 1024, 256, device=device, dtype=torch.bfloat16)
        return heads.to_empty(device=device)(x, x, x, need_weights=False)

    assert largest(recorded(through_a_module)) < scores


def test_ranks_have_gradients_in_buckets() -> None:
    model = nn.Sequential(*(nn.Linear(1024, 1024, device="meta") for _ in range(12)))
    alone = octavo.plan(model, torch.optim.AdamW, (64, 1024), gpu="a100")
    ranks = octavo.plan(model, torch.optim.AdamW, (64, 1024), gpu="a100", num_gpus=8)
    size = sum(p.numel() * 4 for p in model.parameters())
    assert ranks.owners["communication"] == size
    assert ranks.owners["gradients"] == 0
    assert alone.owners["communication"] == 0
    assert ranks.exposed_seconds > 0
    assert ranks.samples == 8 * alone.samples


# --- States ---------------------------------------------------------------------------------------


class Mixed(nn.Module):
    """Large and small tensors, an embedding, odd sizes."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.table = nn.Embedding(300, 64, dtype=dtype)
        self.norm = nn.LayerNorm(64, dtype=dtype)
        self.up, self.down = nn.Linear(64, 130, dtype=dtype), nn.Linear(130, 64, dtype=dtype)

    def forward(self, ids: Tensor) -> Tensor:
        return self.down(self.up(self.norm(self.table(ids))))


OWN: list[tuple[Any, dict[str, Any], torch.dtype]] = [
    (optim.AdamW8bit, {}, torch.float32),
    (optim.AdamW4bit, {}, torch.float32),
    (optim.AdamW, {"state": "fp32"}, torch.float32),
    (optim.AdamW, {"state": "4bit-rank1"}, torch.bfloat16),
    (optim.AdamW8bit, {"master": 24}, torch.bfloat16),
    (optim.AdamW8bit, {"master": 32, "skip_nonfinite": True}, torch.bfloat16),
    (optim.Lion8bit, {"min_quantized_size": 0}, torch.bfloat16),
]


@pytest.mark.parametrize(("cls", "options", "dtype"), OWN)
def test_own_states_are_those_of_a_real_step(cls: Any, options: dict[str, Any], dtype: torch.dtype) -> None:
    model = Mixed(dtype)
    real = cls(model.parameters(), lr=1e-3, **options)
    model(torch.arange(32)).float().sum().backward()
    real.step()
    entries = [entry for _, entry in real.entries()]
    master = sum(entry["master"].nbytes for entry in entries if "master" in entry)

    report = octavo.plan(Mixed(dtype), lambda p: cls(p, lr=1e-3, **options), {"ids": (4, 8)}, gpu="a100")
    counts = 8 * len(entries) if options.get("skip_nonfinite") else 0
    assert report.owners["master"] == master
    assert report.owners["states"] + master == real.state_bytes() + counts
    # An optimizer that is there already is asked for the same.
    model.zero_grad()
    again = octavo.plan(model, real, {"ids": (4, 8)}, gpu="a100")
    assert again.owners == report.owners


def test_states_follow_groups_and_overrides() -> None:
    model = Mixed(torch.float32)
    optim.set_state(model.down.weight, state="4bit")
    tables = {"params": list(model.table.parameters()), "state": "fp32"}
    rest = [*model.up.parameters(), *model.down.parameters(), *model.norm.parameters()]
    real = optim.AdamW([tables, {"params": rest, "state": "8bit"}], lr=1e-3)
    report = octavo.plan(model, real, {"ids": (4, 8)}, gpu="a100")
    model(torch.arange(32)).sum().backward()
    real.step()
    assert report.owners["states"] == real.state_bytes()


def test_torch_states() -> None:
    model = Mixed(torch.float32)
    real = torch.optim.AdamW(model.parameters(), amsgrad=True)
    model(torch.arange(32)).sum().backward()
    real.step()
    size = sum(t.nbytes for e in real.state.values() for k, t in e.items() if k != "step")
    model.zero_grad()
    assert octavo.plan(model, real, {"ids": (4, 8)}, gpu="a100").owners["states"] == size


def test_parameters_without_gradients_have_no_states() -> None:
    model = Mixed(torch.float32)
    whole = octavo.plan(model, optim.AdamW8bit, {"ids": (4, 8)}, gpu="a100")
    model.table.requires_grad_(False)
    frozen = octavo.plan(model, optim.AdamW8bit, {"ids": (4, 8)}, gpu="a100")
    assert frozen.owners["states"] < whole.owners["states"] - 2 * 300 * 64
    assert frozen.parameters == whole.parameters


def test_offload_and_release() -> None:
    model = nn.Sequential(*(nn.Linear(2048, 2048, device="meta") for _ in range(12)))
    few = (8, 2048)
    here = octavo.plan(model, optim.AdamW8bit, few, gpu="a100")
    away = octavo.plan(model, optim.AdamW8bit, few, gpu="a100", offload="stream")
    released = octavo.plan(model, optim.AdamW8bit, few, gpu="a100", gradient_release=True)
    assert here.host == 0
    assert away.owners["states"] < here.owners["states"] / 100
    assert away.host >= here.owners["states"] - away.owners["states"]
    assert away.peak < here.peak
    # Gradients are gathered until they have 64 MiB: four layers of 16.
    assert released.owners["gradients"] <= 5 * 2048 * 2049 * 4
    assert released.peak < here.peak
    both = octavo.plan(model, optim.AdamW8bit, few, gpu="a100", gradient_release=True, offload="host")
    assert both.owners["states"] == away.owners["states"]
    assert both.host > away.host, "copies of weights and gradients"


# --- Inputs, and what is left alone ------------------------------------------------------------------


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: Tensor, scale: Tensor, flag: bool = True) -> dict[str, Tensor]:
        return {"count": scale.long(), "out": self.linear(x) * scale if flag else x}


def test_forms_of_a_batch() -> None:
    model = Two()
    forms: list[Any] = [
        (torch.zeros(4, 8), torch.zeros(4, 1)),
        [(4, 8), (4, 1)],
        ((4, 8), torch.zeros(4, 1, device="meta")),
        (((4, 8), torch.float32), (4, 1)),
        {"x": (4, 8), "scale": torch.Size((4, 1)), "flag": True},
        {"x": torch.zeros(4, 8), "scale": ((4, 1), torch.float32)},
    ]
    reports = [octavo.plan(model, torch.optim.SGD, form, gpu="a100") for form in forms]
    assert len({report.peak for report in reports}) == 1
    assert {report.samples for report in reports} == {4}
    one = nn.Linear(8, 8)
    peaks = {
        octavo.plan(one, None, form, gpu="t4").peak
        for form in ((4, 8), torch.zeros(4, 8), ((4, 8), torch.float32))
    }
    assert len(peaks) == 1
    with pytest.raises(TypeError, match="batch has the type str"):
        octavo.plan(one, None, "4x8", gpu="t4")


def test_names_of_whole_numbers() -> None:
    report = octavo.plan(Mixed(torch.float32), None, {"ids": (4, 8)}, gpu="t4")
    assert report.owners["batch"] == 4 * 8 * 8


def test_losses() -> None:
    class Output:
        def __init__(self, loss: Tensor) -> None:
            self.loss = loss

    class WithLoss(nn.Module):
        def __init__(self, wrap: Any) -> None:
            super().__init__()
            self.linear, self.wrap = nn.Linear(8, 8), wrap

        def forward(self, x: Tensor) -> Any:
            return self.wrap(self.linear(x).mean())

    for wrap in (Output, lambda loss: {"loss": loss, "logits": None}):
        assert octavo.plan(WithLoss(wrap), None, (4, 8), gpu="t4").owners["weights"] == 288
    with pytest.raises(octavo.PlanError, match="without a tensor; give loss="):
        octavo.plan(WithLoss(lambda loss: "nothing"), None, (4, 8), gpu="t4")


def test_the_model_is_untouched() -> None:
    class Remembers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.drop, self.last = nn.Linear(8, 8), nn.Dropout(), None
            self.norm = nn.BatchNorm1d(8)
            self.plain = torch.ones(3)

        def forward(self, x: Tensor) -> Tensor:
            torch.manual_seed(3)
            self.last = self.drop(self.norm(self.linear(x)))  # type: ignore[assignment]
            return self.last  # type: ignore[return-value]

    model = Remembers()
    model.drop.eval()
    real = optim.AdamW8bit(model.parameters(), gradient_release=True)
    before = {name: (t, t.data_ptr(), t.clone()) for name, t in model.state_dict(keep_vars=True).items()}
    hooks = {name: dict(p._post_accumulate_grad_hooks or {}) for name, p in model.named_parameters()}
    seed = torch.get_rng_state()
    functions = (torch.cuda.is_available, functional.scaled_dot_product_attention)
    octavo.plan(model, real, (4, 8), gpu="a100")

    assert torch.equal(torch.get_rng_state(), seed)
    for name, tensor in model.state_dict(keep_vars=True).items():
        same, address, values = before[name]
        assert tensor is same
        assert tensor.data_ptr() == address
        assert torch.equal(tensor, values)
        assert tensor.grad is None
    assert model.last is None
    assert model.training
    assert not model.drop.training
    assert not real.state
    assert hooks == {name: dict(p._post_accumulate_grad_hooks or {}) for name, p in model.named_parameters()}
    assert functions == (torch.cuda.is_available, functional.scaled_dot_product_attention)
    # Real training goes on as before.
    model(torch.randn(4, 8)).sum().backward()
    real.step()


def test_tied_weights_count_once() -> None:
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False))
    model[1].weight = model[0].weight
    report = planned(model, torch.optim.AdamW)
    assert report.owners["weights"] == WEIGHT
    assert report.owners["states"] == 2 * WEIGHT


# --- Whole models -----------------------------------------------------------------------------------


class Decoder(nn.Module):
    """GPT-2's shape."""

    def __init__(self, layers: int, width: int, heads: int, words: int, context: int, device: str) -> None:
        super().__init__()
        with torch.device(device):
            self.words, self.places = nn.Embedding(words, width), nn.Embedding(context, width)
            self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2 * layers + 1))
            self.qkv = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(layers))
            self.out = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
            self.up = nn.ModuleList(nn.Linear(width, 4 * width) for _ in range(layers))
            self.down = nn.ModuleList(nn.Linear(4 * width, width) for _ in range(layers))
            self.head = nn.Linear(width, words, bias=False)
        self.heads = heads

    def _layer(self, x: Tensor, i: int) -> Tensor:
        parts = self.qkv[i](self.norms[2 * i](x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(*parts.unbind(), is_causal=True)
        x = x + self.out[i](attended.transpose(1, 2).flatten(2))
        return x + self.down[i](functional.gelu(self.up[i](self.norms[2 * i + 1](x))))

    def forward(self, input_ids: Tensor, labels: Tensor) -> dict[str, Tensor]:
        x = self.words(input_ids) + self.places(torch.arange(input_ids.shape[1], device=input_ids.device))
        for i in range(len(self.qkv)):
            x = checkpoint(self._layer, x, i, use_reentrant=False)
        logits = self.head(self.norms[-1](x))
        return {"loss": functional.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())}


def test_seven_billion_parameters_without_memory() -> None:
    model = Decoder(32, 4096, 32, 50304, 2048, "meta").bfloat16()
    given = {"input_ids": (1, 2048), "labels": (1, 2048)}
    report = octavo.plan(model, optim.AdamW4bit, given, gpu="h100", gradient_release=True)
    assert report.parameters > 6.4e9
    assert report.owners["weights"] == 2 * report.parameters
    assert report.owners["states"] < 1.1 * report.parameters
    assert report.fits
    assert not octavo.plan(model, torch.optim.AdamW, given, gpu="24GB").fits


def test_a_small_gpt() -> None:
    model = Decoder(4, 256, 4, 1024, 512, "cpu")
    given = {"input_ids": torch.zeros(2, 512, dtype=torch.long), "labels": (2, 512)}
    report = octavo.plan(model, optim.AdamW8bit, given, gpu="rtx 4090", autocast=torch.bfloat16)
    assert report.samples == 2
    assert 0 < report.step_seconds < 1
    assert report.bound in ("memory", "arithmetic", "launch", "host")
    assert sum(report.by_bound.values()) == pytest.approx(report.gpu_seconds)
    slow = octavo.plan(model, optim.AdamW8bit, given, gpu="t4", autocast=torch.float16)
    assert slow.gpu_seconds > report.gpu_seconds


def test_a_gpu_without_bf16_units_is_named() -> None:
    """A V100 has tensor cores for float16 alone: bfloat16 counts at the rate of float32."""
    model = nn.Linear(4096, 4096)
    slow, fast = (
        octavo.plan(model, optim.AdamW8bit, (4096, 4096), gpu="v100", autocast=dtype)
        for dtype in (torch.bfloat16, torch.float16)
    )
    (note,) = slow.notes
    assert note.startswith("bfloat16 is slow on NVIDIA V100 SXM2 16 GB")
    assert note.endswith("whose tensor cores support float16 and not bfloat16; use torch.float16")
    assert slow.gpu_seconds > 2 * fast.gpu_seconds
    assert fast.notes == []


def test_vision_transformer_as_measured() -> None:
    """ViT-H/14 under autocast on 2026-11-18: 12.36 GB with torch's fused AdamW, 8.43 with 8bit."""
    with torch.device("meta"):
        model = VisionTransformer(Config())

    def loss(logits: Tensor) -> Tensor:
        return functional.cross_entropy(logits, torch.zeros(8, dtype=torch.long, device=logits.device))

    makers = {12.36: lambda p: torch.optim.AdamW(p, fused=True), 8.43: optim.AdamW8bit}
    for measured, make in makers.items():
        report = octavo.plan(model, make, (8, 3, 224, 224), gpu="h200", autocast=torch.bfloat16, loss=loss)
        assert report.peak / 1e9 == pytest.approx(measured, rel=0.02)


# --- Reports and errors -----------------------------------------------------------------------------


def test_report() -> None:
    report = planned(chain(2), optim.AdamW8bit)
    text = str(report)
    for word in (
        "weights",
        "gradients",
        "states",
        "peak allocated",
        "fragmentation",
        "context",
        "fits",
        "step",
    ):
        assert word in text, text
    assert PlanReport.from_json(report.json()) == report
    given = json.loads(report.json())
    assert given["total"] == report.total
    assert given["step_seconds"] == report.step_seconds
    assert "DOES NOT FIT" in str(planned(chain(2), given=(1 << 24, WIDTH), gpu="24GB"))


class Selects(nn.Module):
    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x)
        return y[y > 0]


class Branches(Selects):
    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x)
        return y * 2 if y.sum() > 0 else y


class Native(Selects):
    def forward(self, x: Tensor) -> Tensor:
        return x + self.linear.weight.data_ptr()


def test_errors_name_operator_and_module() -> None:
    model = nn.Sequential(nn.Linear(8, 8), Selects())
    with pytest.raises(octavo.PlanError, match=r"aten.index.Tensor in the module '1'.*real steps"):
        octavo.plan(model, None, (4, 8), gpu="a100")
    with pytest.raises(octavo.PlanError, match=r"values, and a plan has none.*real steps"):
        octavo.plan(nn.Sequential(Branches()), None, (4, 8), gpu="a100")
    with pytest.raises(octavo.PlanError, match=r"data pointer.*real steps"):
        octavo.plan(Native(), None, (4, 8), gpu="a100")
    with pytest.raises(octavo.PlanError, match=r"aten.addmm.*in the module '1'.*dim") as wrong:
        octavo.plan(nn.Sequential(nn.Linear(8, 9), nn.Linear(8, 8)), None, (4, 8), gpu="a100")
    assert "real steps" not in str(wrong.value), "a GPU would not take it either"


def test_bad_arguments() -> None:
    model = nn.Linear(8, 8)
    with pytest.raises(octavo.OctavoError, match=r"got 'h999'.*24GB"):
        octavo.plan(model, None, (4, 8), gpu="h999")
    with pytest.raises(TypeError, match="model is a str"):
        octavo.plan("model", None, (4, 8), gpu="t4")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="optimizer is a str"):
        octavo.plan(model, "adamw", (4, 8), gpu="t4")
    with pytest.raises(ValueError, match=r"go with a class of octavo\.optim"):
        octavo.plan(model, torch.optim.AdamW, (4, 8), gpu="t4", offload="stream")
    with pytest.raises(ValueError, match="one backward pass"):
        octavo.plan(model, optim.AdamW8bit, (4, 8), gpu="t4", accumulate=2, gradient_release=True)
    with pytest.raises(ValueError, match="at least 1"):
        octavo.plan(model, None, (4, 8), gpu="t4", accumulate=0)
    with pytest.raises(ValueError, match="parameters that the model does not have"):
        octavo.plan(model, torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=1.0), (4, 8), gpu="t4")


def test_the_host_that_was_measured_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "_found", {})
    state = torch.random.get_rng_state()
    found = host.launch_seconds(torch.device("cpu"), lambda _: 100.0)
    assert 1e-6 < found < 1e-1
    assert host.launch_seconds(torch.device("cpu"), lambda _: 1.0) == found  # once
    assert torch.equal(torch.random.get_rng_state(), state)

    def full(_: nn.Module) -> float:
        raise torch.OutOfMemoryError("full")

    monkeypatch.setattr(host, "_found", {})
    assert host.launch_seconds(torch.device("cpu"), full) == host.LAUNCH_SECONDS


def test_a_plan_for_this_gpu_takes_its_host(monkeypatch: pytest.MonkeyPatch) -> None:
    model, asked = torch.nn.Linear(8, 8), []
    assumed = octavo.plan(model, None, (4, 8), gpu="h100")
    known = _core.Gpu
    monkeypatch.setattr(_core, "Gpu", lambda text: known("h100" if text.startswith("this") else text))

    def measured(device: torch.device, launches: Callable[[torch.nn.Module], float]) -> float:
        asked.append((device, launches(host.layers())))
        return 7 * host.LAUNCH_SECONDS

    monkeypatch.setattr(host, "launch_seconds", measured)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert octavo.plan(model, None, (4, 8), gpu="this").host_seconds == assumed.host_seconds
    assert not asked
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    slow = octavo.plan(model, None, (4, 8), gpu="this:1")
    assert slow.host_seconds == pytest.approx(7 * assumed.host_seconds)
    assert slow.bound == "host"
    # Four layers: each has at least four products forward and eight back.
    ((device, launches),) = asked
    assert device == torch.device("cuda", 1)
    assert 4 * 12 < launches < 4 * 200


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_the_host_of_this_machine() -> None:
    model = torch.nn.Linear(8, 8)
    here, assumed = (octavo.plan(model, None, (4, 8), gpu=gpu) for gpu in ("this", "h100"))
    assert here.host_seconds != assumed.host_seconds
    assert 0.2 < here.host_seconds / assumed.host_seconds < 20


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_measuring_needs_a_gpu() -> None:
    with pytest.raises(octavo.OctavoError, match="needs a GPU"):
        octavo.plan(nn.Linear(8, 8), None, (4, 8), measure=True)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_what_cannot_be_planned_is_measured_where_the_gpu_is() -> None:
    model = nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(4)), Branches(1024))
    report = octavo.plan(model, optim.AdamW8bit, (4096, 1024))
    whole = octavo.plan(model, optim.AdamW8bit, (4096, 1024), measure=True)
    assert report.measured
    assert report.samples == whole.samples == 4096
    assert any("1024 and 2048 samples" in note for note in report.notes)
    assert report.peak == pytest.approx(whole.peak, rel=0.05)
    with pytest.raises(octavo.PlanError, match="values"):
        octavo.plan(model, optim.AdamW8bit, (4096, 1024), measure=False)


def test_small_batches_lie_on_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the steps take is given: 100 bytes and 2 for each sample; more than 16 samples do not fit."""
    taken = []

    def steps(_job: object, _device: object, samples: int, some: int) -> measure._Steps:
        assert samples == 64
        taken.append(some)
        if some > 16:
            raise torch.cuda.OutOfMemoryError("full")
        return measure._Steps(some, 100 + 2 * some, 200 + 2 * some, 0.5 + 0.25 * some, 0, 50)

    monkeypatch.setattr(measure, "_steps", steps)
    monkeypatch.setattr(measure, "Gpu", lambda _, real=_core.Gpu: real("a100"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(host, "_found", {torch.device("cuda", 0): host.LAUNCH_SECONDS})
    monkeypatch.setattr(torch.random, "fork_rng", lambda _devices: contextlib.nullcontext())
    report = octavo.plan(nn.Linear(8, 8), None, (64, 8), measure=True)
    assert taken == [64, 16, 32, 4, 8]
    assert (report.peak, report.reserved, report.step_seconds) == (228, 328, 16.5)
    assert any("4 and 8 samples; 64 are on the line" in note for note in report.notes)

    # Where fake tensors cannot run it: small batches at once, and the plan's reason where they fail, too.
    monkeypatch.setattr(_core, "Gpu", lambda _, real=_core.Gpu: real("a100"))
    taken.clear()
    report = octavo.plan(nn.Sequential(Branches()), None, (64, 8))
    assert taken == [16, 32, 4, 8]
    assert "measured: plan: operator" in report.notes[0]
    monkeypatch.setattr(measure, "_steps", lambda *_: 1 / 0)
    with pytest.raises(octavo.PlanError, match="values"):
        octavo.plan(nn.Sequential(Branches()), None, (64, 8))
    with pytest.raises(octavo.PlanError, match="values"):
        octavo.plan(nn.Sequential(Branches()), None, (64, 8), measure=False)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_plan_against_a_measurement() -> None:
    model = nn.Sequential(*(nn.Linear(2048, 2048) for _ in range(8)))
    for make in (lambda p: torch.optim.AdamW(p, fused=True), optim.AdamW8bit):
        measured = octavo.plan(model, make, (4096, 2048), measure=True)
        report = octavo.plan(model, make, (4096, 2048))
        assert report.peak == pytest.approx(measured.peak, rel=0.05)


# --- What a plan leaves behind, and optimizers that cannot be planned --------------------------------------


@pytest.mark.parametrize(
    "optimizer",
    [
        None,
        torch.optim.AdamW,
        optim.AdamW8bit,
        lambda params: optim.AdamW8bit(params, gradient_release=True),
        lambda params: optim.AdamW8bit(params, offload="host", offload_gradients=True),
    ],
)
@pytest.mark.parametrize("fails", [False, True])
def test_nothing_of_a_plan_stays(optimizer: Any, fails: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hooks of parameters held the step, and it the model: a cycle that the collector does not see."""
    made: list[weakref.ref[Any]] = []
    fake_model = batch.fake_model

    def noted(*given: Any) -> Any:
        found = fake_model(*given)
        made.extend(map(weakref.ref, [found[0], *found[0].parameters()]))
        return found

    monkeypatch.setattr(batch, "fake_model", noted)
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    expected = pytest.raises(octavo.PlanError) if fails else contextlib.nullcontext()
    with expected:
        planned(model, optimizer, (4, 9 if fails else 8))
    del expected  # it holds the error, and that the frames in which it was raised
    gc.collect()
    assert len(made) == 5
    assert [ref for ref in made if ref() is not None] == []


@pytest.mark.parametrize(
    ("package", "name", "said"),
    [
        ("bitsandbytes", "AdamW8bit", "it reads values of tensors"),
        ("torchao", "AdamW8bit", "it compiles its step"),
        ("torch", "LBFGS", "missing 1 required positional argument: 'closure'"),
    ],
)
def test_an_optimizer_that_cannot_be_planned_is_named(package: str, name: str, said: str) -> None:
    if package != "torch":
        need(package)
    kind = getattr(importlib.import_module(f"{package}.optim"), name)
    with pytest.raises(octavo.PlanError) as caught:
        planned(nn.Linear(512, 512), kind, (8, 512))
    text = str(caught.value)
    assert f"the optimizer {kind.__module__}.{name} cannot be planned: " in text
    assert said in text
    assert "give a class of octavo.optim" in text


@pytest.mark.parametrize("given", [(-1, 8), ((-1, 8), torch.float32), {"input": (-1, 8)}])
def test_a_negative_shape_is_an_error(given: Any) -> None:
    with pytest.raises(
        ValueError, match=r"plan: batch: got the shape \(-1, 8\), expected dimensions of 0 or"
    ):
        planned(nn.Linear(8, 8), None, given)
