"""The fixture that counts near-ties over a whole run and reports them at its end."""

from collections.abc import Iterator

import pytest

from tests.rig import NearTies


@pytest.fixture(scope="session")
def near_ties(request: pytest.FixtureRequest) -> Iterator[NearTies]:
    """Differences that rounding explains, of all tests of the run."""
    ties = NearTies()
    yield ties
    report = f"{ties.compared} texts compared token for token, {ties.count} near-ties"
    plugins = request.config.pluginmanager
    with plugins.get_plugin("capturemanager").global_and_fixture_disabled():
        plugins.get_plugin("terminalreporter").write_line(f"\n{report}")
