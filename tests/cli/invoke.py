"""The command, run in this process as a stranger would type it."""

import contextlib
import io
from dataclasses import dataclass
from pathlib import Path

from fewfold import cli

SMALL = ("--hidden", "16", "--latent", "7", "--epochs", "3")


@dataclass(frozen=True)
class Done:
    """What a command came to."""

    code: int
    out: str
    err: str

    @property
    def message(self) -> str:
        """The error, of which there must be one, and nothing else."""
        assert self.out == ""
        assert "Traceback" not in self.err
        (start,) = (n for n, line in enumerate(self.err.splitlines()) if line.startswith("fewfold"))
        return "\n".join(self.err.splitlines()[start:])


def fewfold(*arguments: object, terminal: bool = False) -> Done:
    """Run it; on a terminal it may draw on standard error."""
    out, err = io.StringIO(), Terminal() if terminal else io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = cli.main([str(argument) for argument in arguments])
        except SystemExit as ended:  # as argparse ends
            code = ended.code if isinstance(ended.code, int) else 1
    return Done(code, out.getvalue(), err.getvalue())


class Terminal(io.StringIO):
    """Text that looks like a screen to whoever writes it."""

    def isatty(self) -> bool:
        return True


def contents(folder: Path) -> dict[str, bytes]:
    """Every file of a folder."""
    return {file.name: file.read_bytes() for file in folder.iterdir()}
