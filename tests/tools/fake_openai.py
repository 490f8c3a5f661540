"""A server that answers /v1/completions with as many one-character tokens as are asked for, and remembers the requests.

Usage: fake_openai.py --port N [ANYTHING]...    (so that it can replace a server's binary)    Ends on SIGTERM.
"""
import http.server
import json
import sys
import threading


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def _answer(self, status, body, kind="application/json"):
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        if self.path == "/v1/models":
            self._answer(200, json.dumps({"data": [{"id": "fake"}]}).encode())
        else:
            self._answer(200 if self.path == "/health" else 404, b"")

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append(asked)
        events = [{"choices": [{"index": 0, "text": "x"}]} for _ in range(asked["max_tokens"])]
        events[-1]["choices"][0]["finish_reason"] = "length"
        events.append({"choices": [], "usage": {"prompt_tokens": len(asked["prompt"]), "completion_tokens": asked["max_tokens"]}})
        lines = [f"data: {json.dumps(event)}\n\n" for event in events] + ["data: [DONE]\n\n"]
        self._answer(200, "".join(lines).encode(), "text/event-stream")


class FakeOpenAi(http.server.ThreadingHTTPServer):
    """Serves on a free port within the context."""
    request_queue_size = 256
    daemon_threads = True

    def __init__(self, port=0):
        super().__init__(("127.0.0.1", port), Handler)
        self.asked = []

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_address[1]}"

    def __enter__(self):
        threading.Thread(target=self.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.shutdown()
        self.server_close()


if __name__ == "__main__":
    FakeOpenAi(int(sys.argv[sys.argv.index("--port") + 1])).serve_forever()
