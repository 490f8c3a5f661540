"""Every recorded exchange with vLLM, replayed against the whole cluster on SmolLM2: one case, one test."""
import os
import re
import unittest

from cluster.harness import ROOT, SMOLLM2, Cluster
from cluster.harness.api_cases import Replay, load

VOCABULARY = 49152


class ApiCases(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster(SMOLLM2, "--dequantize", "--max-model-len=4096", "--tool-call-parser=hermes", workers=2)
        cls.addClassCleanup(cls.cluster.__exit__)

        def send(method, path, body, headers, admin):
            port = cls.cluster.admin_port if admin else cls.cluster.port
            return cls.cluster.request(method, path, body, headers, port=port)
        cls.replay = Replay(send, cls.cluster.name, VOCABULARY, is_smollm2=True)


def _add(case):
    def test(self):
        problems = self.replay.run(case)
        self.assertEqual(problems, [], "\n".join(problems))
    setattr(ApiCases, "test_" + re.sub(r"\W", "_", case["id"]), test)


# The second file was recorded for Somnus, from the same vLLM: every field with every type and bound. The third file, which
# tests/data/make_vllm_forms.py makes, has forms, tool calls, Responses and Messages; the server reads tool calls for that file.
for _file in ("api_cases.jsonl", "api_cases_more.jsonl", "api_cases_forms.jsonl"):
    for _case in load(os.path.join(ROOT, "tests", "data", _file)):
        _add(_case)
