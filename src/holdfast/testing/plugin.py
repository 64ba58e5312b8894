"""The pytest plugin: it runs async tests, and hands each law a kit for every store under test.

Test a store of your own against the laws of holdfast with one command:

    pytest -p holdfast.testing.plugin --pyargs holdfast.testing.conformance \\
        --holdfast-factory=mypkg.stores:open_for_test

where `async def open_for_test(tenant: str) -> Store` opens one tenant's view of one database, the
same database each time. Set `open_for_test.server_clock = False` when the store's clock can be set.
Without a factory, the laws are run against the databases holdfast brings, in each of its modes.
"""

from __future__ import annotations

import asyncio
import functools
import importlib
import inspect
import os
import shutil
import sys
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest

import holdfast
from holdfast.contract.stores import Store
from holdfast.testing.async_over import AsyncOver
from holdfast.testing.postgres_server import (
    INSTALL_HINT,
    NAMED_SERVER,
    PostgresServer,
    ServerFailed,
    create_database,
    drop_database,
    find_servers,
    server_version,
)

Factory = Callable[[str], Awaitable[Store]]

LAWS = "holdfast.testing.conformance"
LAW_FILES = "law_*.py"
# As many blocking calls of one test run at a time: enough for the races, on a machine of any size.
BLOCKING_THREADS = 32
SERVER_SETTINGS = {"max_connections": "200"}

pytest.register_assert_rewrite(LAWS)


@dataclass(frozen=True, slots=True)
class Mode:
    """One way to open a store: its name, its factory once the fixtures exist, and whose clock."""

    name: str
    factory: Callable[[pytest.FixtureRequest], Factory]
    server_clock: bool


class Kit:
    """What a law is given: one test's own tenant, on one kind of store."""

    def __init__(self, name: str, factory: Factory, *, server_clock: bool) -> None:
        self.name = name
        self.server_clock = server_clock
        self._factory = factory
        self._tenant = self.other_tenant()

    def __repr__(self) -> str:
        return f"Kit({self.name})"

    @asynccontextmanager
    async def open(self, tenant: str | None = None) -> AsyncIterator[Store]:
        """A handle on the test's own tenant, or another one; each call is another handle."""
        store = await self._factory(self._tenant if tenant is None else tenant)
        try:
            yield store
        finally:
            await store.close()

    def other_tenant(self) -> str:
        """A tenant that nobody has used yet."""
        return f"t{uuid.uuid4().hex}"


