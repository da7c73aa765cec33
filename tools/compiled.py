"""Compile the hot packages with mypyc, into extension modules beside their sources.

    python tools/compiled.py            compile, and put the extensions into src
    python tools/compiled.py --check    run the front end of mypyc only: all of it stays compilable; no C compiler
    python tools/compiled.py --clean    remove the extensions

`[tool.carrypost.compiled]` in pyproject.toml lists the packages, and the modules of them that are left out. Modules
that define Structs of msgspec are left out, too: mypyc drops the keywords of their classes. `carrypost.extensions`
chooses between extensions and sources when carrypost is imported.
"""

from __future__ import annotations

import argparse
import ast
import io
import os
import re
import shutil
import sys
import sysconfig
import tempfile
import tomllib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import chdir, redirect_stdout
from distutils.ccompiler import CCompiler, new_compiler
from distutils.core import Extension
from distutils.errors import CCompilerError
from distutils.sysconfig import customize_compiler
from functools import partial
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

from mypyc.build import mypycify

from carrypost.extensions import manifest

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ROOT / "src"
PACKAGE = SOURCES / "carrypost"
MANIFEST = PACKAGE / "extensions.txt"
LIBRARY = "carrypost"
"""Name of the library that all extension modules share."""
_KEYWORD = re.compile(
    r" _(_(?:asm|attribute|complex|const|imag|inline|label|real|restrict|signed|thread|typeof|volatile));"
)
"""Fields of C that are keywords of gcc."""
_STRUCT = "(msgspec.Struct"


def modules() -> list[Path]:
    """Return the sources that are compiled."""
    table = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["carrypost"]["compiled"]
    left_out = {PACKAGE / name for name in table["except"]}
    found = [path for name in table["packages"] for path in sorted((PACKAGE / name).rglob("*.py"))]
    return [path for path in found if path not in left_out and _STRUCT not in path.read_text(encoding="utf-8")]


def used() -> set[Path]:
    """Return these sources, and those that they import: compiled code contains their types and constants."""
    found: set[Path] = set()
    left = modules()
    while left:
        if (path := left.pop()) not in found:
            found.add(path)
            left += _imported(path)
    return found


def _imported(path: Path) -> Iterator[Path]:
    """Yield our sources from which this one imports, without the top package, which only lists names for programs."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            origin = SOURCES.joinpath(*node.module.split("."))
            near = [
                origin.with_suffix(".py"),
                origin / "__init__.py",
                *(origin / f"{each.name}.py" for each in node.names),
            ]
            yield from (each for each in near if each.exists() and each != PACKAGE / "__init__.py")


def generate(folder: Path) -> list[Extension]:
    """Translate the modules to C, into `folder`; ends the process with mypyc's messages if it refuses one."""
    paths = [str(path.relative_to(ROOT)) for path in modules()]
    said = io.StringIO()
    try:
        with chdir(ROOT), redirect_stdout(said):  # mypyc prints warnings of what it does otherwise than Python.
            # To optimize more takes longer, and brings nothing that can be measured.
            return mypycify(
                paths, opt_level="2", debug_level="0", multi_file=True, group_name=LIBRARY, target_dir=str(folder)
            )
    except SystemExit:
        print(said.getvalue(), end="", file=sys.stderr)
        raise


def build(folder: Path) -> dict[str, Path]:
    """Compile the modules in `folder`; return the extensions by their paths in the tree of sources."""
    extensions = generate(folder)
    # setuptools compiles the files of one extension one after the other, and nearly all are of the shared library.
    compiler = new_compiler()
    customize_compiler(compiler)
    compiled: dict[str, list[str]] = {}
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for each in extensions:
            compiled[each.name] = list(pool.map(partial(_object, compiler, each, folder), each.sources))
        names = {name: name.replace(".", "/") + EXTENSION_SUFFIXES[0] for name in compiled}
        targets = {names[name]: folder / "lib" / names[name] for name in compiled}
        links = [
            pool.submit(compiler.link_shared_object, objects, str(targets[names[name]]))
            for name, objects in compiled.items()
        ]
        for link in links:
            link.result()
    return targets


def wheel_files(folder: Path) -> dict[str, Path]:
    """Compile the modules in `folder`; return the files that a wheel gets beside the sources, by their paths there."""
    listed = folder / MANIFEST.name
    listed.write_text(manifest(()), encoding="utf-8")
    return build(folder) | {str(MANIFEST.relative_to(SOURCES)): listed}


def _object(compiler: CCompiler, extension: Extension, folder: Path, source: str) -> str:
    """Compile a file of C, unless nothing that it includes was changed since that was done; return the object."""
    output = str(folder / "objects")
    made = Path(compiler.object_filenames([source], output_dir=output)[0])
    newest = max(Path(each).stat().st_mtime for each in (source, *extension.depends))
    if not made.exists() or made.stat().st_mtime < newest:
        folders = [*extension.include_dirs, sysconfig.get_path("include"), sysconfig.get_path("platinclude")]
        # Calls within the library need no look-up then. Compilers to come may warn of more.
        flags = [*extension.extra_compile_args, "-fvisibility=hidden", "-Wno-error"]
        compiler.compile([source], output_dir=output, include_dirs=folders, extra_postargs=flags)
    return str(made)


def install(folder: Path) -> None:
    """Compile, and put the extensions beside the sources; those that were there are gone if this fails."""
    clean()
    found = build(folder)
    MANIFEST.touch()  # If this is killed now, the list is empty, and nothing is used.
    for name, path in found.items():
        shutil.copyfile(path, SOURCES / name)
    MANIFEST.write_text(manifest(str(path.relative_to(PACKAGE)) for path in sorted(used())), encoding="utf-8")


def clean() -> None:
    """Remove the extensions from the sources."""
    for path in (*SOURCES.rglob("*.so"), MANIFEST):
        path.unlink(missing_ok=True)


def main(arguments: Sequence[str]) -> int:
    """Compile, check or clean up."""
    parser = argparse.ArgumentParser(description=str(__doc__), formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--check", action="store_true", help="run the front end of mypyc only")
    what.add_argument("--clean", action="store_true", help="remove the extensions")
    given = parser.parse_args(arguments)
    if given.clean:
        clean()
    elif given.check:
        with tempfile.TemporaryDirectory(prefix="carrypost-compiled-") as name:
            generate(Path(name))
            header = Path(name, f"__native_{LIBRARY}.h").read_text(encoding="utf-8")
        if found := _KEYWORD.search(header):
            print(f"an attribute is called {found[1]}: in C a keyword comes of it", file=sys.stderr)
            return 1
        print(f"mypyc can compile {len(modules())} modules")
    else:
        print(f"compiling {len(modules())} modules: some minutes", flush=True)
        try:
            install(ROOT / "build" / "compiled")
        except CCompilerError as error:
            print(f"the C compiler failed ({error}): carrypost runs as pure Python", file=sys.stderr)
            return 1
        print("carrypost is compiled; `make clean` or CARRYPOST_PURE=1 leads back to the sources")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
