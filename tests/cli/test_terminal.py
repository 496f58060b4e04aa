from __future__ import annotations

import pytest

from dagster_flinkpy.cli.terminal import bar, progress, watermark_of


@pytest.mark.parametrize(
    ("value", "most", "shown"),
    [(8, 8, "\u2588" * 30), (4, 8, "\u2588" * 15), (1, 240, "\u258f"), (0, 5, ""), (0, 0, "")],
)
def test_bar(value: int, most: int, shown: str) -> None:
    assert bar(value, most) == shown


@pytest.mark.parametrize("total", [2, None])
def test_progress_is_shown_on_a_terminal_only(
    total: int | None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def work() -> str:
        with progress("reading", "files", total) as advance:
            advance(1)
            print("result")
            advance(1)
        printed = capsys.readouterr()
        assert printed.out == "result\n"
        return printed.err

    assert work() == ""
    monkeypatch.setenv("FORCE_COLOR", "1")
    shown = work()
    assert "reading" in shown
    assert "2/2" in shown or total is None
    assert "files" in shown


def test_watermark_that_is_no_time() -> None:
    assert watermark_of(2**63 - 1) == "end of input"
    assert watermark_of(-(2**63)) == "-9223372036854775808 ms"
