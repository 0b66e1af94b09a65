"""docs/models.md from the rows that bench/models.py leaves."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parent.parent / "docs" / "models.md"
GOOD = "verified"
TARGETS = ("host", "pulp-open")
HEAD = """# Models that others wrote

Models from packages of PyPI, made small, built and verified as a new user would: float32, SGD, a
loss that fits, weights as the package draws or ships them. `bench/models.py` writes this page:

    pip install -c constraints.txt -e '.[models]'
    python bench/models.py                   all of them: an hour or more
    python bench/models.py --only ncps       some; then --page writes the page

`bench/model_tables/` has the lines that make each. Each model runs in a process of its own that is
stopped after 300 s of a processor. *verified* means that all of `gradlet verify` agrees: each
activation, gradient and weight with PyTorch in float64 and with the module's own training, every
build with every other ([verification.md](verification.md)). On `pulp-open` small models run on the
simulator, with `--l2 8M --l3 64M`.
Seconds are those of one processor, for build and verify together.
"""
OUTCOMES = """
*refused*: one message, and nothing is built. *beyond*: no compiler of static shapes can take it,
for the reason given. *wrong*: verify fails. *broken*: a fault of ours. *too large*: it does not
fit. *too slow*: stopped. *not made*: the package itself fails. *not installed*: left out.
"""


def write_page(rows: list[dict[str, Any]], order: list[str]) -> None:
    """`order` lists the models as PACKAGE/MODEL; a row of another was there once. What was run on
    another machine stays as the page has it."""
    known = {(row["package"], row["model"], row["target"]): row for row in read_page()}
    known |= {(row["package"], row["model"], row["target"]): row for row in rows}
    rows = list(known.values())
    found = {label: _of(rows, label) for label in order}
    lines = [HEAD, _summary(found), OUTCOMES]
    for kind in dict.fromkeys(row["kind"] for each in found.values() for row in each.values()):
        own = {
            label: each
            for label, each in found.items()
            if any(row["kind"] == kind for row in each.values())
        }
        lines += [f"\n## {kind.capitalize()}\n", *_table(own)]
    lines += ["\n## What the others say\n", *_messages(found)]
    PAGE.write_text("\n".join(lines) + "\n")


def read_page() -> list[dict[str, Any]]:
    """The rows that the page was written from, as far as it tells."""
    text = PAGE.read_text() if PAGE.exists() else ""
    said = {
        (label, target): message
        for label, target, message in re.findall(
            r"^- \*\*(.*?)\*\* \((.*?)\), [a-z ]+: (.*)$", text, flags=re.MULTILINE
        )
    }
    rows, kind = [], ""
    for line in text.splitlines():
        kind = line[3:].lower() if line.startswith("## ") else kind
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not line.startswith("|") or len(cells) != 7 or cells[0] in ("package", "---"):
            continue
        package, _, version = cells[0].partition(" ")
        row: dict[str, Any] = {"package": package, "version": version or None, "model": cells[1]}
        row |= {"kind": kind}
        row |= {"parameters": int(cells[2].replace(",", ""))} if cells[2] else {}
        for target, outcome, seconds in zip(TARGETS, cells[3::2], cells[4::2], strict=True):
            if outcome:
                message = said.get((f"{package}/{cells[1]}", target), "")
                beyond = outcome == "beyond"
                own = {"outcome": "refused" if beyond else outcome, "seconds": float(seconds)}
                told = {"message": message, "beyond": message if beyond else ""}
                rows.append({**row, **own, **told, "target": target})
    return rows


def _of(rows: list[dict[str, Any]], label: str) -> dict[str, dict[str, Any]]:
    return {row["target"]: row for row in rows if f"{row['package']}/{row['model']}" == label}


def _outcome(row: dict[str, Any]) -> str:
    refused = row["outcome"] == "refused"
    return "beyond" if refused and row["beyond"] else str(row["outcome"])


def _summary(found: dict[str, dict[str, dict[str, Any]]]) -> str:
    lines = ["| target | models | packages | verified | the rest |", "|---|---|---|---|---|"]
    for target in TARGETS:
        rows = [each[target] for each in found.values() if target in each]
        counts = Counter(map(_outcome, rows))
        rest = ", ".join(f"{n} {name}" for name, n in counts.most_common() if name != GOOD)
        packages = len({row["package"] for row in rows})
        lines.append(f"| {target} | {len(rows)} | {packages} | {counts[GOOD]} | {rest} |")
    return "\n".join(lines)


def _table(found: dict[str, dict[str, dict[str, Any]]]) -> list[str]:
    lines = ["| package | model | parameters | host | s | pulp-open | s |"]
    lines.append("|---|---|---|---|---|---|---|")
    for label, each in found.items():
        host, device = each.get("host"), each.get("pulp-open")
        first = host or device or {}
        size = first.get("parameters")
        cells = [f"{first['package']} {first['version'] or ''}".strip(), label.partition("/")[2]]
        cells.append(f"{size:,}" if size is not None else "")
        for row in (host, device):
            cells += [_outcome(row), f"{_seconds(row):.0f}"] if row else ["", ""]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def _seconds(row: dict[str, Any]) -> float:
    return float(row.get("processor_seconds", row["seconds"]))


def _messages(found: dict[str, dict[str, dict[str, Any]]]) -> list[str]:
    lines = []
    for label, each in found.items():
        for target, row in each.items():
            if row["outcome"] in (GOOD, "not installed"):
                continue
            text = row["beyond"] or row["message"]
            text = re.sub(r"/\S*/site-packages/", "", text)  # wherever they are installed
            text = " ".join(text.replace("|", "/").split())
            text = text if len(text) < 300 else text[:300] + " ..."
            lines.append(f"- **{label}** ({target}), {_outcome(row)}: {text}")
    return lines or ["Nothing: all are verified."]
