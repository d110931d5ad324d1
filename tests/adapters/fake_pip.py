"""A stand-in for Python, venv and pip: makes the directories and metadata that they would, in milliseconds."""

from __future__ import annotations

import sys
from pathlib import Path

_PROGRAM = """#!{python}
import os, shutil, sys, time
from pathlib import Path

def site(venv):
    return venv / "lib" / "python3.11" / "site-packages"

args = sys.argv[1:]
with open(os.environ["FAKE_PIP_LOG"], "a") as log:
    log.write(" ".join(args) + chr(10))
if args[:2] == ["-m", "venv"]:
    venv = Path(args[2])
    (venv / "bin").mkdir(parents=True)
    site(venv).mkdir(parents=True)
    (venv / "pyvenv.cfg").write_text("version = 3.11.7\\n")
    shutil.copy(__file__, venv / "bin" / "python")
elif args[:3] == ["-m", "pip", "install"]:
    venv = Path(__file__).parent.parent
    for requirement in (word for word in args[3:] if not word.startswith("-")):
        name, _, version = requirement.partition("==")
        print("Collecting " + requirement, flush=True)
        if name == "broken":
            print("ERROR: " + os.environ.get("FAKE_PIP_ERROR", "it broke"))
            sys.exit(7)
        if name == "killed":
            os.kill(os.getppid(), 9)
            time.sleep(0.5)
        if name == "nothing":
            continue
        info = site(venv) / (name.replace("-", "_") + "-" + version + ".dist-info")
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\\nName: " + name + "\\nVersion: " + version + "\\n")
        program = site(venv) / name.replace("-", "_") / "bin" / "server"
        program.parent.mkdir(parents=True)
        program.write_text("#!/bin/sh\\necho served with $JOBS\\n")
        (venv / "bin" / "useless").write_text("")
elif args[:3] == ["-m", "pip", "uninstall"]:
    venv = Path(__file__).parent.parent
    for name in args[4:]:
        for path in site(venv).glob(name.replace("-", "_") + "-*.dist-info"):
            shutil.rmtree(path)
else:
    sys.exit("what is " + repr(args))
"""


def write_fake_python(directory: Path) -> str:
    """The path of the program. It appends its arguments to the file that the variable FAKE_PIP_LOG names."""
    path = directory / "fake-python"
    path.write_text(_PROGRAM.format(python=sys.executable))
    path.chmod(0o755)
    return str(path)
