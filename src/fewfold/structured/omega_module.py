"""A regulariser inside a module: its tensors move, are saved and learn with the module."""

from torch import nn

from fewfold.maps.omega import Omega, check_omega
from fewfold.structured.omega_tensors import hold, with_tensors

__all__ = ["Held"]


class Held(nn.Module):
    """Holds the tensors of an omega, such as an alpha that learns, as parameters or buffers."""

    def __init__(self, omega: Omega) -> None:
        super().__init__()
        check_omega(omega)
        self._omega = omega
        self._names = hold(self, omega)

    @property
    def value(self) -> Omega:
        """The regulariser, with its tensors where the module now holds them."""
        return with_tensors(self._omega, {name: getattr(self, name) for name in self._names})

    def extra_repr(self) -> str:
        return f"{self.value}"
