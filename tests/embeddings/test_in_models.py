"""Anchor tables inside models: tied language models, bags, Hugging Face."""

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fewfold as ff

WORDS, DIM = 60, 16
STORAGES = [
    pytest.param({"anchors": 12}, id="full"),
    pytest.param({"anchors": 12, "width": 4}, id="width 4"),
]


@pytest.fixture(params=STORAGES)
def table(request: pytest.FixtureRequest) -> ff.AnchorEmbedding:
    generator = torch.Generator().manual_seed(1)
    torch.manual_seed(2)  # of the models around it
    return ff.AnchorEmbedding(WORDS, DIM, generator=generator, **request.param)


def dense(table: ff.AnchorEmbedding) -> nn.Embedding:
    made: nn.Embedding = nn.Embedding.from_pretrained(table.weight.detach(), freeze=False)
    return made


def sentences(count: int) -> Iterator[Tensor]:
    """Every word says which comes next: (8, 6) each."""
    generator = torch.Generator().manual_seed(3)
    for _ in range(count):
        start = torch.randint(WORDS, (8, 1), generator=generator)
        yield (start + 7 * torch.arange(6)) % WORDS


def learn(model: nn.Module, table: ff.AnchorEmbedding, loss_of: Callable[[Tensor], Tensor]) -> None:
    """It gets better, and ends with few non-zeros."""
    inner = torch.optim.Adam(model.parameters(), lr=0.02)
    optimizer = ff.proximal(inner, table, l1=1e-4, keep=3)
    losses = []
    for batch in sentences(40):
        optimizer.zero_grad()
        loss = loss_of(batch)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert sum(losses[-5:]) < 0.7 * sum(losses[:5])
    assert WORDS < table.nonzeros() <= 3 * WORDS


class Tied(nn.Module):
    """A GRU between two uses of one table."""

    def __init__(self, table: nn.Module) -> None:
        super().__init__()
        self.table = table
        self.gru = nn.GRU(DIM, DIM, batch_first=True)
        self.bias = nn.Parameter(torch.zeros(WORDS))

    def forward(self, words: Tensor) -> Tensor:
        hidden, _ = self.gru(self.table(words))
        if isinstance(self.table, ff.AnchorEmbedding):
            return self.table.logits(hidden, self.bias)
        return F.linear(hidden, self.table.get_parameter("weight"), self.bias)

    def loss(self, words: Tensor) -> Tensor:
        return F.cross_entropy(self(words[:, :-1]).flatten(0, 1), words[:, 1:].flatten())


class TestTiedLanguageModel:
    def test_it_is_the_model_with_the_dense_table(self, table: ff.AnchorEmbedding) -> None:
        model = Tied(table)
        twin = copy.deepcopy(model)
        twin.table = dense(table)
        batch = next(sentences(1))
        torch.testing.assert_close(model(batch), twin(batch))
        for each in (model, twin):
            each.loss(batch).backward()
        # Both uses reach the anchors: A.grad = T' E.grad.
        expected = torch.autograd.grad(table.weight, table.anchors, twin.table.weight.grad)[0]
        torch.testing.assert_close(table.anchors.grad, expected)

    def test_it_learns_and_becomes_sparse(self, table: ff.AnchorEmbedding) -> None:
        model = Tied(table)
        learn(model, table, model.loss)

    def test_what_it_learned_survives_a_file(
        self, table: ff.AnchorEmbedding, tmp_path: Path
    ) -> None:
        model = Tied(table)
        learn(model, table, model.loss)
        torch.save(model.state_dict(), tmp_path / "model.pt")
        width = table.width
        again = Tied(ff.AnchorEmbedding(WORDS, DIM, anchors=12, width=width))
        again.load_state_dict(torch.load(tmp_path / "model.pt"))
        batch = next(sentences(1))
        torch.testing.assert_close(again(batch), model(batch), rtol=0, atol=0)

    def test_it_shrinks_for_serving_without_loss(self, table: ff.AnchorEmbedding) -> None:
        model = Tied(table).eval()
        learn(model, table, model.loss)
        batch = next(sentences(1))
        before, size = model(batch).detach(), table.size()
        table.narrow()
        torch.testing.assert_close(model(batch), before)
        assert table.size() == size < WORDS * DIM

    def test_a_sampled_softmax_takes_the_table_as_it_is(self, table: ff.AnchorEmbedding) -> None:
        queries, after = torch.randn(200, DIM), torch.randint(WORDS, (200,))
        proposal = ff.Uniform().fit(table.weight.detach())
        sampled = ff.sampled_softmax_loss(
            queries, table, after, proposal, samples=5000, generator=torch.Generator()
        )  # fmt: skip
        full = F.cross_entropy(table.logits(queries), after)
        torch.testing.assert_close(sampled, full, rtol=0.02, atol=0.0)
        sampled.backward()
        assert table.anchors.grad is not None
        assert table.anchors.grad.norm() > 0


