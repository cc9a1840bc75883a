"""Tables for notebooks: what is in them, and that all of it is escaped."""

import re
from html.parser import HTMLParser
from typing import Any

import pytest
import torch

import fewfold as ff
from fewfold import _html
from fewfold.recommender import Recommendations

EVIL = "<script>alert('1')</script>\"&amp;"
TAGS = {"table", "caption", "thead", "tbody", "tr", "th", "td", "p", "div"}


class Parsed(HTMLParser):
    """The rows of all tables as text, and the paragraphs; other tags are an error."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.texts: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in TAGS
        assert {name for name, _ in attrs} <= {"style"}
        self._open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if {"td", "th"} & set(self._open):
            self.rows[-1][-1] += data.strip()
        elif data.strip():
            self.texts.append(data)


def parsed(value: Any) -> Parsed:
    """What a notebook shows."""
    return Parsed(value._repr_html_())


def test_cells() -> None:
    found = Parsed(
        _html.table(
            [EVIL, "n"],
            [[EVIL, 1234567], [_html.Bar(float("nan"), EVIL), 0.25], [True, 1e-9], [None, -2.0]],
            caption=EVIL,
        )
    )
    assert found.rows == [[EVIL, "n"], [EVIL, "1,234,567"], [EVIL, "0.2500"], ["True", "1e-09"],
                          ["None", "-2.0000"]]  # fmt: skip
    assert found.texts == [EVIL]
    assert Parsed(_html.table(["n"], [])).rows == [["n"]]
    text = _html.table(["n"], [[n] for n in range(5)], most=2)
    assert Parsed(text).rows == [["n"], ["0"], ["1"]]
    assert Parsed(text).texts == ["and 3 more"]
    bars = _html.table(["n"], [[_html.Bar(share, "")] for share in (-1, 0.5, 9)])
    widths = re.findall(r"width: ([\d.]+)em", bars)
    assert list(map(float, widths)) == [0.0, 3.0, 6.0]


def test_recommendations() -> None:
    one = Recommendations(
        [EVIL, 1234567], [2.5, 0.25], None, [{EVIL: EVIL}, {}], None, [[(EVIL, 1.0)], []]
    )
    found = parsed(one)
    assert found.rows == [
        ["", "item", "score", EVIL, "because"],
        ["1", EVIL, "2.5000", EVIL, f"because of {EVIL} (100%)"],
        ["2", "1234567", "0.2500", "", "popular; no item of the history speaks for it"],
    ]
    many = Recommendations([["a"]] * 12, [[1.0]] * 12, [EVIL, None, *range(10)])
    found = parsed(many)
    assert len(found.rows) == 20
    assert found.texts[:2] == [f"for {EVIL}", "for 1"]
    assert found.texts[-1] == "and 2 more"
    assert parsed(Recommendations([], [])).texts == ["nothing left to recommend"]


@pytest.fixture(scope="module")
def log() -> Any:
    """A log whose ids are evil."""
    rows = [(f"{user}{EVIL}", f"{item}{EVIL}") for user in range(30) for item in range(9)
            if (user * 7 + item * 5) % 4]  # fmt: skip
    return {"user": [user for user, _ in rows], "item": [item for _, item in rows]}


def test_evaluation(log: Any) -> None:
    rec = ff.Recommender(ff.recommender.EASE()).fit(log, test=0.3, progress=False)
    found = parsed(rec.evaluation)
    assert found.rows[0] == ["metric", "mean", "95% interval", "formula"]
    overall = rec.evaluation.overall
    assert [row[:2] for row in found.rows[1:6]] == [
        [str(one.metric), f"{one.mean:.4f}"] for one in overall.scores
    ]
    assert found.texts[0].startswith("Held out: ")
    assert [row[0] for row in found.rows[7:]] == list(rec.evaluation.slices)
    assert parsed(overall).rows == found.rows[:6]


def test_comparison(log: Any) -> None:
    compared = ff.compare(log, models=("popularity", "item-knn"), test=0.3, progress=False)
    found = parsed(compared)
    assert [row[0] for row in found.rows] == ["model", *(one.kind for one in compared.contenders)]
    assert found.rows[1][5] == ""
    assert found.rows[2][5] == str(compared.differences[0])
    assert found.texts[-1] == compared.verdict


def test_factor_graphs() -> None:
    scores = torch.tensor([[[5.0, 0.0], [0.0, 5.0]], [[0.1, 0.0], [0.0, 0.1]]])
    graph = ff.FactorGraph(batch_dims=1)
    bits = graph.variable(scores)
    graph.add(ff.structures.Xor(), bits)
    graph.add(ff.structures.AtMostOne(), bits.T)
    solution = graph.solve()
    found = parsed(solution)
    assert found.texts == ["4 bits in each instance"]
    assert [row[3:5] for row in found.rows[1:]] == [["2", "0"], ["4", "4"]]
    assert found.rows[1][-1] == "integer: the optimal structure"
    assert found.rows[2][-1].startswith("fractional")
    alone = ff.FactorGraph()
    alone.add(ff.structures.Xor(), alone.variable(torch.tensor([1.0, 0.0])))
    assert len(parsed(alone.solve()).rows) == 2


def test_expectations() -> None:
    scores = torch.tensor([[3.0, 0.0, 0.0], [0.5, 0.25, -1.0]], requires_grad=True)

    def cost(atoms: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        return atoms.float() + 1

    found = parsed(ff.expect(cost, scores, ff.SparseMarginal(ff.Gini())))
    assert found.texts == ["exact expectation"]
    assert found.rows[1:] == [
        ["0", "1.0000", "1", "0: 1"],
        ["1", "1.3750", "2", "0: 0.625, 1: 0.375"],
    ]
    drawn = ff.expect(cost, scores.repeat(8, 1), ff.ScoreFunction(samples=1))
    found = parsed(drawn)
    assert found.texts == ["estimated expectation", "and 6 more"]
    assert len(found.rows) == 11
    over = ff.structures.Bits()
    bits = ff.expect(lambda z, rows: z.sum(-1), torch.zeros(4), ff.SparseMarginal(), over=over)
    assert len(parsed(bits).rows) == 2
