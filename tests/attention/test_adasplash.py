"""AdaSplash in Hugging Face models, by a stand-in that computes the same on the CPU."""

import logging
import re
import sys
from types import ModuleType

import pytest
import torch

import fewfold as ff
from fewfold.attention.huggingface import adasplash as ours

transformers = pytest.importorskip("transformers")
SIZES = {16, 32, 64, 128, 256}


class StandIn(ModuleType):
    """A module with the function of AdaSplash, and what it asks of its arguments."""

    def __init__(self) -> None:
        super().__init__("adasplash")
        self.calls: list[tuple[tuple[int, ...], int, list[int] | None]] = []

    def adasplash_v2(self, q, k, v, niter=1, varlen=None):
        length, size = q.shape[2:]
        assert all(one.is_contiguous() for one in (q, k, v))
        assert size in SIZES
        assert k.shape == v.shape == (q.shape[0], k.shape[1], length, size)
        assert length >= 64
        assert varlen is not None or length & (length - 1) == 0
        self.calls.append((tuple(q.shape), niter, None if varlen is None else varlen.tolist()))
        return ff.sparse_attention(q, k, v, ff.Tsallis(1.5), is_causal=True, enable_gqa=True)


@pytest.fixture
def kernel(monkeypatch):
    """AdaSplash is installed, and the CPU counts as a GPU."""
    module = StandIn()
    monkeypatch.setitem(sys.modules, "adasplash", module)
    monkeypatch.setattr(ours, "_DEVICES", ("cpu",))
    ours._kernel.cache_clear()
    ours.log_backend.cache_clear()
    yield module
    ours._kernel.cache_clear()


@pytest.fixture
def model():
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=20, hidden_size=32, intermediate_size=16, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=128,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config).eval()


def _names() -> tuple[str, str]:
    register = ff.attention.register_attention
    return register("entmax-kernels"), register("entmax-alone", adasplash=False)


@pytest.mark.parametrize("length", [64, 70])
def test_a_model_is_computed_by_adasplash(length, kernel, model, caplog) -> None:
    tokens = torch.randint(0, 20, (2, length), generator=torch.Generator().manual_seed(1))
    with_it, alone = _names()
    found = []
    with caplog.at_level(logging.INFO, "fewfold.attention"):
        for name in (alone, with_it):
            model.set_attn_implementation(name)
            model.zero_grad()
            out = model(input_ids=tokens, labels=tokens)
            assert len(kernel.calls) == (0 if name == alone else 2)
            out.loss.backward()
            found.append([out.logits, *(one.grad for one in model.parameters())])
    torch.testing.assert_close(found[1], found[0])
    varlen = None if length == 64 else [length] * 2
    assert kernel.calls == [((2, 2, length, 16), 10, varlen)] * 2
    assert caplog.messages == ["attention of Hugging Face models is computed by adasplash"]


def test_what_adasplash_cannot_do_is_computed_by_fewfold(kernel, model, caplog) -> None:
    tokens = torch.randint(0, 20, (2, 66), generator=torch.Generator().manual_seed(1))
    padding = torch.ones(2, 66, dtype=torch.long)
    padding[0, :3] = 0
    with_it, alone = _names()
    inputs = {"input_ids": tokens, "attention_mask": padding}
    with torch.no_grad(), caplog.at_level(logging.INFO, "fewfold.attention"):
        model.set_attn_implementation(with_it)
        padded = model(**inputs).logits
        with ff.attention.watch_attention() as layers:
            model(input_ids=tokens)
        cache = model(input_ids=tokens[:, :-1]).past_key_values  # 65 positions
        assert len(kernel.calls) == 2
        model(input_ids=tokens[:, -1:], past_key_values=cache)
        model.set_attn_implementation(alone)
        torch.testing.assert_close(padded, model(**inputs).logits)
    assert len(layers) == len(kernel.calls) == 2
    assert [line.split("because ")[-1].split(" computed by ")[-1] for line in caplog.messages] == [
        "AdaSplash has no masks",
        "watch_attention records supports, which AdaSplash does not return",
        "adasplash",
        "AdaSplash computes causal attention of a sequence to itself",
    ]


