"""Inspection of compiled graphs: the operators they call and their number of nodes."""

import warnings
from collections.abc import Callable
from typing import Any

import torch
from functorch.compile import make_boxed_func
from torch import Tensor
from torch._dynamo.backends.common import aot_autograd


class Graphs:
    """A backend that keeps the forward and backward graphs, and runs them node by node."""

    def __init__(self) -> None:
        self.seen: list[torch.fx.GraphModule] = []
        self.backend = aot_autograd(fw_compiler=self._keep, bw_compiler=self._keep)

    def _keep(self, graph: torch.fx.GraphModule, _: Any) -> Callable[..., Any]:
        self.seen.append(graph)
        return make_boxed_func(graph.forward)

    @property
    def operators(self) -> set[str]:
        """The names of our own operators in all graphs."""
        targets = {str(node.target) for graph in self.seen for node in graph.graph.nodes}
        return {name.split(".")[1] for name in targets if name.startswith("fewfold.")}

    @property
    def nodes(self) -> int:
        """How many nodes the largest graph has."""
        return max(len(graph.graph.nodes) for graph in self.seen)


def compiled(
    function: Callable[..., Tensor], *, dynamic: bool = False
) -> tuple[Callable[..., Tensor], Graphs]:
    """The function compiled afresh into one graph, and where that graph can be looked at."""
    torch._dynamo.reset()
    graphs = Graphs()
    return torch.compile(function, fullgraph=True, dynamic=dynamic, backend=graphs.backend), graphs


def gradients(function: Callable[..., Tensor], *given: Tensor) -> list[Tensor]:
    """The answer, and the gradient of each argument that requires one, of a sum that mixes all."""
    leaves = [one.detach().clone().requires_grad_(one.requires_grad) for one in given]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the compiler, about itself
        answer = function(*leaves)
        waves = torch.cos(1.7 * torch.arange(answer.numel()) + 0.3).view(answer.shape)
        asked = [leaf for leaf in leaves if leaf.requires_grad]
        found = torch.autograd.grad((answer * waves.to(answer)).sum(), asked)
    return [answer.detach(), *found]


def same(left: list[Tensor], right: list[Tensor], tolerance: float = 0.0) -> None:
    """The same tensors, to the last bit unless a tolerance is given."""
    for one, other in zip(left, right, strict=True):
        torch.testing.assert_close(one, other, atol=tolerance, rtol=tolerance, equal_nan=True)
