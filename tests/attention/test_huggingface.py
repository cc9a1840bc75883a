"""A small randomly initialised transformers model with sparse attention."""

import pytest
import torch

import fewfold as ff

transformers = pytest.importorskip("transformers")


@pytest.fixture
def model():
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=50,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
    )
    return transformers.LlamaForCausalLM(config).eval()


@pytest.fixture
def tokens() -> dict[str, torch.Tensor]:
    """Two sequences, the first with three tokens of padding on its left."""
    ids = torch.randint(0, 50, (2, 9), generator=torch.Generator().manual_seed(0))
    mask = torch.ones(2, 9, dtype=torch.long)
    mask[0, :3] = 0
    return {"input_ids": ids, "attention_mask": mask}


def test_softmax_is_the_model_as_it_was(model, tokens) -> None:
    was = model(**tokens).logits
    model.set_attn_implementation(ff.attention.register_attention("fewfold-softmax", ff.Shannon()))
    seen = tokens["attention_mask"].bool()
    torch.testing.assert_close(model(**tokens).logits[seen], was[seen], atol=1e-5, rtol=1e-4)


def test_sparse_attention_learns_and_generates(model, tokens) -> None:
    was = model(**tokens).logits
    model.set_attn_implementation(ff.attention.register_attention("fewfold-sparsemax", ff.Gini()))
    out = model(**tokens, labels=tokens["input_ids"])
    assert not torch.allclose(out.logits, was)
    out.loss.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    told = model.generate(**tokens, max_new_tokens=4, do_sample=False)
    again = model.generate(**tokens, max_new_tokens=4, do_sample=False, use_cache=False)
    assert torch.equal(told, again)  # one query against the cache sees all of it


def test_padding_changes_nothing(model, tokens) -> None:
    model.set_attn_implementation(ff.attention.register_attention("fewfold-sparsemax", ff.Gini()))
    padded = model(**tokens).logits[0, 3:]
    alone = model(input_ids=tokens["input_ids"][:1, 3:]).logits[0]
    torch.testing.assert_close(padded, alone, atol=1e-5, rtol=1e-4)


def test_both_directions(tokens) -> None:
    config = transformers.BertConfig(
        vocab_size=50, hidden_size=32, num_hidden_layers=1, num_attention_heads=4,
        intermediate_size=64, attn_implementation=ff.attention.register_attention(),
    )  # fmt: skip
    bert = transformers.BertModel(config).eval()
    state = bert(**tokens).last_hidden_state
    changed = tokens["input_ids"].clone()
    changed[1, -1] = (changed[1, -1] + 1) % 50
    other = bert(input_ids=changed, attention_mask=tokens["attention_mask"]).last_hidden_state
    assert not torch.allclose(state[1, 0], other[1, 0])  # the first sees the last
    torch.testing.assert_close(state[0], other[0])


def test_what_a_model_attends_to_can_be_seen(model, tokens) -> None:
    model.set_attn_implementation(ff.attention.register_attention("fewfold-sparsemax", ff.Gini()))
    with ff.attention.watch_attention() as layers, torch.no_grad():
        model(**tokens)
    assert [layer.shape for layer in layers] == [(2, 4, 9, 9)] * 2
    first = layers[0].head(0, 1)
    assert first.counts[:3].tolist() == [0, 0, 0]  # padding sees nothing
    assert int(first.atoms.min()) == 3  # and is not seen
    assert bool((first.atoms <= first.row).all())


@pytest.fixture
def attend():
    """What a model calls, with sparsemax."""
    ff.attention.register_attention("fewfold-sparsemax", ff.Gini())
    return transformers.AttentionInterface()["fewfold-sparsemax"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("softcap", 30.0),
        ("s_aux", torch.zeros(4)),
        ("indices", torch.zeros(1, 3, 2, dtype=torch.int64)),
        ("block_indices", torch.zeros(1, 4, 3, 1, dtype=torch.int64)),
    ],
)
def test_what_has_no_meaning_here_is_refused(name, value, attend) -> None:
    heads = torch.randn(1, 4, 3, 8)
    with pytest.raises(ValueError, match=f"has no {name}, which this model requires"):
        attend(None, heads, heads, heads, None, **{name: value})
    found, _ = attend(None, heads, heads, heads, None, **{name: None})
    assert found.shape == (1, 3, 4, 8)


