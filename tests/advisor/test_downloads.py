"""Data shards looked at and fetched again, from a server of this test on the loopback."""

from __future__ import annotations

import json
import os
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from advisor.errors import AdvisorError
from advisor.workflows.data import Damaged, check, files_of, read_urls, refetch
from tests.trainer.test_damage import parquet

PAGE = b"<html><head><title>403 Forbidden</title></head></html>"


@pytest.fixture
def server(tmp_path):
    """Serves good/NAME; what is named `shut` answers with a page, `half` promises more than it gives."""
    good = parquet(tmp_path / "good.parquet").read_bytes()

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self):
            content = PAGE if "shut" in self.path else good
            self.send_response(404 if "gone" in self.path else 200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content[: len(content) // 2] if "half" in self.path else content)

        def log_message(self, *words):
            pass

    served = HTTPServer(("127.0.0.1", 0), Answers)
    thread = threading.Thread(target=served.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{served.server_port}", good
    served.shutdown()
    thread.join()
    served.server_close()


def shards(folder):
    folder.mkdir()
    parquet(folder / "shard_0.parquet")
    (folder / "shard_1.parquet").write_bytes(PAGE)
    (folder / "notes.html").write_bytes(PAGE)  # no data
    (folder / ".hidden.parquet").write_bytes(PAGE)
    return folder


def test_a_page_among_shards_is_found_and_fetched_again(server, tmp_path, call):
    address, good = server
    folder = shards(tmp_path / "shards")
    code, out, _ = call("data", "check", str(folder), "--refetch")
    assert code == 1 and "its address is not known: curl --fail" in out
    assert (folder / "shard_1.parquet").read_bytes() == PAGE
    (folder / "urls.txt").write_text(
        f"# all of them\n{address}/shard_0.parquet\n{address}/v1/shard_1.parquet?download=1\n"
    )
    code, out, err = call("data", "check", str(folder))
    out = " ".join(out.split())  # lines end where a long path lets them
    assert code == 1 and "an HTML page that says “403 Forbidden”" in out and "1 of 2 files are damaged" in out
    assert f"{address}/v1/shard_1.parquet" in out and "--refetch" in err
    code, out, _ = call("data", "check", str(folder), "--refetch", "--json")
    document = json.loads(out)
    assert (code, document["files"], document["left"]) == (0, 2, 0)
    assert document["damaged"][0]["again"] == "fetched again, and whole"
    assert (folder / "shard_1.parquet").read_bytes() == good
    code, out, _ = call("data", "check", str(folder))
    assert code == 0 and "2 files: nothing is wrong" in out
    assert sorted(os.listdir(folder)) == [
        ".hidden.parquet",
        "notes.html",
        "shard_0.parquet",
        "shard_1.parquet",
        "urls.txt",
    ]


@pytest.mark.parametrize(
    "where, words",
    [("shut", "an HTML page"), ("half", "bytes came"), ("gone", "the server answers 404")],
)
def test_what_comes_damaged_again_replaces_nothing(server, tmp_path, where, words):
    file = tmp_path / "shard.parquet"
    file.write_bytes(b"")
    one = Damaged(path=file, what="it is empty", url=f"{server[0]}/{where}/shard.parquet", fetch="")
    assert words in refetch(one)
    assert file.read_bytes() == b"" and [path.name for path in tmp_path.glob(".*")] == []


def test_each_damage_has_the_command_that_mends_it(tmp_path):
    pointer = tmp_path / "a b.parquet"
    pointer.write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:aa\nsize 9\n")
    hub = tmp_path / "hub" / "datasets--own--set" / "snapshots" / "abc123" / "data" / "x.parquet"
    hub.parent.mkdir(parents=True)
    hub.write_bytes(PAGE)
    first, second = check([pointer, hub], {})
    assert first.fetch == f"git -C {tmp_path} lfs pull --include 'a b.parquet'"
    assert second.fetch == "hf download own/set data/x.parquet --repo-type dataset --revision abc123 --force-download"


def test_an_address_that_the_file_itself_carries_is_known(tmp_path):
    file = tmp_path / "x.bin"
    file.write_bytes(b"")
    try:
        os.setxattr(file, "user.xdg.origin.url", b"https://example.org/x.bin")
    except OSError:
        pytest.skip("this file system keeps no attributes")
    (found,) = check([file], {})
    assert found.url == "https://example.org/x.bin" and found.fetch.endswith("https://example.org/x.bin")


def test_lists_of_addresses(tmp_path):
    urls = tmp_path / "list"
    urls.write_text("https://a/x.bin\nhttps://b/x.bin\n\nhttps://a/my%20file.bin?sig=1\n")
    assert read_urls(urls, []) == {"my file.bin": "https://a/my%20file.bin?sig=1"}  # x.bin may be either
    urls.write_text("file:///etc/passwd\n")
    with pytest.raises(AdvisorError, match="line 1: 'file:///etc/passwd' is no address"):
        read_urls(urls, [])
    with pytest.raises(AdvisorError, match="no data file"):
        files_of([Path(tmp_path)])
