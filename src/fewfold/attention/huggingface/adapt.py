"""Hugging Face transformers models with a learned sparsity for each attention head."""

import inspect
import math
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fewfold._optional import optional_import
from fewfold.attention.huggingface.register import offer_attention
from fewfold.maps.modules import AdaptiveEntmax
from fewfold.maps.omega import Omega

__all__ = ["adapt_attention", "load_adapted"]

_NAME = "fewfold-adaptive"  # of the attention implementation
_PART = "entmax"  # of an attention module, and so in names of the state_dict
_SETTINGS = "fewfold_attention"  # of a model's config
# Options of `from_pretrained` that locate a model; passed on when loading its configuration.
_WHERE = ("cache_dir", "force_download", "local_files_only", "proxies", "revision", "subfolder",
          "token", "trust_remote_code")  # fmt: skip
_HEADS = ("num_heads", "num_attention_heads", "n_heads")


def adapt_attention(
    model: Any, *, low: float = 1.0, high: float = 2.0, start: float = 1.5
) -> dict[str, AdaptiveEntmax]:
    """Add a learned entmax alpha to every attention head of a transformers model.

    Each attention module gets an `AdaptiveEntmax` with one alpha per head, named `entmax`, and the
    model an attention implementation that uses it. The alphas are parameters of the model: they are
    in `model.parameters()`, so adapt the model before creating the optimizer, and in its
    `state_dict` and `save_pretrained`. Load such a model with `load_adapted`; the
    `from_pretrained` of transformers drops the alphas with a warning and falls back to softmax.

    Args:
        model: a `transformers.PreTrainedModel` (5 or later) whose attention goes through
            transformers' attention interface. Attention modules that bypass it, such as linear
            attention, are left unchanged.
        low, high: bounds of the alphas; 1 is softmax, 2 is sparsemax.
        start: initial alpha. For a model trained with softmax, a value near 1, such as 1.05,
            changes its outputs least.

    Returns:
        The `AdaptiveEntmax` of each attention module by the module's name, in the model's order;
        `.alpha` is (heads, 1, 1).

    Raises:
        ValueError: if no module uses the attention interface, or the model is already adapted.

    Example:
        >>> import torch, fewfold as ff
        >>> from transformers import GPT2Config, GPT2Model
        >>> config = GPT2Config(
        ...     vocab_size=9, n_embd=8, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0
        ... )
        >>> model = GPT2Model(config)
        >>> alphas = ff.attention.adapt_attention(model)
        >>> {name: entmax.alpha.flatten().tolist() for name, entmax in alphas.items()}
        {'h.0.attn': [1.5, 1.5]}
        >>> model(torch.arange(5).unsqueeze(0)).last_hidden_state.shape
        torch.Size([1, 5, 8])

    Reference: Correia, Niculae and Martins, "Adaptively sparse transformers", 2019.
    """
    _check_range(low, high, start)
    modules = _attention_modules(model)
    offer_attention(_NAME, _map_of, _NAME, replace=False)
    added = {name: _entmax(module, low, high, start) for name, module in modules.items()}
    model.set_attn_implementation(_NAME)
    if model.config._attn_implementation != _NAME:
        raise ValueError(
            f"{type(model).__name__} does not support setting its attention implementation"
        )
    for name, module in modules.items():
        setattr(module, _PART, added[name])
    setattr(model.config, _SETTINGS, {"low": low, "high": high})
    return added