class Servers:
    """The servers of one test session; each is started when it is first asked for."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._started: dict[Path, PostgresServer] = {}
        self._databases: dict[Path | str, str] = {}

    def server(self, bindir: Path | None) -> PostgresServer:
        """The server of these programs. A server that is not there fails the test that needs it."""
        if bindir is None:
            pytest.fail(f"no PostgreSQL was found: {INSTALL_HINT}", pytrace=False)
        if bindir not in self._started:
            try:
                server = self._stack.enter_context(PostgresServer(bindir, settings=SERVER_SETTINGS))
            except (ServerFailed, OSError) as failure:
                pytest.fail(
                    f"PostgreSQL in {bindir} did not start; {INSTALL_HINT}\n{failure}",
                    pytrace=False,
                )
            self._started[bindir] = server
        return self._started[bindir]

    def shared_database(self, bindir: Path | None) -> str:
        """The URL of the database that all kits of a server share."""
        server = self.server(bindir)
        if server.bindir not in self._databases:
            self._databases[server.bindir] = server.create_database("kits")
        return self._databases[server.bindir]

    def named_database(self, url: str) -> str:
        """The URL of a database made for this session on the server that the environment names."""
        if url not in self._databases:
            found = find_servers()
            program = shutil.which("psql")
            if not found and program is None:
                pytest.fail(f"no psql was found: {INSTALL_HINT}", pytrace=False)
            bindir = found[0] if found else Path(cast(str, program)).parent
            name = f"holdfast_test_{uuid.uuid4().hex}"
            self._databases[url] = create_database(bindir, url, name)
            self._stack.callback(drop_database, bindir, url, name)
        return self._databases[url]

    def close(self) -> None:
        """Stop the servers and drop what was made on a foreign one."""
        self._stack.close()


def _opener(url: str, *, blocking: bool) -> Factory:
    async def open_async(tenant: str) -> Store:
        return await holdfast.open(url, tenant=tenant)

    async def open_blocking(tenant: str) -> Store:
        store = await asyncio.to_thread(holdfast.open_sync, url, tenant=tenant)
        return cast(Store, AsyncOver(store))

    return open_blocking if blocking else open_async


def _sqlite_mode(colour: str) -> Mode:
    def factory(request: pytest.FixtureRequest) -> Factory:
        url = request.getfixturevalue("holdfast_kits_file")
        return _opener(url, blocking=colour == "blocking")

    return Mode(f"sqlite-{colour}", factory, server_clock=False)


def _postgres_mode(name: str, bindir: Path | None, colour: str) -> Mode:
    def factory(request: pytest.FixtureRequest) -> Factory:
        servers: Servers = request.getfixturevalue("holdfast_servers")
        return _opener(servers.shared_database(bindir), blocking=colour == "blocking")

    return Mode(f"{name}-{colour}", factory, server_clock=True)


def _named_mode(url: str) -> Mode:
    def factory(request: pytest.FixtureRequest) -> Factory:
        servers: Servers = request.getfixturevalue("holdfast_servers")
        return _opener(servers.named_database(url), blocking=False)

    return Mode("postgres-named-async", factory, server_clock=True)


@functools.cache
def own_modes() -> tuple[Mode, ...]:
    """The modes this package is tested in: two databases, two colours, and a second version."""
    servers = find_servers()
    first = servers[0] if servers else None
    modes = [_sqlite_mode("async"), _sqlite_mode("blocking")]
    modes += [_postgres_mode("postgres", first, colour) for colour in ("async", "blocking")]
    if servers:
        # The oldest version is the other end of the range; a middle one would add no more.
        majors = {bindir: int(server_version(bindir).split(".")[0]) for bindir in servers}
        oldest = min(servers, key=lambda bindir: majors[bindir])
        if majors[oldest] != majors[servers[0]]:
            modes.append(_postgres_mode(f"postgres{majors[oldest]}", oldest, "async"))
    named = os.environ.get(NAMED_SERVER)
    if named:
        modes.append(_named_mode(named))
    return tuple(modes)


def _factory_mode(path: str) -> Mode:
    module, colon, name = path.partition(":")
    if not colon:
        raise pytest.UsageError(f"--holdfast-factory={path}: write it as package.module:function")
    try:
        factory = functools.reduce(getattr, name.split("."), importlib.import_module(module))
    except (ImportError, AttributeError) as failure:
        raise pytest.UsageError(f"--holdfast-factory={path}: {failure}") from failure
    chosen = cast(Factory, factory)
    return Mode(path, lambda _: chosen, server_clock=getattr(factory, "server_clock", True))


MODES = pytest.StashKey[tuple[Mode, ...]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the options."""
    group = parser.getgroup("holdfast", "the laws of a holdfast store")
    group.addoption(
        "--holdfast-factory",
        action="append",
        default=[],
        metavar="PKG.MODULE:FUNCTION",
        help="test the stores that this async function opens for a tenant (repeatable)",
    )
    group.addoption(
        "--holdfast-mode",
        action="append",
        default=[],
        metavar="NAME",
        help="of holdfast's own modes, run these only, such as sqlite-async (repeatable)",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Choose the modes, and make pytest collect the laws whatever files it collects otherwise."""
    paths: list[str] = config.getoption("--holdfast-factory")
    wanted: list[str] = config.getoption("--holdfast-mode")
    if paths:
        sys.path.insert(0, os.getcwd())
        config.stash[MODES] = tuple(_factory_mode(path) for path in paths)
    else:
        known = {mode.name: mode for mode in own_modes()}
        if unknown := [name for name in wanted if name not in known]:
            raise pytest.UsageError(f"--holdfast-mode: {unknown} not in {list(known)}")
        config.stash[MODES] = tuple(m for n, m in known.items() if not wanted or n in wanted)
    config.addinivalue_line("python_files", f"*/{LAWS.replace('.', '/')}/{LAW_FILES}")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test that asks for a kit once per mode."""
    if "kit" in metafunc.fixturenames:
        modes = metafunc.config.stash[MODES]
        metafunc.parametrize("kit", modes, ids=[mode.name for mode in modes], indirect=True)


def _run(main: Coroutine[Any, Any, Any]) -> None:
    async def wide() -> None:
        threads = ThreadPoolExecutor(BLOCKING_THREADS)
        asyncio.get_running_loop().set_default_executor(threads)
        await main

    asyncio.run(wide(), debug=False)


def _blocking(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        _run(test(*args, **kwargs))

    return run


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a coroutine test to its end, unless another plugin was asked to by a mark."""
    if any(pyfuncitem.get_closest_marker(name) for name in ("asyncio", "anyio", "trio")):
        return None
    test = pyfuncitem.obj
    generated = getattr(test, "hypothesis", None)
    if generated is not None and inspect.iscoroutinefunction(generated.inner_test):
        generated.inner_test = _blocking(generated.inner_test)
        return None
    if not inspect.iscoroutinefunction(test):
        return None
    names = pyfuncitem._fixtureinfo.argnames
    _run(test(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True


@pytest.fixture(scope="session")
def holdfast_servers() -> Iterator[Servers]:
    """The servers of this session, none of them started yet."""
    servers = Servers()
    yield servers
    servers.close()


@pytest.fixture(scope="session")
def holdfast_kits_file(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The database file that the kits of this session share."""
    return str(tmp_path_factory.mktemp("holdfast") / "kits.db")


@pytest.fixture
def kit(request: pytest.FixtureRequest) -> Kit:
    """A fresh tenant on each kind of store under test."""
    mode: Mode = request.param
    return Kit(mode.name, mode.factory(request), server_clock=mode.server_clock)


@pytest.fixture(scope="session")
def postgres_server(holdfast_servers: Servers) -> PostgresServer:
    """A running server of the newest version found, shared by the session."""
    found = find_servers()
    return holdfast_servers.server(found[0] if found else None)


@pytest.fixture
def postgres_url(postgres_server: PostgresServer) -> Iterator[str]:
    """The URL of an empty database that is dropped after the test."""
    name = f"test_{uuid.uuid4().hex}"
    yield postgres_server.create_database(name)
    postgres_server.drop_database(name)


@pytest.fixture
def sqlite_path(tmp_path: Path) -> Path:
    """The path of a database file that does not exist yet."""
    return tmp_path / "agents.db"


@pytest.fixture
def sqlite_url(sqlite_path: Path) -> str:
    """The same, as `holdfast.open` is given it."""
    return str(sqlite_path)
