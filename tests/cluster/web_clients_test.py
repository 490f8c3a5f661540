"""HTTP clients of a whole cluster: banned words that never come, pages that are kept away."""
import gzip
import http.client
import json
import re
import unittest

from cluster.harness import SMOLLM2, Cluster, tiny

PROMPTS = ("The history of the Roman Empire can be described as", "Photosynthesis is the process by which")
SPECULATION = ("--num-speculative-tokens=4", "--no-drafts-must-pay", "--prompt-lookup-min=1")


def words_of(text):
    return re.findall(r"[A-Za-z0-9]+", text)


class BadWords(unittest.TestCase):
    def text(self, cluster, prompt, **fields):
        return cluster.complete(prompt, max_tokens=32, ignore_eos=True, **fields)["choices"][0]["text"]

    def ban_one_after_the_other(self, cluster, rounds=4):
        """Bans a word of each answer, alternately the longest and the last: the model looks for other spellings."""
        for prompt in PROMPTS:
            bad = []
            for i in range(rounds):
                words = words_of(self.text(cluster, prompt, bad_words=bad) if bad else self.text(cluster, prompt))
                self.assertFalse(set(words) & set(bad), prompt)
                fresh = [word for word in words if word not in bad]
                if not fresh:
                    break
                bad.append(max(fresh, key=len) if i % 2 == 0 else fresh[-1])
            text = self.text(cluster, prompt, bad_words=bad)
            self.assertFalse(set(words_of(text)) & set(bad), text)
            self.assertEqual(self.text(cluster, prompt, bad_words=[f" {word} " for word in bad]), text)
            yield prompt, bad, text

    def test_they_are_never_completed_whichever_tokens_spell_them(self):
        with Cluster(SMOLLM2, "--max-model-len=512", *SPECULATION, workers=1) as cluster:
            answers = list(self.ban_one_after_the_other(cluster))
            for prompt, bad, text in answers:  # sampled, several choices at once
                body = {"model": cluster.name, "prompt": prompt, "n": 4, "temperature": 1.2, "seed": 3, "max_tokens": 32,
                        "bad_words": bad}
                for choice in cluster.request("POST", "/v1/completions", body).json["choices"]:
                    self.assertFalse(set(words_of(choice["text"])) & set(bad), choice["text"])
        with Cluster(SMOLLM2, "--max-model-len=512", workers=1) as cluster:
            for prompt, bad, text in answers:
                self.assertEqual(self.text(cluster, prompt, bad_words=bad), text, "speculation changes no token")


class Pages(unittest.TestCase):
    def test_a_page_reads_what_the_flags_allow_and_commands_nothing(self):
        page = {"Origin": "https://chat.example"}
        with Cluster(tiny("qwen3"), '--allowed-origins=["https://chat.example"]', "--admin-allowed-hosts=gpu.example",
                     "--enable-request-id-headers", workers=1) as cluster:
            answer = cluster.request("GET", "/v1/models", headers=page)
            self.assertEqual(answer.headers["Access-Control-Allow-Origin"], "https://chat.example")
            self.assertRegex(answer.headers["X-Request-Id"], "^[0-9a-f]{32}$")
            preflight = cluster.request("OPTIONS", "/v1/completions", headers={**page, "Access-Control-Request-Method": "POST"})
            self.assertEqual(preflight.status, 200)
            for headers, status in ((page, 403), ({"Sec-Fetch-Site": "cross-site"}, 403), ({"Host": "evil.example"}, 403),
                                    ({"Host": "gpu.example:8001"}, 200)):
                answer = cluster.request("POST", "/sleep", headers=headers, port=cluster.admin_port)
                self.assertEqual(answer.status, status, headers)
            cluster.admin("/wake_up")
            # A probe may name any host: a pod's address, or a proxy in front.
            probe = cluster.request("GET", "/readyz", headers={"Host": "evil.example"}, port=cluster.admin_port)
            self.assertEqual(probe.status, 200)
            body = gzip.compress(json.dumps({"prompt": [5, 6, 7], "max_tokens": 3}).encode())
            answer = cluster.request("POST", "/v1/completions", body, {"Content-Type": "application/json",
                                                                       "Content-Encoding": "gzip"})
            self.assertEqual(answer.json["usage"]["completion_tokens"], 3)
            connection = http.client.HTTPConnection("127.0.0.1", cluster.port)
            connection.request("HEAD", "/v1/models")
            head = connection.getresponse()
            self.assertEqual((head.status, head.read()), (200, b""))
            self.assertGreater(int(head.headers["Content-Length"]), 100)
            connection.close()