class Classifier(nn.Module):
    """The mean of a text's words, and a linear layer: what nn.EmbeddingBag is used for."""

    def __init__(self, bags: nn.Module) -> None:
        super().__init__()
        self.bags, self.linear = bags, nn.Linear(DIM, 3)

    def forward(self, words: Tensor, offsets: Tensor) -> Tensor:
        scores: Tensor = self.linear(self.bags(words, offsets))
        return scores


class TestBags:
    words = torch.tensor([3, 5, 5, 8, 13, 21, 34, 55, 0])
    offsets = torch.tensor([0, 2, 2, 6])  # the second has none

    @pytest.mark.parametrize("mode", ["sum", "mean", "max"])
    @pytest.mark.parametrize("width", [None, 4])
    def test_they_are_those_of_the_dense_table(self, mode: Any, width: int | None) -> None:
        torch.manual_seed(0)
        few = ff.AnchorEmbeddingBag(WORDS, DIM, anchors=12, width=width, mode=mode)
        model = Classifier(few)
        twin = copy.deepcopy(model)
        twin.bags = nn.EmbeddingBag.from_pretrained(few.weight.detach(), freeze=False, mode=mode)
        ours, theirs = model(self.words, self.offsets), twin(self.words, self.offsets)
        torch.testing.assert_close(ours, theirs)
        ours.square().sum().backward()
        theirs.square().sum().backward()
        expected = torch.autograd.grad(few.weight, few.anchors, twin.bags.weight.grad)[0]
        torch.testing.assert_close(few.anchors.grad, expected)

    @pytest.mark.parametrize("width", [None, 4])
    def test_a_classifier_learns(self, width: int | None) -> None:
        torch.manual_seed(0)
        bags = ff.AnchorEmbeddingBag(WORDS, DIM, anchors=12, width=width)
        model = Classifier(bags)

        def loss(batch: Tensor) -> Tensor:
            scores = model(batch[:, :2].flatten(), torch.arange(0, 2 * len(batch), 2))
            return F.cross_entropy(scores, batch[:, 0] // 20)

        learn(model, bags, loss)


class Head(nn.Module):
    """The output layer of a model whose input table is `table`; has no parameters of its own."""

    def __init__(self, table: ff.AnchorEmbedding) -> None:
        super().__init__()
        self.logits = table.logits  # a function: the table is not registered twice

    def forward(self, hidden: Tensor) -> Tensor:
        scores: Tensor = self.logits(hidden)
        return scores


def with_anchors(model: Any, table: ff.AnchorEmbedding) -> Any:
    """A Hugging Face causal language model whose table, in and out, is this one."""
    model.config.tie_word_embeddings = False  # the head is tied by itself
    model.set_input_embeddings(table)
    model.set_output_embeddings(Head(table))
    return model


@pytest.fixture
def gpt2() -> Any:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(4)
    config = transformers.GPT2Config(
        vocab_size=WORDS, n_positions=16, n_embd=DIM, n_layer=1, n_head=2, resid_pdrop=0.0,
        embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0, pad_token_id=0,
    )  # fmt: skip
    return transformers.GPT2LMHeadModel(config)


@pytest.mark.filterwarnings("default")  # of others, about themselves
class TestHuggingFace:
    def test_it_is_the_model_with_the_dense_table(
        self, gpt2: Any, table: ff.AnchorEmbedding
    ) -> None:
        twin = copy.deepcopy(gpt2)
        with torch.no_grad():
            twin.get_input_embeddings().weight.copy_(table.weight)
        assert twin.lm_head.weight is twin.transformer.wte.weight
        model = with_anchors(gpt2, table)
        batch = next(sentences(1))
        ours, theirs = (each(input_ids=batch, labels=batch) for each in (model, twin))
        torch.testing.assert_close(ours.logits, theirs.logits)
        torch.testing.assert_close(ours.loss, theirs.loss)
        saved = sum(p.numel() for p in twin.parameters()) - sum(
            p.numel() for p in model.parameters()
        )
        assert saved == WORDS * DIM - table.anchors.numel() - table.transform.numel()

    def test_it_learns_and_generates(self, gpt2: Any, table: ff.AnchorEmbedding) -> None:
        model = with_anchors(gpt2, table)
        learn(model, table, lambda batch: model(input_ids=batch, labels=batch).loss)
        model.eval()
        asked = torch.tensor([[5, 12, 19]])
        options = {"max_new_tokens": 3, "do_sample": False, "attention_mask": asked.new_ones(1, 3)}
        answer = model.generate(asked, **options)
        assert answer.shape == (1, 6)
        hidden = model.transformer(asked).last_hidden_state[:, -1]
        assert answer[0, 3] == (hidden @ table.weight.T).argmax()

    def test_a_trained_table_is_replaced(self, gpt2: Any) -> None:
        """With as many anchors as dimensions and signs, nothing is lost."""
        batch = next(sentences(1))
        before = gpt2(input_ids=batch).logits.detach()
        table = ff.AnchorEmbedding.from_pretrained(
            gpt2.get_input_embeddings().weight, anchors=DIM, width=DIM, signed=True
        )
        after = with_anchors(gpt2, table)(input_ids=batch).logits
        torch.testing.assert_close(after, before, rtol=1e-3, atol=1e-3)
