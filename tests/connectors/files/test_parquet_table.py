from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dagster_flinkpy.connectors.files import parquet_table
from dagster_flinkpy.connectors.files.parquet_table import ParquetTable
from dagster_flinkpy.datastream.connectors.tables import RowCount
from dagster_flinkpy.storage import StorageLocation


class Folder:
    """A table's folder. Knows which files were opened to count their rows."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.path, self.opened = path, list[str]()
        self.table = ParquetTable(StorageLocation(str(path)), pa.schema([]))
        read = ParquetTable._rows_of

        def noted(table: ParquetTable, file: tuple[str, int]) -> int:
            self.opened.append(file[0])
            return read(table, file)

        monkeypatch.setattr(ParquetTable, "_rows_of", noted)

    def write(self, name: str, rows: int) -> None:
        pq.write_table(pa.table({"n": list(range(rows))}), self.path / f"{name}.parquet")

    def count(self, known: RowCount | None = None) -> tuple[RowCount, list[str]]:
        self.opened.clear()
        found = self.table.count_rows(known)
        assert found is not None
        return found, sorted(self.opened)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Folder:
    return Folder(tmp_path, monkeypatch)


def test_only_new_files_are_read_to_count_again(folder: Folder) -> None:
    empty, _ = folder.count()
    assert (empty.rows, empty.files) == (0, 0)
    folder.write("a.1", 3)
    folder.write("a.2", 4)
    first, _ = folder.count(empty)
    assert (first.rows, first.files) == (7, 2)
    folder.write("a.3", 5)
    second, opened = folder.count(first)
    assert (second.rows, second.files, opened) == (12, 3, ["a.3.parquet"])
    assert folder.count(second) == (second, [])
    assert folder.count()[0] == second


@pytest.mark.parametrize("change", ["deleted", "before", "replaced"])
def test_all_files_are_read_where_others_are_there(folder: Folder, change: str) -> None:
    folder.write("b.1", 3)
    folder.write("b.2", 4)
    known, _ = folder.count()
    if change == "deleted":
        (folder.path / "b.1.parquet").unlink()
        expected = 4
    elif change == "before":
        folder.write("a.1", 10)
        expected = 17
    else:
        folder.write("b.1", 1_000)
        expected = 1_004
    found, opened = folder.count(known)
    assert found.rows == expected
    assert len(opened) == found.files


def test_a_count_of_another_folder_is_not_taken(folder: Folder) -> None:
    folder.write("a.1", 3)
    known, _ = folder.count()
    copy = folder.path / "copy"
    copy.mkdir()
    (folder.path / "a.1.parquet").rename(copy / "a.1.parquet")
    folder.opened.clear()
    ParquetTable(StorageLocation(str(copy)), pa.schema([])).count_rows(known)
    assert folder.opened == ["a.1.parquet"]


def test_too_many_files_are_not_read(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet_table, "_MOST_COUNTED", 2)
    for i in range(2):
        folder.write(f"a.{i}", 1)
    known, _ = folder.count()
    folder.write("a.3", 1)
    assert folder.table.count_rows() is None
    assert folder.count(known)[0].rows == 3
