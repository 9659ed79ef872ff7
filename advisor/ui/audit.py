"""Page Audit: takes the text of a plan or report, and shows which claims hold, which cannot be right, and why."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

import streamlit as st

from advisor.auditing.audit import Audit
from advisor.auditing.tables import declared, lines_of_sentences
from advisor.auditing.verdict import Ruling
from advisor.errors import AdvisorError
from advisor.report import audit as words
from advisor.ui import loaders
from advisor.ui.controls import download, escaped, pairs, side_by_side
from advisor.ui.uploads import safe_name
from advisor.workflows.audit import AS_LINES, CARDS, IN_SENTENCES, asking, audit_cards, drafted

MOST_MEGABYTES = 5
PASTED = "pasted.md"
EXAMPLE = """| run | GPUs | tokens | tok/s | days | $/GPU-h | cost |
|---|---|---|---|---|---|---|
| base | 8 x A100 | 100 B | 30,000 | 38 | $1.80 | $12,000 |"""
_NOTHING = f"Nothing here could be checked: write its figures as {AS_LINES}, or have an assistant read it (below)"
_LOOKS = {
    Ruling.WRONG: ("red", ":material/cancel:"),
    Ruling.DOES_NOT_FOLLOW: ("orange", ":material/help:"),
    Ruling.CANNOT_BE_JUDGED: ("gray", ":material/question_mark:"),
    Ruling.HOLDS: ("green", ":material/check_circle:"),
}


def page() -> None:
    """Draw the form for a text, and the verdict on each of its claims."""
    st.title("Audit", anchor=False)
    given = _source()
    if given is None:
        st.info(
            "Paste a plan or a report. Its tables are checked at once; nothing is sent anywhere. Numbers of a "
            "sentence are listed for you to correct, or your own AI assistant reads them by a prompt.",
            icon=":material/lightbulb:",
        )
        return
    name, content = given
    above = st.container()  # the verdict, although the assistant's answer that it needs is asked for below
    answer = None if Path(name).suffix.lower() in CARDS else _answer(name, content)
    with above:
        _verdict(name, content, *_judged(name, content, answer, loaders.store_stamp()))


def _verdict(name: str, content: bytes, judged: Audit | None, card: str | None) -> None:
    """Draw the verdict, and the claims by their rulings. `judged` is None if only an assistant can read the text."""
    if judged is None:
        st.info(f"{_NOTHING}.", icon=":material/forum:")
        if figures := lines_of_sentences(content.decode(errors="replace")):
            left, right = st.columns((3, 2), vertical_alignment="center")
            left.code(figures, language=None)
            about = "They replace the text above, where you can correct them and add what is missing."
            if name != PASTED:
                return  # of a file; its lines can be pasted
            right.button(
                "Check these lines",
                key="audit-lines",
                icon=":material/rule:",
                help=about,
                on_click=st.session_state.update,
                args=({"audit-text": figures},),
            )
        return
    stem = Path(name).stem
    with st.container(border=True):
        st.markdown(f"**{escaped(words.verdict_line(judged)) if judged.judged else _NOTHING}**")
        if facts := words.facts_line(judged):
            st.caption(escaped(facts))
        with st.container(horizontal=True):
            text, about = words.markdown([judged]), "The whole audit as text."
            download("Markdown", text, f"{stem}-audit.md", "text/markdown", "download", about)
            if card is not None:
                about = "What was understood, as YAML: correct it and give it back here."
                download("Card", card, f"{stem}.yaml", "application/yaml", "edit_note", about)
    for section in words.sections(judged):
        colour, icon = _LOOKS[section.ruling]
        st.header(f":{colour}[{icon}] {section.title}", anchor=False)
        if section.ruling is Ruling.HOLDS:
            with st.expander("Each with its arithmetic"):
                claims = ((claim.claim, claim.judgement) for claim in section.claims)
                cells = ((str(claim.line or ""), claim.text, j.so, j.arithmetic) for claim, j in claims)
                pairs(cells, ("Line", "Claim", "In fact", "Arithmetic"))
            continue
        for group in section.groups:
            with st.container(border=True):
                for claim in group.claims:
                    st.markdown(
                        f":{colour}-badge[{claim.judgement.severity.value}] **{escaped(claim.claim.text)}**  \n"
                        f":gray[{escaped(words.where(claim))}]"
                    )
                st.markdown("\n".join(f"- {escaped(label)}: {escaped(text)}" for label, text in group.details))
    for title, lines in words.notes(judged):
        # the page has no command line
        lines = [f"{IN_SENTENCES}: an assistant can read them, below" if line.startswith(IN_SENTENCES) else line
                 for line in lines]  # fmt: skip
        is_open = not judged.judged and title in (words.ASSUMED, words.UNPLACED)
        with st.expander(f"{title} ({len(lines)})", expanded=is_open):
            st.markdown("\n".join(f"- {escaped(line)}" for line in lines))


def _source() -> tuple[str, bytes] | None:
    """Return the name and content of what was uploaded or pasted."""
    left, right = st.columns((3, 2))
    text = left.text_area(
        "A plan or report, as text or Markdown",
        placeholder=EXAMPLE,
        height=160,
        key="audit-text",
        help="Prose and tables; line numbers in the answer are those of this text.",
    )
    file = right.file_uploader(
        "or a file: Markdown, HTML, plain text, or a run described in YAML or JSON (a run card)",
        type=["md", "txt", "html", "htm", *(ending[1:] for ending in CARDS)],
        max_upload_size=MOST_MEGABYTES,
        key="audit-file",
        help="Read on this machine and not stored.",
    )
    if file is not None:
        return safe_name(file.name), file.getvalue()
    return (PASTED, text.encode()) if text.strip() else None


def _answer(name: str, content: bytes) -> str | None:
    """Show the prompt to copy. Return the assistant's answer from the field below, or None if it is empty."""
    with st.expander("Have an assistant read the sentences", icon=":material/forum:", expanded=True):
        st.caption(
            "Copy the prompt into any assistant and paste its answer. It only reads: what it says is judged "
            "where the text has its words and numbers. In a terminal: `advisor audit report.md --reader CMD`."
        )
        left, right = side_by_side("assistant", (1, 1))
        left.markdown("The prompt to copy")
        with _as_file(name, content) as path:
            left.code(asking(path).prompt, language=None, height=160)
        return right.text_area("The assistant's answer, in JSON", key="audit-answer", height=160).strip() or None


@contextlib.contextmanager
def _as_file(name: str, content: bytes) -> Iterator[Path]:
    """Yield the input as a file. Errors call it by its own name."""
    with tempfile.TemporaryDirectory(prefix="advisor-audit-") as folder:
        path = Path(folder) / name
        path.write_bytes(content)
        try:
            yield path
        except AdvisorError as error:
            hint = error.hint.replace(str(path), name) if error.hint else None
            raise AdvisorError(error.message.replace(str(path), name), hint, exit_code=error.exit_code) from None


@st.cache_resource(max_entries=16, show_spinner="judging its claims")
def _judged(name: str, content: bytes, answer: str | None, stamped: tuple[int, ...]) -> tuple[Audit | None, str | None]:
    """Return the audit (None: only an assistant can read this), and the card that was drafted of a text."""
    del stamped  # only part of the cache key
    with _as_file(name, content) as path:
        if answer is None and path.suffix.lower() not in CARDS and not declared(path):
            return None, None
        [judged] = audit_cards([path], loaders.store(), answer=answer)
        return judged, drafted(path, answer)
