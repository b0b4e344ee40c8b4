"""How many files of the source one request crosses: those in which a function is entered, on any thread, until it is answered.

    python bench/walk.py [--model PATH/TO/MODEL] [--list]

The engine is warm: the same calls were made before, with other texts. ``Engine.extract`` of one text, from the call to its
return; ``POST /generate`` with ``"return_hidden_states": "last"``, from the body to the end of the answer. A profiler sees
every thread; what happens between the answer and its end (the engine settles the last step) is counted, too.
The aim is 16 and 26 files; a line per file says how many of its functions were entered.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import common
import httpx
import tokenizers

import wellhead as wh
from wellhead.frontends.http.options import ServerOptions
from wellhead.frontends.http.serve import Server, bind

SOURCE = str(Path(wh.__file__).parent)
WARM = ("the first of all", "one more")
ASKED = "a text"
SAMPLING = {"temperature": 0, "max_new_tokens": 2, "ignore_eos": True}


class Walk:
    """Which functions of the source are entered while it listens."""

    def __init__(self) -> None:
        self.listens = False
        self.entered: dict[str, set[str]] = defaultdict(set)

    def hook(self, frame: FrameType, event: str, argument: Any) -> None:
        """For ``threading.setprofile``; must be set before the threads begin."""
        del argument
        code = frame.f_code
        if self.listens and event == "call" and code.co_filename.startswith(SOURCE) and code.co_name != "<module>":
            self.entered[code.co_filename.removeprefix(SOURCE + "/")].add(code.co_qualname)

    def of(self, call: Callable[[str], Any]) -> dict[str, set[str]]:
        """The functions by file, of the last of several calls."""
        for text in WARM:
            call(text)
        self.entered = defaultdict(set)
        self.listens = True
        call(ASKED)
        self.listens = False
        return dict(self.entered)


def with_tokenizer(folder: Path) -> Path:
    """A copy of a model that has none, with a tokenizer of bytes."""
    if (folder / "tokenizer.json").exists():
        return folder
    made = Path(shutil.copytree(folder, Path(tempfile.mkdtemp()) / "model"))
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    backend = tokenizers.Tokenizer(tokenizers.models.BPE({letter: i for i, letter in enumerate(alphabet)}, []))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    backend.save(str(made / "tokenizer.json"))
    return made


def main() -> None:
    parser = common.arguments(__doc__ or "")
    parser.set_defaults(model="tiny")
    parser.add_argument("--list", action="store_true", help="the functions of each file, too")
    args = parser.parse_args()
    walk = Walk()
    threading.setprofile(walk.hook)
    sys.setprofile(walk.hook)
    folder = with_tokenizer(common.model_folder(args.model))
    with wh.Engine(model_path=str(folder), return_hidden_states_mode="full", max_total_tokens=4096) as engine:
        print_walk('Engine.extract(["a text"])', walk.of(lambda text: engine.extract([text])), args.list)
        server = Server(engine, ServerOptions(port=0))
        thread = threading.Thread(target=lambda: server.run(sockets=[bind("127.0.0.1", 0)]), daemon=True)
        thread.start()
        while not server.address:
            time.sleep(0.01)
        with httpx.Client(base_url=server.address, timeout=60) as http:

            def generate(text: str) -> None:
                body = {"text": text, "sampling_params": SAMPLING, "return_hidden_states": "last"}
                http.post("/generate", json=body).raise_for_status()

            print_walk('POST /generate with "last"', walk.of(generate), args.list)
        server.should_exit = True
        thread.join(60)


def print_walk(name: str, found: dict[str, set[str]], each: bool) -> None:
    print(f"{name}: {len(found)} files, {sum(map(len, found.values()))} functions")
    for file, functions in sorted(found.items()):
        print(f"  {file} {', '.join(sorted(functions)) if each else len(functions)}")


if __name__ == "__main__":
    main()
