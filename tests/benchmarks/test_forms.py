"""Runs the code of the benchmark of forms on a few events. The measured values mean nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import forms


@pytest.mark.smoke
def test_forms(tmp_path: Path) -> None:
    lines = forms.run(events=50, rounds=1)
    assert {each["metric"] for each in lines if each["unit"] == "events/s"} == {
        f"forms.{name}_events_per_s" for name in forms.FORMS
    }
    assert all(each["value"] > 0 for each in lines if each["unit"] != "us")

    pytest.importorskip("matplotlib")
    from benchmarks import plots

    plots.draw_forms(lines, tmp_path / "forms.png")
    assert (tmp_path / "forms.png").stat().st_size > 1_000
