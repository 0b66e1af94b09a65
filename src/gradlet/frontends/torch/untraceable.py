"""What `torch.export` cannot trace: why, in which module and line of it, and the way out."""

from __future__ import annotations

import linecache
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gradlet.errors import GradletError
from gradlet.frontends.user_code import described
from gradlet.support.extras import require_torch

BEHIND = "fake tensor in the exported program constant"
OF_DATA = ("GuardOnDataDependentSymNode", "UserError", "DataDependentOutputException")


def untraceable(error: BaseException, module: Any, name: str) -> GradletError:
    """The message for an error of the exporter."""
    place = place_in(error, module)
    if BEHIND in str(error):
        return GradletError(
            f"torch.export cannot trace model '{name}': it changes a tensor where no exported "
            f"program sees it, most often by `.data` in forward (self.weight.data.clamp_(0)). The "
            f"program would have to keep the change from step to step, and cannot; take the line "
            f"out of forward, or compute with what it makes (self.weight.clamp(0))"
        )
    if type(error).__name__ in OF_DATA:
        return GradletError(
            f"torch.export cannot trace model '{name}'{place}: {described(error)}\nShapes and "
            f"control flow must not depend on the data. Both ways can be computed and one chosen "
            f"by element: torch.where(condition, this, that)"
        )
    return GradletError(
        f"torch.export cannot trace model '{name}'{place}: {described(error)}\nShapes and control "
        f"flow must not depend on the data; see the message of `torch.export.export`"
    )


def place_in(error: BaseException, module: Any) -> str:
    """The innermost module of the user's that an error was raised in, and the line of its code."""
    # the tracer has stand-ins for modules, which share their dictionaries
    paths = {id(vars(part)): path for path, part in module.named_modules()}
    trace, found = error.__traceback__, ""
    own = Path(str(require_torch().__file__)).parent
    while trace is not None:
        frame = trace.tb_frame
        path = paths.get(id(getattr(owner_of(frame), "__dict__", None)))
        file = Path(frame.f_code.co_filename)
        if path is not None and own not in file.parents and frame.f_code.co_name != "plain":
            where = f"module '{path}'" if path else "the top module"
            line = linecache.getline(str(file), trace.tb_lineno).strip()
            found = f" in {where} ({file.name}, line {trace.tb_lineno}: `{line}`)"
        trace = trace.tb_next
    return found


def owner_of(frame: Any) -> Any:
    """What a method that runs is one of, whatever it calls itself."""
    first = frame.f_code.co_varnames[:1] if frame.f_code.co_argcount else ()
    return next((frame.f_locals.get(name) for name in first), None)


@contextmanager
def modules_may_fail() -> Iterator[None]:
    """A module that raises what its caller expects is no module that computes: the tracer of
    modules would take it for the one in charge, and all that follows for a part of it."""
    tracer = require_torch().fx.Tracer
    usual = tracer.call_module

    def call_module(self: Any, *args: Any, **kwargs: Any) -> Any:
        before = list(self.module_stack)
        try:
            return usual(self, *args, **kwargs)
        except BaseException:
            for key in [key for key in self.module_stack if key not in before]:
                del self.module_stack[key]
            raise

    tracer.call_module = call_module
    try:
        yield
    finally:
        tracer.call_module = usual
