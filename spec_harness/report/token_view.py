"""One generation token by token: which came from the draft, which from the target. No torch.

The same four kinds and colors in the W&B tables, the figures and report.html.
"""

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Literal

Kind = Literal["target", "accepted", "recovered", "bonus"]

MEANING: dict[Kind, str] = {
    "accepted": "draft token that the target accepted",
    "recovered": "the target's token in place of the first rejected draft token",
    "bonus": "the target's token after a fully accepted proposal",
    "target": "the target alone: the prefill's token, and rounds without a proposal",
}
# Tints of Okabe and Ito's colors, told apart by lightness and by the line below as well.
BACKGROUND: dict[Kind, str] = {"accepted": "#b3e2d1", "recovered": "#f7c59f", "bonus": "#cfe3f5", "target": "#ececec"}
_LINE: dict[Kind, str] = {"accepted": "none", "recovered": "solid", "bonus": "dotted", "target": "none"}


def token_kinds(rounds: Iterable[tuple[int, int, int]]) -> list[Kind]:
    """The kind of each output token of a sequence, the prefill's first.

    ``rounds`` are its (proposal_len, num_accepted, num_emitted) in order. A round that ended in an accepted
    end-of-sequence token emitted what was accepted and no further token.
    """
    kinds: list[Kind] = ["target"]
    for proposed, accepted, emitted in rounds:
        kinds += ["accepted"] * accepted
        if emitted > accepted:
            kinds.append("target" if proposed == 0 else "recovered" if accepted < proposed else "bonus")
    return kinds


def tokens_html(token_ids: Sequence[int], kinds: Sequence[Kind], texts: Mapping[int, str]) -> str:
    """A fragment without scripts or links: each token on the color of its kind, its id and kind as a tooltip.

    ``kinds`` may be longer than ``token_ids``: a stop string cuts the text inside a round.
    """
    spans = []
    for token, kind in zip(token_ids, kinds, strict=False):
        style = f"background:{BACKGROUND[kind]};border-bottom:2px {_LINE[kind]} #444"
        text = escape(texts.get(token, f"\N{LEFT ANGLE BRACKET}{token}\N{RIGHT ANGLE BRACKET}"))
        spans.append(f'<span style="{style}" title="{token}: {kind}">{text}</span>')
    return f'<pre style="white-space:pre-wrap;line-height:1.5;margin:0;color:#111">{"".join(spans)}</pre>'


def legend_html() -> str:
    """What each color means, in the same colors."""
    items = [
        f'<li><span style="background:{BACKGROUND[kind]};border-bottom:2px {_LINE[kind]} #444;padding:0 .4em">{kind}'
        f"</span> {meaning}</li>"
        for kind, meaning in MEANING.items()
    ]
    return f'<ul style="list-style:none;padding:0">{"".join(items)}</ul>'
