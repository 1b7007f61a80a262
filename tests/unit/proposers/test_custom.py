"""A class of the user's own, by its path: what is accepted, and what is refused in one line."""

import sys
from pathlib import Path

import pytest

from spec_harness.errors import UserError
from spec_harness.models.load import LoadedModel
from spec_harness.proposers.custom import custom_proposer
from tests.helpers import generate, prompts, proposer_env, request, run, scheduler

SOURCE = '''
import torch

from spec_harness.proposers.base import Proposer, Proposals


class SinceThen(Proposer):
    """What followed the last token the last time, if it was at least ``distance`` tokens ago."""

    def __init__(self, env, *, distance=1):
        super().__init__(env)
        if distance < 1:
            raise ValueError("distance must be at least 1")
        self.distance = distance

    def propose(self, context):
        rows = []
        for sequence, most in zip(context.sequences, context.max_lens):
            ids = sequence.data.token_ids
            found = [i for i in range(len(ids) - self.distance) if ids[i] == ids[-1]]
            rows.append(ids[found[-1] + 1 :][:most] if found else [])
        return Proposals.from_lists(rows, self.env)


class Lazy(Proposer):
    pass


class TooEager(Proposer):
    def propose(self, context):
        return Proposals.from_lists([[3] * (n + 1) for n in context.max_lens], self.env)


class Narrow(Proposer):
    """Claims more tokens than its tensor has columns."""

    def propose(self, context):
        lens = [min(2, n) for n in context.max_lens]
        return Proposals(torch.full((len(lens), 1), 5), lens)


class LogProbs(Proposer):
    def propose(self, context):
        shape = (len(context.max_lens), self.env.max_proposal_len)
        logs = torch.full((*shape, self.env.vocab_size), -3.0)
        return Proposals(torch.full(shape, 5), list(context.max_lens), probs=logs)


class Keeps(Proposer):
    """Goes on writing in what it is told."""

    def propose(self, context):
        return Proposals.from_lists([[3] * n for n in context.max_lens], self.env)

    def commit(self, seq_id, tokens):
        tokens += type(tokens)([5])


def not_a_class():
    pass
'''


@pytest.fixture
def own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "own_proposers.py").write_text(SOURCE)
    (tmp_path / "broken_proposers.py").write_text("import no_such_library\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "own_proposers", raising=False)
    return "own_proposers"


def test_it_is_lossless_and_carries_its_own_name(own_module: str, target: LoadedModel) -> None:
    spec = custom_proposer(f"{own_module}.SinceThen", {"distance": 2})
    assert (spec.name, spec.label, list(spec.kv_models)) == ("own_proposers.SinceThen", "SinceThen", [])
    asked = [request(i, [*prompt, *prompt], max_new_tokens=30) for i, prompt in enumerate(prompts(4, seed=5))]
    records = run(scheduler(target, spec, batch=3, block_size=4), asked)
    for r in asked:
        record = records[r.request_id]
        assert record.token_ids == generate(target, r.prompt_token_ids, max_new_tokens=30)
    rounds = [round_ for record in records.values() for round_ in record.rounds]
    assert sum(round_.num_accepted for round_ in rounds) > 0
    assert {round_.skip_reason for round_ in rounds} <= {None, "no_match", "budget"}


@pytest.mark.parametrize(
    ("path", "args", "message"),
    [
        ("SinceThen", {}, "is not the path of a class, such as my_module.MyProposer"),
        ("no_such_module.X", {}, "module no_such_module cannot be imported: ModuleNotFoundError: No module named"),
        ("broken_proposers.X", {}, "module broken_proposers cannot be imported: ModuleNotFoundError: No module named"),
        ("own_proposers.Missing", {}, "module own_proposers has no Missing"),
        ("own_proposers.not_a_class", {}, "is not a subclass of spec_harness.Proposer"),
        ("own_proposers.Lazy", {}, "has no propose method"),
        ("own_proposers.SinceThen", {"far": 2}, r"does not take proposal.args={'far': 2}: got an unexpected keyword"),
    ],
)
@pytest.mark.usefixtures("own_module")
def test_what_is_no_proposer_is_refused_in_one_line(path: str, args: dict[str, int], message: str) -> None:
    with pytest.raises(UserError, match=f"^proposal._target_={path}: {message}.*$"):
        custom_proposer(path, args)


def test_a_constructor_s_own_refusal_is_told(own_module: str, target: LoadedModel) -> None:
    spec = custom_proposer(f"{own_module}.SinceThen", {"distance": 0})
    with pytest.raises(UserError, match=r"cannot be built with proposal.args={'distance': 0}: distance must be"):
        spec.build(proposer_env(target))


def test_a_proposal_longer_than_asked_for_is_refused(own_module: str, target: LoadedModel) -> None:
    engine = scheduler(target, custom_proposer(f"{own_module}.TooEager", {}), k=3)
    with pytest.raises(UserError, match="TooEager proposed"):
        run(engine, [request(0, [1, 2, 3])])


@pytest.mark.parametrize(
    ("name", "message"), [("Narrow", "Narrow proposed .* rows of 1"), ("LogProbs", "LogProbs gave its own tokens")]
)
def test_proposals_that_make_no_sense_are_refused(
    own_module: str, target: LoadedModel, name: str, message: str
) -> None:
    """Both were verified: the first against its neighbor's tokens, the second accepted whatever the target said."""
    engine = scheduler(target, custom_proposer(f"{own_module}.{name}", {}), k=3, batch=2, temperature=0.8)
    with pytest.raises(UserError, match=message):
        run(engine, [request(i, [1, 2, 3]) for i in range(2)])


def test_what_a_proposer_does_with_committed_tokens_changes_no_record(own_module: str, target: LoadedModel) -> None:
    (record,) = run(
        scheduler(target, custom_proposer(f"{own_module}.Keeps", {}), k=3), [request(0, [1, 2, 3])]
    ).values()
    assert [token for round_ in record.rounds for token in round_.output_token_ids] == record.token_ids[1:]