def test_another_scale_than_its_own(kernel) -> None:
    query, key, value = torch.randn(3, 1, 2, 64, 16)
    for scale in (None, 0.7):
        want = ff.sparse_attention(query, key, value, is_causal=True, scale=scale)
        found = ours.adasplash_attention(query, key, value, scale=scale)
        torch.testing.assert_close(found, want)
    ours.adasplash_attention(query.bfloat16(), key.bfloat16(), value.bfloat16())
    assert [steps for _, steps, _ in kernel.calls] == [10, 10, 1]


def _heads(length: int = 64, size: int = 16, heads: int = 2, **more) -> torch.Tensor:
    return torch.zeros(1, heads, length, size, **more)


@pytest.mark.parametrize(
    ("given", "options", "reason"),
    [
        ([_heads()] * 3, {}, ""),
        ([_heads(), _heads(heads=1), _heads(heads=1)], {}, ""),
        ([_heads(heads=3), _heads(), _heads()], {}, "heads of queries for each head of keys"),
        ([_heads()] * 3, {"omega": ff.Gini()}, r"got Gini\(\)"),
        ([_heads()] * 3, {"omega": ff.Tsallis(torch.tensor(1.5))}, "got a learned Tsallis"),
        ([_heads()] * 3, {"is_causal": False}, "causal attention of a sequence"),
        ([_heads(), _heads(65), _heads(65)], {}, "causal attention of a sequence"),
        ([_heads()] * 3, {"mask": torch.ones(64, 64, dtype=torch.bool)}, "no masks"),
        ([_heads()] * 3, {"dropout_p": 0.1}, "no dropout"),
        ([_heads(63)] * 3, {}, "needs 64 positions, got 63"),
        ([_heads(size=24)] * 3, {}, "got 24 and 24"),
        ([_heads(), _heads(), _heads(size=32)], {}, "got 16 and 32"),
        ([_heads(dtype=torch.float64)] * 3, {}, "no kernels for torch.float64"),
        ([_heads(), _heads().half(), _heads()], {}, "no kernels for torch.float32, torch.float16"),
        ([_heads(device="meta")] * 3, {}, "got a tensor on 'meta'"),
    ],
)
def test_when_it_applies(given, options, reason, kernel) -> None:
    call = {"is_causal": True, **options}
    found = ff.attention.attention_backend(*given, **call)
    if not reason:
        assert found == ff.attention.Backend("adasplash")
        assert kernel.adasplash_v2(*given).shape == given[0].shape
    else:
        assert found.name == "fewfold"
        assert re.search(reason, found.reason)


def test_not_on_the_cpu_not_when_old_and_not_under_transforms(kernel, monkeypatch) -> None:
    heads = _heads()

    def reason() -> str:
        return ff.attention.attention_backend(heads, heads, heads, is_causal=True).reason

    reasons = []
    torch.func.vmap(lambda one: reasons.append(reason()) or one)(torch.zeros(2))
    assert reasons == ["AdaSplash runs neither under torch.compile nor under torch.func"]
    monkeypatch.setattr(ours, "_DEVICES", ("cuda",))
    assert reason() == "AdaSplash runs on GPUs, got a tensor on 'cpu'"
    monkeypatch.setattr(ours, "_DEVICES", ("cpu",))
    for installed in (ModuleType("adasplash"), None):  # 0.1, and none
        ours._kernel.cache_clear()
        monkeypatch.setitem(sys.modules, "adasplash", installed)
        assert reason() == "adasplash 0.2 or later is not installed"


def test_with_and_without_adasplash_are_two_registrations() -> None:
    with_it, alone = _names()
    _names()
    for name, adasplash in ((with_it, False), (alone, True)):
        with pytest.raises(ValueError, match="registered already"):
            ff.attention.register_attention(name, adasplash=adasplash)
