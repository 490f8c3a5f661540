"""KV events through the whole cluster: a client that follows the events, by HTTP or by gRPC, knows which blocks are cached, and
where."""
import http.client
import json
import socket
import threading
import unittest

from cluster.harness import Cluster, grpc, stubs, tiny, wait_until
from cluster.harness.run_directory import RunDirectory, kill

MODEL = "llama-uneven"
BLOCK = 16
# 4 sequences of 512 tokens are 128 blocks of 16.
FLAGS = ("--dtype=float32", "--max-num-seqs=4", "--max-num-batched-tokens=256", "--max-kv-events=4096")
PROMPT = [(17 * number) % 500 + 3 for number in range(100)]  # 6 full blocks, and 4 tokens
END_S = 60


def setUpModule():
    stubs.generate("kv_events")
    global pb, rpc
    from proto import kv_events_pb2 as pb, kv_events_pb2_grpc as rpc


class Router:
    """A router's picture of the events: by replica and medium, for each block's hash the parent, the tokens and the salt."""

    def __init__(self):
        self.caches, self.last, self.snapshots, self.gaps, self.cleared = {}, None, 0, 0, 0
        self.newest = 0  # of all blocks that were stored; with one replica the number since the start

    def take(self, batch):
        if "snapshot_parts_left" in batch:
            self.snapshots += 1
        elif self.last is not None and batch["seq"] != self.last + 1:
            self.gaps += 1
        media = self.caches.setdefault(batch["data_parallel_rank"], {"GPU": {}, "CPU": {}})
        for event in batch["events"]:
            self._apply(event, media)
        self.last = batch["seq"]  # last of all: a waiting thread finds all of the batch

    def _apply(self, event, media):
        if event["type"] == "AllBlocksCleared":
            self.cleared += 1
            for cache in media.values():
                cache.clear()
            return
        cache = media[event["medium"]]
        if event["type"] == "BlockRemoved":
            for block in event["block_hashes"]:
                del cache[block]
        else:
            parent, salt = event["parent_block_hash"], event["extra_keys"]
            for place, block in enumerate(event["block_hashes"]):
                if block in cache or (parent is not None and place > 0 and parent not in cache):
                    raise AssertionError(f"block {block} with parent {parent} cannot be stored")
                cache[block] = (parent, tuple(event["token_ids"][place * BLOCK:(place + 1) * BLOCK]),
                                salt[0][0] if salt and place == 0 else "")
                parent = block
                self.newest = max(self.newest, block)

    def cached_tokens(self, prompt, replica=0, salt=""):
        """How many tokens of a prompt a replica has in the cache, by the events of the replica."""
        parent, found = None, 0
        for medium in ("GPU", "CPU"):
            cache = self.caches.get(replica, {}).get(medium, {})
            by_content = {content: block for block, content in cache.items()}
            while found + BLOCK < len(prompt):
                content = (parent, tuple(prompt[found:found + BLOCK]), salt if parent is None else "")
                if content not in by_content:
                    break
                parent, found = by_content[content], found + BLOCK
        return found

    def size(self, medium="GPU"):
        return sum(len(media[medium]) for media in self.caches.values())


class HttpFollower:
    """GET /kv_events, read by a thread. A context manager."""

    def __init__(self, cluster, query="", headers=None, router=None):
        self.router = router or Router()
        self._connection = cluster.connection(cluster.admin_port)
        self._connection.request("GET", f"/kv_events{query}", headers=headers or {})
        self._answer = self._connection.getresponse()
        self.status, self.error, self.last_id = self._answer.status, None, None
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self):
        try:
            for line in iter(self._answer.readline, b""):
                if line.startswith(b"id: "):
                    self.last_id = line[4:].strip().decode()
                elif line.startswith(b"data: "):
                    self.router.take(json.loads(line[6:]))
        except (OSError, http.client.HTTPException, ValueError, AttributeError):
            pass  # the connection was closed
        except (AssertionError, KeyError) as error:
            self.error = error

    def ended(self):
        return not self._thread.is_alive()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        try:
            (self._connection.sock or self._answer.fp.raw._sock).shutdown(socket.SHUT_RDWR)
        except (OSError, AttributeError):
            pass  # the server has ended the stream
        self._thread.join(END_S)
        self._answer.close()
        self._connection.close()


