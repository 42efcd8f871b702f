"""A server on this machine that speaks as OpenAI's does, and misbehaves as told."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock, Thread
from typing import Any

Reply = tuple[int, dict[str, Any]]


@dataclass
class Stub:
    """What the server was asked, and where it is.

    Attributes:
        url: its address, ending in /v1.
        requests: path and body of each request, in the order they came.
        keys: what the requests were authorised with.
    """

    url: str = ""
    requests: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)


def said(text: str, reason: str = "stop", **message: Any) -> Reply:
    """A good reply, for chats and for texts."""
    choice = {"message": {"content": text, **message}, "text": text, "finish_reason": reason}
    return 200, {"choices": [choice]}


@contextmanager
def stub_server(reply: Callable[[int, dict[str, Any]], Reply]) -> Iterator[Stub]:
    """A server that answers the n-th request with `reply(n, body)`."""
    stub, lock = Stub(), Lock()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with lock:
                number = len(stub.requests)
                stub.requests.append((self.path, body))
                stub.keys.append(self.headers.get("Authorization"))
            status, values = reply(number, body)
            content = json.dumps(values).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    stub.url = f"http://127.0.0.1:{server.server_address[1]}/v1"
    try:
        yield stub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
