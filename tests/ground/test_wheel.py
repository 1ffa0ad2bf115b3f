"""The wheel: what is in it, what isn't, and that it runs from a folder that knows nothing of the checkout."""

from __future__ import annotations

import configparser
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import tinychat

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project's wheel, built with what is installed here."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = folder.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def unpacked(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel's files, as pip would put them into site-packages."""
    folder = tmp_path_factory.mktemp("site-packages")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


def test_every_file_is_there_and_no_other(wheel: Path) -> None:
    """Would catch: models.toml, a theme or a stylesheet left behind; tests, caches or secrets taken along."""
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    source = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "tinychat").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    data = {f"tinychat/data/themes/{path.name}" for path in (ROOT / "themes").iterdir()} | {"tinychat/data/models.toml"}
    info = f"tinychat-{tinychat.__version__}.dist-info"
    meta = {f"{info}/{name}" for name in ("METADATA", "WHEEL", "RECORD", "entry_points.txt", "licenses/LICENSE")}
    assert names == source | data | meta
    assert {path.suffix for path in map(Path, source)} <= {".py", ".tcss"}


def test_the_command_it_installs(unpacked: Path) -> None:
    """Would catch: an entry point that names nothing."""
    (file,) = unpacked.glob("*.dist-info/entry_points.txt")
    entries = configparser.ConfigParser()
    entries.read(file)
    assert dict(entries["console_scripts"]) == {"tinychat": "tinychat.cli:main"}


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("--version", f"tinychat {tinychat.__version__}\n"),
        ("themes", "tinychat-dark\ntinychat-light\n"),
        ("list", "smollm2"),
    ],
)
def test_it_runs_where_it_is_installed(unpacked: Path, tmp_path: Path, words: str, says: str) -> None:
    """Would catch: data that is only found in a checkout."""
    program = "from tinychat.cli import main; import tinychat; assert 'site-packages' in tinychat.__file__; main()"
    environment = os.environ | {"PYTHONPATH": str(unpacked), "HF_HOME": str(tmp_path / "hf")}
    command = [sys.executable, "-P", "-c", program, words]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr
    assert says in done.stdout


def test_its_description_is_the_readme(unpacked: Path) -> None:
    """Would catch: a page on the package index without a word about how to begin."""
    (file,) = unpacked.glob("*.dist-info/METADATA")
    assert "python3 -m venv .venv && .venv/bin/pip install . && .venv/bin/tinychat run" in file.read_text()
