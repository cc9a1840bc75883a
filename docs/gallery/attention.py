"""An attention layer learns two patterns, and its heads learn how sparse to be."""

import sys

import torch
import torch.nn.functional as F
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from torch import Tensor, nn

import fewfold as ff

torch.manual_seed(0)
letters, length, dim, heads = 26, 12, 32, 4


class Model(nn.Module):
    """Predict two letters for each position: the preceding one, and its mirror in the word."""

    def __init__(self) -> None:
        super().__init__()
        self.letter, self.place = nn.Embedding(letters, dim), nn.Embedding(length, dim)
        self.attention = ff.MultiheadAttention(dim, heads)
        self.guess = nn.Linear(dim, 2 * letters)

    def forward(self, words: Tensor) -> Tensor:
        state = self.letter(words) + self.place.weight
        return self.guess(self.attention(state)).unflatten(-1, (2, letters))


def batch(size: int) -> tuple[Tensor, Tensor]:
    words = torch.randint(letters, (size, length))
    return words, torch.stack([words.roll(1, 1), words.flip(1)], -1)


model = Model()
optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
for _ in range(150):
    words, target = batch(32)
    loss = F.cross_entropy(model(words).flatten(0, 2), target.flatten())
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()

words, target = batch(256)
with torch.no_grad(), ff.attention.watch_attention() as calls:
    right = (model(words).argmax(-1) == target).float().mean()
alpha = model.attention.alpha
assert alpha is not None
print(f"{right:.1%} of the guesses are right")
print("alpha", ", ".join(f"{value:.2f}" for value in alpha), f"- {calls[0].density:.1%} of pairs")

figure = Figure(figsize=(11, 3.3), dpi=130, layout="constrained")
word = [chr(ord("a") + letter) for letter in words[0].tolist()]
panels = figure.subplots(1, heads)
for head, axes in enumerate(panels):
    ff.attention.picture_attention(calls[0].head(0, head), word, axes=axes)
    axes.set_xticks(range(length), word, rotation=0, ha="center")
    axes.set_title(f"alpha = {alpha[head]:.2f}, {axes.get_title()}", fontsize=9)
panels[0].set_ylabel("a letter ...")
figure.supxlabel("... and the letters it looks at", fontsize=10)
colours = ScalarMappable(Normalize(0, 1), "viridis_r")
figure.colorbar(colours, ax=panels, label="weight (empty: exactly 0)", shrink=0.8)
figure.savefig(sys.argv[1])
