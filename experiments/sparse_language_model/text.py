"""WikiText-2 with its test part."""

from dataclasses import dataclass

from torch import Tensor

from experiments.language_model import run as language_model
from experiments.ptb_language_model import run as ptb_language_model


@dataclass(frozen=True)
class Text(language_model.Text):
    """A corpus as word ids, with a part for the test."""

    test: Tensor


def wikitext2() -> Text:
    """Load WikiText-2: 33,278 words, 2,088,628 training tokens."""
    whole = ptb_language_model.wikitext2()
    return Text(whole.train, whole.valid, whole.words, whole.test)
