"""One model of the tables on one target: made, built, verified."""

from __future__ import annotations

import contextlib
import resource
import sys
import tempfile
import time
import traceback
import types
import warnings
from pathlib import Path
from typing import Any

import torch

import gradlet
from gradlet.codegen.view import parameter_count
from gradlet.errors import DoesNotFit, InternalError
from gradlet.verifier.verify import Verdict

TARGETS: dict[str, dict[str, Any]] = {
    "host": {"target": "host"},
    "pulp-open": {"target": "pulp-open", "memories": {"L2": "8M", "L3": "64M"}},
}


def without_compiled_parts() -> None:
    """torchvision and torchaudio of PyPI are compiled for a torch with CUDA. Beside one for CPUs
    their compiled parts (boxes, alignment) do not load, and importing fails; no model needs them.
    """
    registered = torch.library.register_fake

    def register(op: Any, *args: Any, **options: Any) -> Any:
        if str(op).startswith("torchvision::"):
            return lambda function: function
        return registered(op, *args, **options)

    if torch.version.cuda is None:
        torch.library.register_fake = register
        missing = types.ModuleType("torchaudio._extension")
        vars(missing).update(_IS_ALIGN_AVAILABLE=False, _IS_TORCHAUDIO_EXT_AVAILABLE=False)
        vars(missing).update(fail_if_no_align=lambda function: function)
        sys.modules["torchaudio._extension"] = missing


def setup(text: str) -> dict[str, Any]:
    """The names that the expressions of the tables may use."""
    names: dict[str, Any] = {
        "torch": torch,
        "nn": torch.nn,
        "x": torch.randn,
        "ids": lambda most, *shape: torch.randint(0, most, shape),
    }
    with contextlib.suppress(Exception):  # what is missing is told by each model
        exec(text, names)
    return names


def made(model: Any, folder: Path) -> tuple[Any, Any]:
    """What `gradlet.build` takes: a module and its inputs, or a file."""
    names = setup("") | {"path": folder / "model.onnx"}
    torch.manual_seed(0)
    exec(model.setup, names)
    if model.file:
        return _beside_packages(model.file), None
    if model.write:
        exec(model.write, names)
        return names["path"], None
    inputs: tuple[Any, ...] = eval(f"({model.inputs},)", names)
    module = eval(model.make, names).train(model.train)
    with torch.no_grad():
        module(*inputs)  # what is lazy takes its shape; what fails is no fault of ours
    return module, inputs


def _beside_packages(name: str) -> Path:
    found = [Path(folder) / name for folder in sys.path if (Path(folder) / name).is_file()]
    if not found:
        raise FileNotFoundError(f"{name} is in no package")
    return found[0]


def outcome(model: Any, target: str) -> dict[str, Any]:
    """What became of it, how long it took and how much memory."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        found = _outcome(model, target, Path(folder))
    found["message"] = found["message"][:800]
    uses = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    found["processor_seconds"] = sum(use.ru_utime + use.ru_stime for use in uses)
    found["peak_mb"] = max(use.ru_maxrss for use in uses) // 1024
    return found


def _outcome(model: Any, target: str, folder: Path) -> dict[str, Any]:
    try:
        module, inputs = made(model, folder)
    except Exception as error:
        return {"outcome": "not made", "message": f"{type(error).__name__}: {error}"}
    begin = time.perf_counter()
    try:
        project = gradlet.build(
            module,
            folder / "p",
            inputs=inputs,
            batch=model.batch,
            recipe=gradlet.Recipe(**model.recipe),
            **TARGETS[target],
            **model.options,
        )
        built = time.perf_counter() - begin
        verdict = gradlet.verify(project)
    except DoesNotFit as error:
        return {"outcome": "too large", "message": str(error)}
    except InternalError as error:
        return {"outcome": "broken", "message": f"InternalError: {error}"}
    except gradlet.GradletError as error:
        return {"outcome": "refused", "message": str(error)}
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        text = f"{type(error).__name__}: {error} ({Path(where.filename).name}:{where.lineno})"
        return {"outcome": "broken", "message": text}
    seconds = {"build": built, "verify": time.perf_counter() - begin - built}
    sizes = {"parameters": parameter_count(project.plan)}
    return {**estimated(verdict), **sizes, "parts": seconds}


def estimated(verdict: Verdict) -> dict[str, Any]:
    if verdict.passed:
        note = f"diverges in step {verdict.diverged}" if verdict.diverged else ""
        note = f"chaotic from step {verdict.chaotic[0]} on" if verdict.chaotic else note
        return {"outcome": "verified", "message": note, "oracle": verdict.no_module or "module"}
    wrong = verdict.first_wrong
    text = f"{wrong.name} ({wrong.module}): {wrong.share:.3g} of its tolerance" if wrong else ""
    bits = [name for name, same in verdict.bit_identical.items() if not same]
    parts = [text, *bits, *verdict.shipped.differences, *verdict.changes]
    return {"outcome": "wrong", "message": "; ".join(filter(None, parts))}
