"""The shared library of the compiled runner: found beside the package or in the cache, or compiled now. Torch-free.

    python -m llm_inference.native.runner.compiled.build              for this CPU, into the cache
    python -m llm_inference.native.runner.compiled.build --portable   for images: each level, beside the package

A file's name says what it was made of and what it is for, so that a stale one is never taken:

    step-<sources>-<level>.so             beside the package: for every CPU that has the level's features
    step-<sources>-<cpu>-<compiler>.so    in the cache: for the CPU that it was made on
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import logging
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from llm_inference.errors import StartupError
from llm_inference.native.precision import read_cpu_flags
from llm_inference.sources.cache import default_cache_dir

logger = logging.getLogger(__name__)

HERE: Final = Path(__file__).parent
#: Sums keep the order that is written, and products are joined with them only where that is written: a token's result
#: must not depend on how a compiler likes to add, which may differ from one place of a function's use to another.
FLAGS: Final = (
    *("-O3", "-std=gnu11", "-fPIC", "-shared", "-pthread"),
    *("-fno-math-errno", "-fno-trapping-math", "-ffp-contract=off"),
)
_LIBRARIES: Final = ("-lm",)
_NATIVE: Final = ("-march=native",)
_COMPILERS: Final = ("cc", "gcc", "clang")
#: A compiler that takes longer hangs: the sources are compiled in seconds.
_LIMIT_S: Final = 300.0
_SAID: Final = 5  # last lines of what a compiler says


@dataclass(frozen=True, slots=True)
class Level:
    """What a portable library is compiled for. `needs`: features in the words of /proc/cpuinfo."""

    machine: str
    flags: tuple[str, ...]
    needs: frozenset[str]


_V3: Final = frozenset({"avx2", "fma", "f16c", "bmi2"})
_V4: Final = frozenset({"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"})
#: The fastest first.
LEVELS: Final = {
    "x86-64-v4-vnni": Level("x86_64", ("-march=x86-64-v4", "-mavx512vnni"), _V3 | _V4 | {"avx512_vnni"}),
    "x86-64-v3-vnni": Level("x86_64", ("-march=x86-64-v3", "-mavxvnni"), _V3 | {"avx_vnni"}),
    "x86-64-v3": Level("x86_64", ("-march=x86-64-v3",), _V3),
    "aarch64": Level("aarch64", ("-march=armv8.2-a+dotprod",), frozenset({"asimddp"})),
}


@dataclass(frozen=True, slots=True)
class Compiler:
    """`argv`: the program, and flags where the variable CC has some. `version`: its first line about itself."""

    argv: tuple[str, ...]
    version: str


def find_or_build(sources: Path = HERE, cache: Path | None = None) -> Path:
    """The library for this CPU, compiled if it is not there. Takes seconds then.

    Raises `StartupError` with what to do: no compiler, one that fails, or a cache that cannot be written.
    """
    files = _files(sources)
    beside = _beside(sources, files)
    if beside is not None:
        return beside
    stem = _stem(files, cache)
    try:
        compiler = find_compiler()
    except StartupError:
        # Whatever compiler made it, for this CPU and of these sources: it does.
        for path in sorted(stem.parent.glob(f"{stem.name}-*.so")):
            if _is_ours(path):
                return path
        raise
    path = _by(compiler, stem)
    if not _is_ours(path):
        compile_library(compiler, files, _NATIVE, path)
    return path


def obstacle(sources: Path = HERE, cache: Path | None = None) -> str | None:
    """Why there is no library, or None: there is one, compiled by this call where it was not there."""
    try:
        find_or_build(sources, cache)
    except StartupError as error:
        return error.message
    return None


def readiness(sources: Path = HERE, cache: Path | None = None) -> str:
    """Whether there is a library for this CPU, or what would be done or is missing, in words. Compiles nothing."""
    try:
        files = _files(sources)
        if _beside(sources, files) is not None:
            return "ready: the library came with the package"
        compiler = find_compiler()
    except StartupError as error:
        return error.message
    made = _is_ours(_by(compiler, _stem(files, cache)))
    return f"{'ready: compiled' if made else 'to be compiled at the first start'} by {compiler.version}"


def build_portable(into: Path, sources: Path = HERE) -> list[Path]:
    """One library for each level of this machine's architecture. Raises `StartupError`."""
    files, compiler = _files(sources), find_compiler()
    made = []
    for name, level in LEVELS.items():
        if level.machine == platform.machine():
            path = into / f"step-{_digest_of_files(files)}-{name}.so"
            # Another CPU's library cannot always be loaded here.
            compile_library(compiler, files, level.flags, path, try_it=level.needs <= read_cpu_flags())
            made.append(path)
    return made


