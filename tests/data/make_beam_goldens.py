"""Writes tests/data/beam_goldens.json: beam searches over the tiny checkpoints, computed in float64 by transformers.

    python -m venv oracle && oracle/bin/pip install torch transformers
    oracle/bin/python tests/data/make_beam_goldens.py

Two kinds of cases. `generate`: what transformers' own generate answers where its rules are vLLM's: no token ends a beam,
so that all answers are of one length; or EOS tokens do, where a score is a sum, whatever its length, and each of them is
among the `n` best tokens of its step, beyond which generate does not look. `rules`: the rules of vLLM's server, and
transformers' early_stopping, as docs/api.md has them, over the same logits, with EOS tokens. A case is left out where
another order of summation could change it: where two sums or scores that are compared are nearer than MIN_GAP.
"""
import itertools
import json
import os

import torch
from transformers import AutoModelForCausalLM

DATA = os.path.dirname(os.path.abspath(__file__))
MODELS = ("llama-uneven", "llama-rope3", "qwen2", "qwen3", "opt")
EARLY_MODEL = "qwen3"  # which has the most prompts that an EOS token follows
MIN_GAP = 2e-3
STEPS = 12
EARLY_STEPS = 20


class Ambiguous(Exception):
    pass


def check_gaps(values):
    """Refuses numbers in descending order that are nearly equal."""
    for better, worse in zip(values, values[1:]):
        if better - worse < MIN_GAP:
            raise Ambiguous


class Search:
    """`answers`, best first, with their sums and whether an EOS token has ended them. `stopped`: because of early_stopping.
    `as_generate`: with a length penalty of 0 generate gives the same ones."""

    def __init__(self, model, prompt, width, eos, length_penalty, steps, early_stopping="never"):
        self.model, self.prompt, self.width, self.eos, self.length_penalty = model, prompt, width, eos, length_penalty
        self.early_stopping, self.as_generate = early_stopping, True
        self.live, self.ended = [(prompt, 0.0)], []
        for step in range(steps):
            self.extend()
            self.stopped = self.stops()
            if self.stopped:
                break
        # In generate the beams that the last step leaves are answers, also where it has ended enough others.
        self.as_generate &= not (self.stopped and step == steps - 1)
        answers = self.ended + ([] if self.stopped else [(*beam, False) for beam in self.live])
        answers.sort(key=lambda answer: -self.score(answer))
        self.check_scores(map(self.score, answers[:width + 1]))
        self.answers = [{"tokens": tokens[len(prompt):], "cum_logprob": round(total, 6),
                         "finish_reason": "stop" if has_eos else "length"} for tokens, total, has_eos in answers[:width]]

    def extend(self):
        with torch.no_grad():
            logits = self.model(torch.tensor([tokens for tokens, _ in self.live])).logits[:, -1].double()
        going_on, ending = [], []
        for (tokens, total), row in zip(self.live, torch.log_softmax(logits, dim=-1)):
            best = torch.topk(row, 2 * self.width + 1)
            check_gaps(best.values.tolist()[-2:])
            for logprob, token in zip(best.values[:-1].tolist(), best.indices[:-1].tolist()):
                if token in self.eos:
                    ending.append((tokens, total + logprob, True))
                else:
                    going_on.append((tokens + [token], total + logprob))
        going_on.sort(key=lambda beam: -beam[1])
        check_gaps([total for _, total in going_on[:self.width + 1]])
        self.live = going_on[:self.width]
        self.ended += ending
        worst_seen = sorted((beam[1] for beam in going_on + ending), reverse=True)[self.width - 1]
        self.as_generate &= all(total >= worst_seen for _, total, _ in ending)

    def score(self, answer):
        tokens, total = answer[:2]
        return total / (len(tokens) - (tokens[-1] in self.eos)) ** self.length_penalty

    def check_scores(self, scores):
        if self.length_penalty < 2:  # with larger ones all scores are near each other
            check_gaps([score * len(self.prompt) ** self.length_penalty for score in scores])

    def stops(self):
        if self.early_stopping == "never" or len(self.ended) < self.width:
            return False
        if self.early_stopping:
            return True
        scores = [sorted(map(self.score, self.ended), reverse=True)[self.width - 1], self.score(self.live[0])]
        self.check_scores(sorted(scores, reverse=True))
        return scores[0] > scores[1]


def generate(model, prompt, width, steps, eos=None, **more):
    """Its answers, without the EOS tokens that have ended them."""
    output = model.generate(torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt), dtype=torch.long), num_beams=width,
                            num_return_sequences=width, do_sample=False, max_new_tokens=steps, eos_token_id=eos, pad_token_id=0,
                            **more)
    return [list(itertools.takewhile(lambda token: eos is None or token not in eos, row[len(prompt):].tolist())) for row in output]


