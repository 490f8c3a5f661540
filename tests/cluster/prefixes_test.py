"""Pinned prefixes outlive every other prompt, through the whole cluster. PinsTest (tests/scheduler) and
EnginePrefixesTest (tests/engine) have the events that lose a prefix, and ReplicaPrefixesTest (tests/replicas) has replicas."""
import json
import unittest

from cluster.harness import Cluster, tiny

MODEL = "llama-uneven"
# 4 sequences of 512 tokens are 128 blocks of 16, of which pins may have 32.
FLAGS = ("--dtype=float32", "--max-num-seqs=4", "--max-num-batched-tokens=256")
PROMPT = [(17 * number) % 500 + 3 for number in range(100)]  # 6 full blocks, and 4 tokens


class Prefixes(unittest.TestCase):
    def request(self, cluster, method, path, body=None, status=200, port=None):
        response = cluster.request(method, path, body, port=port)
        self.assertEqual(response.status, status, response.text)
        return response.json

    def pin(self, cluster, **body):
        return self.request(cluster, "POST", "/v1/prefixes", body)

    def held(self, cluster):
        return [prefix["held_blocks"] for prefix in self.request(cluster, "GET", "/v1/prefixes")["data"]]

    def cached(self, cluster, prompt, **fields):
        answer = cluster.complete(prompt, max_tokens=4, ignore_eos=True, **fields)
        return (answer["usage"]["prompt_tokens_details"] or {}).get("cached_tokens", 0)

    def flood(self, cluster):
        """Other prompts turn the cache over several times: 15 of 30 blocks each."""
        for number in range(3, 18):
            self.assertEqual(self.cached(cluster, [number] * 470), 0)

    def test_a_pin_outlives_every_other_prompt_until_it_is_unpinned(self):
        with Cluster(tiny(MODEL), *FLAGS, workers=2) as cluster:
            wanted = cluster.tokens(PROMPT, max_tokens=16, ignore_eos=True)
            self.flood(cluster)
            self.assertEqual(self.cached(cluster, PROMPT), 0, "the flood is large enough")
            self.flood(cluster)
            pinned = self.pin(cluster, prompt=PROMPT)
            self.assertEqual((pinned["object"], pinned["tokens"], pinned["blocks"], pinned["held_blocks"]), ("prefix", 96, 6, 6))
            self.assertEqual(cluster.metric("somnus:pinned_prefix_blocks"), 6)
            self.flood(cluster)
            self.assertEqual(self.cached(cluster, PROMPT), 96)
            self.assertEqual(cluster.tokens(PROMPT, max_tokens=16, ignore_eos=True), wanted)
            self.assertEqual(self.held(cluster), [6])
            self.request(cluster, "DELETE", f"/v1/prefixes/{pinned['id']}")
            self.assertEqual(self.held(cluster), [])
            self.flood(cluster)
            self.assertEqual(self.cached(cluster, PROMPT), 0)
            self.assertEqual(cluster.metric("somnus:pinned_prefix_releases_total"), 0)
            cluster.wait_idle()
            self.assertEqual(cluster.stop(), 0)

    def test_the_command_line_and_messages(self):
        with Cluster(tiny(MODEL), *FLAGS, "--api-key=secret", workers=1) as cluster:
            self.assertEqual(cluster.request("GET", "/v1/prefixes").status, 401)
            self.assertEqual(cluster.cli("prefixes").stdout, "no prefix is pinned\n")
            text = "You are a robot that answers every question about trains. " * 3
            done = cluster.cli("prefixes", "pin", "--system", "--json", stdin=text)
            pinned = json.loads(done.stdout)
            self.assertGreater(pinned["blocks"], 1)
            self.assertEqual(pinned["held_blocks"], pinned["blocks"])
            self.assertIn(f"{pinned['id']}  {cluster.name}: {pinned['tokens']} tokens", cluster.cli("prefixes", "list").stdout)
            body = {"messages": [{"role": "system", "content": text}, {"role": "user", "content": "When?"}], "max_tokens": 2}
            answer = cluster.request("POST", "/v1/chat/completions", body, headers={"Authorization": "Bearer secret"}).json
            self.assertEqual(answer["usage"]["prompt_tokens_details"]["cached_tokens"], pinned["tokens"])
            cluster.admin("/reset_prefix_cache")
            self.assertEqual(cluster.metric("somnus:pinned_prefix_releases_total", cause="forgotten"), 1)
            self.assertEqual(cluster.cli("prefixes", "unpin", pinned["id"]).stdout, f"{pinned['id']} is unpinned\n")
            self.assertEqual(cluster.cli("prefixes", "unpin", pinned["id"], check=False).returncode, 1)
            self.assertEqual(cluster.cli("prefixes", "unpin", "../v1", check=False).returncode, 2)
            self.assertEqual(cluster.cli("prefixes", "dance", check=False).returncode, 2)
            self.assertEqual(cluster.stop(), 0)
