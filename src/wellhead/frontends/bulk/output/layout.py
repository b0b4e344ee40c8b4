"""Which names an output has on the disk."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from wellhead.errors import InvalidConfig
from wellhead.frontends.bulk.files import part_of, remove
from wellhead.frontends.bulk.options import Options

MANIFEST = "manifest"


@dataclass(frozen=True, slots=True)
class Layout:
    """``root``: the folder of manifest and parts. ``single``: the one file that the parts become; then root is a folder of
    work beside it, which goes away. ``suffix``: of a job that is one shard of several."""

    root: Path
    single: Path | None
    suffix: str

    @staticmethod
    def of(options: Options) -> Layout:
        shard = options.shard
        suffix = "" if shard is None else f"-{shard[0]:05}-of-{shard[1]:05}"
        if options.single:
            return Layout(options.output.with_name(f"{options.output.name}.work"), options.output, suffix)
        return Layout(options.output, None, suffix)

    @property
    def manifest(self) -> Path:
        return self.root / f"{MANIFEST}{self.suffix}.jsonl"

    @property
    def data(self) -> Path:
        return self.root / "data"

    @property
    def failed(self) -> Path:
        """Folder of the rows that failed, a file per part that has any."""
        return self.root / "errors"

    @property
    def lock(self) -> Path:
        return self.root / f".lock{self.suffix}"

    @property
    def errors(self) -> Path:
        """All rows that failed."""
        if self.single is not None:
            return self.single.with_name(f"{self.single.name}.errors.parquet")
        return self.root / f"errors{self.suffix}.parquet"

    @property
    def final_manifest(self) -> Path:
        """The manifest of what is complete."""
        if self.single is not None:
            return self.single.with_name(f"{self.single.name}.{MANIFEST}.jsonl")
        return self.manifest

    def siblings(self) -> list[Path]:
        """Manifests of other shards in the same folder."""
        return sorted(p for p in self.root.glob(f"{MANIFEST}*.jsonl") if p != self.manifest)

    def part(self, number: int) -> str:
        """The name of a part's files, less their suffix. In the order of names parts are in the order of rows."""
        shard = self.suffix[1:] + "-" if self.suffix else ""
        return f"{shard}part-{number:06}"

    def prepare(self) -> None:
        """Make the folders. Raises ``InvalidConfig`` if something of somebody else is in the way."""
        target = self.single if self.single is not None else self.root
        if self.single is not None:
            if self.single.exists() and not self.final_manifest.exists() and not self.manifest.exists():
                raise InvalidConfig(f"--output: {target} is there already and has no manifest; use --overwrite", param="output")
        elif self.root.is_dir() and any(self.root.iterdir()) and not any(self.root.glob(f"{MANIFEST}*.jsonl")):
            ours = {p.name for p in self.root.iterdir()} <= {"data", "errors"} or any(self.root.glob(".lock*"))
            if not ours:
                raise InvalidConfig(f"--output: {target} holds something else, and no manifest", param="output")
        for folder in (self.root, self.data, self.failed):
            folder.mkdir(exist_ok=True)

    def clear(self) -> None:
        """Remove all that this job has written."""
        for folder in (self.data, self.failed):
            for path in [*folder.glob(f"{self.part(0)[:-6]}*"), *folder.glob(f".{self.part(0)[:-6]}*")]:
                remove(path)
        for path in filter(None, (self.manifest, self.errors, self.final_manifest, self.single)):
            remove(path)
            remove(part_of(path))
        self.tidy()

    def tidy(self) -> None:
        """Remove unfinished files, and the folder of work of a single file that is complete."""
        for folder in (self.data, self.failed):
            for path in folder.glob(f".{self.part(0)[:-6]}*.part"):
                remove(path)
        if self.single is not None and self.final_manifest.exists():
            shutil.rmtree(self.root, ignore_errors=True)

    def remove_empty(self) -> None:
        """Remove folders that nothing came into. Those that shards share stay: another job may be about to use them."""
        for folder in (self.failed, self.data, self.root):
            if not self.suffix and folder.is_dir() and not any(folder.iterdir()):
                folder.rmdir()
