"""Public recommendation data sets: location, licence, citation, and `fetch` to download them."""

import difflib
import shutil
import time
import uuid
import warnings
from dataclasses import dataclass
from pathlib import Path

from fewfold._files import move_into_place, sync
from fewfold._progress import silence
from fewfold.recommender.datasets.archive import Table, need_polars, write_log, write_titles
from fewfold.recommender.datasets.download import download, verify, writing
from fewfold.recommender.errors import DataError

__all__ = ["PUBLIC", "PublicSet", "fetch", "is_fetched"]

_DAY = 86_400.0


@dataclass(frozen=True)
class PublicSet:
    """A public data set: archive, tables, size and licence.

    Attributes:
        url: address of the archive.
        size: size of the archive in bytes, or None if unknown.
        checksum: "sha256:..." or "md5:..." of the archive, or None if not published.
        users, items, rows: counts of the log.
        log: the table of interactions.
        titles: the table of item names, or None.
        page: web page that describes the data.
        licence: summary of the licence; the owner's text prevails.
        citation: the paper to cite.

    Example:
        >>> from fewfold.recommender.datasets.public import PUBLIC
        >>> PUBLIC["ml-1m"].users, PUBLIC["ml-1m"].rows
        (6040, 1000209)
        >>> print(PUBLIC["gowalla"].notice)
        Licence: SNAP names no licence; ...
        Cite: E. Cho, S. A. Myers, J. Leskovec. ...
        Source: https://snap.stanford.edu/data/loc-gowalla.html
    """

    url: str
    size: int | None
    checksum: str | None
    users: int
    items: int
    rows: int
    log: Table
    titles: Table | None
    page: str
    licence: str
    citation: str

    @property
    def archive(self) -> str:
        """File name of the archive."""
        return self.url.rpartition("/")[2]

    @property
    def notice(self) -> str:
        """Licence, citation and source, to read before downloading."""
        return f"Licence: {self.licence}\nCite: {self.citation}\nSource: {self.page}"


_RATING = ("user", "item", "rating", "time")
_GENRES = (
    *("", "Action", "Adventure", "Animation", "Children's", "Comedy", "Crime", "Documentary"),
    *("Drama", "Fantasy", "Film-Noir", "Horror", "Musical", "Mystery", "Romance", "Sci-Fi"),
    *("Thriller", "War", "Western"),
)


def _movielens(
    name: str,
    counts: tuple[int, int, int],
    size: int,
    sha256: str,
    tables: tuple[Table, Table] | None = None,
    *,
    shareable: bool = False,
) -> PublicSet:
    """MovieLens `name`; its tables have the layout of the newer editions unless given."""
    log, titles = tables or (
        Table(f"{name}/ratings.csv", _RATING, header=True),
        Table(f"{name}/movies.csv", ("item", "name", "genres"), header=True, quoted=True),
    )
    passing_on = "under the same terms" if shareable else "only with separate permission"
    edition = name.removeprefix("ml-").replace("-small", "")
    return PublicSet(
        f"https://files.grouplens.org/datasets/movielens/{name}.zip",
        size,
        f"sha256:{sha256}",
        *counts,
        log,
        titles,
        f"https://grouplens.org/datasets/movielens/{edition}/",
        "for research, with acknowledgement and no claim of endorsement by the University of "
        "Minnesota or GroupLens; no commercial use without permission of GroupLens; may be passed "
        f"on {passing_on}.",
        "F. M. Harper, J. A. Konstan. The MovieLens Datasets: History and Context. ACM "
        "Transactions on Interactive Intelligent Systems 5(4), 2015. doi:10.1145/2827872",
    )


def _colons(folder: str, encoding: str) -> tuple[Table, Table]:
    """Tables of the older editions of MovieLens, with fields separated by "::"."""
    return (
        Table(f"{folder}/ratings.dat", _RATING, "::"),
        Table(f"{folder}/movies.dat", ("item", "name", "genres"), "::", encoding=encoding),
    )


