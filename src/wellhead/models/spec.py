"""What the one decoder needs to know of a model: a variant is a value, never a class.

No torch here: specs are read, compared and refused in milliseconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from wellhead.errors import UnsupportedModel
from wellhead.types import Activation, DType

RopeKind = Literal["default", "linear", "llama3", "yarn", "dynamic"]


@dataclass(frozen=True)
class RopeSpec:
    """One rotary table.

    ``dim`` is the number of rotated channels, always the whole head. ``original_context`` and the fields after it
    mean something only to the kinds named beside them, and keep their defaults elsewhere, so that equal tables
    compare equal.
    """

    theta: float
    dim: int
    kind: RopeKind = "default"
    factor: float = 1.0  # linear, llama3, yarn, dynamic
    original_context: int = 0  # llama3, yarn
    low_freq_factor: float = 1.0  # llama3
    high_freq_factor: float = 1.0  # llama3
    beta_fast: float = 32.0  # yarn
    beta_slow: float = 1.0  # yarn
    truncate: bool = True  # yarn
    attention_factor: float = 1.0  # yarn: scales cos and sin


@dataclass(frozen=True, slots=True)
class ScoreSpec:
    """The head that a checkpoint brings for a task of its own: ``labels`` scores of a final row.

    ``bias``: of the last matrix. ``inner``: two matrices with ReLU between them (``[H, H]`` and ``[labels, H]``, both with a
    bias), as Qwen2.5-Math's reward models have it. ``each``: it is meant for every row (or every step), not for one of a text.
    """

    labels: int
    bias: bool = False
    inner: bool = False
    each: bool = False


@dataclass(frozen=True)
class ModelSpec:
    """Everything that the decoder, the weights check and the engine ask of a model.

    Per-layer tuples have ``layers`` entries. ``windows[i]`` is ``None`` for full attention, else the number of keys
    that a query sees, itself included (the query at ``p`` sees ``p - window + 1 .. p``). ``ropes[i]`` is an index into
    ``rope_tables``, or ``None`` for a layer without rotary embedding. ``attn_scale`` multiplies ``q @ k``.

    ``qk_norm``: an RMS norm of ``head_dim`` on every query and key head, before the rotation. ``post_norms``: Gemma's
    two further norms a layer, on the outputs of attention and of the MLP before they join the residual.
    ``norm_plus_one``: every norm, q/k norms too, multiplies by ``1 + weight``. ``embed_scale`` multiplies the
    embeddings, after being rounded to the dtype in which the model runs.
    ``has_head``: False for a model without an LM head (then ``tied_head`` is False too): its rows are all that it gives.
    ``score``: the head of its own task, if it has one.
    ``logit_softcap``: ``cap * tanh(logits / cap)``.

    ``eos_token_ids`` may be empty: then nothing but a length or a stop string ends the text.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn_size: int
    activation: Activation
    norm_eps: float
    norm_plus_one: bool
    qkv_bias: bool
    o_bias: bool
    mlp_bias: bool
    qk_norm: bool
    post_norms: bool
    embed_scale: float
    attn_scale: float
    tied_head: bool
    logit_softcap: float | None
    windows: tuple[int | None, ...]
    ropes: tuple[int | None, ...]
    rope_tables: tuple[RopeSpec, ...]
    context_length: int
    dtype: DType
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]
    has_head: bool = True
    score: ScoreSpec | None = None

    def __post_init__(self) -> None:
        """Refuse what cannot be a model, so that the decoder never has to ask."""
        if self.heads % self.kv_heads:
            raise UnsupportedModel(f"{self.architecture}: {self.heads} heads are not a multiple of {self.kv_heads} kv heads")
        if self.head_dim % 2:
            raise UnsupportedModel(f"{self.architecture}: head_dim {self.head_dim} is odd")
        if not len(self.windows) == len(self.ropes) == self.layers:
            found = f"{len(self.windows)} windows and {len(self.ropes)} ropes"
            raise UnsupportedModel(f"{self.architecture}: {found} for {self.layers} layers")
        if any(window is not None and window < 1 for window in self.windows):
            raise UnsupportedModel(f"{self.architecture}: a sliding window must be at least 1")
        if any(rope is not None and not 0 <= rope < len(self.rope_tables) for rope in self.ropes):
            raise UnsupportedModel(f"{self.architecture}: a layer points to no rope table")
        if any(table.dim != self.head_dim for table in self.rope_tables):
            raise UnsupportedModel(f"{self.architecture}: partial rotary embedding is not supported")
