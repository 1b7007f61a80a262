"""report.html: whole, alone, and with the same figures as the files it was made from."""

import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest

from spec_harness.cli.report import main
from spec_harness.errors import UserError
from spec_harness.report.html import WORST, write_html
from spec_harness.report.load import Run
from spec_harness.report.plots import run_figures, sweep_figures
from spec_harness.report.sweep import Sweep
from spec_harness.report.verdict import verdict

Save = Callable[..., Path]
VOID = {"meta", "br", "link", "img", "input"}


class Page(HTMLParser):
    """What a browser would have to fetch, the elements, and whether each is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.targets: list[str] = []  # of every attribute that can name something to load
        self.tags: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in VOID:
            self.open.append(tag)
        for name, value in attrs:
            if name == "id":
                self.ids.append(value or "")
            if name in ("src", "href", "srcset", "action", "data", "poster", "xlink:href"):
                self.targets.append(value or "")
            if name in ("style", "clip-path", "fill"):
                self.targets += re.findall(r"url\(([^)]*)\)", value or "")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag


def read(path: Path) -> tuple[str, Page]:
    text = path.read_text(encoding="utf-8")
    return text, Page(text)


def test_a_page_needs_nothing_from_elsewhere(real_run: Run, real_sweep: Sweep) -> None:
    for directory in (real_run.directory, real_sweep.directory):
        text, page = read(write_html(directory))
        inside = {target.removeprefix("#") for target in page.targets if target.startswith("#")}
        assert inside <= set(page.ids)
        others = [target for target in page.targets if not target.startswith("#")]
        assert all(target.startswith("data:image/png;base64,") for target in others)  # the cells of a heat map
        assert len(page.ids) == len(set(page.ids))
        assert not {"script", "link", "iframe", "object", "img"} & set(page.tags)
        assert not re.search(r"https?:|//[a-z]+\.|@import|@font-face", text)


def test_a_run_s_page_has_its_figures_tables_and_outputs(real_run: Run) -> None:
    text, page = read(write_html(real_run.directory))
    assert page.tags.count("svg") == len(run_figures(real_run))
    rate = real_run.results.proposal.acceptance_rate.value
    assert f'<td>acceptance rate</td><td class="number">{100 * (rate or 0):.1f} %</td>' in text
    assert page.tags.count("details") == WORST
    assert all(note.split("(")[0].replace("'", "&#39;") in text for note in real_run.results.notes)


def test_a_sweep_s_page_ends_with_what_to_use(real_sweep: Sweep) -> None:
    text, page = read(write_html(real_sweep.directory))
    assert page.tags.count("svg") == len(sweep_figures(real_sweep))
    answer = verdict(real_sweep)
    assert answer is not None
    _, _, end = text.rpartition("<h2>")
    assert end.startswith("What to use</h2>")
    assert answer.headline in end
    assert "95 % interval" in answer.headline
    assert end.count("<li>") == len(answer.reasons)


def test_what_a_model_says_is_text_and_no_markup(save_run: Save, tmp_path: Path) -> None:
    folder = save_run(tmp_path / "run", notes=["<script>alert(1)</script> & so on"])
    _, page = read(write_html(folder))
    assert "script" not in page.tags


def test_jobs_that_failed_are_there_with_their_reason(save_run: Save, tmp_path: Path) -> None:
    save_run(tmp_path / "sweep" / "0", overrides=["seed=1"])
    save_run(tmp_path / "sweep" / "1", overrides=["seed=2"], error="out of memory")
    text, _ = read(write_html(tmp_path / "sweep"))
    assert "out of memory" in text


def test_the_command_writes_and_names_the_file(
    save_run: Save, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = save_run(tmp_path / "run")
    assert main(["html", str(folder)]) == 0
    assert capsys.readouterr().out == f"{folder / 'report.html'}\n"
    assert main(["plot", str(folder)]) == 0
    assert f"{folder / 'figures' / 'categories.svg'}\n" in capsys.readouterr().out


def test_a_directory_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no run and no sweep"):
        write_html(tmp_path)