def load(name):
    """The model, and its EOS tokens."""
    model = AutoModelForCausalLM.from_pretrained(os.path.join(DATA, "tiny", name), dtype=torch.float64)
    eos = model.config.eos_token_id
    model.generation_config.eos_token_id = None
    return model, set(eos if isinstance(eos, list) else [eos])


def random_prompt(seed, lengths):
    random = torch.Generator().manual_seed(seed)
    return torch.randint(3, 500, (lengths[seed % len(lengths)],), generator=random).tolist()


def case_of(name, kind, search, steps):
    return {"model": name, "kind": kind, "prompt": search.prompt, "n": search.width, "max_tokens": steps,
            "length_penalty": search.length_penalty, "ignore_eos": not search.eos, "answers": search.answers}


def cases_of(name):
    model, eos = load(name)
    for seed in range(40):
        prompt, width = random_prompt(seed, [1, 5, 16, 23, 40]), 2 + seed % 4
        for penalty, ends in ((1.0, set()), (0.0, eos), (1.0, eos), (0.5, eos)):
            try:
                search = Search(model, prompt, width, ends, penalty, STEPS)
            except Ambiguous:
                continue
            if not ends:
                own = generate(model, prompt, width, STEPS, length_penalty=1.0)
                assert own == [answer["tokens"] for answer in search.answers], (name, seed, own, search.answers)
            yield case_of(name, "rules" if ends else "generate", search, STEPS)


def ending_prompts(model, eos):
    """The prompts after which an EOS token is among the two likeliest tokens."""
    for seed in itertools.count():
        prompts = torch.randint(3, 500, (512, 2 + seed % 6), generator=torch.Generator().manual_seed(seed))
        with torch.no_grad():
            likeliest = model(prompts).logits[:, -1].topk(2).indices
        for prompt, tokens in zip(prompts.tolist(), likeliest.tolist()):
            if eos & set(tokens):
                yield prompt


def early_case(name, model, eos, prompt, penalty, early_stopping):
    """None where it is not early_stopping that ends the search, or where that changes nothing: no answer, or with a penalty of 0,
    where `false` stops when no better answer can come, no step."""
    width = 2 + len(prompt) % 2
    search = Search(model, prompt, width, eos, penalty, EARLY_STEPS, early_stopping)
    never = Search(model, prompt, width, eos, penalty, EARLY_STEPS)
    changes_answers = early_stopping or penalty > 0
    if not search.stopped or (changes_answers and search.answers == never.answers):
        return None
    case = {**case_of(name, "rules", search, EARLY_STEPS), "early_stopping": early_stopping}
    if penalty > 0:
        return case
    if not search.as_generate:
        return None
    own = generate(model, prompt, width, EARLY_STEPS, list(eos), early_stopping=early_stopping, length_penalty=0.0)
    assert own == [answer["tokens"] for answer in search.answers], (name, prompt, own, search.answers)
    return {**case, "kind": "generate"}


def early_cases_of(name, early_stopping):
    """One at most for a prompt, of answers that are not all the first tokens'."""
    model, eos = load(name)
    for prompt in ending_prompts(model, eos):
        for penalty in (0.0, 1.0, 2.0):
            try:
                case = early_case(name, model, eos, prompt, penalty, early_stopping)
            except Ambiguous:
                continue
            if case and any(len(answer["tokens"]) > 1 for answer in case["answers"]):
                yield case
                break


def first_of_each_kind(cases, count):
    chosen = {"generate": [], "rules": []}
    for case in cases:
        kind = chosen[case["kind"]]
        if len(kind) < count:
            kind.append(case)
        if all(len(kind) == count for kind in chosen.values()):
            return chosen["generate"] + chosen["rules"]


def main():
    chosen = []
    for name in MODELS:
        cases = list(cases_of(name))
        stops = [case for case in cases if any(a["finish_reason"] == "stop" for a in case["answers"])]
        plain = [case for case in cases if case["kind"] == "generate"]
        print(name, len(cases), "cases,", len(plain), "of generate,", len(stops), "with EOS")
        chosen += plain[:5] + stops[:5]
    for early_stopping in (True, False):
        chosen += first_of_each_kind(early_cases_of(EARLY_MODEL, early_stopping), 2)
    with open(os.path.join(DATA, "beam_goldens.json"), "w", encoding="utf-8") as file:
        file.write("[\n" + ",\n".join(json.dumps(case) for case in chosen) + "\n]\n")


if __name__ == "__main__":
    main()
