"""The rules of the house that a reader can check, checked: each failure lists every offender."""

from __future__ import annotations

import ast
import re
import tomllib
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import grimp

from holdfast.sql.catalog import DIALECTS, catalog

ROOT = Path(__file__).resolve().parent.parent
HOUSE = ROOT / "src" / "holdfast"
PYTHON_HOMES = ("src", "tests", "tools", "bench")
TEXT_HOMES = (*PYTHON_HOMES, "docs", ".github", ".ci")
TEXT_KINDS = {"", ".py", ".sql", ".md", ".toml", ".yml", ".yaml", ".json", ".lock", ".txt", ".cfg"}

FILE_LINES = 600
FUNCTION_LINES = 70
LINE_CHARS = 100

STATEMENT = re.compile(
    r"\b(?:INSERT\s+INTO|DELETE\s+FROM|UPDATE\s+\S+\s+SET|SELECT\s.+?\sFROM|MERGE\s+INTO)\s"
    r"|\A\s*(?i:insert\s+into|delete\s+from|update\s+\S+\s+set|select\s.+?\sfrom)\s",
    re.S,
)
STATEMENT_HOMES = ("sql/", "engine/")

CHANCE_HOMES = ("engine/", "backend.py", "testing/", "cli/")
CHANCE_MODULES = {"random", "secrets", "uuid"}
CHANCE_CALLS = {
    "time.time",
    "time.time_ns",
    "datetime.now",
    "datetime.utcnow",
    "datetime.today",
    "date.today",
    "os.urandom",
}

DATABASE = re.compile(r"sqlite|postgres", re.I)
DATABASE_HOMES = (
    "__init__.py",
    "engine/",
    "sql/",
    "backend.py",
    "cli/",
    "testing/plugin.py",
    "testing/faults.py",
    "testing/postgres_server.py",
    "testing/wire.py",
)

VAGUE_NAMES = {"util", "utils", "helper", "helpers", "common", "manager", "managers", "misc"}
# Written in parts, so that this file does not offend.
MACHINE = re.compile(
    r"/(?:" + r"home|Users|root)/\w|--(?:extra-)?" + r"index-url|--find" + r"-links"
)


@cache
def python_files() -> tuple[Path, ...]:
    """Every Python file of the repository."""
    found = [path for home in PYTHON_HOMES for path in (ROOT / home).rglob("*.py")]
    return tuple(sorted([*found, *ROOT.glob("*.py")]))


@cache
def house_files() -> tuple[Path, ...]:
    """Every Python file of the package."""
    return tuple(path for path in python_files() if path.is_relative_to(HOUSE))


@cache
def tree(path: Path) -> ast.Module:
    """The syntax of a file."""
    return ast.parse(path.read_text("utf-8"), str(path))


def text_files() -> Iterator[Path]:
    """Every text file that belongs to the repository."""
    yield from (path for path in ROOT.iterdir() if path.is_file() and path.suffix in TEXT_KINDS)
    for home in TEXT_HOMES:
        for path in (ROOT / home).rglob("*"):
            if path.is_file() and path.suffix in TEXT_KINDS and "__pycache__" not in path.parts:
                yield path


def at(path: Path, line: int = 1) -> str:
    """Where an offender is."""
    return f"{path.relative_to(ROOT)}:{line}"


def is_home(path: Path, homes: tuple[str, ...]) -> bool:
    """Whether a file of the package is, or is under, one of the homes."""
    inner = path.relative_to(HOUSE).as_posix()
    return any(inner.startswith(home) if home.endswith("/") else inner == home for home in homes)


def require_none(offenders: list[str], rule: str) -> None:
    """Fail with the rule and every offender."""
    assert not offenders, "\n  ".join([rule, *offenders])


def docstrings(module: ast.Module) -> set[ast.expr]:
    """The string nodes that are docstrings."""
    found: set[ast.expr] = set()
    for node in ast.walk(module):
        body = getattr(node, "body", None)
        if isinstance(body, list) and body and isinstance(body[0], ast.Expr):
            found.add(body[0].value)
    return found


def test_files_functions_and_lines_are_short() -> None:
    """A module has up to 600 lines, a function up to 70, a line up to 100 characters."""
    offenders: list[str] = []
    for path in (*python_files(), *HOUSE.rglob("*.sql")):
        lines = path.read_text("utf-8").splitlines()
        if len(lines) > FILE_LINES:
            offenders.append(f"{at(path)}: {len(lines)} lines")
        for number, line in enumerate(lines, 1):
            if len(line) > LINE_CHARS:
                offenders.append(f"{at(path, number)}: {len(line)} characters")
    for path in python_files():
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = (node.end_lineno or node.lineno) - node.lineno + 1
                if length > FUNCTION_LINES:
                    offenders.append(f"{at(path, node.lineno)}: {node.name}, {length} lines")
    require_none(offenders, "too long:")


def test_modules_open_with_their_rule() -> None:
    """Each Python file has a docstring."""
    bare = [at(path) for path in python_files() if not ast.get_docstring(tree(path))]
    require_none(bare, "a module opens with a docstring that states its rule:")


