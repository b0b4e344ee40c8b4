"""Which drafts stand: one pure rule for greedy decoding and for sampling."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def accept(drafts: Sequence[int], draws: Iterable[int]) -> tuple[int, ...]:
    """The tokens that a step yields: drafts as long as they are what the target draws, then the target's own draw.

    ``draws``: the token that the target draws at each position, given all drafts before it; no more are taken than are
    needed. They may end early (the target could not draw): then what was accepted so far is returned.

    A draft here is one definite token d, so proposals are point masses and this *is* rejection sampling (Leviathan et al.
    2023): d is kept with the target's probability p(d), and otherwise the token is distributed as p given that it is not
    d. As the target's draw at a position is fixed by seed and position, the output is plain decoding's, token for token.
    """
    kept: list[int] = []
    for i, token in enumerate(draws):
        kept.append(token)
        if i == len(drafts) or token != drafts[i]:
            break
    return tuple(kept)
