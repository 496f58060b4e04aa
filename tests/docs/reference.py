"""Writes the tables of contents in docs/reference, for readers of the repository.

Run ``python -m tests.docs.reference`` after a change of public names.
"""

from __future__ import annotations

import importlib
import re
from collections import defaultdict
from pathlib import Path

PAGES = sorted((Path(__file__).parents[2] / "docs" / "reference").glob("*.md"))
_CONTENTS = re.compile(r"^\| module \|.*?(?=^$)", re.MULTILINE | re.DOTALL)


def contents(package: str) -> str:
    """Returns a table of the public names by defining module."""
    face = importlib.import_module(package)
    names = defaultdict(list)
    for name in face.__all__:
        module = getattr(getattr(face, name), "__module__", package)
        names[module if module.startswith("dagster_flinkpy") else package].append(f"`{name}`")
    rows = [f"| `{module}` | {', '.join(names[module])} |\n" for module in sorted(names)]
    return "| module | what is public |\n| --- | --- |\n" + "".join(rows)


def with_contents(page: str) -> str:
    """Returns the page with the correct table after the heading."""
    heading, _, rest = _CONTENTS.sub("", page).partition("\n")
    package = heading.removeprefix("# ")
    question = f"What is public in `{package}`, and what does each of its names do?"
    rest = rest.replace(question, "").lstrip()
    return f"{heading}\n\n{question}\n\n{contents(package)}\n{rest}"


if __name__ == "__main__":
    for path in PAGES:
        path.write_text(with_contents(path.read_text()))
