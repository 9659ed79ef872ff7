"""Pickles and JSON of strangers: plain data is read, everything else is refused in one sentence and nothing is run."""

from __future__ import annotations

import io
import os
import pickle
import pickletools

import pytest

from advisor.errors import AdvisorError
from advisor.readers.traces.safe_pickle import load

OPCODES = (
    "PROTO FRAME STOP MARK MEMOIZE BINPUT LONG_BINPUT BINGET LONG_BINGET NONE NEWTRUE NEWFALSE BINFLOAT BININT BININT1 "
    "BININT2 LONG1 SHORT_BINUNICODE BINUNICODE BINUNICODE8 EMPTY_DICT EMPTY_LIST EMPTY_TUPLE APPEND APPENDS SETITEM "
    "SETITEMS TUPLE TUPLE1 TUPLE2 TUPLE3"
)
DATA = {"entries": [{"sizes": [[1, -2], [2**40]], "group": ("0", "tp"), "ok": True, "none": None, "time": 1.5}] * 3}
MILLION = 10**6


def refused(data: bytes) -> str:
    with pytest.raises(AdvisorError) as error:
        load(io.BytesIO(data), "a.pickle")
    assert "\n" not in error.value.message and len(error.value.message) < 200
    return error.value.message


class Harmful:
    def __init__(self, folder):
        self.folder = str(folder)

    def __reduce__(self):
        return os.mkdir, (self.folder,)


def argument(opcode) -> bytes:
    if opcode.arg is None:
        return b""
    if opcode.arg.n >= 0:
        return bytes(opcode.arg.n)
    if opcode.arg.n == pickletools.UP_TO_NEWLINE:
        return {"stringnl_noescape_pair": b"os\nsystem\n", "stringnl": b"'a'\n"}.get(opcode.arg.name, b"0\n")
    return bytes({-2: 1, -3: 4, -4: 4, -5: 8}[opcode.arg.n])  # a length of zero


@pytest.mark.parametrize("opcode", pickletools.opcodes, ids=lambda one: one.name)
def test_only_opcodes_of_plain_data_are_run(opcode):
    data = b"\x80\x04](K\x01" + opcode.code.encode("latin-1") + argument(opcode) + b"."
    if opcode.name in OPCODES.split():
        try:
            load(io.BytesIO(data), "a.pickle")
        except AdvisorError as error:
            assert "opcode" not in error.message  # the data around it makes no sense
    else:
        assert f"the pickle opcode {opcode.name}," in refused(data)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_nothing_is_called(tmp_path, protocol):
    for value in (Harmful(tmp_path / "made"), {"entries": [Harmful(tmp_path / "made")]}, {"a": pytest}.keys):
        try:
            data = pickle.dumps(value, protocol)
        except TypeError:
            continue
        refused(data)
    assert not (tmp_path / "made").exists()
    pickle.loads(pickle.dumps(Harmful(tmp_path / "made"), protocol))  # what Python's own does
    assert (tmp_path / "made").exists()


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_plain_data_is_read_as_python_reads_it(protocol):
    data = pickle.dumps(DATA, protocol)
    assert load(io.BytesIO(data), "a.pickle") == DATA
    for length in range(len(data)):
        assert "damaged or cut" in refused(data[:length])


@pytest.mark.parametrize(
    ("data", "said"),
    {
        "huge text": (b"\x80\x04\x8d" + b"\xff" * 7 + b"\x7f", "damaged or cut"),
        "huge frame": (b"\x80\x04\x95" + b"\xff" * 8, "damaged or cut"),
        "huge memo": (b"\x80\x02]r\xff\xff\xff\x7f.", "memo out of order"),
        "unknown memo": (b"\x80\x02h\x05.", "damaged or cut"),
        "unknown opcode": (b"\x80\x02\xfe.", "damaged or cut"),
        "lists": (b"\x80\x02" + b"]" * MILLION + b"a" * (MILLION - 1) + b".", "too deeply"),
        "tuples": (b"\x80\x02)" + b"\x85" * MILLION + b".", "too deeply"),
        "key that overflows the stack": (b"\x80\x02})" + b"\x85" * MILLION + b"Ns.", "neither text nor"),
        "keys that collide": (pickle.dumps({2**61 - 1: 1, 2 * (2**61 - 1): 2}), "neither text nor"),
        "no dict to fill": (b"\x80\x02NNNs.", "no list or dict"),
        "too little to take": (b"\x80\x02N\x87.", "damaged or cut"),
        "JSON, deep": (b"[" * MILLION + b"]" * MILLION, "too deeply"),
        "JSON, 30 deep": (b"[" * 30 + b"]" * 30, "too deeply"),
        "JSON, cut": (b'{"entries": [', "damaged or cut"),
        "JSON, long number": (b"[" + b"9" * 10_000 + b"]", "damaged or cut"),
        "nothing": (b"", "damaged or cut"),
    }.values(),
)
def test_hostile_data_is_refused(data, said):
    assert said in refused(data)


def test_a_list_within_itself_ends():
    assert load(io.BytesIO(b"\x80\x02]q\x00h\x00a."), "a.pickle")[0]