def test_module_names_say_something() -> None:
    """No module is named after what it might hold."""
    vague = [at(path) for path in python_files() if set(path.stem.split("_")) & VAGUE_NAMES]
    require_none(vague, "name a module for what lives in it:")


def test_sql_is_at_home() -> None:
    """Statements are written in `sql/`, and the engines' own few in `engine/`."""
    offenders: list[str] = []
    for path in house_files():
        if is_home(path, STATEMENT_HOMES):
            continue
        described = docstrings(tree(path))
        for node in ast.walk(tree(path)):
            if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
                continue
            if node not in described and STATEMENT.search(node.value):
                offenders.append(f"{at(path, node.lineno)}: {node.value[:60]!r}")
    require_none(offenders, f"SQL outside {STATEMENT_HOMES}:")


def constants(module: ast.Module) -> dict[str, str]:
    """The strings that a module gives a name."""
    return {
        target.id: node.value.value
        for node in module.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
        for target in node.targets
        if isinstance(target, ast.Name) and isinstance(node.value.value, str)
    }


def named_statements() -> Iterator[tuple[str, str]]:
    """The name of each `Stmt(…)` in `ops/`, and where it is."""
    for path in sorted((HOUSE / "ops").glob("*.py")):
        named = constants(tree(path))
        for node in ast.walk(tree(path)):
            if not isinstance(node, ast.Call):
                continue
            called = node.func.value if isinstance(node.func, ast.Subscript) else node.func
            if not isinstance(called, ast.Name) or called.id != "Stmt":
                continue
            arguments = [*node.args[:1], *(k.value for k in node.keywords if k.arg == "name")]
            for argument in arguments[:1]:
                if isinstance(argument, ast.Constant):
                    yield str(argument.value), at(path, node.lineno)
                elif isinstance(argument, ast.Name) and argument.id in named:
                    yield named[argument.id], at(path, node.lineno)


def test_every_block_is_used_once() -> None:
    """A block of the catalog is one statement of `ops/`, in every dialect; nothing dangles."""
    used = list(named_statements())
    offenders = [
        f"{name}: named {count} times in ops/"
        for name, count in Counter(name for name, _ in used).items()
        if count > 1
    ]
    for dialect in DIALECTS:
        blocks = catalog(dialect)
        offenders += [
            f"{where}: {dialect} has no {name}" for name, where in used if name not in blocks
        ]
        names = {name for name, _ in used}
        offenders += [f"{dialect}: nobody uses {name}" for name in blocks if name not in names]
    require_none(offenders, "the catalog and ops/ differ:")


def test_time_and_chance_are_at_home() -> None:
    """The engine's clock and its random numbers are handed in; nobody else asks the machine."""
    offenders: list[str] = []
    for path in house_files():
        if is_home(path, CHANCE_HOMES):
            continue
        for node in ast.walk(tree(path)):
            found: list[str] = []
            if isinstance(node, ast.Import):
                found = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                module = node.module or ""
                found = [module, *(f"{module}.{alias.name}" for alias in node.names)]
            elif isinstance(node, ast.Attribute):
                found = [".".join(ast.unparse(node).split(".")[-2:])]
            if wrong := (CHANCE_MODULES | CHANCE_CALLS) & set(found):
                offenders.append(f"{at(path, getattr(node, 'lineno', 1))}: {', '.join(wrong)}")
    require_none(offenders, f"time or chance outside {CHANCE_HOMES}:")


def test_databases_are_named_at_home() -> None:
    """Which databases there are is known to the engines, the SQL and the composition root."""
    offenders = [
        f"{at(path, number)}: {line.strip()[:60]}"
        for path in house_files()
        if not is_home(path, DATABASE_HOMES)
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        if DATABASE.search(line)
    ]
    require_none(offenders, f"a database named outside {DATABASE_HOMES}:")


def test_every_module_is_used() -> None:
    """A module is imported by another one of the package, or it is where somebody comes in."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    entries = {target.split(":")[0] for target in settings["project"]["scripts"].values()}
    entries |= {"holdfast", "holdfast.testing.plugin"}
    graph = grimp.build_graph("holdfast", cache_dir=None)
    offenders = [
        module
        for module in sorted(graph.modules - entries)
        if not graph.find_children(module)
        and not module.rpartition(".")[2].startswith(("law_", "__main__"))
        and not (HOUSE.parent / module.replace(".", "/") / "__init__.py").exists()
        and not graph.find_modules_that_directly_import(module)
        and not (module.startswith("holdfast.testing.") and used_by_tests(module))
    ]
    require_none(offenders, "nobody imports:")


def used_by_tests(module: str) -> bool:
    """Whether a test or a tool imports a module that is published for tests."""
    package, _, name = module.rpartition(".")
    for path in python_files():
        if path.is_relative_to(HOUSE):
            continue
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.ImportFrom) and (
                node.module == module
                or (node.module == package and name in {alias.name for alias in node.names})
            ):
                return True
    return False


def test_no_file_knows_a_machine() -> None:
    """Neither somebody's home directory nor a package registry is written down anywhere."""
    offenders = [
        f"{at(path, number)}: {line.strip()[:80]}"
        for path in text_files()
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        if MACHINE.search(line)
    ]
    require_none(offenders, "a machine is named:")
