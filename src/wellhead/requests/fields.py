"""The one table of request fields: what each is called, what it may hold, where it is taken, what it means.

From here come the parsers' lists of what is allowed (``normalize``, ``sampling`` and the HTTP endpoints), the OpenAPI
page, and the tables in ``docs/http.md``. A new field is one ``Field`` here. If it is ``PASSED``, every endpoint that it names
hands it to the engine, and its values are checked once, in ``normalize``; if it is ``READ``, the endpoint reads it.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from wellhead.reductions import REDUCTIONS
from wellhead.types import DTYPES

Schema = Mapping[str, Any]
Place = Literal[
    "generate",
    "sampling_params",
    "completions",
    "chat",
    "embeddings",
    "hidden_states",
    "tokenize",
    "detokenize",
    "abort_request",
    "classify",
    "rerank",
    "score",
    "embed",
]


class Way(enum.Enum):
    """What becomes of a field."""

    READ = "the endpoint itself reads it"
    PASSED = "goes to the engine, under the engine's name"
    SAMPLING = "goes to the engine's sampling_params"
    HINT = "taken whatever it says: it asks for nothing that an answer could lack"
    IDLE = "not served: taken with values that ask for nothing, refused by name with any other"


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """A field of a request, in one or several places.

    ``schema``: JSON Schema of its values. ``default``: the value that is the same as none (``None``: there is no such value).
    ``example``: a value that works beside the place's own example (``EXAMPLES``) and the fields ``beside``; ``None`` there
    takes a field of that example away. ``engine``: the engine's names for it, the first of which it is handed over as.
    ``idle``: of a field that is not served, the values that ask for nothing.
    """

    name: str
    on: tuple[Place, ...]
    schema: Schema
    doc: str
    example: Any = None
    default: Any = None
    beside: Mapping[str, Any] = field(default_factory=dict)
    way: Way = Way.READ
    engine: tuple[str, ...] = ()
    idle: tuple[Any, ...] = ()
    required: bool = False


# --- shapes -----------------------------------------------------------------------------------------------------


def between(low: float, high: float | None = None, *, above: bool = False) -> Schema:
    """A number within bounds; ``above``: not the lowest itself."""
    top = {} if high is None else {"maximum": high}
    return {"type": "number", "exclusiveMinimum" if above else "minimum": low, **top}


def whole(low: int, high: int | None = None) -> Schema:
    """A whole number within bounds."""
    return {"type": "integer", "minimum": low, **({} if high is None else {"maximum": high})}


def any_of(*schemas: Schema) -> Schema:
    """One of several shapes."""
    return {"anyOf": list(schemas)}


def list_of(schema: Schema, **bounds: Any) -> Schema:
    """A list of one shape."""
    return {"type": "array", "items": schema, **bounds}


def one_or_many(schema: Schema) -> Schema:
    """A value, or one per prompt."""
    return any_of(schema, list_of(schema, minItems=1))


def words(*values: str) -> Schema:
    """One of some words."""
    return {"type": "string", "enum": list(values)}


STRING: Schema = {"type": "string"}
FILLED: Schema = {"type": "string", "minLength": 1}
BOOL: Schema = {"type": "boolean"}
OBJECT: Schema = {"type": "object"}
COUNT = whole(0)
IDS = list_of(COUNT, minItems=1)
TEXTS = list_of(FILLED, minItems=1)
INPUT = any_of(FILLED, TEXTS, IDS, list_of(IDS, minItems=1))
MODE = any_of(BOOL, words("last"))  # and an object, see READ
RID: Schema = {"type": "string", "minLength": 1, "maxLength": 256}
RIDS = any_of(RID, list_of(RID, minItems=1, uniqueItems=True))
LAYERS = list_of(any_of({"type": "integer"}, words("L:pre_norm")), minItems=1, uniqueItems=True)
#: Words for rows, see ``reads.parse_rows``; -2**31 < a number < 2**31.
NUMBER: Schema = {"type": "integer", "minimum": 1 - 2**31, "maximum": 2**31 - 1}
SPAN = list_of(COUNT, minItems=2, maxItems=2)
EXCLUDED: Schema = {
    "type": "object", "additionalProperties": False,
    "properties": {"special": BOOL, "token_ids": list_of(NUMBER), "positions": list_of(NUMBER)},
}  # fmt: skip
ROWS_OBJECT: Schema = {
    "type": "object", "additionalProperties": False,
    "properties": {
        "part": words("prompt", "output", "all"), "start": NUMBER, "stop": NUMBER, "step": whole(1, 2**31 - 1),
        "positions": list_of(NUMBER), "token_ids": list_of(COUNT), "last": whole(1),
        "chars": any_of(SPAN, list_of(SPAN, minItems=1)), "exclude": any_of(words("special"), EXCLUDED),
    },
}  # fmt: skip
WINDOW: Schema = {"type": "string", "pattern": r"^\s*(-?\d{1,9})?\s*:\s*(-?\d{1,9})?\s*(:\s*(0*[1-9]\d*)?\s*)?$"}
ROWS_WORDS = any_of(words("last", "all", "prompt", "output"), WINDOW, NUMBER, list_of(NUMBER), ROWS_OBJECT)
REDUCE = words(*REDUCTIONS)
READ: Schema = {
    "type": "object", "additionalProperties": False, "minProperties": 1,
    "properties": {"rows": ROWS_WORDS, "reduce": REDUCE, "layers": LAYERS},
}  # fmt: skip
HEAD: Schema = {
    "type": "object", "additionalProperties": False,
    "properties": {
        "rows": ROWS_WORDS, "reduce": REDUCE, "on": words("prompt", "output", "both"),
        "aggregate": {"anyOf": [{"type": "string"}, {"type": "object"}]},
    },
}  # fmt: skip
HEADS: Schema = {
    "anyOf": [
        {"type": "array", "items": {"type": "string", "minLength": 1}, "maxItems": 256, "uniqueItems": True},
        {"type": "object", "maxProperties": 256, "additionalProperties": HEAD},
    ]
}
STOP_ON: Schema = {
    "type": "object", "additionalProperties": False, "required": ["head", "label"],
    "properties": {
        "head": FILLED, "label": FILLED, "threshold": {"type": "number"}, "hold": {"enum": [0, 1, True, False]},
        "on": words("row", "aggregate"),
    },
}  # fmt: skip
READS: Schema = {
    "type": "object", "minProperties": 1, "maxProperties": 64, "propertyNames": {"pattern": r"^[\w.:-]{1,64}$"},
    "additionalProperties": {**READ, "minProperties": 0},
}  # fmt: skip
TIMEOUT = between(0, above=True)
STOP: Schema = {"type": "string", "minLength": 1, "maxLength": 1024}
STOPS = any_of(STOP, list_of(STOP, maxItems=64))
SEED = whole(0, 2**63 - 1)
BIAS: Schema = {"type": "object", "propertyNames": {"pattern": "^[0-9]+$"}, "additionalProperties": {"type": "number"}}
OPENAI_BIAS: Schema = {**BIAS, "additionalProperties": between(-100, 100)}
ID_LISTS = any_of(list_of(COUNT), list_of(list_of(COUNT)))
PART: Schema = {"type": "object", "required": ["type", "text"], "properties": {"type": words("text"), "text": STRING}}
MESSAGE: Schema = {
    "type": "object",
    "required": ["role"],
    "properties": {"role": STRING, "content": any_of(STRING, list_of(PART), {"type": "null"})},
}
MESSAGES = list_of(MESSAGE, minItems=1)
DOCUMENT = any_of(STRING, {"type": "object", "required": ["text"], "properties": {"text": STRING}})
DOCUMENTS = list_of(DOCUMENT, minItems=1)
QUERIES = any_of(FILLED, list_of(DOCUMENT, minItems=1))
SIDE = any_of(STRING, list_of(DOCUMENT, minItems=1))

# --- the table --------------------------------------------------------------------------------------------------

OPENAI: tuple[Place, ...] = ("completions", "chat")
SAMPLED: tuple[Place, ...] = ("sampling_params", *OPENAI)
EVERYWHERE: tuple[Place, ...] = (
    "completions", "chat", "embeddings", "hidden_states", "tokenize", "detokenize", "classify", "rerank", "score",
)  # fmt: skip
TASKS: tuple[Place, ...] = ("classify", "rerank", "score", "embed")
_ROWS = {"return_hidden_states": "last"}
_LOGPROBS = {"return_logprob": True}
_PROMPT = ("text", "input_ids")
_TEXTS = {"documents": None, "texts": ["a text", "another"]}
_NEW_TOKENS = ("sampling_params.max_new_tokens", "max_new_tokens")


def _sampling(name: str, schema: Schema, doc: str, example: Any, default: Any = None, on: tuple[Place, ...] = SAMPLED) -> Field:
    return Field(name=name, on=on, schema=schema, doc=doc, example=example, default=default, way=Way.SAMPLING)


def _hint(name: str, schema: Schema, doc: str, example: Any) -> Field:
    return Field(name=name, on=("completions", "chat", "embeddings"), schema=schema, doc=doc, example=example, way=Way.HINT)


def _idle(name: str, doc: str, *values: Any, on: tuple[Place, ...] = OPENAI) -> Field:
    schema: Schema = {"enum": list(values)} if values else {"type": "null"}
    return Field(name=name, on=on, schema=schema, doc=doc, example=values[0] if values else None, way=Way.IDLE, idle=values)


TABLE: tuple[Field, ...] = (
    # prompts
    Field(name="model", on=EVERYWHERE, schema=STRING, doc="the served name, the model's path or `default`; another name is a 404",
          example="default"),
    Field(name="text", on=("generate",), schema=any_of(FILLED, TEXTS), doc="one prompt or a batch; or `input_ids`",
          example="one text"),
    Field(name="input_ids", on=("generate",), schema=any_of(IDS, list_of(IDS, minItems=1)), doc="token ids, or lists of them",
          example=[1, 2, 3], beside={"text": None}),
    Field(name="input", on=("hidden_states", "embeddings"), schema=INPUT, doc="a text, texts, token ids, or lists of token ids",
          example="one text", required=True, engine=_PROMPT),
    Field(name="prompt", on=("completions",), schema=INPUT, doc="a text, texts, token ids, or lists of token ids",
          example="one text", required=True, engine=_PROMPT),
    Field(name="messages", on=("chat",), schema=MESSAGES, required=True, engine=_PROMPT,
          doc="role and content; the content is a text, or parts of type `text`, which are joined by line ends",
          example=[{"role": "user", "content": [{"type": "text", "text": "Name a city."}]}]),
    # what to sample
    Field(name="sampling_params", on=("generate",), doc="one object, or one per prompt; its fields are below",
          schema=one_or_many({"$ref": "sampling_params"}), example={"max_new_tokens": 2}),
    Field(name="sampling_params", on=("hidden_states",), schema={"$ref": "sampling_params of hidden_states"},
          doc="how to draw them: as in `/generate`, without `n` and `max_new_tokens`", example={"temperature": 0},
          beside={"max_new_tokens": 2}),
    Field(name="max_new_tokens", on=("hidden_states",), schema=COUNT, default=0, example=2, engine=_NEW_TOKENS,
          doc="generate as well; the rows of the output then follow those of the prompt"),
    Field(name="max_new_tokens", on=("sampling_params",), schema=COUNT, default=128, example=2, way=Way.SAMPLING,
          doc="tokens to generate; 0: none, the prompt is read all the same"),
    Field(name="max_tokens", on=("completions",), schema=COUNT, default=16, example=2, engine=_NEW_TOKENS,
          doc="tokens to generate"),
    Field(name="max_tokens", on=("chat",), schema=COUNT, example=2, engine=_NEW_TOKENS,
          doc="tokens to generate; by default all that the context and the KV pool leave"),
    Field(name="max_completion_tokens", on=("chat",), schema=COUNT, example=2, beside={"max_tokens": None},
          doc="OpenAI's newer name of `max_tokens`"),
    _sampling("min_new_tokens", COUNT, "no end before so many tokens", 1, 0, on=("sampling_params",)),
    Field(name="min_tokens", on=OPENAI, schema=COUNT, default=0, example=1, way=Way.SAMPLING, doc="no end before so many tokens",
          engine=("sampling_params.min_new_tokens", "min_new_tokens")),
    _sampling("temperature", between(0), "0 is greedy", 0.5, 1),
    _sampling("top_p", between(0, 1, above=True), "draw from the likeliest tokens that have this share", 0.9, 1),
    _sampling("top_k", any_of({"const": -1}, whole(1)), "draw from so many of the likeliest; -1: all", 5, -1),
    _sampling("min_p", between(0, 1), "draw from tokens with this share of the likeliest one's probability", 0.1, 0),
    _sampling("frequency_penalty", between(-2, 2), "lowers a token's logit by this for each time that it came", 0.5, 0),
    _sampling("presence_penalty", between(-2, 2), "lowers a token's logit by this if it came", 0.5, 0),
    _sampling("repetition_penalty", between(0, 2, above=True), "weakens tokens of prompt and output; 1: none", 1.1, 1),
    _sampling("n", whole(1, 128), "samples per prompt", 2, 1),
    _sampling("stop", STOPS, "one text or up to 64 that end the answer", ["\n"], []),
    _sampling("stop_regex", STOPS, "the same as regular expressions", "\\d{9}", []),
    _sampling("stop_token_ids", list_of(COUNT), "tokens that end the answer", [3], []),
    _sampling("no_stop_trim", BOOL, "keep what ended it in the text", True, False),
    _sampling("ignore_eos", BOOL, "go on after the model's own end", True, False),
    _sampling("skip_special_tokens", BOOL, "leave special tokens out of the text", False, True),
    _sampling("spaces_between_special_tokens", BOOL, "a space between neighbouring special tokens", False, True),
    _sampling("logit_bias", BIAS,
              "token id -> number, added to its logit", {"3": -100}, {}, on=("sampling_params",)),
    _sampling("logit_bias", OPENAI_BIAS,
              "token id -> number from -100 to 100, added to its logit", {"3": -100}, {}, on=OPENAI),
    _sampling("sampling_seed", SEED, "the same seed, the same draws; default: from the server's `--random-seed`", 7,
              on=("sampling_params",)),
    Field(name="seed", on=OPENAI, schema=SEED, example=7, way=Way.SAMPLING, engine=("sampling_params.sampling_seed",),
          doc="the same seed, the same draws; default: from the server's `--random-seed`"),
    Field(name="best_of", on=("completions",), schema=whole(1, 128), example=2, beside={"n": 2},
          doc="refused unless it equals `n`"),
    Field(name="echo", on=("completions",), schema=BOOL, default=False, example=True,
          doc="the prompt in front of the text, with its logprobs if they are asked for"),
    # chats
    Field(name="chat_template_kwargs", on=("chat",), schema=OBJECT, default={}, example={"enable_thinking": False},
          doc="variables of the model's own template"),
    Field(name="add_generation_prompt", on=("chat",), schema=BOOL, example=True,
          doc="open the assistant's turn; default: unless the last message is continued"),
    Field(name="continue_final_message", on=("chat",), schema=BOOL, default=False, example=True,
          beside={"messages": [{"role": "user", "content": "Name a city."}, {"role": "assistant", "content": "One is"}]},
          doc="go on with the last message instead of a new one"),
    # hidden states
    Field(name="mode", on=("hidden_states",), schema=words("last", "full", "mean"), default="last", example="full",
          engine=("return_hidden_states",),
          doc="`last`: one vector per prompt; `full`: every row (needs the ceiling `full`); `mean`: the mean over all rows "
              "(likewise)"),
    Field(name="layers", on=("hidden_states",), schema=LAYERS, example=[-1], way=Way.PASSED, engine=("hidden_states_layers",),
          doc="numbers as in Hugging Face; only those of `--capture-layers`"),
    Field(name="pooling", on=("hidden_states",), schema=words("none", "mean"), default="none", example="mean",
          engine=("hidden_states_pooling",), doc="`mean`: over all rows, whatever the mode"),
    Field(name="dtype", on=("hidden_states",), schema=words("auto", *DTYPES), default="auto", example="float32",
          doc="`auto`: the model's own; in JSON float32. `float32`, `bfloat16`, `float16`"),
    Field(name="return_input_ids", on=("hidden_states",), schema=BOOL, default=False, example=True,
          doc="the token ids that were used, in the facts"),
    Field(name="return_hidden_states", on=("generate",), schema=one_or_many(any_of(MODE, READ)), default=False, example=True,
          way=Way.PASSED, doc="`false`, `\"last\"`, `true`, or an object with `rows`, `reduce`, `layers`; one, or one per "
                              "prompt. [Which row is which](hidden-states.md)"),
    Field(name="return_hidden_states", on=OPENAI, schema=any_of(MODE, READ), default=False, example=True, way=Way.PASSED,
          doc="`false`, `\"last\"`, `true`, or an object with `rows`, `reduce`, `layers`, for all "
              "prompts; the rows are in `choices[i].hidden_states`"),
    Field(name="hidden_states_layers", on=("generate", *OPENAI), schema=LAYERS, example=[-1], beside=_ROWS, way=Way.PASSED,
          doc="layers by number (then an object from number to rows)"),
    Field(name="hidden_states_pooling", on=("generate", *OPENAI), schema=words("none", "mean"), default="none", example="mean",
          beside=_ROWS, way=Way.PASSED, doc="`mean`: one vector, the mean over all rows"),
    Field(name="incremental_hidden_states", on=("generate",), schema=BOOL, default=False, example=True, way=Way.PASSED,
          beside={"stream": True, "return_hidden_states": True},
          doc="in a stream, with `true` and without pooling: each event carries the entries since the one before it"),
    Field(name="hidden_states_format", on=("generate", *OPENAI), schema=words("float", "list", "base64"), default="float",
          example="base64", beside=_ROWS,
          doc="`float` (also called `list`): nested lists; `base64`: `{\"dtype\", \"shape\", \"prompt_rows\", \"data\"}`, all "
              "rows in one little-endian block, of which the first `prompt_rows` are the prompt's"),
    Field(name="hidden_states_format", on=("hidden_states",), schema=words("float", "list", "base64"), default="float",
          example="base64", doc="of an answer in JSON, as in `/generate`"),
    Field(name="hidden_states_dtype", on=("generate", *OPENAI), schema=words(*DTYPES), example="float16",
          beside={**_ROWS, "hidden_states_format": "base64"}, doc="with `base64`: `float32` (default), `bfloat16`, `float16`"),
    Field(name="rows", on=("hidden_states",), schema=ROWS_WORDS, example={"last": 2}, way=Way.PASSED,
          engine=("hidden_states_rows",), doc="which rows, in [any of these words](hidden-states.md#rows); in place of `mode`"),
    Field(name="reduce", on=("hidden_states",), schema=REDUCE, example="mean", way=Way.PASSED,
          engine=("hidden_states_reduce",), doc="what becomes of them; by default nothing, or the one row if one is meant"),
    Field(name="return_token_ids", on=("hidden_states",), schema=BOOL, default=False, example=True, way=Way.PASSED,
          engine=("hidden_states_token_ids",), doc="the rows' tokens, as `token_ids` beside their positions (not in `.npy`)"),
    Field(name="hidden_states_rows", on=("generate", *OPENAI), schema=ROWS_WORDS, example="-2:", way=Way.PASSED,
          doc="which rows, in [any of these words](hidden-states.md#rows): `\"last\"`, `\"all\"`, `\"prompt\"`, `\"output\"`, a "
              "position, `\"start:stop:step\"`, a list of positions, or an object"),
    Field(name="hidden_states_reduce", on=("generate", *OPENAI), schema=REDUCE, example="mean", way=Way.PASSED,
          doc="what becomes of these rows (of all, if none are named)"),
    Field(name="hidden_states_token_ids", on=("generate", *OPENAI), schema=BOOL, default=False, example=True, beside=_ROWS,
          way=Way.PASSED, doc="the rows' tokens, in `hidden_states_token_ids`"),
    Field(name="reads", on=("generate", *OPENAI), schema=READS, way=Way.PASSED,
          example={"a": {"rows": "last"}, "b": {"rows": "prompt", "reduce": "mean"}},
          doc="several wishes by name, each an object with `rows`, `reduce`, `layers`; from one pass. The reply's `reads` has "
              "them by name"),
    Field(name="reads", on=("hidden_states",), schema=READS, way=Way.PASSED,
          example={"a": {"rows": "last"}, "b": {"rows": "prompt", "reduce": "mean"}},
          doc="several wishes by name, each an object with `rows`, `reduce`, `layers`, from one pass; in JSON alone, as "
              "`data[i].reads`, by name"),
    # heads
    Field(name="heads", on=("generate", *OPENAI, "hidden_states"), schema=HEADS, default=[], example=[], way=Way.PASSED,
          doc="heads that judge the prompt and the rows of the answer: a list of names, or an object from name to `rows`, "
              "`reduce`, `on`, `aggregate`; see [heads](heads.md#serving)"),
    Field(name="stop_on", on=("generate", *OPENAI, "hidden_states"), schema=STOP_ON, way=Way.PASSED,
          doc="a verdict that ends the answer: `head`, `label`, `threshold`, and `hold` 0 to send tokens before they are judged"),
    # embeddings
    Field(name="encoding_format", on=("embeddings",), schema=words("float", "base64"), default="float", example="base64",
          doc="`base64`: little-endian float32"),
    Field(name="dimensions", on=("embeddings",), schema=whole(1), example=4,
          doc="keep so many first numbers, then scale; at most the model's width, which is the default"),
    Field(name="pooling", on=("embeddings",), schema=words("last", "mean"), default="last", example="mean",
          engine=("hidden_states_pooling", "return_hidden_states"),
          doc="`last`: the last token's row; `mean`: the mean of all rows (needs the ceiling `full`)"),
    Field(name="normalize", on=("embeddings",), schema=BOOL, default=True, example=False,
          doc="scale to length 1; without it a vector is that of the other endpoints"),
    Field(name="normalize", on=("embed",), schema=BOOL, default=True, example=False, doc="scale to length 1"),
    Field(name="dimensions", on=("embed",), schema=whole(1), example=4, doc="keep so many first numbers, then scale"),
    Field(name="prompt_name", on=("embeddings", "embed"), schema=STRING, example=None,
          doc="one of the model's own prompts, put in front of each text; such as `query`"),
    Field(name="prompt", on=("embeddings",), schema=STRING, example="query: ", doc="a text of your own in front of each text"),
    Field(name="inputs", on=("embed",), schema=INPUT, doc="a text, texts, token ids, or lists of token ids", example="one text",
          required=True, engine=_PROMPT),
    Field(name="truncate", on=("embed",), schema=BOOL, default=False, example=True, doc="cut texts that are too long"),
    # labels and scores
    Field(name="input", on=("classify",), schema=INPUT, doc="a text, texts, token ids, or lists of token ids (vLLM's answer)",
          example="one text"),
    Field(name="messages", on=("classify",), schema=MESSAGES, doc="a chat, by the model's own template; in place of `input`",
          example=[{"role": "user", "content": "Name a city."}], beside={"input": None}),
    Field(name="text", on=("classify",), schema=any_of(FILLED, TEXTS), doc="a text or several (the answer is SGLang's)",
          example="one text", beside={"input": None}),
    Field(name="input_ids", on=("classify",), schema=any_of(IDS, list_of(IDS, minItems=1)), doc="the same as token ids",
          example=[1, 2, 3], beside={"input": None}),
    Field(name="use_activation", on=("classify",), schema=BOOL, example=False,
          doc="`true`: what the model's problem type makes of the scores (default, but for `text`); `false`: the scores"),
    Field(name="query", on=("rerank",), schema=FILLED, required=True, doc="what is looked for", example="where?"),
    Field(name="documents", on=("rerank",), schema=DOCUMENTS, doc="texts, or objects with a `text` (the answer is Cohere's)",
          example=["a text", {"text": "another"}]),
    Field(name="texts", on=("rerank",), schema=DOCUMENTS, doc="the same (the answer is text-embeddings-inference's)",
          example=["a text", "another"], beside={"documents": None}),
    Field(name="top_n", on=("rerank",), schema=COUNT, example=1, default=0, doc="so many of the best; 0: all"),
    Field(name="return_documents", on=("rerank",), schema=BOOL, default=False, example=True, doc="the documents as well"),
    Field(name="return_text", on=("rerank",), schema=BOOL, example=True, beside=_TEXTS, doc="likewise, with `texts`"),
    Field(name="raw_scores", on=("rerank",), schema=BOOL, example=True, beside=_TEXTS,
          doc="the logits behind the probabilities, with `texts`"),
    Field(name="use_activation", on=("rerank", "score"), schema=BOOL, default=True, example=False,
          doc="`false`: the logits behind the probabilities"),
    Field(name="instruct", on=("rerank", "score"), schema=STRING,
          doc="what the query is about, for models whose prompt has a place for it"),
    Field(name="instruction", on=("rerank", "score"), schema=STRING, doc="the same as `instruct`"),
    Field(name="truncate", on=("rerank", "score"), schema=BOOL, default=True, example=False,
          doc="cut a document that is too long for the context, and nothing but the document"),
    Field(name="max_tokens_per_doc", on=("rerank", "score"), schema=whole(1), example=4, doc="cut documents to so many tokens"),
    Field(name="max_tokens_per_query", on=("score",), schema=whole(1), example=4, doc="cut queries likewise"),
    Field(name="queries", on=("score",), schema=QUERIES, doc="one text, or one for each document", example="where?"),
    Field(name="documents", on=("score",), schema=SIDE, doc="a text, texts, or objects with a `text`",
          example=["a text", "another"]),
    Field(name="items", on=("score",), schema=SIDE, doc="the same as `documents`", example="a text", beside={"documents": None}),
    *(Field(name=name, on=("score",), schema=QUERIES if newer == "queries" else SIDE, doc=f"an older name of `{newer}`",
            example="a text", beside={"queries": None, "documents": None, other: "one text"})
      for name, other, newer in (("data_1", "data_2", "queries"), ("data_2", "data_1", "documents"),
                                 ("text_1", "text_2", "queries"), ("text_2", "text_1", "documents"))),
    # log-probabilities
    Field(name="return_logprob", on=("generate",), schema=one_or_many(BOOL), default=False, example=True, way=Way.PASSED,
          doc="log-probabilities as `[value, token id, text or null]`; `null` for a value that nothing predicts (the first "
              "token's) or that is not finite. The four fields below need it"),
    Field(name="logprob_start_len", on=("generate",), schema=one_or_many(whole(-1)), default=-1, example=0, beside=_LOGPROBS,
          way=Way.PASSED, doc="those of the prompt too, from this position on; -1: none"),
    Field(name="top_logprobs_num", on=("generate",), schema=one_or_many(COUNT), default=0, example=2, beside=_LOGPROBS,
          way=Way.PASSED, doc="the likeliest alternatives at each position"),
    Field(name="token_ids_logprob", on=("generate",), schema=ID_LISTS, default=[], example=[3, 4],
          beside=_LOGPROBS, way=Way.PASSED, doc="tokens whose values are wanted at each position; one list, or one per prompt"),
    Field(name="return_text_in_logprobs", on=("generate",), schema=BOOL, default=False, example=True, beside=_LOGPROBS,
          way=Way.PASSED, doc="the tokens' texts beside their ids"),
    Field(name="logprobs", on=("completions",), schema=whole(0, 20), example=2,
          engine=("top_logprobs_num", "return_logprob"),
          doc="log-probabilities, with so many alternatives; minus infinity is written as -9999"),
    Field(name="logprobs", on=("chat",), schema=BOOL, default=False, example=True, engine=("return_logprob",),
          doc="log-probabilities of the tokens"),
    Field(name="top_logprobs", on=("chat",), schema=whole(0, 20), default=0, example=2, beside={"logprobs": True},
          engine=("top_logprobs_num",), doc="alternatives at each position; needs `logprobs`"),
    # how it travels
    Field(name="stream", on=("generate", *OPENAI), schema=BOOL, default=False, example=True, way=Way.PASSED,
          doc="server-sent events; see [streams](#streams)"),
    Field(name="stream_options", on=OPENAI, example={"include_usage": True}, beside={"stream": True},
          schema={"type": "object", "additionalProperties": False,
                  "properties": {"include_usage": BOOL, "include_obfuscation": {"enum": [False]}}},
          doc="with `stream`: `include_usage` sends the usage in a last chunk; `include_obfuscation` must be false"),
    Field(name="rid", on=("generate", "hidden_states", "embeddings", *TASKS), schema=RIDS, example="mine",
          way=Way.PASSED, doc="your name for the request (or one per prompt), for `/abort_request`"),
    Field(name="rid", on=OPENAI, schema=RID, example="mine", way=Way.PASSED,
          doc="your name for the request, for `/abort_request`"),
    Field(name="timeout", on=("generate", *EVERYWHERE[:4], *TASKS), schema=TIMEOUT, example=30, way=Way.PASSED,
          doc="seconds; `--request-timeout` is the upper bound"),
    # tokens and aborts
    Field(name="prompt", on=("tokenize",), schema=any_of(STRING, list_of(STRING)), doc="one text or several", example="one text"),
    Field(name="text", on=("tokenize",), schema=any_of(STRING, list_of(STRING)), doc="the same as `prompt`", example="one text",
          beside={"prompt": None}),
    Field(name="messages", on=("tokenize",), schema=MESSAGES, doc="the ids of a chat, as `/v1/chat/completions` makes them",
          example=[{"role": "user", "content": "Name a city."}], beside={"prompt": None}),
    Field(name="add_special_tokens", on=("tokenize",), schema=BOOL, default=True, example=False,
          doc="with a text: the tokenizer's own first and last tokens"),
    Field(name="add_generation_prompt", on=("tokenize",), schema=BOOL, default=True, example=False,
          beside={"prompt": None, "messages": [{"role": "user", "content": "Name a city."}]},
          doc="with messages: open the assistant's turn"),
    Field(name="tokens", on=("detokenize",), schema=ID_LISTS, required=True, example=[[5], [6, 7]],
          doc="ids, or lists of ids"),
    Field(name="skip_special_tokens", on=("detokenize",), schema=BOOL, default=True, example=False,
          doc="leave special tokens out of the text"),
    Field(name="rid", on=("abort_request",), schema=FILLED, example="mine", doc="end all samples of this request"),
    Field(name="abort_all", on=("abort_request",), schema=BOOL, default=False, example=True, beside={"rid": None},
          doc="end everything"),
    # hints: nothing in an answer could show whether they were followed
    _hint("user", STRING, "who asks", "someone"),
    _hint("safety_identifier", STRING, "who asks, as a hash", "a1b2"),
    _hint("prompt_cache_key", STRING, "which requests share prefixes: the prefix tree finds out by itself", "chat-1"),
    _hint("prompt_cache_retention", STRING, "how long to keep prefixes: as long as there is room", "24h"),
    _hint("prompt_cache_options", OBJECT, "likewise", {"mode": "implicit"}),
    _hint("metadata", {"type": "object", "additionalProperties": STRING}, "labels of answers that are stored; none are",
          {"run": "1"}),
    _hint("service_tier", STRING, "there is one tier", "flex"),
    _hint("prediction", OBJECT, "a guess at the answer, which may only make it faster",
          {"type": "content", "content": "a guess"}),
    _hint("parallel_tool_calls", BOOL, "there are no tools to call", True),
    # not served: what would change the answer, or what is sent with it
    _idle("store", "answers are not stored", False),
    _idle("verbosity", "the model is not told how long to be", "medium"),
    _idle("suffix", "nothing is written between two texts", ""),
    _idle("modalities", "text only", ["text"]),
    _idle("response_format", "no grammars", {"type": "text"}),
    _idle("tools", "no tools", []),
    _idle("tool_choice", "no tools", "none", "auto"),
    _idle("functions", "no tools", []),
    _idle("function_call", "no tools", "none", "auto"),
    _idle("audio", "text only"),
    _idle("moderation", "no second model judges the answer"),
    _idle("reasoning_effort", "say it in `chat_template_kwargs`, if the model's template knows of it"),
    _idle("web_search_options", "nothing is looked up"),
    _idle("chat_template", "the template is the model's own"),
    *(_idle(name, "SGLang's; not served", False, on=("generate",)) for name in (
        "input_embeds", "image_data", "video_data", "audio_data", "modalities", "session_params", "lora_path", "lora_id",
        "custom_logit_processor", "bootstrap_host", "bootstrap_port", "bootstrap_room", "data_parallel_rank", "priority",
        "return_routed_experts", "extra_key", "background", "conversation_id", "custom_labels", "no_logs", "log_metrics",
        "return_entropy", "token_indices_hidden_states", "routed_dp_rank", "return_prompt_token_ids",
    )),
    *(_idle(name, "SGLang's; not served", on=("sampling_params",)) for name in (
        "json_schema", "regex", "ebnf", "structural_tag", "custom_params", "stream_interval", "beam_width",
    )),
)  # fmt: skip

#: A request to each place that works as it is, against any server that has a tokenizer and the ceiling ``full``.
EXAMPLES: Mapping[Place, Mapping[str, Any]] = {
    "generate": {
        "text": "The capital of France is",
        "sampling_params": {"max_new_tokens": 8, "temperature": 0},
        "return_hidden_states": "last",
    },
    "sampling_params": {"max_new_tokens": 8, "temperature": 0},
    "completions": {
        "model": "default",
        "prompt": "The capital of France is",
        "max_tokens": 8,
        "temperature": 0,
        "return_hidden_states": "last",
    },
    "chat": {
        "model": "default",
        "messages": [{"role": "user", "content": "Name a city."}],
        "max_tokens": 8,
        "temperature": 0,
        "return_hidden_states": "last",
    },
    "embeddings": {"model": "default", "input": ["one text", "another"], "encoding_format": "float"},
    "hidden_states": {"input": ["one text", "another"], "mode": "last"},
    "classify": {"model": "default", "input": ["one text", "another"]},
    "rerank": {"model": "default", "query": "where?", "documents": ["a text", "another"]},
    "score": {"model": "default", "queries": "where?", "documents": ["a text", "another"]},
    "embed": {"inputs": ["one text", "another"]},
    "tokenize": {"prompt": "one text"},
    "detokenize": {"tokens": [5, 6, 7]},
    "abort_request": {"rid": "some-request"},
}

# --- what others read of it -------------------------------------------------------------------------------------


def at(place: Place, *ways: Way) -> Mapping[str, Field]:
    """The fields of a place by name, in the table's order; ``ways``: only those."""
    return {f.name: f for f in TABLE if place in f.on and (not ways or f.way in ways)}


