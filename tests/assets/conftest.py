import pytest

from assets.demo.data import FlightsData, prepare


@pytest.fixture(scope="session")
def flights_data(tmp_path_factory) -> FlightsData:
    """The year 2013 as daily files; made once per session, not to be changed."""
    return prepare(tmp_path_factory.mktemp("flights") / "data")
