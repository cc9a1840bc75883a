"""What the anchors of a trained language model group.

``python -m experiments.ptb_language_model.anchor_groups "ANT 500 frequency"`` adds a row to
groups.json for models that `until_converged` has trained: the words with the largest share of each
anchor, the largest pairs of a word and an anchor, and the purity of the groups. A group is pure if
its words have a lexicographer file of WordNet in common ("noun.person", "verb.motion": 45 of
them); the chance level is that of random groups of the same words and sizes.
"""

import argparse
from collections import defaultdict
from functools import partial
from pathlib import Path
from typing import Any

import torch

import fewfold as ff
from experiments import datasets
from experiments.ptb_language_model.models import size
from experiments.ptb_language_model.regularised_lstm import Settings
from experiments.ptb_language_model.texts import Text, ptb
from experiments.ptb_language_model.until_converged import METHODS, MODELS, trained
from experiments.record import Record, Row
from experiments.text_classification.tables import wordnet_folder
from fewfold.embeddings import inspect_anchors
from fewfold.embeddings.relations.wordnet import Lexicon

RESULTS = Path(__file__).parent / "groups.json"


def lexicographer_files(words: tuple[str, ...]) -> list[set[str]]:
    """Return the numbers of the lexicographer files with a sense of each word."""
    import pandas

    table = pandas.read_parquet(datasets.DATA / "wordnet" / "synsets.parquet")
    of_lemma: dict[str, set[str]] = defaultdict(set)
    for lemmas, file in zip(table["lemmas"], table["lexfile"], strict=True):
        for lemma in lemmas.lower().split():
            of_lemma[lemma].add(str(file))
    lexicon = Lexicon.read(wordnet_folder())
    return [{file for _, base in lexicon.bases(word) for file in of_lemma[base]} for word in words]


@torch.no_grad()
def first_rows(table: ff.AnchorEmbedding, rows: int) -> ff.AnchorEmbedding:
    """Return a table of the first rows, with the same anchors."""
    made = ff.AnchorEmbedding(rows, table.embedding_dim, anchors=len(table.anchors))
    made.anchors.copy_(table.anchors)
    made.transform.copy_(table.transform[:rows])
    return made


def groups(
    table: ff.AnchorEmbedding, labels: list[set[str]], words: tuple[str, ...], frequent: int
) -> dict[str, Any]:
    """Return purity next to chance, and examples, among the most frequent words."""
    frequent = min(frequent, table.num_embeddings)
    made = first_rows(table, frequent)
    found = inspect_anchors(made, labels=labels[:frequent], names=words[:frequent], sample=0)
    entries = made.transform.detach().flatten()
    best = entries.topk(min(4 * made.transform.shape[1], len(entries))).indices.tolist()
    pairs = [divmod(entry, made.transform.shape[1]) for entry in best]
    return {
        "words": frequent,
        "purity": found.purity,
        "chance": found.chance,
        "groups": [
            {"anchor": group.anchor, "words": [member.name for member in group.members]}
            for group in found.groups[:10]
        ],
        "largest pairs": [[words[word], anchor] for word, anchor in pairs if word != anchor][:20],
    }


def measure(name: str, text: Text, settings: Settings, seed: int, frequent: int) -> Row:
    """Return a row of groups for a trained model."""
    table = trained(METHODS[name].begins, text, settings, seed, MODELS).model.table
    if not isinstance(table, ff.AnchorEmbedding):
        raise TypeError(f"{name} must have anchors, got a {type(table).__name__}")
    labels = lexicographer_files(text.vocabulary)
    return {"values": size(table), **groups(table, labels, text.vocabulary, frequent)}


def main() -> None:
    """Parse the command line and add the missing rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("methods", nargs="+")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--full", action="store_true", help="those of the full softmax")
    options = parser.parse_args()
    settings = Settings(samples=None) if options.full else Settings()
    text = ptb()
    for name in options.methods:
        for frequent in (2_000, text.words):
            key = {"method": name, "samples": settings.samples, "seed": options.seed}
            make = partial(measure, name, text, settings, options.seed, frequent)
            Record(RESULTS).once(make, words=frequent, **key)


if __name__ == "__main__":
    main()