class GrpcFollower:
    """KvEventService.Watch, as the same batches."""

    def __init__(self, cluster, from_sequence=None):
        self.router, self.error, self.code = Router(), None, None
        self._channel = grpc.insecure_channel(f"127.0.0.1:{cluster.control_port}")
        self._call = rpc.KvEventServiceStub(self._channel).Watch(pb.WatchKvEventsRequest(from_sequence=from_sequence))
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self):
        try:
            for message in self._call:
                self.router.take(self._batch(message))
        except grpc.RpcError:
            pass
        except (AssertionError, KeyError) as error:
            self.error = error
        self.code = self._call.code()

    @staticmethod
    def _batch(message):
        batch = {"seq": message.sequence, "data_parallel_rank": message.data_parallel_rank, "events": []}
        if message.snapshot:
            batch["snapshot_parts_left"] = message.snapshot_parts_left
        for event in message.events:
            kind = event.WhichOneof("event")
            if kind == "all_blocks_cleared":
                batch["events"].append({"type": "AllBlocksCleared"})
            elif kind == "block_removed":
                removed = event.block_removed
                batch["events"].append({"type": "BlockRemoved", "block_hashes": list(removed.block_hashes), "medium": removed.medium})
            else:
                stored = event.block_stored
                batch["events"].append({
                    "type": "BlockStored", "medium": stored.medium, "block_hashes": list(stored.block_hashes), "token_ids": list(stored.token_ids),
                    "parent_block_hash": stored.parent_block_hash if stored.HasField("parent_block_hash") else None,
                    "extra_keys": [[stored.cache_salt]] if stored.cache_salt else None})
        return batch

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._call.cancel()
        self._thread.join(END_S)
        self._channel.close()


