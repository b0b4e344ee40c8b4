"""What comes after the last part: the rows that failed in one file, and the parts in one file if one was asked for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from wellhead.frontends.bulk.files import FileFacts, Reach, publish, remove
from wellhead.frontends.bulk.output.layout import Layout
from wellhead.frontends.bulk.output.manifest import Manifest
from wellhead.frontends.bulk.output.parts import NpyPart, ParquetFile
from wellhead.frontends.bulk.output.writer import write_failed

_NPY_ROWS = 4096


def complete(layout: Layout, manifest: Manifest, reach: Reach) -> Manifest:
    """Put together what belongs together and commit it; the final manifest. May be repeated after a kill at any point."""
    paths: list[Path] = []
    if layout.single is not None:
        _merge(layout, manifest)
        paths.append(layout.single)
        reach("merged")
    failed = [layout.failed / f"{layout.part(p.number)}.parquet" for p in manifest.ordered() if p.failed]
    if failed:
        write_failed(layout.errors, [pq.read_table(path) for path in failed])
        paths.append(layout.errors)
    else:
        remove(layout.errors)
    final = manifest if layout.single is None else Manifest(layout.final_manifest, manifest.header)
    root = final.path.parent
    final.whole = replace(manifest.total(), files=tuple(FileFacts.of(path, root) for path in paths))
    final.write()
    reach("finished")
    layout.tidy()
    return final


def _merge(layout: Layout, manifest: Manifest) -> None:
    assert layout.single is not None
    parts = [layout.root / p.files[0].path for p in manifest.ordered()]
    if layout.single.suffix.lower() == ".npy":
        _merge_npy(parts, layout.single)
    else:
        _merge_parquet(parts, layout.single)


def _merge_parquet(parts: list[Path], path: Path) -> None:
    """Row group by row group."""
    schema = pq.read_schema(parts[0])
    plain = [f.name for f in schema if not (f.metadata or {}).get(b"dtype")]
    file = ParquetFile(path, list(schema), {k.decode(): v.decode() for k, v in (schema.metadata or {}).items()}, plain)
    for part in parts:
        source = pq.ParquetFile(part)
        for i in range(source.num_row_groups):
            group = source.read_row_group(i).combine_chunks()
            if len(group):
                file.add([column.chunk(0) for column in group.columns])
    file.close()
    publish(path)


def _merge_npy(parts: list[Path], path: Path) -> None:
    first = np.load(parts[0], mmap_mode="r")
    file = NpyPart(path, "float16" if first.dtype == np.float16 else "float32", first.shape[1])
    for part in parts:
        rows = np.load(part, mmap_mode="r") if part.stat().st_size > 128 else first[:0]
        for at in range(0, len(rows), _NPY_ROWS):
            file.add_rows(rows[at : at + _NPY_ROWS])
    file.close()