PUBLIC: dict[str, PublicSet] = {
    "ml-100k": _movielens(
        "ml-100k",
        (943, 1_682, 100_000),
        4_924_029,
        "50d2a982c66986937beb9ffb3aa76efe955bf3d5c6b761f4e3a7cd717c6a3229",
        (
            Table("ml-100k/u.data", _RATING, "\t"),
            Table(
                "ml-100k/u.item",
                ("item", "name", "", "", ""),
                "|",
                encoding="latin-1",
                flags=_GENRES,
            ),
        ),
    ),
    "ml-1m": _movielens(
        "ml-1m",
        (6_040, 3_706, 1_000_209),
        5_917_549,
        "a6898adb50b9ca05aa231689da44c217cb524e7ebd39d264c56e2832f2c54e20",
        _colons("ml-1m", "latin-1"),
    ),
    "ml-10m": _movielens(
        "ml-10m",
        (69_878, 10_677, 10_000_054),
        65_566_137,
        "813c411ccb6122564edfe752e7f80c4dcc5aa25fa94c93622f6877a7ba252862",
        _colons("ml-10M100K", "utf-8"),
    ),
    "ml-20m": _movielens(
        "ml-20m",
        (138_493, 26_744, 20_000_263),
        198_702_078,
        "96f243c338a8665f6bcc89c53edf6ee39162a846940de6b7c8c48aeada765ff3",
    ),
    "ml-25m": _movielens(
        "ml-25m",
        (162_541, 59_047, 25_000_095),
        261_978_986,
        "8b21cfb7eb1706b4ec0aac894368d90acf26ebdfb6aced3ebd4ad5bd1eb9c6aa",
    ),
    "ml-32m": _movielens(
        "ml-32m",
        (200_948, 84_432, 32_000_204),
        238_950_008,
        "e4a68655d7386b8f95f2f2424b2ff975dfdd15ffd59e0d864a14dca43e99d6ee",
        shareable=True,
    ),
    # Updated by GroupLens over time; this is the edition of September 2018.
    "ml-latest-small": _movielens(
        "ml-latest-small",
        (610, 9_724, 100_836),
        978_202,
        "696d65a3dfceac7c45750ad32df2c259311949efec81f0f144fdfb91ebc9e436",
        shareable=True,
    ),
    "lastfm-2k": PublicSet(
        "https://files.grouplens.org/datasets/hetrec2011/hetrec2011-lastfm-2k.zip",
        None,
        "sha256:6738f48195667ff03caaab4d32ca9a3133d8cc026b7c3cdaf6ce1010e913c59c",
        1_892,
        17_632,
        92_834,
        Table("user_artists.dat", ("user", "item", "rating"), "\t", header=True),
        Table("artists.dat", ("item", "name"), "\t", header=True),
        "https://grouplens.org/datasets/hetrec-2011/",
        "for non-commercial use; for any other ask Last.fm.",
        "I. Cantador, P. Brusilovsky, T. Kuflik. 2nd Workshop on Information Heterogeneity and "
        "Fusion in Recommender Systems (HetRec 2011). RecSys 2011.",
    ),
    "gowalla": PublicSet(
        "https://snap.stanford.edu/data/loc-gowalla_totalCheckins.txt.gz",
        105_470_044,
        "sha256:c1c3e19effba649b6c89aeab3c1f9459fad88cfdc2b460fc70fd54e295d83ea0",
        107_092,
        1_280_969,
        6_442_892,
        Table("", ("user", "time", "", "", "item"), "\t"),
        None,
        "https://snap.stanford.edu/data/loc-gowalla.html",
        "SNAP names no licence; the data were collected from Gowalla's public interface and are "
        "offered for research, with acknowledgement.",
        "E. Cho, S. A. Myers, J. Leskovec. Friendship and Mobility: User Movement in "
        "Location-Based Social Networks. KDD 2011.",
    ),
}


