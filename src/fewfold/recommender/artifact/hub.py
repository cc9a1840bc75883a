"""Models on the Hugging Face Hub: ``hf://owner/name``, or ``hf://owner/name@revision``.

A revision is a branch, a tag or a commit. The manifest is transferred first, and then only the
files that it lists, which have fixed names and are checked like those of any folder: nothing is
unpickled, and no code of a repository runs.
The token is that of huggingface_hub (`hf auth login`, or HF_TOKEN); it is never read here.
"""

import contextlib
import importlib
import os
import re
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import fewfold
from fewfold._optional import optional_import
from fewfold.recommender.artifact.folder import (
    CARD,
    MANIFEST,
    is_hub_address,
    listed_files,
    open_artifact,
    read_consistently,
)
from fewfold.recommender.artifact.hub_card import hub_card
from fewfold.recommender.errors import ArtifactError

__all__ = ["HubAddress", "local_folder", "push_folder"]

_ADDRESS = re.compile(r"hf:/{1,2}(?P<name>[\w.-]+/[\w.-]+)(?:@(?P<revision>[\w./-]+))?", re.ASCII)
_TRANSPORTS = ("httpx", "httpcore", "requests", "urllib3")  # of versions of huggingface_hub
_FILES = ["*.safetensors", "config.json", "metrics.json", "tables.json", MANIFEST, CARD]


@dataclass(frozen=True)
class HubAddress:
    """A repository of the Hub, and a revision; None is its main branch."""

    name: str
    revision: str | None = None

    @classmethod
    def parse(cls, text: str | os.PathLike[str]) -> "HubAddress | None":
        """Parse an address; return None if it is a path."""
        if not is_hub_address(text):
            return None
        given = os.fspath(text)
        found = _ADDRESS.fullmatch(given)
        if found is None:
            raise ArtifactError(
                f"{given}: expected hf://owner/name, or hf://owner/name@revision with a branch, a "
                "tag or a commit"
            )
        return cls(found["name"], found["revision"])

    def __str__(self) -> str:
        return f"hf://{self.name}" + (f"@{self.revision}" if self.revision else "")


def local_folder(folder: str | os.PathLike[str]) -> Path:
    """Return a folder as it is, or of an address the copy in the cache of huggingface_hub."""
    address = HubAddress.parse(folder)
    if address is None:
        return Path(folder)
    hub = _library()
    by = {"library_name": "fewfold", "library_version": fewfold.__version__}
    with _explained(address):
        manifest = hub.hf_hub_download(address.name, MANIFEST, revision=address.revision, **by)
        commit = Path(manifest).parent
        names = [MANIFEST, CARD, *listed_files(commit)]
        copy = hub.snapshot_download(address.name, revision=commit.name, allow_patterns=names, **by)
    return Path(copy)


def push_folder(
    folder: str | os.PathLike[str],
    address: str,
    *,
    private: bool = True,
    message: str = "Upload a model of fewfold",
) -> str:
    """Upload a model folder to the Hub; return its address with the commit.

    All files are replaced in one commit. A repository that holds something else is refused.

    Args:
        folder: the model.
        address: ``hf://owner/name``, with ``@branch`` for another branch than main. A repository or
            branch that is not there is created.
        private: whether a repository that is created is private.
        message: of the commit.
    """
    target = HubAddress.parse(address)
    if target is None:
        raise ValueError(f"address must be hf://owner/name, got {address!r}")
    hub = _library()
    opened = read_consistently(folder, open_artifact)
    with tempfile.TemporaryDirectory(prefix="fewfold-") as place, _explained(target):
        for name in opened.sizes:
            if name != CARD and _is_ours(name):
                (Path(place) / name).symlink_to((opened.root / name).absolute())
        card = opened.root / CARD
        text = card.read_text(encoding="utf-8") if card.is_file() else ""
        text = hub_card(text, f"hf://{target.name}", opened.config, opened.metrics)
        (Path(place) / CARD).write_text(text, encoding="utf-8")
        api = hub.HfApi(library_name="fewfold", library_version=fewfold.__version__)
        api.create_repo(target.name, private=private, exist_ok=True)
        if target.revision is not None:
            api.create_branch(target.name, branch=target.revision, exist_ok=True)
        there = api.list_repo_files(target.name, revision=target.revision)
        _check_repository(there, target)
        done = api.upload_folder(
            repo_id=target.name, folder_path=place, revision=target.revision,
            commit_message=message, delete_patterns=[name for name in there if _is_ours(name)],
        )  # fmt: skip
    return str(HubAddress(target.name, done.oid))


def _is_ours(name: str) -> bool:
    """Return whether the name of a file is one that files of models have."""
    return any(fnmatchcase(name, pattern) for pattern in _FILES) and "/" not in name


def _check_repository(files: list[str], address: HubAddress) -> None:
    """Raise if a repository holds something else than a model of fewfold."""
    others = [name for name in files if name not in (CARD, ".gitattributes")]
    if others and MANIFEST not in files:
        raise FileExistsError(
            f"{address} holds other files ({', '.join(sorted(others)[:3])}) and no model of "
            "fewfold; choose another name"
        )


def _library() -> Any:
    with optional_import("huggingface_hub", "hub", "a model on the Hugging Face Hub"):
        return importlib.import_module("huggingface_hub")


@contextlib.contextmanager
def _explained(address: HubAddress) -> Iterator[None]:
    """Turn errors of huggingface_hub into an `ArtifactError`, without what was sent."""
    errors = importlib.import_module("huggingface_hub.errors")
    try:
        yield
    except errors.GatedRepoError:
        raise ArtifactError(
            f"{address}: access must be asked for on its page; then log in: hf auth login"
        ) from None
    except errors.RepositoryNotFoundError:
        raise ArtifactError(
            f"{address}: there is no such repository, or it is private; check the name, or log in: "
            "hf auth login"
        ) from None
    except errors.RevisionNotFoundError:
        raise ArtifactError(f"{address}: there is no such branch, tag or commit") from None
    except errors.LocalEntryNotFoundError:
        raise ArtifactError(
            f"{address}: the Hub cannot be reached, and no copy is here; check the network"
        ) from None
    except errors.EntryNotFoundError:
        raise ArtifactError(f"{address} is not a model of fewfold: it has no {MANIFEST}") from None
    except errors.HfHubHTTPError as error:
        status = getattr(error.response, "status_code", "no answer")
        raise ArtifactError(
            f"{address}: the Hub refused ({status}); check that you are logged in and may do this: "
            "hf auth whoami"
        ) from None
    except Exception as error:
        if not type(error).__module__.startswith(_TRANSPORTS):
            raise
        raise ArtifactError(f"{address}: the Hub cannot be reached; check the network") from None
