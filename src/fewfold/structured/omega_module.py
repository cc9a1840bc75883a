"""Module that registers the tensors of a regulariser as its parameters and buffers."""

from torch import nn

from fewfold.maps.omega import Omega, check_omega
from fewfold.structured.omega_tensors import register_tensors, with_tensors

__all__ = ["OmegaModule"]


class OmegaModule(nn.Module):
    """Registers the tensors of a regulariser, such as a learnable alpha, as parameters or buffers.

    They then move, are saved and are trained with the module.
    """

    def __init__(self, omega: Omega) -> None:
        super().__init__()
        check_omega(omega)
        self._omega = omega
        self._names = register_tensors(self, omega)

    @property
    def value(self) -> Omega:
        """The regulariser with the current parameters and buffers."""
        return with_tensors(self._omega, {name: getattr(self, name) for name in self._names})

    def extra_repr(self) -> str:
        return f"{self.value}"
