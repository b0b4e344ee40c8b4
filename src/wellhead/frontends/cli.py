"""The command line: ``wellhead extract``, ``wellhead verify``, ``wellhead fit``, ``wellhead serve``, ``wellhead build``."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence

import wellhead
from wellhead.errors import WellheadError


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; its exit status. 0: done; 1: some rows failed, or the engine died; 2: refused, with a reason on stderr."""
    args = build_parser().parse_args(argv)
    logging.basicConfig(level=args.log_level.upper(), format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    try:
        return int(args.run(args))
    except WellheadError as error:
        print(f"wellhead: {error.code}: {error.message}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("wellhead: interrupted", file=sys.stderr)
        return 130


def build_parser() -> argparse.ArgumentParser:
    """The parser of all commands. Commands import what they need when they run, so that ``--help`` is quick."""
    parser = argparse.ArgumentParser(prog="wellhead", description=wellhead.__doc__)
    parser.add_argument("--version", action="version", version=f"wellhead {wellhead.__version__}")
    parser.add_argument("--log-level", default="warning", choices=["debug", "info", "warning", "error"])
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_extract(commands)
    _add_fit(commands)
    _add_serve(commands)
    build = commands.add_parser("build", help="compile the CPU kernels ahead of their first use")
    build.set_defaults(run=_build)
    return parser


def _add_extract(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    from wellhead.frontends.bulk import options, verify

    parser = commands.add_parser("extract", help="a data set in, a data set of vectors out")
    options.add_arguments(parser)
    parser.set_defaults(run=_extract)
    parser = commands.add_parser("verify", help="check what extract has written")
    verify.add_arguments(parser)
    parser.set_defaults(run=verify.run)


def _extract(args: argparse.Namespace) -> int:
    from wellhead.frontends.bulk.run import run

    return run(args)


def _add_fit(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    from wellhead.frontends import fit

    parser = commands.add_parser("fit", help="a head from vectors, or from texts, with labels")
    fit.add_arguments(parser)
    parser.set_defaults(run=fit.run)


def _add_serve(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    try:
        from wellhead.frontends.http.serve import add_arguments
        from wellhead.frontends.scale.options import add_scale_arguments
    except ImportError as missing:
        parser = commands.add_parser("serve", help="the HTTP server (needs: pip install 'wellhead[server]')")
        parser.set_defaults(run=_no_server(missing))
        return
    parser = commands.add_parser("serve", help="the HTTP server")
    add_arguments(parser)
    add_scale_arguments(parser)
    parser.set_defaults(run=_serve)


def _serve(args: argparse.Namespace) -> int:
    from wellhead.frontends.scale.options import scale_options

    scale = scale_options(args)
    if scale is not None:
        from wellhead.frontends.scale.serve import run as run_many

        return run_many(args, scale)
    from wellhead.frontends.http.serve import run

    return run(args)


def _no_server(missing: ImportError) -> object:
    def run(args: argparse.Namespace) -> int:
        del args
        print(f"wellhead: the server needs more packages ({missing.name}): pip install 'wellhead[server]'", file=sys.stderr)
        return 2

    return run


def _build(args: argparse.Namespace) -> int:
    del args
    from wellhead.kernels.build import main as build_main

    return int(build_main() or 0)


if __name__ == "__main__":
    sys.exit(main())
