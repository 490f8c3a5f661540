#!/usr/bin/env python3
"""Writes tests/data/lora: adapters as the `peft` package saves them, over checkpoints of tests/data/variants.

Needs torch, transformers, safetensors and peft:  make_lora_goldens.py [output folder [case ...]]
The files are committed; run it again only to add a case, and name the new one, because another release of peft writes
other keys. A and B are random, so that every matrix changes something. expected.json has the base model's name, and
either what peft and transformers compute from the stored numbers in float64 (prompts with the log-probability of each
token behind the first), or "refused": the name that the error must have.
"""
import json
import os
import pathlib
import shutil
import sys

os.environ["HF_HUB_OFFLINE"] = "1"  # peft asks the hub for the base model's vocabulary

import torch  # noqa: E402
from peft import LoraConfig, PeftModel, get_peft_model  # noqa: E402
from transformers import AutoModelForCausalLM  # noqa: E402

SEVEN = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
DATA = pathlib.Path(__file__).parent

CASES = {
    "seven-linears": dict(base="llama-seven", config=dict(r=3, lora_alpha=5, target_modules=SEVEN)),
    "rank-1": dict(base="qwen2-seven", config=dict(r=1, lora_alpha=2, target_modules=["q_proj", "v_proj"], fan_in_fan_out=True)),
    "rank-64-rslora": dict(base="llama-seven", config=dict(r=64, lora_alpha=9, use_rslora=True, layers_to_transform=[1],
                                                           target_modules=["q_proj", "down_proj"])),
    "patterns": dict(base="llama-seven", config=dict(
        r=2, lora_alpha=3, target_modules=SEVEN, exclude_modules=["layers.0.mlp.up_proj"], use_rslora=True,
        rank_pattern={"q_proj": 4, "model.layers.1.mlp.gate_proj": 1, "^model.layers.0.self_attn.v_proj": 3},
        alpha_pattern={"o_proj": 11, "layers.1.self_attn.k_proj": 1, "^model.layers.0.mlp.down_proj": 6})),
    "regular-expression": dict(base="llama-mqa-bias", config=dict(
        r=3, lora_alpha=4, target_modules=r".*\.layers\.[01]\.(self_attn\.(q|o)_proj|mlp\.(gate|down)_proj)")),
    "all-linear": dict(base="qwen2-window", config=dict(r=2, lora_alpha=4, target_modules="all-linear")),
    "one-layer": dict(base="olmo2", config=dict(r=2, lora_alpha=4, target_modules=["v_proj", "up_proj"], layers_to_transform=0,
                                                layers_pattern="layers")),
    "fused": dict(base="phi3-window", config=dict(r=3, lora_alpha=4, target_modules="all-linear"), dtype=torch.bfloat16),
    "glm": dict(base="glm", config=dict(r=2, lora_alpha=4, target_modules="all-linear", init_lora_weights="gaussian")),
    "gemma2": dict(base="gemma2", config=dict(r=2, lora_alpha=4, target_modules=["q_proj", "k_proj", "v_proj", "up_proj"])),
    "granite": dict(base="granite-hybrid", config=dict(r=2, lora_alpha=3,
                                                       target_modules=["q_proj", "o_proj", "input_linear", "output_linear"])),
    "opt": dict(base="opt-postnorm", config=dict(r=2, lora_alpha=4, target_modules=["q_proj", "out_proj", "fc1", "fc2"])),
    "mixture": dict(base="mixtral", config=dict(r=2, lora_alpha=4, target_modules=["q_proj", "k_proj", "v_proj", "o_proj"]),
                    dtype=torch.float16),
    "dora": dict(base="llama-seven", config=dict(use_dora=True), refused="use_dora"),
    "bias": dict(base="llama-mqa-bias", config=dict(bias="all"), refused="bias"),
    "bias-of-adapters": dict(base="llama-mqa-bias", config=dict(bias="lora_only"), refused="bias"),
    "bias-of-b": dict(base="llama-mqa-bias", config=dict(lora_bias=True), refused="lora_bias"),
    "saved-whole": dict(base="llama-mqa-bias", config=dict(modules_to_save=["norm"]), refused="modules_to_save"),
    "tokens": dict(base="llama-seven", config=dict(trainable_token_indices=[3, 5]), refused="trainable_token_indices"),
    "embedding": dict(base="qwen2-seven", config=dict(target_modules=["embed_tokens"]), refused="embedding"),
    "head": dict(base="qwen2-seven", config=dict(target_modules=["q_proj", "lm_head"]), refused="output matrix"),
    "pissa": dict(base="llama-seven", config=dict(init_lora_weights="pissa"), refused="init_lora_weights"),
    "replicated": dict(base="llama-seven", config=dict(layer_replication=[(0, 2), (1, 2)]), refused="layer_replication"),
    "experts": dict(base="mixtral", config=dict(target_modules=[], target_parameters=["experts.down_proj"]),
                    refused="target_parameters"),
    "pattern-expression": dict(base="llama-seven", config=dict(
        r=2, lora_alpha=3, target_modules=SEVEN,
        rank_pattern={r".*[1-9]\.self_attn\.q_proj": 4, r"(k|v)_proj": 1, r"^model\.layers\.0\..*down_proj": 3, "up.proj": 5},
        alpha_pattern={r"layers\.0\..*": 7, r"(?:q|gate)_proj": 11, r"self_attn\.\w_proj": 2})),
}
REFUSED = dict(r=1, lora_alpha=1, target_modules=["q_proj"])


