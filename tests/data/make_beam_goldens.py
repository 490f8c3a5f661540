"""Writes tests/data/beam_goldens.json: beam searches over the tiny checkpoints, computed in float64 by transformers.

    python -m venv oracle && oracle/bin/pip install torch transformers
    oracle/bin/python tests/data/make_beam_goldens.py

Two kinds of cases. `generate`: what transformers' own generate answers where no token ends a beam, so that all answers
are of one length and its rules are vLLM's. `rules`: the rules of vLLM's server, as docs/api.md has them, over the same
logits, with EOS tokens. A case is left out where another order of summation could change it: where two sums or scores
that are compared are nearer than MIN_GAP.
"""
import json
import os

import torch
from transformers import AutoModelForCausalLM

DATA = os.path.dirname(os.path.abspath(__file__))
MODELS = ("llama-uneven", "llama-rope3", "qwen2", "qwen3", "opt")
MIN_GAP = 2e-3
STEPS = 12


class Ambiguous(Exception):
    pass


def check_gaps(values):
    """Of numbers in descending order."""
    for better, worse in zip(values, values[1:]):
        if better - worse < MIN_GAP:
            raise Ambiguous


def search(model, prompt, width, eos, length_penalty, steps):
    """The answers, best first, with their scores and whether an EOS token has ended them."""
    live, ended = [(prompt, 0.0)], []
    for _ in range(steps):
        with torch.no_grad():
            logits = model(torch.tensor([tokens for tokens, _ in live])).logits[:, -1].double()
        logprobs = torch.log_softmax(logits, dim=-1)
        going_on = []
        for (tokens, total), row in zip(live, logprobs):
            best = torch.topk(row, 2 * width + 1)
            check_gaps(best.values.tolist()[-2:])
            for logprob, token in zip(best.values[:-1].tolist(), best.indices[:-1].tolist()):
                if token in eos:
                    ended.append((tokens, total + logprob, True))
                else:
                    going_on.append((tokens + [token], total + logprob))
        going_on.sort(key=lambda beam: -beam[1])
        check_gaps([total for _, total in going_on[:width + 1]])
        live = going_on[:width]
    answers = ended + [(*beam, False) for beam in live]

    def score(answer):
        tokens, total, _ = answer
        return total / (len(tokens) - (tokens[-1] in eos)) ** length_penalty
    answers.sort(key=lambda answer: -score(answer))
    if length_penalty < 2:  # with larger ones all scores are near each other
        check_gaps([score(answer) * len(prompt) ** length_penalty for answer in answers[:width + 1]])
    return [{"tokens": tokens[len(prompt):], "cum_logprob": round(total, 6), "finish_reason": "stop" if stopped else "length"}
            for tokens, total, stopped in answers[:width]]


def generate(model, prompt, width, steps):
    output = model.generate(torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt), dtype=torch.long), num_beams=width,
                            num_return_sequences=width, do_sample=False, max_new_tokens=steps, eos_token_id=None, pad_token_id=0,
                            length_penalty=1.0)
    return [row[len(prompt):].tolist() for row in output]


def cases_of(name):
    path = os.path.join(DATA, "tiny", name)
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float64)
    eos = model.config.eos_token_id
    eos = set(eos if isinstance(eos, list) else [eos])
    model.generation_config.eos_token_id = None
    for seed in range(40):
        random = torch.Generator().manual_seed(seed)
        length = [1, 5, 16, 23, 40][seed % 5]
        prompt = torch.randint(3, 500, (length,), generator=random).tolist()
        width = 2 + seed % 4
        for penalty, ends in ((1.0, set()), (0.0, eos), (1.0, eos), (0.5, eos)):
            try:
                answers = search(model, prompt, width, ends, penalty, STEPS)
            except Ambiguous:
                continue
            case = {"model": name, "kind": "rules", "prompt": prompt, "n": width, "max_tokens": STEPS, "length_penalty": penalty,
                    "ignore_eos": not ends, "answers": answers}
            if not ends:
                case["kind"] = "generate"
                own = generate(model, prompt, width, STEPS)
                assert own == [answer["tokens"] for answer in answers], (name, seed, own, answers)
            yield case


def main():
    chosen = []
    for name in MODELS:
        cases = list(cases_of(name))
        stops = [case for case in cases if any(a["finish_reason"] == "stop" for a in case["answers"])]
        plain = [case for case in cases if case["kind"] == "generate"]
        print(name, len(cases), "cases,", len(plain), "of generate,", len(stops), "with EOS")
        chosen += plain[:5] + stops[:5]
    with open(os.path.join(DATA, "beam_goldens.json"), "w", encoding="utf-8") as file:
        file.write("[\n" + ",\n".join(json.dumps(case) for case in chosen) + "\n]\n")


if __name__ == "__main__":
    main()
