"""Older versions of results.json, read as the present one."""

import json
from typing import Any


def upgraded(text: bytes) -> bytes:
    """A results.json of version 1 as one of version 2; anything else as it is, for the schema to judge.

    Version 1 did not name the proposer. It is inferred: the draft model, if one was loaded; else n-gram lookup, if the
    run had a proposal length; else nobody.
    """
    try:
        content = json.loads(text)
        if content["schema_version"] != 1:
            return text
        draft, bars = content["provenance"].get("draft"), content["proposal"]["accepted_length_histogram"]
        proposer = _proposer(None if draft is None else draft["name"], max_proposal_len=len(bars) - 1)
        content["provenance"]["proposer"] = proposer
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return text
    return json.dumps(content | {"schema_version": 2}).encode()


def _proposer(draft: Any, *, max_proposal_len: int) -> dict[str, Any]:
    if draft is not None:
        return {"name": "draft_model", "label": draft}
    if max_proposal_len > 0:
        return {"name": "ngram", "label": "n-gram lookup"}
    return {"name": "none", "label": "no proposals"}
