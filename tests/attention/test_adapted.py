"""Small randomly initialised transformers models with a learned alpha per head."""

import json
from collections.abc import Callable

import pytest
import torch

import fewfold as ff

transformers = pytest.importorskip("transformers")

SMALL = {
    "vocab_size": 50,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
ENDS = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}


def bert():
    return transformers.BertForMaskedLM(transformers.BertConfig(**SMALL))


def gpt2():
    config = transformers.GPT2Config(vocab_size=50, n_embd=32, n_layer=2, n_head=4, **ENDS)
    return transformers.GPT2LMHeadModel(config)


def llama():
    config = transformers.LlamaConfig(**SMALL, num_key_value_heads=2)
    return transformers.LlamaForCausalLM(config)


def bart():
    config = transformers.BartConfig(
        vocab_size=50, d_model=32, encoder_layers=1, decoder_layers=1, encoder_attention_heads=4,
        decoder_attention_heads=2, encoder_ffn_dim=64, decoder_ffn_dim=64,
        decoder_start_token_id=0, forced_eos_token_id=0, **ENDS,
    )  # fmt: skip
    return transformers.BartForConditionalGeneration(config)


def t5():
    config = transformers.T5Config(
        vocab_size=50, d_model=32, d_ff=64, num_layers=1, num_heads=4, d_kv=8,
        decoder_start_token_id=0,
    )  # fmt: skip
    return transformers.T5ForConditionalGeneration(config)


HEADS = {
    bert: {f"bert.encoder.layer.{i}.attention.self": 4 for i in range(2)},
    gpt2: {f"transformer.h.{i}.attn": 4 for i in range(2)},
    llama: {f"model.layers.{i}.self_attn": 4 for i in range(2)},
    bart: {
        "model.encoder.layers.0.self_attn": 4,
        "model.decoder.layers.0.self_attn": 2,
        "model.decoder.layers.0.encoder_attn": 2,
    },
    t5: {
        "encoder.block.0.layer.0.SelfAttention": 4,
        "decoder.block.0.layer.0.SelfAttention": 4,
        "decoder.block.0.layer.1.EncDecAttention": 4,
    },
}
every_model = pytest.mark.parametrize("make", HEADS, ids=lambda make: make.__name__)


@pytest.fixture
def tokens() -> dict[str, torch.Tensor]:
    """Two sequences, the second with two tokens of padding."""
    ids = torch.randint(1, 50, (2, 9), generator=torch.Generator().manual_seed(0))
    mask = torch.ones(2, 9, dtype=torch.long)
    mask[1, -2:] = 0
    return {"input_ids": ids, "attention_mask": mask, "labels": ids}


def _made(make: Callable):
    torch.manual_seed(0)
    return make().eval()


@every_model
def test_every_head_has_an_alpha_that_learns(make, tokens) -> None:
    model = _made(make)
    before = {name for name, _ in model.named_parameters()}
    alphas = ff.attention.adapt_attention(model)
    assert {name: one.alpha.numel() for name, one in alphas.items()} == HEADS[make]
    added = {f"{name}.entmax.raw" for name in alphas}
    assert {name for name, _ in model.named_parameters()} == before | added
    assert added <= set(model.state_dict())
    optimizer = torch.optim.SGD(model.parameters(), lr=10.0)
    model(**tokens).loss.backward()
    optimizer.step()
    for one in alphas.values():
        assert bool((one.raw != 0).all())


@every_model
def test_alpha_of_a_head_is_the_one_it_uses(make, tokens) -> None:
    """The weights of each head are those of its own alpha: all keys near 1, few near 4."""
    model = _made(make)
    with torch.no_grad():
        for weight in model.parameters():
            more = 2 if make is t5 else 20  # so that scores differ
            weight.mul_(more if weight.dim() == 2 else 1)
    alphas = ff.attention.adapt_attention(model, high=4.0)
    for one in alphas.values():
        with torch.no_grad():
            one.raw.copy_(torch.linspace(-12, 12, len(one.raw)).view(one.raw.shape))
    with ff.attention.watch_attention() as calls, torch.no_grad():
        model(**tokens)
    assert len(calls) == len(alphas)
    for call in calls:
        counts = call.support.counts.view(call.shape[:-1]).float().mean((0, 2))
        assert counts[0] > 2 * counts[-1]


@every_model
def test_near_one_it_is_the_model_as_it_was(make, tokens) -> None:
    model = _made(make)
    was = model(**tokens).logits
    ff.attention.adapt_attention(model, start=1 + 1e-6)
    seen = tokens["attention_mask"].bool()
    torch.testing.assert_close(model(**tokens).logits[seen], was[seen], atol=1e-4, rtol=1e-3)


@every_model
def test_saved_and_loaded(make, tokens, tmp_path) -> None:
    model = _made(make)
    alphas = ff.attention.adapt_attention(model, low=1.2, high=2.5, start=2.0)
    with torch.no_grad():
        for one in alphas.values():
            one.raw.normal_()
    want = model(**tokens).logits
    model.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["fewfold_attention"] == {
        "low": 1.2,
        "high": 2.5,
    }
    again = ff.attention.load_adapted(type(model), tmp_path).eval()
    assert type(again) is type(model)
    assert again.config._attn_implementation == model.config._attn_implementation
    assert again.state_dict().keys() == model.state_dict().keys()
    for name, value in model.state_dict().items():
        assert torch.equal(again.state_dict()[name], value), name
    torch.testing.assert_close(again(**tokens).logits, want)