def load_adapted(model_class: Any, path: str | Path, **options: Any) -> Any:
    """Load a model that was saved by `save_pretrained` after `adapt_attention`.

    Args:
        model_class: a class of transformers, such as `LlamaForCausalLM` or `AutoModelForCausalLM`.
        path: the directory, or a name on the hub.
        options: for `from_pretrained`, such as `dtype`.

    Returns:
        The model, an instance of the class, with its alphas and the attention that uses them.
    """
    with optional_import("transformers 5 or later", "transformers", "load_adapted"):
        from transformers import AutoConfig, PreTrainedModel
    if "output_loading_info" in options:
        raise TypeError("load_adapted returns the model alone; leave output_loading_info out")
    where = {name: options[name] for name in _WHERE if name in options}
    config = AutoConfig.from_pretrained(path, **where)
    settings = getattr(config, _SETTINGS, None)
    if settings is None:
        raise ValueError(
            f"the model in {path} was saved without adapt_attention; write model = "
            f"{model_class.__name__}.from_pretrained({str(path)!r}) and adapt_attention(model)"
        )
    if not issubclass(model_class, PreTrainedModel):  # one of the Auto classes
        with torch.device("meta"):
            model_class = type(model_class.from_config(config))

    def build(self: Any, config: Any, *given: Any, **more: Any) -> None:
        model_class.__init__(self, config, *given, **more)
        adapt_attention(self, **settings, start=(settings["low"] + settings["high"]) / 2)

    names = {"__module__": model_class.__module__, "__qualname__": model_class.__qualname__}
    adapted = type(model_class.__name__, (model_class,), {"__init__": build, **names})
    model, report = adapted.from_pretrained(path, output_loading_info=True, **options)  # type: ignore[attr-defined]
    missing = sorted(key for key in report["missing_keys"] if f".{_PART}." in f".{key}")
    if missing:
        raise ValueError(f"the weights in {path} lack alphas: {', '.join(missing)}")
    model.__class__ = model_class
    return model


def _map_of(module: Any) -> Omega:
    """Return the regulariser of an attention module, with its learned alphas."""
    found = getattr(module, _PART, None)
    if not isinstance(found, AdaptiveEntmax):
        raise ValueError(
            f"{type(module).__name__} has no alpha, so its model was not adapted; call "
            "adapt_attention(model), or load it by load_adapted"
        )
    return found.value


def _attention_modules(model: Any) -> dict[str, nn.Module]:
    """Return the modules of a model whose forward calls the attention interface."""
    if not isinstance(model, nn.Module) or not hasattr(model, "set_attn_implementation"):
        raise TypeError(f"model must be a transformers.PreTrainedModel, got {type(model).__name__}")
    found = {name: module for name, module in model.named_modules() if _uses_interface(module)}
    if not found:
        raise ValueError(
            f"no module of {type(model).__name__} uses the attention interface of transformers, "
            "through which alphas reach attention"
        )
    if any(isinstance(getattr(one, _PART, None), AdaptiveEntmax) for one in found.values()):
        raise ValueError(f"{type(model).__name__} is adapted already; its alphas are parameters")
    return found


def _uses_interface(module: nn.Module) -> bool:
    """Whether `forward` uses the attention interface, by its source as in transformers itself."""
    try:
        return "ALL_ATTENTION_FUNCTIONS" in inspect.getsource(type(module).forward)
    except (OSError, TypeError):
        return False


def _entmax(module: nn.Module, low: float, high: float, start: float) -> AdaptiveEntmax:
    """Build one alpha per head of an attention module, with its device and dtype."""
    if hasattr(module, _PART):
        raise ValueError(f"{type(module).__name__} has an attribute {_PART!r} of its own")
    like = next((one for one in module.parameters() if one.is_floating_point()), None)
    entmax = AdaptiveEntmax(
        _heads(module),
        low=low,
        high=high,
        device=None if like is None else like.device,
        dtype=None if like is None else like.dtype,
    )
    share = (start - low) / (high - low)
    with torch.no_grad():
        entmax.raw.fill_(math.log(share / (1 - share)))
    return entmax


def _heads(module: nn.Module) -> int:
    """Return the number of query heads of an attention module."""
    for owner in (module, getattr(module, "config", None)):
        for name in _HEADS:
            count = getattr(owner, name, None)
            if isinstance(count, int) and count > 0:
                return count
    raise ValueError(
        f"{type(module).__name__} has no known number of heads; expected an int "
        f"{', '.join(_HEADS)} in it or in its config"
    )


def _check_range(low: float, high: float, start: float) -> None:
    if not 0 < low < start < high < math.inf:
        raise ValueError(
            f"low, start and high must satisfy 0 < low < start < high, got {low}, {start}, {high}"
        )
