"""HTTP/1.1 to the engine's own listeners on this host, for one event loop: keep-alive connections, bodies of JSON, and
server-sent events. RFC 9112, as far as Somnus's server makes use of that."""
import asyncio
import http.client
import io
import json
from typing import Any, AsyncIterator, Dict, List, Optional, Tuple

from somnus.errors import EngineDeadError

_MAX_LINE_BYTES = 64 << 20  # of an event, or of a header


class HttpError(Exception):
    """A reply that is no 200. `status`, and the server's own `message` and `param` (the field's name, or None)."""

    def __init__(self, status: int, message: str, param: Optional[str], retry_after: Optional[str]):
        super().__init__(message)
        self.status, self.message, self.param = status, message, param
        self.retry_after_s = float(retry_after) if retry_after else None


class _Connection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter):
        self.reader, self.writer = reader, writer

    @property
    def usable(self) -> bool:
        return not (self.reader.at_eof() or self.writer.is_closing())

    def close(self) -> None:
        self.writer.close()

    async def send(self, head: bytes, body: bytes) -> Tuple[int, http.client.HTTPMessage]:
        """Returns the status and the headers of the reply."""
        self.writer.write(head + body)
        await self.writer.drain()
        raw = await self.reader.readuntil(b"\r\n\r\n")
        line, _, rest = raw.partition(b"\r\n")
        return int(line.split(b" ", 2)[1]), http.client.parse_headers(io.BytesIO(rest))

    async def parts(self, headers: http.client.HTTPMessage) -> AsyncIterator[bytes]:
        """The body as it comes."""
        if headers.get("Transfer-Encoding", "").lower() != "chunked":
            length = int(headers.get("Content-Length", 0))
            yield await self.reader.readexactly(length)
            return
        while True:
            size = int((await self.reader.readuntil(b"\r\n")).split(b";")[0], 16)
            data = await self.reader.readexactly(size + 2)
            if size == 0:
                return
            yield data[:-2]


class HttpClient:
    """One address, with a key. Not thread safe: of the event loop that calls. At most `limit` requests are under way; further
    calls wait. EngineDeadError: nobody listens, or the connection broke."""

    def __init__(self, port: int, key: str, limit: int):
        self._port = port
        self._head = f"Host: 127.0.0.1:{port}\r\nAuthorization: Bearer {key}\r\nContent-Type: application/json\r\n"
        self._limit = limit
        self._room: Optional[asyncio.Semaphore] = None
        self._loop: Optional[asyncio.AbstractEventLoop] = None
        self._idle: List[_Connection] = []

    async def request(self, method: str, path: str, body: Any = None) -> bytes:
        """The body of a reply with the status 200; HttpError for any other."""
        async with self._room_of_this_loop():
            connection, status, headers = await self._send(method, path, body)
            kept = False
            try:
                data = b"".join([part async for part in connection.parts(headers)])
                kept = headers.get("Connection", "").lower() != "close"
            except (asyncio.IncompleteReadError, OSError) as error:
                raise EngineDeadError("the engine has closed a connection within a reply") from error
            finally:
                self._give_back(connection, kept)
        if status != 200:
            raise _error_of(status, data, headers)
        return data

    async def events(self, path: str, body: Any) -> AsyncIterator[Any]:
        """The events of a stream, parsed, up to [DONE]. A reader that stops reading ends the request: the connection closes."""
        async with self._room_of_this_loop():
            connection, status, headers = await self._send("POST", path, body)
            kept = False
            try:
                if status != 200:
                    raise _error_of(status, b"".join([part async for part in connection.parts(headers)]), headers)
                rest = b""
                async for part in connection.parts(headers):
                    *lines, rest = (rest + part).split(b"\n")
                    for line in lines:
                        if line.startswith(b"data: ") and line.strip() != b"data: [DONE]":
                            yield json.loads(line[6:])
                kept = True
            except (asyncio.IncompleteReadError, OSError) as error:
                raise EngineDeadError("the engine has closed a connection within a stream") from error
            finally:
                self._give_back(connection, kept)

    def close(self) -> None:
        """Closes idle connections. Requests under way go on. Where the event loop has ended, its connections have, too."""
        idle, self._idle = self._idle, []
        if self._loop is not None and not self._loop.is_closed():
            for connection in idle:
                connection.close()

    def _room_of_this_loop(self) -> asyncio.Semaphore:
        loop = asyncio.get_running_loop()
        if self._loop is not loop:  # the program has begun another one: connections of the last one have ended with it
            self._loop, self._room, self._idle = loop, asyncio.Semaphore(self._limit), []
        assert self._room is not None
        return self._room

    async def _send(self, method: str, path: str, body: Any) -> Tuple[_Connection, int, http.client.HTTPMessage]:
        data = b"" if body is None else json.dumps(body).encode()
        head = f"{method} {path} HTTP/1.1\r\n{self._head}Content-Length: {len(data)}\r\n\r\n".encode()
        connection = None
        try:
            connection = await self._connect()
            status, headers = await connection.send(head, data)
            return connection, status, headers
        except (asyncio.IncompleteReadError, OSError) as error:
            self._give_back(connection, False)
            raise EngineDeadError("the engine does not reply") from error
        except BaseException:
            self._give_back(connection, False)
            raise

    async def _connect(self) -> _Connection:
        while self._idle:
            connection = self._idle.pop()
            if connection.usable:
                return connection
            connection.close()
        return _Connection(*await asyncio.open_connection("127.0.0.1", self._port, limit=_MAX_LINE_BYTES))

    def _give_back(self, connection: Optional[_Connection], kept: bool) -> None:
        if connection is None:
            return
        if kept:
            self._idle.append(connection)
        else:
            connection.close()


def _error_of(status: int, data: bytes, headers: http.client.HTTPMessage) -> HttpError:
    message, param = data.decode(errors="replace"), None
    try:
        error: Dict[str, Any] = json.loads(data)["error"]
        message, param = error["message"], error.get("param")
    except (ValueError, KeyError, TypeError):
        pass
    return HttpError(status, message, param, headers.get("Retry-After"))