def test_transformers_alone_goes_back_to_softmax(tokens, tmp_path) -> None:
    model = _made(gpt2)
    was = model(**tokens).logits
    ff.attention.adapt_attention(model, start=1.9)
    model.save_pretrained(tmp_path)
    plain = transformers.GPT2LMHeadModel.from_pretrained(tmp_path).eval()
    assert not any("entmax" in name for name in plain.state_dict())
    torch.testing.assert_close(plain(**tokens).logits, was)


def test_loaded_by_an_auto_class_and_in_another_dtype(tokens, tmp_path) -> None:
    model = _made(llama)
    ff.attention.adapt_attention(model)
    model.save_pretrained(tmp_path)
    again = ff.attention.load_adapted(
        transformers.AutoModelForCausalLM, tmp_path, dtype=torch.bfloat16
    )
    assert type(again) is transformers.LlamaForCausalLM
    assert {one.dtype for one in again.parameters()} == {torch.bfloat16}
    assert again(**tokens).logits.dtype == torch.bfloat16


def test_a_loaded_model_can_be_saved_and_loaded_again(tokens, tmp_path) -> None:
    model = _made(gpt2)
    ff.attention.adapt_attention(model)
    want = model(**tokens).logits
    for place in ("first", "second"):
        model.save_pretrained(tmp_path / place)
        model = ff.attention.load_adapted(transformers.GPT2LMHeadModel, tmp_path / place).eval()
    torch.testing.assert_close(model(**tokens).logits, want)


def test_generation_with_and_without_a_cache(tokens) -> None:
    model = _made(llama)
    ff.attention.adapt_attention(model)
    ids = tokens["input_ids"]
    more = {"attention_mask": torch.ones_like(ids), "max_new_tokens": 4, "do_sample": False}
    assert torch.equal(model.generate(ids, **more), model.generate(ids, **more, use_cache=False))


def test_alphas_are_made_like_the_model() -> None:
    model = _made(llama).to(torch.bfloat16)
    assert {one.raw.dtype for one in ff.attention.adapt_attention(model).values()} == {
        torch.bfloat16
    }
    with torch.device("meta"):
        model = llama()
    assert all(one.raw.is_meta for one in ff.attention.adapt_attention(model).values())


def test_two_models_have_alphas_of_their_own(tokens) -> None:
    """The implementation is shared by the process, the alphas are not."""
    one, two = _made(gpt2), _made(gpt2)
    ff.attention.adapt_attention(one, start=1.1)
    ff.attention.adapt_attention(two, start=1.9)
    assert not torch.allclose(one(**tokens).logits, two(**tokens).logits)


def test_a_model_without_the_interface_is_refused() -> None:
    config = transformers.XLNetConfig(vocab_size=50, d_model=32, n_layer=1, n_head=4, d_inner=64)
    model = transformers.XLNetModel(config)
    before = set(model.state_dict())
    with pytest.raises(ValueError, match="no module of XLNetModel uses the attention interface"):
        ff.attention.adapt_attention(model)
    assert set(model.state_dict()) == before
    with pytest.raises(TypeError, match="PreTrainedModel, got Linear"):
        ff.attention.adapt_attention(torch.nn.Linear(2, 2))


def test_a_model_is_adapted_once() -> None:
    model = _made(gpt2)
    ff.attention.adapt_attention(model)
    with pytest.raises(ValueError, match="GPT2LMHeadModel is adapted already"):
        ff.attention.adapt_attention(model)


def test_a_model_that_was_not_adapted_says_so(tokens, tmp_path) -> None:
    ff.attention.adapt_attention(_made(gpt2))
    other = _made(gpt2)
    other.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"GPT2LMHeadModel.from_pretrained.*adapt_attention"):
        ff.attention.load_adapted(transformers.GPT2LMHeadModel, tmp_path)
    other.set_attn_implementation("fewfold-adaptive")
    with pytest.raises(ValueError, match="GPT2Attention has no alpha"):
        other(**tokens)


def test_weights_without_alphas_are_refused(tmp_path) -> None:
    model = _made(gpt2)
    model.save_pretrained(tmp_path)
    model.config.fewfold_attention = {"low": 1.0, "high": 2.0}
    model.config.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"lack alphas: transformer\.h\.0\.attn\.entmax\.raw"):
        ff.attention.load_adapted(transformers.GPT2LMHeadModel, tmp_path)


@pytest.mark.parametrize(
    ("low", "high", "start"), [(1.0, 2.0, 1.0), (1.0, 2.0, 2.0), (2.0, 1.0, 1.5), (0.0, 2.0, 1.0)]
)
def test_start_is_between(low: float, high: float, start: float) -> None:
    with pytest.raises(ValueError, match="0 < low < start < high"):
        ff.attention.adapt_attention(_made(gpt2), low=low, high=high, start=start)
