"""A keyword that a function does not take is told together with those that it takes."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable
from functools import wraps
from typing import ParamSpec, TypeVar

from gradlet.errors import GradletError

P = ParamSpec("P")
R = TypeVar("R")
_MEANT = {
    "learning_rate": "lr",
    "batch_size": "batch",
    "bs": "batch",
    "optim": "optimizer",
    "criterion": "loss",
    "loss_fn": "loss",
    "wd": "weight_decay",
    "gradient_clipping": "clip_norm",
    "grad_accumulation": "accumulate",
    "example_inputs": "inputs",
    "labels": "targets",
    "device": "target",
    "epochs": "steps",
    "epoch": "steps",
    "step": "steps",
}
"""What others call the same."""


class UnknownKeyword(GradletError, TypeError):
    """A wrong keyword in Python."""


def unknown(what: str, name: str, known: Iterable[str], of_recipe: Iterable[str] = ()) -> str:
    """The message: the wrong keyword, the likely one, and all that there are."""
    known, of_recipe = list(known), list(of_recipe)
    meant = _MEANT.get(name, name)
    if meant in of_recipe and meant not in known:
        return f"{what} has no '{name}'; how to train is told by recipe=gradlet.Recipe({meant}=...)"
    near = [meant] if meant in known else difflib.get_close_matches(name, known, n=1)
    hint = f" (did you mean '{near[0]}'?)" if near else ""
    return f"{what} has no '{name}'{hint}; it has {', '.join(known)}"


def told(
    *further: Callable[..., object], recipe: Iterable[str] = ()
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Check the keywords of a function; those of `further` ones go on to these."""

    def check(function: Callable[P, R]) -> Callable[P, R]:
        kinds = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
        known = dict.fromkeys(
            parameter.name
            for one in (function, *further)
            for parameter in inspect.signature(one).parameters.values()
            if parameter.kind not in kinds
        )

        @wraps(function)
        def checked(*args: P.args, **kwargs: P.kwargs) -> R:
            for name in kwargs:
                if name not in known:
                    what = f"gradlet.{function.__name__}"
                    raise UnknownKeyword(unknown(what, name, known, recipe))
            return function(*args, **kwargs)

        return checked

    return check
