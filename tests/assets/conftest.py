import pytest

from assets.demo.data import FlightsData, prepare


@pytest.fixture(scope="session")
def flights_data(tmp_path_factory) -> FlightsData:
    """Writes the year 2013 as daily files, once per session. Tests must not change them."""
    return prepare(tmp_path_factory.mktemp("flights") / "data")
