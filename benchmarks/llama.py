"""A Llama-shaped model of 1.04B parameters for offload.py: random words, activation checkpointing, SDPA."""

from __future__ import annotations

import argparse
from typing import Any

import torch
from vit_g import checkpointed

SIZES = {"layers": 16, "width": 2048, "heads": 32, "batch": 4}
TOKENS, VOCABULARY = 2048, 32_000


def model(options: argparse.Namespace, dtype: torch.dtype = torch.bfloat16) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=options.width,
        intermediate_size=4 * options.width,
        num_hidden_layers=options.layers,
        num_attention_heads=options.heads,
        num_key_value_heads=max(1, options.heads // 4),
        vocab_size=VOCABULARY,
        max_position_embeddings=TOKENS,
        tie_word_embeddings=True,
        use_cache=False,
    )
    return checkpointed(lambda: LlamaForCausalLM(config), options.device, dtype)


def inputs(options: argparse.Namespace, dtype: torch.dtype) -> torch.Tensor:
    return torch.randint(VOCABULARY, (options.batch, TOKENS), device=options.device)


def loss_of(net: Any, words: torch.Tensor) -> torch.Tensor:
    result: torch.Tensor = net(input_ids=words, labels=words).loss
    return result
