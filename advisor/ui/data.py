"""Page Data: selects or prepares token folders, and shows some of their tokens."""

from __future__ import annotations

import importlib.util
import tempfile
from pathlib import Path
from typing import Any

import streamlit as st

from advisor.errors import AdvisorError
from advisor.report.rows import token_folder
from advisor.ui import loaders
from advisor.ui.controls import QUERY, error_words, escaped, go, pairs, side_by_side, table
from advisor.ui.uploads import MOST_MEGABYTES, safe_name
from advisor.workflows.data import prepare_data, preview, read_data
from trainer.token_folder import TokenMeta

FOLDER = "folder"  # in the session and in the address: the token folder that is shown
_STAGES = {"read": "reading", "tokenizer": "training the tokenizer", "encode": "encoding"}
_SHOWN = 120  # number of tokens shown at a time
CORPUS = "python-library"  # the folder for the corpus that is made here


def page() -> None:
    """Select or prepare a token folder, show its content, and offer to plan with it."""
    st.title("Data", anchor=False)
    try:
        _prepare()
    except AdvisorError as error:  # the rest of the page stays
        st.error(error_words(error), icon=":material/error:")
    folder = _picked()
    if folder is None:
        return
    meta = read_data(folder)
    assert meta is not None  # the folder can be read
    pairs(token_folder(folder, meta)[1:], ("Tokenized data", " "))
    if meta.skipped:
        with st.expander(f"{len(meta.skipped)} left out"):
            table({"What was no data": line} for line in meta.skipped)
    if st.button("Plan on these data", icon=":material/arrow_forward:", type="primary", key="plan-on-data"):
        go("plan", {"data": str(folder)})
    _tokens(folder, meta)


def _picked() -> Path | None:
    """Return the folder in the address or in the form. Folders that were prepared here are listed below it."""
    folders = loaders.token_folders()
    if folders and FOLDER not in st.query_params:
        st.session_state.setdefault(FOLDER, next(iter(folders)))  # a page that shows something
    text = st.text_input(
        "Folder of tokenized data", key=FOLDER, bind=QUERY, placeholder="/path/to/a/folder that was prepared",
        help="A folder that was prepared above, or by `advisor data prepare`, on the machine of this app.",
    )  # fmt: skip
    if set(folders) - {text.strip()}:
        with st.container(horizontal=True):
            for path, words in folders.items():
                pick: Any = {"on_click": st.session_state.update, "args": ({FOLDER: path},)}
                st.button(escaped(words), key=f"pick-{path}", icon=":material/dataset:", **pick)
    if text.strip():
        return Path(text.strip()).expanduser()
    if not folders:
        st.info("Nothing is prepared yet: add some text above.", icon=":material/lightbulb:")
    return None


def can_prepare() -> bool:
    """Tell whether the package that trains and applies tokenizers is installed."""
    return importlib.util.find_spec("tokenizers") is not None


def _prepare() -> None:
    """Make a token folder from text. The page waits, and shows the progress."""
    folders, lacks = loaders.token_folders(), not can_prepare()
    with (
        st.expander("Prepare text", icon=":material/add:", expanded=not folders),
        st.form("prepare-data", border=False),
    ):
        files = st.file_uploader(
            "Text, JSON lines or Parquet", accept_multiple_files=True, max_upload_size=MOST_MEGABYTES,
            key="data-files", help="Stored only during preparation. For larger files use `advisor data prepare` "
            "in a terminal, or give their path below.",
        )  # fmt: skip
        columns = st.columns((2, 1, 1))
        path = columns[0].text_input("or a file or folder on this machine", key="data-path", help="Read where it lies.")
        vocabulary = columns[1].number_input(
            "Vocabulary", 257, 200_000, 4096, key="data-vocabulary",
            help="Size of the vocabulary to train; 256 tokens are single bytes.",
        )  # fmt: skip
        name = columns[2].text_input("Name", "my-data", key="data-name", help="Name of the new folder.")
        requested = st.form_submit_button("Prepare", icon=":material/play_arrow:", disabled=lacks)
    corpus = str(loaders.data_home() / CORPUS) not in folders and st.button(
        "No text at hand? Make a small corpus from Python's standard library", icon=":material/auto_stories:",
        key="make-corpus", help="The source code that came with this Python: about 7 M tokens, in less than a minute.",
        disabled=lacks,
    )  # fmt: skip
    if lacks:
        st.caption("Preparing text needs one more package: `pip install 'training-advisor[train]'`")
    if not requested and not corpus:
        return
    if not corpus and not files and not path.strip():
        raise AdvisorError("there is no text to prepare", "upload some, or name a file or folder on this machine")
    out = loaders.data_home() / (CORPUS if corpus else safe_name(name.strip() or "my-data").replace(" ", "-"))
    with tempfile.TemporaryDirectory(prefix="advisor-data-") as temporary:
        inputs = [Path(path.strip()).expanduser()] if path.strip() else []
        for file in files:
            inputs.append(Path(temporary) / safe_name(file.name))
            inputs[-1].write_bytes(file.getvalue())
        for one in inputs:
            if not one.exists():
                raise AdvisorError(f"there is no file {one}", "name one on the machine where this app runs")
        bar = st.progress(0.0, "reading")
        try:
            prepare_data(
                None if corpus else inputs, out, vocab_size=int(vocabulary),
                on_progress=lambda stage, done, total: bar.progress(min(1.0, done / max(total, 1)), _STAGES[stage]),
            )  # fmt: skip
        finally:
            bar.empty()
    st.session_state[FOLDER] = str(out)
    st.rerun()


def _tokens(folder: Path, meta: TokenMeta) -> None:
    """Show some tokens as text and by number, from a position that the user chooses."""
    st.header("A sample of the tokens", anchor=False)
    first = st.number_input(
        "From token number", 0, max(0, meta.tokens - 1), 0, step=_SHOWN, key="data_first", bind=QUERY,
        help="Sequence number in the training split, from 0 on.",
    )  # fmt: skip
    text, tokens = preview(folder, meta, int(first), _SHOWN)
    left, right = side_by_side("tokens", (1, 1))
    left.code(text, language=None, wrap_lines=True)
    with right:
        rows = [
            {"Place": place, "Token": token.number, "Text": repr(token.text)[1:-1]}
            for place, token in enumerate(tokens, int(first))
        ]
        st.dataframe(rows, hide_index=True, height=400)
    ends = sum(token.number == meta.end_of_text for token in tokens)
    st.caption(
        f"{len(tokens)} tokens, {len(text)} characters"
        + (f"; {ends} {'document ends' if ends == 1 else 'documents end'} here" if ends else "")
        + ". A token that is only part of a character is shown by a placeholder."
    )
