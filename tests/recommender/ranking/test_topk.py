"""Top-k in blocks equals a sort of the whole matrix, ties and exclusions included."""

import math
from dataclasses import dataclass

import hypothesis
import pytest
import torch
from hypothesis import strategies as st

from fewfold.recommender import Catalogue, DotProduct, Interactions, Jagged, top_k
from tests.recommender.cases import logs

pytestmark = pytest.mark.usefixtures("path")
both_kinds = pytest.mark.parametrize("kind", [torch.as_tensor, Catalogue], ids=["plain", "bytes"])


@dataclass
class Given:
    """A scorer with its matrix."""

    scores: torch.Tensor

    @property
    def shape(self) -> tuple[int, int]:
        return tuple(self.scores.shape)

    def __call__(self, users: slice, items: slice) -> torch.Tensor:
        return self.scores[users, items].clone()


def check(found, scores, k, seen=None, allowed=None):
    """That `found` is the stable sort of the scores, without what is out of the question."""
    scores = scores.clone()
    if allowed is not None:
        scores[:, ~allowed] = -torch.inf
    if seen is not None:
        scores[seen.row, seen.values] = -torch.inf
    best, ids = scores.sort(dim=1, descending=True, stable=True)
    pad = (0, max(k - scores.shape[1], 0))
    best = torch.nn.functional.pad(best[:, :k], pad, value=-torch.inf)
    ids = torch.nn.functional.pad(ids[:, :k], pad, value=-1).masked_fill(best == -torch.inf, -1)
    assert torch.equal(found.ids, ids)
    assert torch.equal(found.scores, best)


def whole_vectors(users, items, d, most=3, seed=0):
    """Whole numbers so small that every sum of products is exact in any order."""
    generator = torch.Generator().manual_seed(seed)
    queries, vectors = (
        torch.randint(-most, most + 1, (n, d), generator=generator).float() for n in (users, items)
    )
    return queries, vectors


