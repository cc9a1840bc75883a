"""Relations from WordNet files: a small lexicon, and the real one if available."""

import tarfile
from pathlib import Path

import pytest

from experiments import datasets
from fewfold.embeddings.relations.relations import Relations
from fewfold.embeddings.relations.wordnet import Lexicon

FILES = {
    "data.noun": """\
  1 a licence, which is not a set
00000010 03 n 01 animal 0 002 ~ 00000020 n 0000 ~ 00000030 n 0000 | a living being
00000020 05 n 02 dog 0 Domestic_dog 0 002 @ 00000010 n 0000 ! 00000030 n 0101 | barks | loudly
00000030 05 n 01 cat 0 001 @ 00000010 n 0000 | purrs
00000040 05 n 01 goose 0 000 | flies
""",
    "data.verb": """\
00000010 29 v 02 run 0 dog 1 001 @ 00000020 v 0000 01 + 02 00 | to go after
00000020 29 v 01 move 0 001 ~ 00000010 v 0000 00 | to go
""",
    "data.adj": """\
00000010 00 a 02 good 0 nice 0 001 ! 00000020 a 0101 | liked
00000020 00 a 01 bad 0 001 ! 00000010 a 0101 | disliked
00000030 00 s 01 large(p) 0 000 | great
""",
    "data.adv": "",
    "noun.exc": "geese goose\n",
    "verb.exc": "running run\n",
    "adj.exc": "better good\n",
}
WORDS = ["animal", "dog", "cats", "geese", "running", "moves", "better", "bad", "nice", "the"]
NUMBER = {word: number for number, word in enumerate(WORDS)}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def related(relations: Relations) -> set[tuple[str, str]]:
    """Pairs of different words."""
    rows, slots = relations.exempt(None).nonzero().T.tolist()
    names = [
        (WORDS[row], WORDS[relations.anchors[slot]]) for row, slot in zip(rows, slots, strict=True)
    ]
    return {(word, anchor) for word, anchor in names if word != anchor}


def test_every_kind(folder: Path) -> None:
    anchors = [NUMBER["animal"], NUMBER["dog"], NUMBER["nice"]]
    by_kind = {
        "synonym": {("running", "dog"), ("better", "nice")},
        "hypernym": {("dog", "animal"), ("cats", "animal")},
        "hyponym": {("animal", "dog"), ("moves", "dog")},
        "antonym": {("cats", "dog")},  # bad is no antonym of nice, but of good: the words are
    }
    for kind, expected in by_kind.items():
        made = Relations.from_wordnet(WORDS, folder, anchors=anchors, kinds=(kind,))
        assert related(made) == expected
    every = Relations.from_wordnet(WORDS, folder, anchors=anchors)
    assert related(every) == set().union(*by_kind.values())


def test_antonyms_as_unrelated_pairs(folder: Path) -> None:
    anchors = [NUMBER["dog"], NUMBER["cats"], NUMBER["bad"]]
    antonyms = {("dog", "cats"), ("cats", "dog"), ("better", "bad")}
    published = Relations.from_wordnet(WORDS, folder, anchors=anchors)
    assert antonyms <= related(published)  # both ways, in base forms
    assert not len(published.unrelated)
    apart = Relations.from_wordnet(WORDS, folder, anchors=anchors, unrelated_antonyms=True)
    assert related(apart) == related(published) - antonyms
    pairs = {(WORDS[u], WORDS[v]) for u, v in apart.unrelated.tolist()}
    assert pairs == {("better", "bad"), ("dog", "cats")}
    none = Relations.from_wordnet(
        WORDS, folder, anchors=anchors, kinds=("antonym",), unrelated_antonyms=True
    )
    assert not related(none)
    assert len(none.unrelated) == 2


@pytest.mark.parametrize(
    ("word", "bases"),
    [
        ("Dog", [("n", "dog"), ("v", "dog")]),
        ("geese", [("n", "goose")]),
        ("running", [("v", "run")]),
        ("hopping", []),
        ("larger", [("a", "large")]),
        ("domestic dogs", [("n", "domestic_dog")]),
        ("s", []),
    ],
)
def test_base_forms(folder: Path, word: str, bases: list[tuple[str, str]]) -> None:
    assert Lexicon.read(folder).bases(word) == bases


def test_refused(folder: Path) -> None:
    with pytest.raises(ValueError, match=r"kinds must be some of synonym, .*, antonym, got"):
        Relations.from_wordnet(WORDS, folder, anchors=[0], kinds=("meronym",))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"kinds must be some of .*, got \(\)"):
        Relations.from_wordnet(WORDS, folder, anchors=[0], kinds=())
    with pytest.raises(ValueError, match="anchors must be between 0 and 9"):
        Relations.from_wordnet(WORDS, folder, anchors=[10])
    (folder / "data.adv").write_text("00000010 no set\n")
    with pytest.raises(
        ValueError, match="must hold WordNet's sets, got the line '00000010 no set'"
    ):
        Lexicon.read(folder)
    (folder / "data.adv").unlink()
    with pytest.raises(ValueError, match=r"lacks data\.adv; unpack"):
        Lexicon.read(folder)


def test_blank_lines_say_nothing(folder: Path) -> None:
    (folder / "noun.exc").write_text("\ngeese goose\n\n")
    assert Lexicon.read(folder).bases("geese") == [("n", "goose")]


@pytest.mark.parametrize("end", ["00000099 a 0101", "00000020 a 0109", "00000020 a zzzz"])
def test_an_antonym_that_is_not_there(folder: Path, end: str) -> None:
    (folder / "data.adj").write_text(FILES["data.adj"].replace("00000020 a 0101", end))
    with pytest.raises(ValueError, match=r"every antonym in .* must be there, got a pointer from"):
        Lexicon.read(folder)


@pytest.mark.skipif(not datasets.has("wordnet"), reason="FEWFOLD_DATA has no such dataset")
def test_the_real_one(tmp_path: Path) -> None:
    with tarfile.open(datasets.DATA / "wordnet" / "wordnet-3.0-dict.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    lexicon = Lexicon.read(tmp_path / "dict")
    synsets = {synset for held in lexicon.synsets.values() for synset in held}
    assert len(synsets) == 117_659  # as published, and so are the pairs of a word and a sense
    assert sum(len(held) for held in lexicon.synsets.values()) == 206_941
    words = ["dog", "animal", "puppies", "cars", "automobile", "increase", "decreased", "the"]
    edges = Relations.from_wordnet(words, tmp_path / "dict", anchors=[0, 4])
    assert edges.exempt(None).tolist() == [
        [True, False],
        [False, False],  # a dog is a canine, which is a carnivore: only one step counts
        [True, False],
        [False, True],
        [False, True],
        [False, False],
        [False, False],
        [False, False],
    ]
    edges = Relations.from_wordnet(words, tmp_path / "dict", anchors=[5])
    assert edges.exempt(None)[:, 0].tolist() == [False] * 5 + [True, True, False]  # "decreased"