@pytest.mark.skipif(
    not hasattr(transformers, "DeepseekV32Config"), reason="transformers has no such model yet"
)
def test_a_model_that_chooses_keys_elsewhere_is_refused(tokens) -> None:
    config = transformers.DeepseekV32Config(
        vocab_size=50, hidden_size=32, intermediate_size=64, moe_intermediate_size=16,
        num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=4, n_routed_experts=4,
        num_experts_per_tok=2, n_group=1, topk_group=1, q_lora_rank=16, kv_lora_rank=16,
        qk_rope_head_dim=8, qk_nope_head_dim=8, v_head_dim=8, index_topk=4, index_n_heads=2,
        index_head_dim=16, first_k_dense_replace=1,
    )  # fmt: skip
    chooses = transformers.DeepseekV32ForCausalLM(config).eval()
    chooses.set_attn_implementation(ff.attention.register_attention())
    with pytest.raises(ValueError, match="has no indices, which this model requires"):
        chooses(**tokens)


def _agree(model, inputs: dict[str, torch.Tensor], seen: torch.Tensor) -> None:
    """Softmax of ours and the model's own attention, which knows every convention."""
    with torch.no_grad():
        was = model.eval()(**inputs)[0]
        model.set_attn_implementation(
            ff.attention.register_attention("fewfold-softmax", ff.Shannon())
        )
        torch.testing.assert_close(model(**inputs)[0][seen], was[seen], atol=1e-5, rtol=1e-4)


def test_a_sliding_window(tokens) -> None:
    config = transformers.MistralConfig(
        vocab_size=50, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, sliding_window=3,
    )  # fmt: skip
    mistral = transformers.MistralForCausalLM(config)
    _agree(mistral, tokens, tokens["attention_mask"].bool())
    mistral.set_attn_implementation(ff.attention.register_attention("fewfold-sparsemax", ff.Gini()))
    with ff.attention.watch_attention() as layers, torch.no_grad():
        mistral(**tokens)
    far = layers[0].support
    assert int((far.row % 9 - far.atoms).max()) == 2


def test_a_bias_of_positions_and_two_sequences(tokens) -> None:
    config = transformers.T5Config(
        vocab_size=50, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4,
        decoder_start_token_id=0,
    )  # fmt: skip
    inputs = {**tokens, "decoder_input_ids": tokens["input_ids"]}
    t5 = transformers.T5ForConditionalGeneration(config)
    _agree(t5, inputs, torch.ones(2, 9, dtype=torch.bool))
    t5.set_attn_implementation(ff.attention.register_attention("fewfold-sparsemax", ff.Gini()))
    t5(**inputs)[0].square().sum().backward()
    bias = t5.decoder.block[0].layer[0].SelfAttention.relative_attention_bias.weight
    assert bool(bias.grad.any())


def test_masks_of_four_dimensions(model, tokens) -> None:
    """Boolean, True = take part, or numbers to add: both say what is_causal says."""
    model.set_attn_implementation(ff.attention.register_attention("fewfold-sparsemax", ff.Gini()))
    ids = tokens["input_ids"]
    seen = torch.ones(9, 9, dtype=torch.bool).tril().expand(2, 1, 9, 9)
    added = torch.zeros(2, 1, 9, 9).masked_fill(~seen, torch.finfo(torch.float32).min)
    was = model(input_ids=ids).logits
    for mask in (seen, added):
        torch.testing.assert_close(model(input_ids=ids, attention_mask=mask).logits, was)


def test_a_cache_of_fixed_size_and_a_text_in_two_parts(model, tokens) -> None:
    model.set_attn_implementation(ff.attention.register_attention("fewfold-sparsemax", ff.Gini()))
    options = {"max_new_tokens": 4, "do_sample": False, "pad_token_id": 0}
    fixed = model.generate(**tokens, **options, cache_implementation="static")
    assert torch.equal(model.generate(**tokens, **options), fixed)
    ids = tokens["input_ids"]
    with torch.no_grad():
        first = model(input_ids=ids[:, :5], use_cache=True)
        rest = model(input_ids=ids[:, 5:], past_key_values=first.past_key_values)
        torch.testing.assert_close(
            rest.logits, model(input_ids=ids).logits[:, 5:], atol=1e-5, rtol=1e-4
        )