def base_model(name, dtype):
    return AutoModelForCausalLM.from_pretrained(DATA / "variants" / name, dtype=dtype, pad_token_id=0, attn_implementation="eager",
                                                experts_implementation="eager").eval()


def write_adapter(folder, case, generator):
    config = LoraConfig(task_type="CAUSAL_LM", **((REFUSED if "refused" in case else {}) | case["config"]))
    model = get_peft_model(base_model(case["base"], torch.float32), config, autocast_adapter_dtype=False)
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            noise = torch.randn(parameter.shape, generator=generator)
            size = parameter.shape[1] if "lora_A" in name and parameter.ndim > 1 else 4
            parameter.data = (noise / size ** 0.5).to(case.get("dtype", torch.float32))
    model.peft_config["default"].base_model_name_or_path = case["base"]
    shutil.rmtree(folder, ignore_errors=True)
    model.save_pretrained(folder)
    (folder / "README.md").unlink(missing_ok=True)


def expect(folder, name, generator):
    model = PeftModel.from_pretrained(base_model(name, torch.float64), folder, autocast_adapter_dtype=False).eval()
    adapters = {p.dtype for n, p in model.named_parameters() if "lora_" in n}
    assert adapters == {torch.float64}, adapters
    cases = []
    for length in (5, 40):
        prompt = torch.randint(3, 130, (length,), generator=generator)
        with torch.no_grad():
            logprobs = torch.log_softmax(model(prompt[None]).logits[0].double(), -1)
        cases.append(dict(prompt=prompt.tolist(),
                          prompt_logprobs=[None] + [round(logprobs[i - 1, prompt[i]].item(), 6) for i in range(1, length)]))
    return cases


def main():
    torch.set_num_threads(1)
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else DATA / "lora")
    for seed, (name, case) in enumerate(CASES.items()):
        if sys.argv[2:] and name not in sys.argv[2:]:
            continue
        generator = torch.Generator().manual_seed(3000 + seed)
        folder = root / name
        write_adapter(folder, case, generator)
        expected = {"model": case["base"]}
        expected |= {"refused": case["refused"]} if "refused" in case else {"cases": expect(folder, case["base"], generator)}
        (folder / "expected.json").write_text(json.dumps(expected) + "\n")
        print(name, sum(f.stat().st_size for f in folder.iterdir()), "bytes")


if __name__ == "__main__":
    main()
