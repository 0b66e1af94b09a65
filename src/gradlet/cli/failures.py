"""How a command ends: every failure is one message, an exit status, and JSON if that was asked for.

Exit status: 0 done, 1 a check failed, 2 bad use, a model that does not fit or a machine that lacks
something, 3 a fault of Gradlet's own, 130 interrupted. For a fault of our own a file is left that
reproduces it; a user's mistake never looks like one, nor the other way round.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import platform
import shlex
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from functools import wraps
from importlib import metadata
from pathlib import Path
from typing import Any, NoReturn

import typer
from rich.text import Text

from gradlet.errors import GradletError, InternalError
from gradlet.sim import SimError
from gradlet.support import interrupt
from gradlet.support.cache import lasting_folder
from gradlet.support.files import write_whole
from gradlet.support.terminal import console, printable

DONE, CHECK_FAILED, BAD_USE, OUR_FAULT, INTERRUPTED = 0, 1, 2, 3, 130
SMALL = 64 * 1024
"""Bytes of a model file that goes into a report as it is."""
PACKAGES = ("gradlet", "numpy", "torch", "onnx", "ziglang", "typer", "rich")
OF_THE_MACHINE = (
    *(errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS, errno.EIO, errno.ENOENT),
    *(errno.EISDIR, errno.ENOTDIR, errno.EEXIST, errno.ENOTEMPTY, errno.ENAMETOOLONG, errno.ELOOP),
    *(errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.ETXTBSY, errno.EFBIG),
)
stderr = console(stderr=True)
Refused: Any = next(
    kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException"
)
"""What typer raises for bad use; it may bring a copy of click of its own."""


class JsonOutput:
    """Where the one JSON document goes: stdout, even after it was turned away from all others."""

    descriptor = -1

    def keep_to_itself(self) -> None:
        """From now on whatever others print, C libraries too, goes to stderr."""
        sys.stdout.flush()
        self.descriptor = interrupt.stdout[0] = os.dup(1)
        os.dup2(2, 1)

    def write(self, value: Any) -> None:
        text = json.dumps(value, indent=1) + "\n"
        if self.descriptor < 0:
            sys.stdout.write(text)
            return
        sys.stdout.flush()
        with open(self.descriptor, "w", encoding="utf-8", closefd=False) as file:
            file.write(text)


json_output = JsonOutput()


def guarded(function: Callable[..., int | None]) -> Callable[..., None]:
    """The function as a command: whatever it raises becomes a message and an exit status."""

    @wraps(function)
    def run(*args: Any, **options: Any) -> None:
        as_json = bool(options.get("json_"))
        try:
            status = function(*args, **options)
        except (typer.Exit, Refused, BrokenPipeError):
            raise
        except BaseException as error:
            raise typer.Exit(fail(error, as_json, options)) from None
        raise typer.Exit(status or DONE)

    return run


def fail(error: BaseException, as_json: bool, options: dict[str, Any] | None = None) -> int:
    """Say what happened; returns the exit status."""
    status, message = _judged(error, options or {})
    value: dict[str, Any] = {"error": message, "exit_status": status}
    if status == OUR_FAULT:
        value["report"] = path = str(_report(error, options or {}) or "") or None
        message = f"internal error, a fault of Gradlet and not of yours: {message}\n" + (
            f"Please report it with the file {path}, which says how to make it happen again; it "
            f"holds the command line and, if it is small, the model file"
            if path
            else "Please report it with the command line and this:\n" + _trace(error)
        )
    if as_json:
        json_output.write(value)
    show_error("" if status == INTERRUPTED else "error: ", message)
    return status


def show_error(title: str, message: str) -> None:
    stderr.print(
        Text(title, style="bold red") + Text(printable(message), style="default"), soft_wrap=True
    )


def _judged(error: BaseException, options: dict[str, Any]) -> tuple[int, str]:
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED, "interrupted"
    if isinstance(error, SimError):  # of a program of the user's, or of one that we made
        return (CHECK_FAILED if "program" in options else OUR_FAULT), str(error)
    if isinstance(error, InternalError):
        return OUR_FAULT, str(error)
    if isinstance(error, GradletError):
        return BAD_USE, str(error)
    if isinstance(error, MemoryError):
        said = f" ({error})" if str(error) else ""
        return BAD_USE, f"this machine has not enough memory for that{said}; make the model smaller"
    if isinstance(error, OSError) and error.errno in OF_THE_MACHINE:
        where = f": {error.filename}" if error.filename else ""
        return BAD_USE, f"{error.strerror or error}{where}"
    return OUR_FAULT, f"{type(error).__name__}: {error}"


def _trace(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))


def _report(error: BaseException, options: dict[str, Any]) -> Path | None:
    """A text that is enough to see the fault again; the same fault gives the same file."""
    text = "\n".join(_report_lines(error, options))
    data = text.encode("utf-8", "backslashreplace")
    name = f"gradlet-report-{hashlib.sha256(data).hexdigest()[:12]}.txt"
    for in_cache in (True, False):
        with contextlib.suppress(OSError, GradletError):
            lasting = lasting_folder() if in_cache else None
            folder = lasting / "reports" if lasting else Path(tempfile.gettempdir())
            folder.mkdir(parents=True, exist_ok=True)
            write_whole(folder / name, data)
            return folder / name
    return None


def _report_lines(error: BaseException, options: dict[str, Any]) -> Iterator[str]:
    yield "A fault of Gradlet. To see it again: the command, with the model file below."
    yield f"\ncommand: {shlex.join(['gradlet', *sys.argv[1:]])}"
    for name, value in options.items():
        yield f"  {name} = {value!r}"
    yield f"\npython {platform.python_version()} on {platform.platform()}"
    for package in PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            yield f"{package} {metadata.version(package)}"
    yield f"\n{_trace(error)}"
    shown = getattr(options.get("options"), "model", options.get("model"))
    path = Path(str(shown or options.get("program") or "").rpartition(".py:")[0] + ".py")
    path = path if path.is_file() else Path(str(shown or ""))
    with contextlib.suppress(OSError):
        if path.is_file():
            data = path.read_bytes()
            yield f"{path.name}: {len(data)} bytes, sha256 {hashlib.sha256(data).hexdigest()}"
            if len(data) <= SMALL and path.suffix in (".py", ".toml"):
                yield data.decode("utf-8", "backslashreplace")


def run_app(app: typer.Typer, arguments: list[str]) -> NoReturn:
    """The command line from its beginning to its exit status."""
    as_json = "--json" in arguments
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, ValueError):
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    if as_json:
        json_output.keep_to_itself()
    try:
        status = invoke(app, arguments, as_json)
        sys.stdout.flush()
    except BrokenPipeError:  # `gradlet ... | head` is no fault
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        status = DONE
    sys.exit(status)


def invoke(app: typer.Typer, arguments: list[str], as_json: bool) -> int:
    command = typer.main.get_command(app)
    try:
        result = command.main(arguments, prog_name="gradlet", standalone_mode=False)
        return result if isinstance(result, int) else DONE
    except typer.Exit as error:
        return int(error.exit_code)
    except Refused as error:
        return _bad_use(error, as_json)
    except (KeyboardInterrupt, typer.Abort):
        return fail(KeyboardInterrupt(), as_json)
    except BrokenPipeError:
        raise
    except Exception as error:
        return fail(error, as_json)


def _bad_use(error: Any, as_json: bool) -> int:
    """What typer itself refuses: options that do not exist, values that are no numbers."""
    context = getattr(error, "ctx", None)
    path = context.command_path if context else "gradlet"
    message = f"{error.format_message().strip()} (`{path} --help` lists what there is)"
    if type(error).__name__ == "NoArgsIsHelpError":  # which has shown the help
        message = f"`{path}` needs a command"
    show_error("error: ", message)
    if as_json:
        json_output.write({"error": message, "exit_status": BAD_USE})
    return BAD_USE
