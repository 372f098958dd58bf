"""param_groups by kind of module, what it says of names that match nothing, and the warning for 16-bit
parameters that lose updates.
"""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from octavo import optim
from torch import nn
from torch.nn import Parameter


class Ln(nn.Module):
    """A block with GPT-2's names, a norm that is not torch's, an attention and a tied head."""

    def __init__(self) -> None:
        super().__init__()
        self.wte = nn.Embedding(32, 16)
        self.ln_1 = nn.LayerNorm(16)
        self.attn = nn.MultiheadAttention(16, 2, add_bias_kv=True)
        self.gate = LlamaRMSNorm()
        self.rnn = nn.LSTM(16, 16)
        self.head = nn.Linear(16, 32, bias=False)
        self.head.weight = self.wte.weight


class LlamaRMSNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(16))
        self.proj = nn.Parameter(torch.ones(16, 16))  # a matrix is no norm's weight


def test_no_decay_by_kind_of_module() -> None:
    model = Ln()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        groups = optim.param_groups(model, weight_decay=0.1, no_decay=True, embeddings="bf16")
    found = {(g["weight_decay"], g.get("state")): g["param_names"] for g in groups}
    assert found == {
        (0.1, None): [
            *("attn.in_proj_weight", "attn.out_proj.weight", "gate.proj"),
            *("rnn.weight_ih_l0", "rnn.weight_hh_l0"),
        ],
        (0.0, None): [
            *("ln_1.weight", "ln_1.bias", "attn.in_proj_bias", "attn.bias_k", "attn.bias_v"),
            *("attn.out_proj.bias", "gate.weight", "rnn.bias_ih_l0", "rnn.bias_hh_l0"),
        ],
        (0.0, "bf16"): ["wte.weight"],  # the head's too
    }
    groups = optim.param_groups(model, {"wte*": "fp8"}, embeddings="fp32", no_decay=[nn.LayerNorm, "*_bias"])
    spared = [g["param_names"] for g in groups if g.get("weight_decay") == 0.0]
    assert spared == [["ln_1.weight", "ln_1.bias", "attn.in_proj_bias"]]
    assert [g.get("state") for g in groups] == [None, None, "fp8"]  # a pattern goes before the switch
    asked: dict[str, Any]
    for asked in ({"no_decay": True}, {"no_decay": [nn.LayerNorm]}, {"embeddings": "fp32"}):
        with pytest.raises(TypeError, match="needs the model itself, not its named parameters"):
            optim.param_groups(model.named_parameters(), **asked)
    with pytest.raises(TypeError, match=r"no_decay is '\*bias', expected True or a list: \['\*bias'\]"):
        optim.param_groups(model, no_decay="*bias")


def test_what_matches_nothing_is_said() -> None:
    model = Ln()
    said = (
        r"no_decay: no parameter matches '\*norm\*'; these biases and norms decay: ln_1.weight, gate.weight;"
    )
    with pytest.warns(UserWarning, match=said + " no_decay=True"):
        optim.param_groups(model, no_decay=["*bias*", "*norm*"])
    with pytest.warns(UserWarning, match=r"no parameter matches GroupNorm; these biases"):
        optim.param_groups(model, no_decay=[nn.GroupNorm])
    with pytest.warns(UserWarning, match=r"no parameter matches '\*scale'; no_decay=True"):
        optim.param_groups(nn.Linear(2, 2, bias=False), no_decay=["*scale"])
    with pytest.raises(ValueError, match=r"matches \['\*\.lora_\*'\]; .*; unmatched='warn' lets patterns"):
        optim.param_groups(model, {"*.lora_*": {"lr": 1e-3}})
    with pytest.warns(UserWarning, match=r"no parameter's name matches '\*\.lora_\*'"):
        optim.param_groups(model, {"*.lora_*": {"lr": 1e-3}}, unmatched="warn")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        optim.param_groups(model, {"*.lora_*": {"lr": 1e-3}}, no_decay=["*norm*"], unmatched="ignore")
    with pytest.raises(ValueError, match="Invalid unmatched: 'quiet', expected 'error', 'warn' or 'ignore'"):
        optim.param_groups(model, unmatched="quiet")


def lost_updates(cls: Any, dtype: torch.dtype, **options: Any) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        cls([("w", Parameter(torch.ones(4, dtype=dtype)))], **options)
    assert all(w.filename == __file__ for w in caught)
    return [str(w.message) for w in caught]


def test_lost_updates_are_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def fresh() -> None:
        monkeypatch.setattr("octavo.optim.checks._warned_of_lost_updates", False)

    fresh()
    (said,) = lost_updates(optim.AdamW8bit, torch.bfloat16, lr=1e-4)
    assert said == (
        "AdamW8bit: parameter 'w' is torch.bfloat16, and updates below 1/512 of a weight are rounded away; "
        "at lr=0.0001 that is every update of a weight above 0.051; master=24 (or 32, or 'stochastic') keeps "
        "them"
    )
    assert lost_updates(optim.AdamW8bit, torch.bfloat16, lr=1e-4) == []
    fresh()
    (said,) = lost_updates(optim.Lion, torch.float16, lr=torch.tensor(1e-4))
    assert "updates below 1/4096 of a weight" in said
    assert said.endswith("0.41; train fp32 parameters under torch.autocast, or bfloat16 ones with master=24")
    fresh()
    (said,) = lost_updates(optim.SGD, torch.bfloat16, lr=0.1)
    assert "rounded away; master=24" in said


def test_no_word_where_updates_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("octavo.optim.checks._warned_of_lost_updates", False)
    for master in (24, 32, "stochastic"):
        assert lost_updates(optim.AdamW, torch.bfloat16, lr=1e-4, master=master) == []
    assert lost_updates(optim.AdamW, torch.float32, lr=1e-4) == []
    assert lost_updates(optim.AdamW, torch.bfloat16, lr=1e-2) == []
