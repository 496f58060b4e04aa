"""The table in docs/reliability.md of what others may do: made from the acts, which the harness plays."""

from __future__ import annotations

import re
from pathlib import Path

from tests.world.stage import Act
from tests.world.worlds import SYSTEMS

__all__ = ["PAGE", "replaced", "table"]

PAGE = Path(__file__).parents[2] / "docs" / "reliability.md"
_BEGIN, _END = "<!-- a world that changes: begin -->", "<!-- a world that changes: end -->"

_UNDONE = re.compile(r",? (and (puts it )?back later|for a while)$")
"""What the table leaves out of the name of an act, because the page says it of all."""


def _outcome(act: Act) -> str:
    if act.then:
        return act.then
    errors = ", ".join(f"`{error.__name__}`" for error in act.errors)
    if act.ends:
        return f"{errors}, for good"
    return errors


def table() -> str:
    """Returns the table: a row for each system and outcome, with the acts. An empty first cell: as above."""
    rows: dict[tuple[str, str], list[str]] = {}
    titles: list[str] = []
    for system in SYSTEMS.values():
        title = system.title.partition(",")[0]
        titles.append(title)
        for act in system.acts:
            acts = rows.setdefault((title, _outcome(act)), [])
            if (name := _UNDONE.sub("", act.name)) not in acts:
                acts.append(name)
    systems: dict[tuple[str, str], list[str]] = {}  # what several systems have in common is one row
    for (title, outcome), acts in sorted(rows.items(), key=lambda row: titles.index(row[0][0])):
        systems.setdefault(("; ".join(acts), outcome), []).append(title)
    lines = ["| system | somebody | rows right, or |", "| --- | --- | --- |"]
    before = ""
    for (deeds, outcome), owners in systems.items():
        whose = "; ".join(owners)
        lines.append(f"| {'' if whose == before else whose} | {deeds} | {outcome} |")
        before = whose
    return "\n".join(lines)


def replaced(page: str) -> str:
    """Returns the page with the table as it is now."""
    before, _, rest = page.partition(_BEGIN)
    _, _, after = rest.partition(_END)
    return f"{before}{_BEGIN}\n{table()}\n{_END}{after}"
