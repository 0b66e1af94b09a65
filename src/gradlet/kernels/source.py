"""The C source of kernels: signatures, sizes, headers, and the text that a template makes."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any

import jinja2

from gradlet.ir.elements import ELEMENTS, Element
from gradlet.kernels import catalogue
from gradlet.kernels.access import Access
from gradlet.kernels.catalogue import (
    Kernel,
    epilogues,
    families,
    generator_of,
    operands,
    stepped,
    variant_of,
)
from gradlet.kernels.family import Operand
from gradlet.support.templates import environment


def sizes_type(family: str, prefix: str = "gl") -> str:
    return f"{prefix}_{family}_sizes"


def prototype(kernel: Kernel, prefix: str = "gl") -> str:
    return f"void {kernel.symbol(prefix)}({', '.join(_parameters(kernel, prefix))})"


def sizes_struct(family: str, prefix: str = "gl") -> str:
    entry = families()[family]
    kinds = {name: "float" if name in entry.fractions else "int32_t" for name, _ in entry.sizes}
    fields = " ".join(
        f"{kinds[name]} {name}[{count}];" if count else f"{kinds[name]} {name};"
        for name, count in entry.sizes
    )
    return f"typedef struct {{ {fields} }} {sizes_type(family, prefix)};"


@cache
def render(kernel: Kernel, prefix: str = "gl") -> str:
    """The C file of one kernel; it includes the runtime and nothing else."""
    entry, variant, access = families()[kernel.family], variant_of(kernel), _access(kernel)
    mode = entry.modes[kernel.mode]
    template = templates().get_template(variant.template.format(mode=kernel.mode))
    own = [p for p in _parameters(kernel, prefix)[1:] if not p.endswith(("scratch", " step"))]
    text = template.render(
        T=kernel.element.c,
        mode=kernel.mode,
        epilogue=kernel.epilogue,
        opening=prototype(kernel, prefix),
        sizes_type=sizes_type(kernel.family, prefix),
        narrow=bool(kernel.element.accumulate),
        load=access.load,
        store=access.store,
        as_stored=kernel.element.store.format,
        block_params=", ".join(own),
        block_args=", ".join(_argument_names(kernel)),
        widths=_ladder(dict(variant.params).get("columns", 1)),
        **dict(variant.params),
        **(_generated(kernel, prefix) if variant.generator else {}),
    )
    fused = f" The store {epilogues()[kernel.epilogue].doc}." if kernel.epilogue else ""
    known = epilogues().get(kernel.epilogue or kernel.mode)
    code = f"{known.code.strip()}\n\n" if known and known.code else ""
    comment = f"/* {kernel.name}: {entry.doc}.\n * {mode.doc}.{fused} */\n"
    head = f"{comment}{_includes([kernel])}\n{sizes_struct(kernel.family, prefix)}"
    return f"{head}\n\n{code}{text.strip()}\n"


def header(kernels_used: list[Kernel], prefix: str = "gl") -> str:
    """Declarations of some kernels and of the sizes that they take."""
    families = dict.fromkeys(kernel.family for kernel in kernels_used)
    guard = f"{prefix.upper()}_KERNELS_H"
    structs = "\n".join(sizes_struct(family, prefix) for family in families)
    prototypes = "\n".join(prototype(kernel, prefix) + ";" for kernel in kernels_used)
    return (
        "/* The kernels of this network: outputs, inputs, scratch, sizes; all cores call them. */\n"
        f"#ifndef {guard}\n#define {guard}\n\n"
        f"{_includes(kernels_used)}\n{structs}\n\n{prototypes}\n\n#endif\n"
    )


def element_headers(kernels_used: Iterable[Kernel]) -> list[str]:
    """Of the runtime, for the elements that kernels take."""
    found = {
        element_of(kernel, operand).header
        for kernel in kernels_used
        for side in operands(kernel)
        for operand in side
    }
    return sorted(found - {""})


def _includes(kernels_used: Iterable[Kernel]) -> str:
    names = ["gl.h", *element_headers(kernels_used)]
    return "".join(f'#include "{name}"\n' for name in names)


def element_of(kernel: Kernel, operand: Operand) -> Element:
    if operand.group in kernel.dtype.split("/")[1:]:
        return kernel.element.sums
    return ELEMENTS[operand.dtype] if operand.dtype else kernel.element


def _parameters(kernel: Kernel, prefix: str) -> list[str]:
    outputs, inputs = operands(kernel)

    def c_type(operand: Operand) -> str:
        return element_of(kernel, operand).c

    params = ["gl_core me"]
    params += [f"{c_type(o)} *{o.name}" for o in outputs]
    params += [f"const {c_type(i)} *{i.name}" for i in inputs]
    if variant_of(kernel).scratch:
        params.append(f"{kernel.element.sums.c} *scratch")
    if stepped(kernel):
        params.append("int32_t step")
    params.append(f"const {sizes_type(kernel.family, prefix)} *s")
    return params


def _argument_names(kernel: Kernel) -> list[str]:
    outputs, inputs = operands(kernel)
    return [*(o.name for o in outputs), *(i.name for i in inputs), "s"]


def _generated(kernel: Kernel, prefix: str) -> dict[str, Any]:
    """What the generator of a variant makes, and the whole signature as its template needs it."""
    variant = variant_of(kernel)
    known = {**dict(variant.params), "element": kernel.element}
    made: dict[str, str] = generator_of(variant).generate(kernel.mode, kernel.epilogue, known)
    parameters = _parameters(kernel, prefix)
    names = [text.split()[-1].lstrip("*") for text in parameters]
    return {
        "symbol": kernel.symbol(prefix),
        "params": ", ".join(parameters),
        "names": names,
        "args": ", ".join(names),
        **made,
    }


def _access(kernel: Kernel) -> Access:
    known = {o.name: element_of(kernel, o) for side in operands(kernel) for o in side}
    return Access(kernel.element, known, epilogues().get(kernel.epilogue))


def _ladder(columns: int) -> list[int]:
    """Block widths that cover any number of columns: the full one, then 4, then 1."""
    return [columns, *(width for width in (4, 1) if width < columns)]


@cache
def templates() -> jinja2.Environment:
    return environment(sorted(catalogue.FAMILIES.iterdir()))


def forget() -> None:
    """Read all families anew: for tests that add to them."""
    catalogue.forget()
    render.cache_clear()
    templates.cache_clear()
