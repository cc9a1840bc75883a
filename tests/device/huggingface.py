"""Rows of the table of devices: models of transformers with sparse attention."""

import copy
import tempfile
from typing import Any

import torch
from torch import nn

import fewfold as ff

from .functions import whole
from .table import DATA, Case


def model() -> tuple[Any, ...]:
    """A small model with one alpha per head, and tokens."""
    import transformers

    config = transformers.LlamaConfig(
        vocab_size=50, hidden_size=16, intermediate_size=16, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=2,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config).eval(), whole(50, 2, 7)


def registered(network: nn.Module, ids: torch.Tensor) -> torch.Tensor:
    network.set_attn_implementation(ff.attention.register_attention("fewfold-gini", ff.Gini()))
    return network(input_ids=ids).logits


def adapted(network: nn.Module, ids: torch.Tensor) -> tuple[torch.Tensor, ...]:
    found = ff.attention.adapt_attention(network)
    return network(input_ids=ids).logits, *(each.alpha for each in found.values())


def loaded(network: nn.Module, ids: torch.Tensor) -> torch.Tensor:
    ff.attention.adapt_attention(network)
    with tempfile.TemporaryDirectory() as folder:
        copy.deepcopy(network).cpu().save_pretrained(folder)  # it reads memory
        again = ff.attention.load_adapted(type(network), folder).to(ids.device)
    return again(input_ids=ids).logits


CASES = [
    Case("attention.register_attention", model, registered, tolerance=1e-5),
    Case("attention.adapt_attention", model, adapted, tolerance=1e-5),
    Case("attention.load_adapted", model, loaded, no_data=DATA, tolerance=1e-5),
]
