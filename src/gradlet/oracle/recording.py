"""What the user's own module does in training, as `build` recorded it, and how a run compares.

Nothing of ours took part in it but the choice of samples and settings: no graph, no gradient rule,
no update. So a mistake that a graph, its expected values and its C share is a difference here.
"""

from __future__ import annotations

import io
import json
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gradlet.errors import GradletError
from gradlet.ir.graph import Array, Graph
from gradlet.oracle.tolerance import Expectation

FILE = "module.npz"
WHOLE, SAMPLED, SUMS = 256, 128, 16
"""Up to WHOLE elements of a tensor are kept; of a larger one SAMPLED, and SUMS of all its elements
under random signs."""
BLOCK, SIGNS = 1 << 13, 2
"""Elements whose signs are drawn together, and which way of drawing this is."""
DEVIATIONS = 7.5
"""How far such a sum may be off, in roots of the sum of squares of what its terms may be. If each
term keeps to that, more has a probability of 1e-12, by Hoeffding's inequality."""


@dataclass(frozen=True)
class Recording:
    """Losses by step; gradients of the first step's last micro-batch; parameters and buffers after
    each step. By the model's own names, in the order of elements that the program has.

    tensors  what the graph calls them; '' if it lacks a parameter that the module trains
    single   the module computed in float32, not in float64
    absent   why there is no recording
    """

    losses: tuple[float, ...] = ()
    gradients: Mapping[str, Array] = field(default_factory=dict)
    after: tuple[Mapping[str, Array], ...] = ()
    tensors: Mapping[str, str] = field(default_factory=dict)
    single: bool = False
    absent: str = ""

    def dumps(self) -> bytes:
        """As .npz, the same bytes for the same values."""
        arrays = {f"gradient/{name}": digest(value) for name, value in self.gradients.items()}
        for kind, values in _numbered(self.after):
            arrays |= {f"{kind}/{name}": digest(value) for name, value in values.items()}
        facts = {"losses": self.losses, "tensors": dict(self.tensors), "single": self.single}
        facts |= {"absent": self.absent, "names": list(arrays), "signs": SIGNS}
        listed = {f"{index}": value for index, value in enumerate(arrays.values())}
        buffer = io.BytesIO()
        text = np.frombuffer(json.dumps(facts).encode(), np.uint8)
        np.savez_compressed(buffer, facts=text, **listed)  # type: ignore[arg-type]
        return buffer.getvalue()

    @staticmethod
    def loads(data: bytes) -> Recording:
        try:
            with np.load(io.BytesIO(data), allow_pickle=False) as file:
                facts: dict[str, Any] = json.loads(file["facts"].tobytes())
                arrays = {name: file[str(i)] for i, name in enumerate(facts["names"])}
        except (OSError, ValueError, KeyError, zipfile.BadZipFile, zlib.error) as error:
            raise GradletError(f"{FILE} is damaged ({error!r}); build the project again") from None
        if facts.get("signs") != SIGNS:
            raise GradletError(f"{FILE} is of another version of Gradlet; build the project again")
        kinds: dict[str, dict[str, Array]] = {}
        for key, value in arrays.items():
            kind, _, name = key.partition("/")
            kinds.setdefault(kind, {})[name] = value
        losses = tuple(facts["losses"])
        after = tuple(kinds.get(kind, {}) for kind, _ in _numbered([{}] * len(losses)))
        gradients = kinds.get("gradient", {})
        return Recording(
            losses, gradients, after, facts["tensors"], facts["single"], facts["absent"]
        )


def _numbered(after: Sequence[Mapping[str, Array]]) -> Iterator[tuple[str, Mapping[str, Array]]]:
    return ((f"after{index}", values) for index, values in enumerate(after))


def digest(value: Array) -> Array:
    """What is kept of a tensor; of a digest, itself."""
    flat = np.asarray(value, np.float64).reshape(-1)
    if flat.size <= WHOLE:
        return flat
    return np.concatenate([flat[_sampled(flat.size)], _sums(flat)])


def _digest_tolerance(tolerance: Array) -> Array:
    flat = np.asarray(tolerance, np.float64).reshape(-1)
    if flat.size <= WHOLE:
        return flat
    of_sums = np.full(SUMS, DEVIATIONS * np.sqrt((flat * flat).sum()))
    return np.concatenate([flat[_sampled(flat.size)], of_sums])


def _sampled(size: int) -> Array:
    return np.linspace(0, size - 1, SAMPLED).round().astype(np.int64)


def _sums(flat: Array) -> Array:
    chance = np.random.default_rng(flat.size)
    sums = np.zeros(SUMS)
    with np.errstate(all="ignore"):  # what diverges is told by the values
        for begin in range(0, flat.size, BLOCK):
            part = flat[begin : begin + BLOCK]
            drawn = np.frombuffer(chance.bytes(part.size * SUMS // 8), np.uint8)
            signs = 1.0 - 2.0 * np.unpackbits(drawn).reshape(SUMS, part.size)
            sums += signs @ part
    return sums


@dataclass(frozen=True)
class Comparison:
    """One tensor of the module beside that of the program, whose name it has in the graph."""

    name: str
    role: str
    tensor: str
    computed: Array
    wanted: Array
    tolerance: Array


def compared(
    recording: Recording,
    graph: Graph,
    index: int,
    loss: float,
    gradients: Mapping[str, Array],
    state: Mapping[str, Array],
    expected: Expectation,
) -> Iterator[Comparison]:
    """What the module makes of a step: its loss, gradients if it is the first, then parameters and
    buffers after it. Of these, what is expected.

    loss, gradients and state are the run's, by the names of the graph.
    """
    if index >= len(recording.losses):
        return
    wider = 2.0 if recording.single else 1.0  # two programs round, each as it may
    grads, updates = dict(graph.grads), dict(graph.updates)
    pair = np.asarray([loss]), np.asarray([recording.losses[index]])
    allowed = np.asarray([wider * expected.loss_tolerance])
    yield Comparison(f"loss of step {index + 1}", "loss", graph.loss, *pair, allowed)
    for name, kept in recording.gradients.items() if index == 0 else ():
        grad = grads.get(recording.tensors[name], "")
        if grad in gradients and grad in expected.tolerances:
            allowed = wider * _digest_tolerance(expected.tolerances[grad])
            value = digest(gradients[grad])
            yield Comparison(f"gradient of {name}", "gradient", grad, value, kept, allowed)
    for name, kept in recording.after[index].items():
        old = recording.tensors[name]
        label, new = f"{name} after step {index + 1}", updates.get(old, "")
        if not new:  # the module trains it, and the program does not
            missing = np.full_like(kept, np.nan)
            yield Comparison(label, "updated", "", missing, kept, np.zeros_like(kept))
        elif new in expected.tolerances:
            allowed = wider * _digest_tolerance(expected.tolerances[new])
            yield Comparison(label, "updated", new, digest(state[old]), kept, allowed)