def find_compiler() -> Compiler:
    """The one in the variable CC, or the first of cc, gcc and clang. Raises `StartupError`."""
    try:
        wanted = shlex.split(os.environ.get("CC", ""))
    except ValueError as error:
        raise StartupError(f"the variable CC is {os.environ['CC']!r}, which is no command ({error})") from error
    candidates = [wanted] if wanted else [[name] for name in _COMPILERS]
    for argv in candidates:
        program = shutil.which(argv[0])
        if program is not None:
            said = _run([program, "--version"], "it cannot say its version")
            return Compiler((program, *argv[1:]), said.partition("\n")[0])
    named = f"CC names {wanted[0]}, which is not there" if wanted else f"none of {', '.join(_COMPILERS)} is on PATH"
    raise StartupError(
        f"there is no C compiler ({named}); install gcc, such as by `apt-get install gcc libc6-dev` or "
        "`dnf install gcc`, or name another by the variable CC"
    )


def compile_library(
    compiler: Compiler, files: Sequence[Path], march: Sequence[str], path: Path, *, try_it: bool = True
) -> None:
    """All files in one command, under another name until it is whole. Raises `StartupError`."""
    begun = time.monotonic()
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(prefix=f".{path.stem}-", suffix=".so", dir=path.parent)
        os.close(handle)
        units = [str(file) for file in files if file.suffix == ".c"]
        command = [*compiler.argv, *FLAGS, *march, "-o", temporary, *units, *_LIBRARIES]
        _run(command, "it cannot compile the kernels")
        if try_it:
            ctypes.CDLL(temporary)
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except OSError as error:
        raise StartupError(
            f"the compiled kernels cannot be kept or loaded in {path.parent} ({error.strerror or error}); set "
            "LLM_INFERENCE_CACHE to a directory that can be written and that may hold programs"
        ) from error
    finally:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)
    logger.info("compiled the kernels in %.1f s with %s: %s", time.monotonic() - begun, compiler.version, path)


def _files(sources: Path) -> list[Path]:
    files = sorted([*sources.glob("*.c"), *sources.glob("*.h")])
    if not any(file.suffix == ".c" for file in files):
        raise StartupError(f"the sources of the kernels are not in {sources}; install the package anew")
    return files


def _stem(files: Sequence[Path], cache: Path | None) -> Path:
    """Of the library in the cache, without its compiler."""
    cpu = _digest(platform.machine(), *sorted(read_cpu_flags()))
    return (cache or default_cache_dir()) / "compiled" / f"step-{_digest_of_files(files)}-{cpu}"


def _by(compiler: Compiler, stem: Path) -> Path:
    return stem.with_name(f"{stem.name}-{_digest(*compiler.argv, compiler.version)}.so")


def _beside(sources: Path, files: Sequence[Path]) -> Path | None:
    for name, level in LEVELS.items():
        if level.machine == platform.machine() and level.needs <= read_cpu_flags():
            path = sources / f"step-{_digest_of_files(files)}-{name}.so"
            if path.is_file():  # whoever may write here may change the package itself
                return path
    return None


def _is_ours(path: Path) -> bool:
    """It is there, and nobody but this user and the superuser can have written it: it will run in this process."""
    try:
        status = path.stat()
    except OSError:
        return False
    return status.st_uid in (0, os.geteuid()) and not status.st_mode & 0o022


def _run(command: Sequence[str], what: str) -> str:
    """What it prints. Raises `StartupError` with its last lines."""
    try:
        done = subprocess.run(  # noqa: S603 - the compiler that the user has, on our own files
            command, capture_output=True, text=True, errors="replace", timeout=_LIMIT_S, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise StartupError(_failed(command[0], what, str(error))) from error
    if done.returncode != 0:
        lines = (done.stderr.strip() or done.stdout.strip() or f"exit code {done.returncode}").splitlines()
        raise StartupError(_failed(command[0], what, "; ".join(line.strip() for line in lines[-_SAID:])))
    return done.stdout


def _failed(program: str, what: str, why: str) -> str:
    return f"the C compiler {program} does not work, {what}: {why}. Install gcc, or name another by the variable CC"


def _digest_of_files(files: Iterable[Path]) -> str:
    return _digest(*FLAGS, *(part for file in files for part in (file.name, file.read_text(encoding="utf-8"))))


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]


def main(argv: Sequence[str] | None = None, sources: Path = HERE) -> None:
    parser = argparse.ArgumentParser(description="Compile the kernels of the compiled runner.")
    parser.add_argument("--portable", action="store_true", help="for any CPU of this architecture, not this one alone")
    parser.add_argument("--into", type=Path, help="folder for the portable libraries; default: beside the package")
    args = parser.parse_args(argv)
    if args.into is not None and not args.portable:
        parser.error("--into goes with --portable")
    try:
        paths = build_portable(args.into or sources, sources) if args.portable else [find_or_build(sources)]
    except StartupError as error:
        parser.exit(error.exit_code, f"error: {error.message}\n")
    print(*paths, sep="\n")


if __name__ == "__main__":
    main()