class KvEvents(unittest.TestCase):
    def cached(self, cluster, prompt, **fields):
        answer = cluster.complete(prompt, max_tokens=4, ignore_eos=True, **fields)
        return (answer["usage"]["prompt_tokens_details"] or {}).get("cached_tokens", 0)

    def await_equal(self, cluster, *followers, from_the_start=False):
        """Until every follower knows as many blocks as the engine has; all followers know the same then. `from_the_start`: the
        followers have seen every block that was ever stored, of one replica, which says more where blocks come and go."""
        def equal():
            for follower in followers:
                if follower.error is not None:
                    raise follower.error
            routers = [follower.router for follower in followers]
            if from_the_start:
                stored = cluster.metric("somnus:prefix_cache_blocks_stored_total")
                if any(router.newest != stored for router in routers):
                    return False
            sizes = (cluster.metric("somnus:prefix_cache_blocks"), cluster.metric("somnus:kv_host_blocks_cached"))
            return all((router.size("GPU"), router.size("CPU")) == sizes for router in routers)
        wait_until(equal, END_S, lambda: f"as many blocks: {[follower.router.size() for follower in followers]}")
        for follower in followers[1:]:
            wait_until(lambda: follower.router.caches == followers[0].router.caches, END_S, "the same blocks")

    def test_followers_know_what_is_cached_through_everything(self):
        with Cluster(tiny(MODEL), *FLAGS, workers=2) as cluster, HttpFollower(cluster) as by_http, GrpcFollower(cluster) as by_grpc:
            self.assertEqual(by_http.status, 200)
            router = by_http.router

            def expect_found(prompt, **fields):
                self.await_equal(cluster, by_http, by_grpc, from_the_start=True)
                foretold = router.cached_tokens(prompt, salt=fields.get("cache_salt", ""))
                self.assertEqual(self.cached(cluster, prompt, **fields), foretold)
                return foretold
            self.assertEqual(expect_found(PROMPT), 0)
            self.assertEqual(expect_found(PROMPT), 96)
            self.assertEqual(expect_found(PROMPT, cache_salt="tenant"), 0, "another one's")
            self.assertEqual(expect_found(PROMPT, cache_salt="tenant"), 96)
            for number in range(3, 18):  # the cache is turned over several times
                self.assertEqual(expect_found([number] * 470), 0)
            self.assertEqual(expect_found(PROMPT), 0, "it was evicted")
            self.assertGreater(cluster.metric("somnus:prefix_cache_blocks_lost_total", cause="evicted"), 128)
            cleared = router.cleared
            for lose in ("/reset_prefix_cache", "/sleep?level=1", "/sleep?level=2"):
                self.assertEqual(expect_found(PROMPT), 96, lose)
                cluster.admin(lose)
                self.await_equal(cluster, by_http, by_grpc, from_the_start=True)
                self.assertEqual((router.size(), router.cleared), (0, cleared + 1), lose)
                cleared += 1
                if "sleep" in lose:
                    cluster.admin("/wake_up")
                self.assertEqual(expect_found(PROMPT), 0, lose)
            self.assertGreaterEqual(cluster.metric("somnus:prefix_cache_blocks_lost_total", cause="sleep"), 12)
            self.assertGreater(cluster.metric("somnus:prefix_cache_misses_total", reason="salt"), 0)
            self.assertEqual((router.gaps, by_grpc.router.gaps), (0, 0))
            self.assertEqual(cluster.stop(), 0)
            wait_until(by_http.ended, END_S, "the end of the stream")

    def test_who_comes_back_goes_on_and_who_comes_late_gets_a_snapshot(self):
        with Cluster(tiny(MODEL), *FLAGS, workers=1) as cluster:
            self.cached(cluster, PROMPT)
            with HttpFollower(cluster) as first:
                self.await_equal(cluster, first)
                snapshots = first.router.snapshots
            last = first.router.last
            self.assertGreater(snapshots, 0, "it begins with one")
            other = [number % 400 + 50 for number in range(90)]
            self.cached(cluster, other)
            with HttpFollower(cluster, headers={"Last-Event-ID": first.last_id}, router=first.router) as again, \
                    HttpFollower(cluster) as late, GrpcFollower(cluster, from_sequence=last + 1) as by_grpc:
                self.await_equal(cluster, again, late)
                self.assertEqual((again.router.snapshots, again.router.gaps), (snapshots, 0), "it has missed nothing")
                self.assertEqual(late.router.cached_tokens(other), 80)
                wait_until(lambda: by_grpc.router.last == again.router.last, END_S, "the same batches")
                self.assertEqual(by_grpc.router.snapshots, 0)
            with HttpFollower(cluster, "?from_seq=0") as old:
                self.await_equal(cluster, old)
                self.assertGreater(old.router.snapshots, 0, "that number is from another time")
            bad = cluster.request("GET", "/kv_events?from_seq=now", port=cluster.admin_port)
            self.assertEqual((bad.status, bad.json["error"]["param"]), (400, "from_seq"))
            self.assertEqual(cluster.request("GET", "/kv_events").status, 404, "clients do not see others' prompts")
            self.assertEqual(cluster.stop(), 0)

    def test_the_next_coordinator_says_that_nothing_is_cached(self):
        run_dir = RunDirectory(tiny(MODEL), *FLAGS)
        self.addCleanup(run_dir.close)
        cluster = run_dir.start()
        with HttpFollower(cluster) as first:
            self.cached(cluster, PROMPT)
            self.await_equal(cluster, first)
            self.assertEqual(first.router.size(), 6)
            kill(cluster)
            wait_until(first.ended, END_S, "the end of the stream")
        cluster = run_dir.start()
        with HttpFollower(cluster, headers={"Last-Event-ID": first.last_id}, router=first.router) as again:
            self.await_equal(cluster, again)
            self.assertEqual(again.router.size(), 0, "the workers were adopted, and the cache begins anew")
            self.assertEqual(self.cached(cluster, PROMPT), 0)
            self.await_equal(cluster, again)
            self.assertEqual(again.router.cached_tokens(PROMPT), 96)
            self.assertEqual(cluster.stop(), 0)

    def test_events_name_their_replica(self):
        with Cluster(tiny(MODEL), *FLAGS, "--data-parallel-size=2", workers=1) as cluster, HttpFollower(cluster) as follower:
            self.cached(cluster, PROMPT)
            self.await_equal(cluster, follower)
            self.assertEqual(set(follower.router.caches), {0, 1})
            found = sorted(follower.router.cached_tokens(PROMPT, replica) for replica in (0, 1))
            self.assertEqual(found, [0, 96], "one replica has computed it")
            self.assertEqual(cluster.stop(), 0)

    def test_they_are_off_unless_somebody_wants_them_and_watchers_are_bounded(self):
        with Cluster(tiny(MODEL), *FLAGS[:-1], workers=1) as cluster:
            self.assertEqual(cluster.request("GET", "/kv_events", port=cluster.admin_port).status, 404)
            with GrpcFollower(cluster) as watcher:
                wait_until(lambda: watcher.code is not None, END_S, "the refusal")
                self.assertEqual(watcher.code, grpc.StatusCode.FAILED_PRECONDITION)
            self.assertEqual(cluster.stop(), 0)
        with Cluster(tiny(MODEL), *FLAGS, "--max-kv-event-watchers=1", workers=1) as cluster, HttpFollower(cluster) as follower:
            self.assertEqual(follower.status, 200)
            self.assertEqual(cluster.request("GET", "/kv_events", port=cluster.admin_port).status, 429)
            self.assertEqual(cluster.stop(), 0)
