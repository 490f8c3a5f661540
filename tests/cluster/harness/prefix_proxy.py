"""A proxy that serves servers below the proxy's paths, as nginx does with `location /llm/ { proxy_pass http://server/; }`."""
import http.client
import http.server
import threading

HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "upgrade"}


class PrefixProxy:
    """A context manager. `ports`: {"/llm/": the port of the server below that path}. `outside`: paths that were asked for below
    no prefix."""

    def __init__(self, ports):
        self.ports, self.outside = ports, []
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"proxy": self}))
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Handler(http.server.BaseHTTPRequestHandler):
    proxy = None

    def forward(self):
        prefix = next((one for one in self.proxy.ports if self.path.startswith(one)), None)
        if prefix is None:
            self.proxy.outside.append(self.path)
            self.send_error(404)
            return
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        upstream = http.client.HTTPConnection("127.0.0.1", self.proxy.ports[prefix], timeout=60)
        try:
            headers = {name: value for name, value in self.headers.items() if name.lower() not in HOP_BY_HOP}
            upstream.request(self.command, self.path[len(prefix) - 1:], body or None, headers)
            answer = upstream.getresponse()
            self.send_response(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in HOP_BY_HOP:
                    self.send_header(name, value)
            self.end_headers()
            while part := answer.read1():
                self.wfile.write(part)
                self.wfile.flush()
        except ConnectionError:
            pass  # the page has left
        finally:
            upstream.close()

    do_GET = do_POST = do_HEAD = forward

    def log_message(self, *_):  # pylint: disable=arguments-differ
        pass
