"""How far a proposal is from the softmax that it stands for: exactly, and an upper bound."""

import torch
from torch import Tensor

from fewfold.sampling.multi_index import MultiIndex
from fewfold.sampling.proposal import Proposal, check_items, check_queries

__all__ = ["kl_bound", "kl_divergence"]


def kl_divergence(proposal: Proposal, queries: Tensor, item_vectors: Tensor) -> Tensor:
    r"""Kullback-Leibler divergence KL(q || p) from a proposal q to the softmax p of the scores.

    .. math:: p(i \mid z) = \exp(z \cdot x_i) \Big/ \sum_j \exp(z \cdot x_j)

    Costs the scores of all items.

    Args:
        proposal: fitted to as many items.
        queries: (B, d).
        item_vectors: (M, d).

    Returns:
        (B,) in double precision, in nats.

    Example:
        >>> import torch, fewfold as ff
        >>> items = torch.tensor([[0.0], [1.0]])
        >>> uniform = ff.Uniform().fit(items)
        >>> ff.sampling.kl_divergence(uniform, torch.tensor([[0.0], [2.0]]), items)
        tensor([0.0000, 0.4338], dtype=torch.float64)
    """
    vectors = check_items(item_vectors)
    queries = check_queries(queries, vectors.shape[1])
    log_p = (queries.double() @ vectors.double().T).log_softmax(1)
    every = torch.arange(len(vectors), device=vectors.device).expand(len(queries), -1)
    log_q = proposal.log_prob(queries, every).double()
    terms = log_q.exp() * (log_q - log_p)
    # An item that is never sampled adds nothing; exp(-inf) * -inf would be NaN.
    return terms.where(log_q > -torch.inf, 0.0).sum(1).clamp(min=0)


def kl_bound(proposal: MultiIndex, queries: Tensor, item_vectors: Tensor) -> Tensor:
    r"""Upper bound of `kl_divergence` of a multi-index, in time linear in items and queries.

    With the residuals r of the item vectors after quantisation and the masses m of the items,

    .. math:: KL(q \| p) \le 2 \max_i \|r_i\| \|z\| + \log \frac{\max_i m_i}{\min_i m_i},

    whose second term is 0 if the items of a cell are sampled uniformly. It is infinite if an item
    has mass 0. With ``within="exact"`` the proposal is the softmax, and the bound 0.

    Args:
        proposal: fitted; item vectors may have changed since.
        queries: (B, d).
        item_vectors: (M, d).

    Returns:
        (B,) in double precision, in nats.

    Example:
        >>> import torch, fewfold as ff
        >>> items = torch.tensor([[1., 0.], [1.2, 0.], [0., 2.], [0., 2.2]])
        >>> proposal = ff.MultiIndex(codewords=2).fit(items)
        >>> queries = torch.tensor([[1., 0.], [3., 0.]])
        >>> ff.sampling.kl_bound(proposal, queries, items)
        tensor([0.2000, 0.6000], dtype=torch.float64)
        >>> ff.sampling.kl_divergence(proposal, queries, items)
        tensor([0.0037, 0.0428], dtype=torch.float64)

    Reference: Theorems 5.3 and 5.4 of Chen, Lian, Jin, Huang, Zheng and Chen, "Fast Variational
    AutoEncoder with Inverted Multi-Index for Collaborative Filtering", WWW 2022. There the
    divergence is said to be positive; it may be 0.
    """
    if not isinstance(proposal, MultiIndex):
        raise TypeError(f"the bound is that of a MultiIndex, got {type(proposal).__name__}")
    vectors = check_items(item_vectors)
    queries = check_queries(queries, vectors.shape[1])
    quantised, mass = proposal.quantised(), proposal.mass
    if quantised.shape != vectors.shape:
        raise ValueError(
            f"item_vectors must be those of the proposal, {tuple(quantised.shape)}, "
            f"got {tuple(vectors.shape)}"
        )
    if proposal.within == "exact":
        return queries.new_zeros(len(queries), dtype=torch.float64)
    residual = (vectors.double() - quantised.double()).norm(dim=1).max()
    spread = 0.0 if mass is None else (mass.max() / mass.min()).log()
    bound: Tensor = 2 * residual * queries.double().norm(dim=1) + spread
    return bound