def fetch(
    name: str,
    folder: str | Path,
    *,
    base: str | None = None,
    force: bool = False,
    progress: bool = True,
) -> Path:
    """Download a public data set and convert it to Parquet.

    Writes `folder`/`name` with log.parquet (user, item and, if available, rating and time in
    seconds since 1970), items.parquet (item, name and, if available, genres separated by `|`) and
    LICENCE.txt; the folder is written completely or not at all. If it exists, nothing is done. An
    archive in `folder` under its original name is used instead of a download, and is not deleted.

    Args:
        name: a key of `PUBLIC`; read its `notice` first.
        folder: created if it does not exist.
        base: URL of a mirror that has the archive under its original name.
        force: download and write again if it exists.
        progress: show progress on the terminal.

    Returns:
        `folder`/`name`.

    Raises:
        DataError: unknown name, or an archive that is missing, damaged or unexpected.
        OSError: no connection (ConnectionError), no space, or no permission to write.

    Example:
        >>> from fewfold.recommender.datasets.public import fetch
        >>> fetch("ml-100k", "data")  # doctest: +SKIP
        PosixPath('data/ml-100k')
        >>> fetch("ml-1000k", "data")
        Traceback (most recent call last):
        fewfold.recommender.errors.DataError: no public data set is called 'ml-1000k', ...
    """
    chosen, folder = _lookup(name), Path(folder)
    target, url = folder / name, _archive_url(chosen, base)
    with silence(not progress), writing(folder):
        if is_fetched(name, folder) and not force:
            return target
        if target.exists() and not is_fetched(name, folder):
            raise DataError(
                f"{target} is there but was not fetched: it has no log.parquet and LICENCE.txt; "
                "move it away or name another folder"
            )
        need_polars()  # fail before the download rather than after it
        folder.mkdir(parents=True, exist_ok=True)
        archive = folder / chosen.archive
        found = archive.exists()
        if found:
            seen = _verified(archive, chosen, url)
        else:
            seen = download(url, archive, size=chosen.size, checksum=chosen.checksum)
        if chosen.checksum is None:
            warnings.warn(
                f"no checksum of {url} is known to compare with; its sha256 is {seen}", stacklevel=2
            )
        _build(name, chosen, archive, f"{url}\nsha256: {seen}")
        if not found:
            archive.unlink()
    return target


def is_fetched(name: str, folder: str | Path) -> bool:
    """Return whether `fetch` has written the data set `name` into `folder`."""
    target = Path(folder) / name
    return all((target / file).is_file() for file in ("log.parquet", "LICENCE.txt"))


def _lookup(name: str) -> PublicSet:
    if name in PUBLIC:
        return PUBLIC[name]
    close = difflib.get_close_matches(name, PUBLIC, n=1)
    raise DataError(
        f"no public data set is called {name!r}, {f'perhaps {close[0]!r}? ' if close else ''}"
        f"there are {', '.join(PUBLIC)}"
    )


def _archive_url(chosen: PublicSet, base: str | None) -> str:
    if base is None:
        return chosen.url
    if not base.startswith(("http://", "https://")):
        raise DataError(f"base must be an address of http or https, got {base!r}")
    return f"{base.rstrip('/')}/{chosen.archive}"


def _verified(archive: Path, chosen: PublicSet, url: str) -> str:
    """Return the sha256 of an archive that was not downloaded by this call."""
    try:
        return verify(archive, chosen.checksum)
    except DataError as error:
        raise DataError(f"{error}; delete {archive} to have {url} downloaded") from None


def _build(name: str, chosen: PublicSet, archive: Path, source: str) -> None:
    """Write the files to a temporary folder, then rename it to its final name."""
    folder = archive.parent
    for left in folder.glob(f".{name}-*.part"):  # left by a killed run
        if time.time() - left.stat().st_mtime > _DAY:
            shutil.rmtree(left, ignore_errors=True)
    building, target = folder / f".{name}-{uuid.uuid4().hex[:8]}.part", folder / name
    building.mkdir()
    try:
        rows = write_log(archive, chosen.log, building / "log.parquet")
        if chosen.titles is not None:
            write_titles(archive, chosen.titles, building / "items.parquet")
        licence = f"{chosen.notice}\nFetched from: {source}\nRows: {rows}\n"
        (building / "LICENCE.txt").write_text(licence, encoding="utf-8")
        if target.exists():
            for made in building.iterdir():  # what else is there is not ours to delete
                move_into_place(made, target / made.name)
        else:
            for made in building.iterdir():
                sync(made)
            move_into_place(building, target)
    finally:
        shutil.rmtree(building, ignore_errors=True)