def called(place: Place) -> Mapping[str, str]:
    """The engine's names of fields -> what callers of this place say, where that differs."""
    pairs = ((engines, f.name) for f in at(place).values() for engines in _engine_names(f, place))
    return {engines: name for engines, name in pairs if engines != name}


def _engine_names(f: Field, place: Place) -> tuple[str, ...]:
    if f.engine:
        return f.engine
    return (f"sampling_params.{f.name}",) if f.way is Way.SAMPLING and place != "sampling_params" else ()


def handed_over(payload: Mapping[str, Any], place: Place) -> dict[str, Any]:
    """What goes to the engine as it is, under the engine's names: ``PASSED`` fields, and ``SAMPLING`` ones in an object."""
    native = {f.engine[0] if f.engine else f.name: payload[f.name] for f in _given(payload, at(place, Way.PASSED))}
    sampled = at(place, Way.SAMPLING)
    if not sampled:
        return native
    params = {(f.engine[0] if f.engine else f.name).split(".")[-1]: payload[f.name] for f in _given(payload, sampled)}
    return {**native, "sampling_params": params}


def _given(payload: Mapping[str, Any], fields: Mapping[str, Field]) -> Iterator[Field]:
    return (f for f in fields.values() if f.name in payload)


def asks_for_nothing(f: Field, value: Any) -> bool:
    """Is this one of the values of a field that is not served which change nothing? (``1`` is not ``True``.)"""
    return value is None or any(type(value) is type(idle) and value == idle for idle in f.idle)


def required(fields: Iterable[Field]) -> list[str]:
    """The names of those that must be given."""
    return [f.name for f in fields if f.required]