def test_one_query_against_a_cache_without_padding_sees_all_of_it(model, tokens) -> None:
    """Where there is no mask, and the model says that it is causal."""
    model.set_attn_implementation(ff.attention.register_attention("fewfold-sparsemax", ff.Gini()))
    ids = tokens["input_ids"]
    with torch.no_grad():
        first = model(input_ids=ids[:, :-1], use_cache=True)
        last = model(input_ids=ids[:, -1:], past_key_values=first.past_key_values)
        whole = model(input_ids=ids).logits[:, -1:]
    torch.testing.assert_close(last.logits, whole, atol=1e-5, rtol=1e-4)


def test_a_bias_and_a_mask_are_added(attend) -> None:
    heads = torch.randn(1, 4, 3, 8)
    bias = torch.randn(1, 4, 3, 3)
    seen = torch.ones(3, 3, dtype=torch.bool).tril().view(1, 1, 3, 3)
    added = torch.zeros(1, 1, 3, 3).masked_fill(~seen, -torch.inf)
    want = ff.sparse_attention(heads, heads, heads, ff.Gini(), mask=bias + added)
    for mask in (seen, added):
        found, _ = attend(None, heads, heads, heads, mask, position_bias=bias)
        torch.testing.assert_close(found, want.transpose(1, 2))


def test_a_model_in_training_drops_weights(attend, model, tokens) -> None:
    heads = torch.randn(1, 4, 3, 8)
    assert not attend(None, heads, heads, heads, None, dropout=1.0)[0].any()
    for layer in model.model.layers:
        layer.self_attn.attention_dropout = 0.5
    model.set_attn_implementation("fewfold-sparsemax")
    with torch.no_grad():
        assert torch.equal(model(**tokens).logits, model(**tokens).logits)
        model.train()
        assert not torch.equal(model(**tokens).logits, model(**tokens).logits)


def test_omega_is_a_value() -> None:
    with pytest.raises(TypeError, match="omega must be a regulariser such as"):
        ff.attention.register_attention("fewfold-class", ff.Gini)


@pytest.fixture
def names():
    """Put the registered implementations back, whatever a test does to them."""
    kinds = transformers.AttentionInterface, transformers.AttentionMaskInterface
    before = [dict(kind._global_mapping) for kind in kinds]
    yield
    for kind, mapping in zip(kinds, before, strict=True):
        kind._global_mapping.clear()
        kind._global_mapping.update(mapping)


@pytest.mark.parametrize("name", ["eager", "sdpa", "flash_attention_2", "flex_attention"])
def test_names_of_transformers_are_refused(name, names) -> None:
    before = transformers.AttentionInterface().get(name)
    with pytest.raises(ValueError, match=rf"'{name}' is registered already.*replace=True"):
        ff.attention.register_attention(name, ff.Gini())
    assert transformers.AttentionInterface().get(name) is before
    assert ff.attention.register_attention(name, ff.Gini(), replace=True) == name
    assert transformers.AttentionInterface()[name] is not before


def test_names_of_others_are_refused(names) -> None:
    transformers.AttentionInterface.register("theirs", lambda *given, **more: None)
    with pytest.raises(ValueError, match="'theirs' is registered already"):
        ff.attention.register_attention("theirs")


def test_a_name_stands_for_one_omega(names) -> None:
    ff.attention.register_attention("fewfold-one", ff.Tsallis(1.3))
    ff.attention.register_attention("fewfold-one", ff.Tsallis(1.3))  # the same again
    with pytest.raises(ValueError, match="'fewfold-one' is registered already"):
        ff.attention.register_attention("fewfold-one", ff.Tsallis(1.4))
    ff.attention.register_attention("fewfold-one", ff.Tsallis(1.4), replace=True)
    learnt = ff.Tsallis(torch.full((4, 1, 1), 1.5))
    ff.attention.register_attention("fewfold-two", learnt)
    ff.attention.register_attention("fewfold-two", learnt)
    with pytest.raises(ValueError, match="'fewfold-two' is registered already"):
        ff.attention.register_attention("fewfold-two", ff.Tsallis(torch.full((4, 1, 1), 1.5)))


@pytest.mark.parametrize("name", [None, "", 3])
def test_a_name_is_a_string(name) -> None:
    with pytest.raises(TypeError, match="name must be a string"):
        ff.attention.register_attention(name)
