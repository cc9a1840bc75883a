"""A variational autoencoder of digits with a discrete and a continuous latent variable."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

import fewfold as ff
from experiments.networks import perceptron

Cost = Callable[[Tensor, Tensor], Tensor]
_LEAST = 1e-8  # added to probabilities under a logarithm, as published


class SemisupervisedVAE(nn.Module):
    """p(z) p(h) p(x | z, h) with a label z, a Gaussian h, and q(z | x) q(h | x, z).

    What the first layer of q(h | x, z) makes of an image is worked out once for the image and not
    once for each of its labels.

    Args:
        pixels, classes, latent: sizes of x, z and h.
        hidden: of the layers of q(h | x, z) and of the decoder.
        wide: of the layers of the classifier.

    Reference: Kingma, Rezende, Mohamed, Welling, "Semi-supervised learning with deep generative
    models", 2014.
    """

    def __init__(
        self,
        pixels: int = 784,
        classes: int = 10,
        latent: int = 8,
        *,
        hidden: int = 128,
        wide: int = 256,
    ) -> None:
        super().__init__()
        self.classifier = perceptron(pixels, wide, wide, wide, classes)
        self.image, self.label_seen = _two_inputs(pixels, classes, hidden)
        self.inference = nn.Sequential(nn.ReLU(), *perceptron(hidden, hidden, 2 * latent))
        self.latent, self.label_shown = _two_inputs(latent, classes, hidden)
        self.decoder = nn.Sequential(nn.ReLU(), *perceptron(hidden, hidden, pixels))

    def costs(self, images: Tensor, generator: torch.Generator) -> Cost:
        """Return the cost of labels: ``-log p(x | z, h) + KL(q(h | x, z) || p(h))``, one sample h.

        Args:
            images: (n, pixels) of zeros and ones.
            generator: draws h.

        Returns:
            a function of labels, ids (m,) or vectors (m, classes), and the images (m,) they are of.
        """
        features = self.image(images)
        sign = 2 * images - 1

        def cost(labels: Tensor, row: Tensor) -> Tensor:
            seen = features.index_select(0, row) + ff.expectation.embed_atoms(
                labels, self.label_seen
            )
            mean, log_std = self.inference(seen).chunk(2, -1)
            std = log_std.exp()
            noise = torch.randn(mean.shape, generator=generator)
            shown = self.latent(mean + std * noise) + ff.expectation.embed_atoms(
                labels, self.label_shown
            )
            right = torch.sigmoid(self.decoder(shown) * sign.index_select(0, row))
            divergence = 0.5 * (mean.square() + std.square() - 1) - log_std
            total: Tensor = divergence.sum(-1) - (right + _LEAST).log().sum(-1)
            return total

        return cost


def _two_inputs(first: int, classes: int, outputs: int) -> tuple[nn.Linear, nn.Parameter]:
    """A linear layer of a concatenated vector and one-hot label, as two separate parts."""
    whole, part = nn.Linear(first + classes, outputs), nn.Linear(first, outputs)
    with torch.no_grad():
        part.weight.copy_(whole.weight[:, :first])
        part.bias.copy_(whole.bias)
    return part, nn.Parameter(whole.weight.detach()[:, first:].T.contiguous())
