"""A server for `somnus chat` and `generate` that answers each question with the question and a mark."""
import http.server
import json
import socket
import threading

HOLD = "hold"  # a question with an answer that begins and does not end


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers each question with "<question>!", and remembers the messages."""
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def _answer(self, status, body):
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        port = self.server.server_address[1]
        if self.path == "/server_info":
            self._answer(200, json.dumps({"http_port": port, "admin_port": 1, "grpc_port": 1}).encode())
        else:
            self._answer(self.server.health, b"")

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/tokenize":
            words = sum(len(message["content"].split()) for message in asked["messages"])
            self._answer(200, json.dumps({"count": words, "max_model_len": self.server.context, "tokens": []}).encode())
            return
        self.server.asked.append(asked)
        self.server.host = self.headers["Host"]
        question = asked["messages"][-1]["content"] if "messages" in asked else asked["prompt"]
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        key = "delta" if "messages" in asked else "text"
        text = f"{question}!"
        self._event({key: {"content": text} if key == "delta" else text})
        if question == HOLD:
            self.server.held.wait()
        else:
            self._event({key: {} if key == "delta" else "", "finish_reason": "stop"})
            self.wfile.write(b"data: [DONE]\n\n")
        self.close_connection = True

    def _event(self, choice):
        self.wfile.write(f"data: {json.dumps({'choices': [choice]})}\n\n".encode())


class FakeServer(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, address="127.0.0.1"):
        self.address_family = socket.AF_INET6 if ":" in address else socket.AF_INET
        super().__init__((address, 0), Handler)
        self.asked, self.health, self.held, self.host = [], 200, threading.Event(), ""
        self.context = 1 << 20  # words

    def __enter__(self):
        threading.Thread(target=self.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.held.set()
        self.shutdown()
        self.server_close()