def some_seen(users, items, seed=0):
    """Each user's items to leave out, in no order and with repetitions."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(0, items + 1, (users,), generator=generator)
    offsets = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
    return Jagged(torch.randint(items, (int(offsets[-1]),), generator=generator), offsets)


@hypothesis.given(
    logs(), st.integers(1, 13), st.integers(1, 9), st.integers(1, 11), st.booleans(), st.data()
)
@hypothesis.settings(suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture])
def test_equals_a_stable_sort(log, k, users_at_once, items_at_once, wide, data):
    """Scores from four values and -inf: nearly everything ties."""
    size = log.users * log.items
    value = st.sampled_from([-torch.inf, -1.0, 0.0, 2.0, 3.0])
    scores = torch.tensor(data.draw(st.lists(value, min_size=size, max_size=size)))
    scores = scores.view(log.users, log.items).to(torch.float64 if wide else torch.float32)
    flags = st.lists(st.booleans(), min_size=log.items, max_size=log.items)
    allowed = data.draw(st.none() | flags.map(lambda bits: torch.tensor(bits, dtype=torch.bool)))
    before = scores.clone()
    blocks = {"users_at_once": users_at_once, "items_at_once": items_at_once}
    found = top_k(Given(scores), k, exclude=log, allowed=allowed, **blocks)
    assert torch.equal(scores, before)
    check(found, scores, k, log.jagged, allowed)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("order", ["random", "rising", "falling", "equal", "two values", "huge"])
def test_long_rows(order, dtype):
    n = 3001
    generator = torch.Generator().manual_seed(0)
    scores = {
        "random": torch.randn(3, n, generator=generator),
        "rising": torch.arange(3.0 * n).view(3, n),
        "falling": -torch.arange(3.0 * n).view(3, n),
        "equal": torch.zeros(3, n),
        "two values": torch.randint(2, (3, n), generator=generator).float(),
        "huge": torch.randn(3, n, generator=generator) * 1e38,  # some of them infinite
    }[order].to(dtype)
    seen = some_seen(3, n)
    for k in (1, 2, 10, 100, 2999, 4000):
        check(top_k(Given(scores), k, exclude=seen, users_at_once=2), scores, k, seen)
        check(top_k(Given(scores), k, items_at_once=97, users_at_once=2), scores, k)


@both_kinds
@pytest.mark.parametrize("shape", [(1, 1), (31, 5), (500, 63), (257, 256), (40, 100), (3000, 33)])
@pytest.mark.parametrize("users", [1, 2, 3, 9])
def test_vectors_of_whole_numbers(users, shape, kind):
    """Where no sum is rounded the answer is the same to the last bit, tied or not."""
    queries, vectors = whole_vectors(users, *shape)
    scores = queries @ vectors.t()
    seen, allowed = some_seen(users, shape[0]), torch.rand(shape[0]) < 0.6
    for k in (1, 10, shape[0], shape[0] + 3):
        scorer = DotProduct(queries, kind(vectors))
        check(top_k(scorer, k), scores, k)
        check(top_k(scorer, k, exclude=seen), scores, k, seen)
        check(top_k(scorer, k, exclude=seen, allowed=allowed), scores, k, seen, allowed)


@both_kinds
@pytest.mark.parametrize("scale", [1e-38, 1e-30, 1e-12, 1.0, 1e12, 1e18])
@pytest.mark.parametrize("spread", [0.0, 3.0])
def test_never_worse_than_rounding(scale, spread, kind):
    """No item left out is better than one returned by more than float32 may err.

    Columns and rows of very different sizes, and a query that turns the columns around.
    """
    generator = torch.Generator().manual_seed(0)
    columns = (torch.randn(70, generator=generator) * spread).exp()
    rows = (torch.randn(2000, 1, generator=generator) * spread / 3).exp()
    vectors = torch.randn(2000, 70, generator=generator) * columns * rows
    vectors *= scale / vectors.abs().max()
    queries = torch.randn(3, 70, generator=generator) / columns
    found = top_k(DotProduct(queries, kind(vectors)), 20)
    exact = queries.double() @ vectors.double().t()
    error = 70 * 2**-24 * (queries.double().abs() @ vectors.double().abs().t()) + 70 * 2.0**-149
    gap = (found.scores.double() - exact.gather(1, found.ids)).abs() - error.gather(1, found.ids)
    assert (gap <= 0).all()
    least = exact.gather(1, found.ids) + error.gather(1, found.ids)
    left = (exact - error).scatter(1, found.ids, -torch.inf)
    assert (left.amax(1) <= least.amin(1)).all()
    assert (found.scores.diff(dim=1) <= 0).all()


@both_kinds
@pytest.mark.parametrize("count", [1, 5, 60, 125, 126])
def test_a_small_part_of_the_items(count, kind):
    queries, vectors = whole_vectors(3, 1000, 12)
    generator = torch.Generator().manual_seed(1)
    allowed = torch.zeros(1000, dtype=torch.bool)
    allowed[torch.randperm(1000, generator=generator)[:count]] = True
    first_has_all = Jagged(allowed.nonzero()[:, 0], torch.tensor([0, count, count, count]))
    for seen in (some_seen(3, 1000), first_has_all):
        for k in (1, 50, 1001):
            found = top_k(DotProduct(queries, kind(vectors)), k, exclude=seen, allowed=allowed)
            check(found, queries @ vectors.t(), k, seen, allowed)


def nearly_flat(items):
    """Scores so close that the bytes cannot tell them apart, the best of them last."""
    vectors = torch.ones(items, 8) + torch.arange(items)[:, None] * 2.0**-20
    return torch.ones(1, 8), vectors


def test_bytes_that_tell_nothing():
    queries, vectors = nearly_flat(1000)
    found = top_k(DotProduct(queries, Catalogue(vectors)), 5)
    assert found.ids.tolist() == [[999, 998, 997, 996, 995]]


def at_the_edge(items, d):
    """Bytes are exact here, but a query whose numbers lie between two steps is rounded either way.

    All vectors have the same numbers in another order, so that scores hardly differ.
    """
    generator = torch.Generator().manual_seed(3)
    numbers = torch.linspace(-127, 127, d).round()
    vectors = torch.stack([numbers[torch.randperm(d, generator=generator)] for _ in range(items)])
    step = 1 / 32767
    near = 1e-5 * (torch.rand(d, generator=generator) - 0.5)
    query = (20000.5 + near * 20000) * step
    query[0] = 1.0
    return query.unsqueeze(0), vectors


@pytest.mark.parametrize("d", [2, 8, 33, 64])
def test_what_rounding_hides_is_found(d):
    queries, vectors = at_the_edge(3000, d)
    found = top_k(DotProduct(queries, Catalogue(vectors)), 5)
    exact = (queries @ vectors.T).topk(5).values
    torch.testing.assert_close(found.scores, exact, rtol=1e-6, atol=2e-3)
    best = queries.double() @ vectors.double().T
    assert float(best.max() - best[0, found.ids[0, 0]]) < 1e-2


@pytest.mark.parametrize(("d", "lead"), [(600, 1), (2000, 12)])
def test_what_a_query_loses_as_whole_numbers_is_allowed_for(d, lead):
    """All but one number of the query round to 0; what they add up to decides between two items."""
    most = (2**31 - 1) // (127 * d)  # so that a sum of d products has 31 bits
    query = torch.full((1, d), 0.49 / most)
    query[0, 0] = 1.0
    vectors = 127 * (2.0 * torch.randint(2, (1000, d), generator=torch.manual_seed(0)) - 1)
    vectors[:, 0] = -127
    vectors[0], vectors[1, 1::2], vectors[1, 2::2] = 127, -127, 127
    vectors[0, 0], vectors[1, 0] = 100, 100 + lead
    assert top_k(DotProduct(query, Catalogue(vectors)), 1).ids.tolist() == [[0]]


@pytest.mark.native
def test_items_of_zeros_leave_the_others_their_bounds(path):
    if path == "torch":
        pytest.skip("there are none")
    queries, vectors = whole_vectors(1, 500, 16)
    usual = Catalogue(vectors)._quantised.slack
    vectors = torch.cat([vectors, torch.zeros(1, 16)])
    catalogue = Catalogue(vectors)
    torch.testing.assert_close(catalogue._quantised.slack[:500], usual, rtol=1e-3, atol=0)
    nothing = Jagged(torch.empty(0, dtype=torch.int64), torch.zeros(2, dtype=torch.int64))
    assert catalogue.best(queries[:1], 3, nothing, None) is not None  # by the bytes
    check(top_k(DotProduct(queries, catalogue), 501), queries @ vectors.t(), 501)


@pytest.mark.native
@pytest.mark.parametrize("d", [2, 8, 33, 600, 2000])
def test_the_slack_covers_every_rounding_and_little_more(d, path):
    """With u = 2^-24 and whole numbers up to L, relative to the norm of the query:

    The query in whole numbers is off by sqrt(d - 1) / (2 L), its largest number being exact. A
    float32 sum of d products is off by d u of the norm of the vector, and four factors, their
    product and the sum with the slack by 6 u of the norm of t c.
    """
    if path == "torch":
        pytest.skip("there is none")
    generator = torch.Generator().manual_seed(d)
    vectors = torch.randn(300, d, generator=generator) * torch.rand(300, 1, generator=generator)
    vectors[0, 0], vectors[0, 1:] = 0.127, 0.00049  # all but one are less than half a step
    made = Catalogue(vectors)._quantised
    whole, scaled = made.code[:, :d].double(), vectors.double() * made.balance.double()
    coded, norm = whole * made.step.double()[:, None], scaled.norm(dim=1)
    error, most = (scaled - coded).norm(dim=1), min(32767, (2**31 - 1) // (127 * d))
    torch.testing.assert_close(made.step.double(), scaled.abs().amax(1) / 127)
    assert (error <= 0.501 * d**0.5 * made.step).all()  # to the nearest whole number
    rounding = math.sqrt(d - 1) / (2 * most) * coded.norm(dim=1)
    needed = error + rounding + 2.0**-24 * (d * norm + 6 * coded.norm(dim=1))
    assert (made.slack >= needed).all()
    widest = error + (d**0.5 / (2 * most) + (d + 100) * 2.0**-22) * (norm + error)
    assert (made.slack <= 1.01 * widest).all()


@pytest.mark.native
@pytest.mark.parametrize("n", [3, 4, 5, 11])  # from four queries on they may be bytes
@pytest.mark.parametrize("d", [31, 32, 33, 64, 65, 96, 97, 128, 300])
@pytest.mark.parametrize("first", [0, 1, 30, 300])  # size of the first 64 columns
def test_many_queries_at_once(n, d, first, path):
    """Queries of bytes: columns in two units, rows that end within a vector of the kernel."""
    queries, vectors = whole_vectors(n, 613, d, most=20, seed=n * d)
    vectors *= torch.arange(613)[:, None] % 5
    queries[:, :64] *= first
    queries[:, -1] += 1  # none is all zeros
    check(top_k(DotProduct(queries, Catalogue(vectors)), 20), queries @ vectors.T, 20)


@pytest.mark.native
@pytest.mark.parametrize("place", [0, 64])  # of the large number
def test_what_rounding_to_bytes_loses_may_decide(place):
    """Twenty numbers of the query round to 0; what they add up to decides between two items."""
    others = slice(1, 21) if place == 0 else slice(65, 85)
    query = torch.zeros(1, 90)
    query[0, place], query[0, others] = 127, 0.49
    vectors = 127 * (2.0 * torch.randint(2, (1000, 90), generator=torch.manual_seed(0)) - 1)
    vectors[:, place] = -127
    vectors[0], vectors[1] = 127, -127
    vectors[0, place], vectors[1, place] = 100, 105
    found = top_k(DotProduct(query.repeat(4, 1), Catalogue(vectors)), 1)
    assert found.ids.tolist() == [[0]] * 4


@pytest.mark.native
def test_a_query_of_one_large_number_is_not_rounded_to_bytes():
    """All others would be zeros, and no item could be left out; the order depends on them."""
    queries, vectors = whole_vectors(8, 500, 70)
    vectors[:, 40], queries[:, 40] = 1.0, 1000.0
    check(top_k(DotProduct(queries, Catalogue(vectors)), 9), queries @ vectors.T, 9)


@pytest.mark.native
def test_columns_are_scaled_to_one_by_powers_of_two(path):
    if path == "torch":
        pytest.skip("there are none")
    powers = torch.tensor([-70.0, -20.0, 0.0, 3.0, 70.0] + 28 * [1.0])
    vectors = torch.where(torch.arange(500)[:, None] % 2 == 0, 1.0, -1.0) * powers.exp2()
    vectors[:, 5] = 0
    made = Catalogue(vectors)._quantised
    wanted = (-powers).clamp(-60, 60).exp2()
    wanted[5] = 1
    assert torch.equal(made.balance, wanted)
    assert made.code.shape == (500, 64)  # 33 in whole vectors of the kernel
    assert not made.code[:, 33:].any()


@pytest.mark.native
@pytest.mark.parametrize(
    ("large", "small", "query"), [(1.0, 1e-42, 1.0), (3e38, 1e-11, 1e-30)], ids=["small", "large"]
)
def test_scores_that_underflow_among_the_bytes(large, small, query):
    """The products of steps are 0 in float32 and so say nothing; the scores are not."""
    vectors, queries = torch.zeros(191, 2), torch.tensor([[query, 0.0]])
    vectors[0, 0], vectors[1:, 0] = -large, small * torch.arange(100, 290)
    found = top_k(DotProduct(queries, Catalogue(vectors)), 3)
    assert found.ids.tolist() == [[190, 189, 188]]
    assert (found.scores > 0).all()


@pytest.mark.native
def test_the_bytes_are_what_answers(path):
    """Vectors changed behind the back of a catalogue: the answer shows what was looked at."""
    if path == "torch":
        pytest.skip("there are none")
    queries, vectors = whole_vectors(1, 500, 16)
    catalogue = Catalogue(vectors)
    before = int(top_k(DotProduct(queries, catalogue), 1).ids)
    vectors[(before + 1) % 500] = queries[0] * 100
    assert int(top_k(DotProduct(queries, catalogue), 1).ids) == before


@both_kinds
@pytest.mark.parametrize("value", [0.0, 1.0])
def test_all_equal(value, kind):
    found = top_k(DotProduct(torch.full((2, 3), value), kind(torch.full((50, 3), value))), 4)
    assert found.ids.tolist() == [[0, 1, 2, 3]] * 2
    assert found.scores.eq(3 * value).all()


@both_kinds
def test_everything_excluded(kind):
    everything = Jagged(torch.arange(20).repeat(2), torch.tensor([0, 20, 40]))
    scorer = DotProduct(torch.ones(2, 3), kind(torch.ones(20, 3)))
    for found in (
        top_k(scorer, 2, exclude=everything),
        top_k(scorer, 2, allowed=torch.zeros(20, dtype=torch.bool)),
    ):
        assert found.ids.eq(-1).all()
        assert found.scores.eq(-torch.inf).all()


@pytest.mark.native
@pytest.mark.parametrize(
    ("users", "items"),
    [(1, 1), (2, 3), (3, 4), (4, 5), (5, 511), (7, 512), (8, 513), (9, 1027)],
)
def test_bytes_around_the_sizes_of_tiles_and_blocks(users, items):
    """Tiles have 4 items and 2 or 4 users, blocks 512 items; the numbers of a vector 16 or 32."""
    for d in (1, 16, 17, 33):
        queries, vectors = whole_vectors(users, items, d, seed=items + d)
        queries[:, 0] = 1  # none is all zeros, which only the plain path answers
        seen, allowed = some_seen(users, items, seed=d), torch.rand(items) < 0.7
        catalogue = Catalogue(vectors)
        for k in {1, min(10, items), items + 1}:
            found = top_k(DotProduct(queries, catalogue), k, exclude=seen, allowed=allowed)
            check(found, queries @ vectors.t(), k, seen, allowed)


@pytest.mark.native
def test_more_candidates_than_bounds_can_tell_apart():
    """Scores that rise in steps below the precision of bytes: exact ones decide in two rounds."""
    step = torch.arange(2000) / 2**20
    vectors = torch.stack([torch.ones(2000), step], 1)[torch.randperm(2000)]
    queries = torch.tensor([[1.0, 1.0], [1.0, -1.0], [2.0, 0.0]])
    found = top_k(DotProduct(queries, Catalogue(vectors)), 7)
    check(found, queries @ vectors.t(), 7)


def test_blocks_do_not_matter_for_vectors():
    generator = torch.Generator().manual_seed(0)
    queries = torch.randn(37, 5, generator=generator, dtype=torch.float64)
    vectors = torch.randn(101, 5, generator=generator, dtype=torch.float64)
    whole = (queries @ vectors.t()).sort(dim=1, descending=True, stable=True).indices[:, :9]
    for users, items in ((1, 7), (10, 200), (256, 50)):
        scorer = DotProduct(queries, vectors)
        assert torch.equal(top_k(scorer, 9, users_at_once=users, items_at_once=items).ids, whole)


def test_threads_do_not_matter():
    queries, vectors = whole_vectors(3, 3001, 96)
    scorers = DotProduct(queries, vectors), DotProduct(queries, Catalogue(vectors))
    torch.set_num_threads(2)
    try:
        for scorer in scorers:
            check(top_k(scorer, 17), queries @ vectors.t(), 17)
    finally:
        torch.set_num_threads(1)


def test_half_precision_and_double():
    queries, vectors = whole_vectors(2, 30, 4)
    scores = queries @ vectors.t()
    for dtype in (torch.bfloat16, torch.float64):
        scorer = DotProduct(queries.to(dtype), Catalogue(vectors.to(dtype)))
        check(top_k(scorer, 7), scores.to(dtype), 7)


def test_gradients_reach_the_vectors():
    queries, vectors = whole_vectors(2, 30, 4)
    top_k(DotProduct(queries, vectors.requires_grad_()), 1).scores.sum().backward()
    assert vectors.grad is not None


def test_vectors_that_lie_anyhow_in_memory():
    queries, vectors = whole_vectors(2, 40, 6)
    for kind in (torch.as_tensor, Catalogue):
        scorer = DotProduct(queries.t().contiguous().t(), kind(vectors.repeat(1, 2)[:, 3:9]))
        check(top_k(scorer, 5), queries @ vectors.repeat(1, 2)[:, 3:9].t(), 5)


def test_nobody_and_nothing():
    assert top_k(DotProduct(torch.zeros(0, 2), torch.zeros(3, 2)), 2).ids.shape == (0, 2)
    for kind in (torch.as_tensor, Catalogue):
        scorer = DotProduct(torch.zeros(2, 2), kind(torch.zeros(0, 2)))
        assert top_k(scorer, 2).ids.tolist() == [[-1] * 2] * 2


def test_nan_is_refused_unless_out_of_the_question():
    scores = torch.zeros(2, 300)
    scores[1, 200] = torch.nan
    with pytest.raises(ValueError, match="scores must be numbers, got nan"):
        top_k(Given(scores), 1)
    with pytest.raises(ValueError, match="scores must be numbers, got nan"):
        top_k(Given(scores), 1, items_at_once=7)
    seen = Jagged(torch.tensor([200]), torch.tensor([0, 0, 1]))
    assert top_k(Given(scores), 1, exclude=seen).ids.tolist() == [[0], [0]]
    allowed = torch.arange(300) != 200
    assert top_k(Given(scores), 1, allowed=allowed).ids.tolist() == [[0], [0]]
    for kind in (torch.as_tensor, Catalogue):
        with pytest.raises(ValueError, match="scores must be numbers, got nan"):
            top_k(DotProduct(torch.full((2, 3), torch.nan), kind(torch.zeros(4, 3))), 1)


def test_scorers_that_return_something_else():
    class Short(Given):
        def __call__(self, users, items):
            return super().__call__(users, items)[:, 1:]

    class Fickle(Given):
        def __call__(self, users, items):
            block = super().__call__(users, items)
            return block.double() if items.start else block

    with pytest.raises(ValueError, match=r"shape \(2, 30\) for .*, got \(2, 29\)"):
        top_k(Short(torch.zeros(2, 30)), 1)
    scores = torch.arange(60.0).view(2, 30)
    check(top_k(Fickle(scores), 4, items_at_once=7, users_at_once=2), scores, 4)


def test_errors():
    scorer = DotProduct(torch.zeros(2, 3), torch.zeros(4, 3))
    with pytest.raises(ValueError, match=r"shapes \(users, d\) and \(items, d\), got \(2, 3\) and"):
        DotProduct(torch.zeros(2, 3), torch.zeros(4, 2))
    with pytest.raises(ValueError, match="k must be at least 1, got 0"):
        top_k(scorer, 0)
    with pytest.raises(ValueError, match="one row for each of 2 users, got 1"):
        top_k(scorer, 1, exclude=Interactions.from_pairs([0], [0]))
    with pytest.raises(ValueError, match="item ids between 0 and 3, got 9 to 9"):
        top_k(scorer, 1, exclude=Jagged(torch.tensor([9]), torch.tensor([0, 1, 1])))
    with pytest.raises(ValueError, match="offsets must"):
        top_k(scorer, 1, exclude=Jagged(torch.tensor([1]), torch.tensor([0, 9, 1])))
    with pytest.raises(TypeError, match=r"allowed must be a boolean tensor .* got torch.int64"):
        top_k(scorer, 1, allowed=torch.tensor([0, 3]))
    with pytest.raises(ValueError, match=r"allowed must have shape \(4,\), got \(3,\)"):
        top_k(scorer, 1, allowed=torch.ones(3, dtype=torch.bool))
    with pytest.raises(ValueError, match=r"vectors must be \(items, d\), got \(4,\)"):
        Catalogue(torch.zeros(4))
    with pytest.raises(ValueError, match="vectors must be finite"):
        Catalogue(torch.tensor([[1.0, torch.inf], [0.0, -torch.inf]]))
