"""Batches without instances: empty results of the right shapes."""

import pytest
import torch

import fewfold as ff

s = ff.structures
pytestmark = pytest.mark.usefixtures("path")
CASES = {
    "sequence": (s.Sequence(torch.randn(3, 3), start=torch.randn(3)), (4, 3)),
    "sequence of each instance": (s.Sequence(torch.randn(0, 3, 3), by_position=False), (4, 3)),
    "subset": (s.SequentialSubset(2, 0.5), (5,)),
    "tree": (s.DependencyTree(), (3, 3)),
    "projective tree": (s.DependencyTree(projective=True), (3, 3)),
    "spanning tree": (s.SpanningTree(torch.tensor([[0, 1], [1, 2], [0, 2]]), 3), (3,)),
    "assignment": (s.Assignment(), (2, 3)),
    "budget": (s.Budget(2), (5,)),
}


@pytest.mark.parametrize("name", CASES)
def test_no_instances_have_empty_answers(name):
    structure, event = CASES[name]
    scores = torch.zeros(0, *event, requires_grad=True)
    assert structure.argmax(scores).shape == scores.shape
    found = structure.k_best(scores, 2)
    assert found.structures.shape == (0, 2, *event)
    marginals = ff.sparsemap(scores, structure)
    assert marginals.shape == scores.shape
    marginals.sum().backward()
    assert scores.grad.shape == scores.shape
    assert ff.sparsemap_support(scores, structure).atoms.shape == (0, *event)
    top = ff.structured.topk_support(scores, structure, 2)
    assert top.support.atoms.shape == (0, *event)
    assert top.certified.shape == (0,)
