"""Synonyms, hypernyms, hyponyms and antonyms from the database files of WordNet.

The files are those of wndb(5WN): ``data.noun``, ``data.verb``, ``data.adj`` and ``data.adv`` hold
one set of synonyms per line, and ``noun.exc`` and its siblings the irregular forms. Index files
are not read.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self, get_args

__all__ = ["Kind", "Lexicon", "antonyms", "check_kinds", "edges"]

Kind = Literal["synonym", "hypernym", "hyponym", "antonym"]
Synset = tuple[str, str]  # part of speech and byte offset

_PARTS = {"n": "noun", "v": "verb", "a": "adj", "r": "adv"}
_POINTERS = {"@": "hypernym", "@i": "hypernym", "~": "hyponym", "~i": "hyponym"}
# How a regular form ends, and how its base form does: the rules of morphy(7WN).
_ENDINGS = {
    "n": (
        ("s", ""), ("ses", "s"), ("xes", "x"), ("zes", "z"), ("ches", "ch"), ("shes", "sh"),
        ("men", "man"), ("ies", "y"),
    ),
    "v": (
        ("s", ""), ("ies", "y"), ("es", "e"), ("es", ""), ("ed", "e"), ("ed", ""), ("ing", "e"),
        ("ing", ""),
    ),
    "a": (("er", ""), ("est", ""), ("er", "e"), ("est", "e")),
    "r": (),
}  # fmt: skip


@dataclass(frozen=True)
class Lexicon:
    """WordNet: the synsets of each word and the relations between synsets."""

    synsets: dict[tuple[str, str], list[Synset]]  # of a part of speech and a base form
    linked: dict[tuple[str, Synset], list[Synset]]  # of a kind and a synset
    opposite: list[tuple[tuple[str, str], tuple[str, str]]]  # antonyms: part of speech, base form
    irregular: dict[tuple[str, str], list[str]]  # base forms

    @classmethod
    def read(cls, path: str | Path) -> Self:
        """Read a database directory of WordNet 3.0 or another version with the same format."""
        folder = Path(path)
        missing = [
            f"data.{name}" for name in _PARTS.values() if not (folder / f"data.{name}").is_file()
        ]
        if missing:
            raise ValueError(
                f"path must be a directory with WordNet's database files, but {folder} lacks "
                f"{', '.join(missing)}; unpack WordNet's dict directory and name it"
            )
        words: dict[Synset, list[str]] = {}
        synsets, linked, pointers = defaultdict(list), defaultdict(list), []
        for name in _PARTS.values():
            for synset, lemmas, links in _lines(folder / f"data.{name}"):
                words[synset] = lemmas
                for lemma in dict.fromkeys(lemmas):
                    synsets[synset[0], lemma].append(synset)
                for symbol, target, ends in links:
                    if symbol in _POINTERS:
                        linked[_POINTERS[symbol], synset].append(target)
                    elif symbol == "!":
                        pointers.append((synset, target, ends))
        opposite = []
        for a, b, ends in pointers:
            try:
                one, other = words[a][int(ends[:2], 16) - 1], words[b][int(ends[2:], 16) - 1]
            except (IndexError, KeyError, ValueError):
                raise ValueError(
                    f"every antonym in {folder} must be there, got a pointer from {a} to word "
                    f"{ends[2:]} of {b}, which is missing; is a file truncated?"
                ) from None
            opposite.append(((a[0], one), (b[0], other)))
        return cls(dict(synsets), dict(linked), opposite, _irregular(folder))

    def bases(self, word: str) -> list[tuple[str, str]]:
        """Return the (part of speech, base form) pairs of a word."""
        word, found = word.lower().replace(" ", "_"), []
        for part, endings in _ENDINGS.items():
            regular = [word[: -len(e)] + base for e, base in endings if word.endswith(e)]
            forms = dict.fromkeys([word, *self.irregular.get((part, word), regular)])
            found += [(part, form) for form in forms if (part, form) in self.synsets]
        return found

    def senses(self, word: str) -> set[Synset]:
        """Return all synsets of a word."""
        return {synset for base in self.bases(word) for synset in self.synsets[base]}


def check_kinds(kinds: Iterable[Kind]) -> list[Kind]:
    """Return the kinds without repetition; raise unless there is one and all are known."""
    given = list(dict.fromkeys(kinds))
    if not given or not set(given) <= set(get_args(Kind)):
        raise ValueError(f"kinds must be some of {', '.join(get_args(Kind))}, got {tuple(given)}")
    return given


def edges(
    lexicon: Lexicon, words: Sequence[str], anchors: Sequence[int], kinds: Collection[Kind]
) -> list[tuple[int, int]]:
    """Return index pairs (word, anchor word) related by one of the kinds.

    Synonyms, hypernyms and hyponyms relate sets of words; antonyms relate the words themselves.
    """
    holding = defaultdict(set)
    for anchor in anchors:
        for synset in lexicon.senses(words[anchor]):
            holding[synset].add(anchor)
    found: set[tuple[int, int]] = set()
    if "antonym" in kinds:
        opposite, chosen = antonyms(lexicon, words), set(anchors)
        found.update(pair for u, v in opposite for pair in ((u, v), (v, u)) if pair[1] in chosen)
    of_synsets = [kind for kind in kinds if kind != "antonym"]
    for number, word in enumerate(words):
        for synset in lexicon.senses(word):
            for kind in of_synsets:
                targets = [synset] if kind == "synonym" else lexicon.linked.get((kind, synset), [])
                found.update((number, a) for target in targets for a in holding.get(target, ()))
    return sorted(pair for pair in found if pair[0] != pair[1])


def antonyms(lexicon: Lexicon, words: Sequence[str]) -> list[tuple[int, int]]:
    """Return index pairs of antonyms, the smaller index first."""
    numbers = defaultdict(list)
    for number, word in enumerate(words):
        for base in lexicon.bases(word):
            numbers[base].append(number)
    found = {
        (min(u, v), max(u, v))
        for a, b in lexicon.opposite
        for u in numbers.get(a, ())
        for v in numbers.get(b, ())
    }
    return sorted(pair for pair in found if pair[0] != pair[1])


def _lines(file: Path) -> Iterator[tuple[Synset, list[str], list[tuple[str, Synset, str]]]]:
    """Yield every synset, its lower-case words and its pointers (symbol, target, words)."""
    for line in file.read_text("utf-8").splitlines():
        if line.startswith(" "):  # the licence
            continue
        fields = line.split(" | ", 1)[0].split()
        try:
            count = int(fields[3], 16)
            lemmas = [word.split("(")[0].lower() for word in fields[4 : 4 + 2 * count : 2]]
            rest = fields[4 + 2 * count :]
            links = [
                (rest[i], (_part(rest[i + 2]), rest[i + 1]), rest[i + 3])
                for i in range(1, 1 + 4 * int(rest[0]), 4)
            ]
            yield (_part(fields[2]), fields[0]), lemmas, links
        except (IndexError, KeyError, ValueError):
            raise ValueError(
                f"{file} must hold WordNet's sets, got the line {line[:60]!r}"
            ) from None


def _part(symbol: str) -> str:
    return "a" if symbol == "s" else symbol  # satellites of an adjective are adjectives


def _irregular(folder: Path) -> dict[tuple[str, str], list[str]]:
    forms = {}
    for part, name in _PARTS.items():
        file = folder / f"{name}.exc"
        for line in file.read_text("utf-8").splitlines() if file.is_file() else ():
            if words := line.split():
                forms[part, words[0]] = words[1:]
    return forms
