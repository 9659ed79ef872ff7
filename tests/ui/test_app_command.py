"""`advisor app`: it answers on 127.0.0.1, on no other address, and to no other site's requests."""

import socket
import subprocess
import sys
import urllib.request

import pytest

pytest.importorskip("streamlit", reason="the app's packages are not installed")

from tests.ui.serving import free_port, serving


def test_it_answers_here_and_nowhere_else(advisor_home, tmp_path):
    port = free_port()
    with serving(advisor_home, port, tmp_path) as address:
        with urllib.request.urlopen(address, timeout=10) as answer:
            assert answer.status == 200 and b"<title>" in answer.read()
        # 127.0.0.2 is this machine as well, and so are its outer addresses: nobody listens there
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.2", port), timeout=5)
        for outer in _outer_addresses():
            with pytest.raises(OSError):
                socket.create_connection((outer, port), timeout=5)
        assert _socket_answer(port, f"http://127.0.0.1:{port}") == 101  # its own page may open the socket
        assert _socket_answer(port, "http://elsewhere.example") == 403  # a page from elsewhere may not


def test_a_port_that_is_taken_is_one_sentence():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        command = [sys.executable, "-m", "advisor", "app", "--port", str(port)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 1 and f"port {port} of 127.0.0.1 cannot be used" in done.stderr
    assert "advisor app --port " in done.stderr and "the app is at" not in done.stderr


def _outer_addresses() -> list[str]:
    try:
        found = socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)
    except OSError:
        return []
    return sorted({entry[4][0] for entry in found if not entry[4][0].startswith("127.")})


def _socket_answer(port: int, origin: str) -> int:
    """The HTTP status of asking for the app's WebSocket as a page of `origin` would."""
    request = (
        f"GET /_stcore/stream HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nOrigin: {origin}\r\nUpgrade: websocket\r\n"
        "Connection: Upgrade\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.sendall(request.encode())
        return int(connection.recv(4096).split(b" ", 2)[1])
