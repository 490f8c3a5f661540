#!/usr/bin/env bash
# Writes tests/data/tokenizer from Hugging Face tokenizers and jinja2. DIRECTORY has the subfolders smollm2, qwen3 and
# llama3, each with tokenizer.json and tokenizer_config.json. Llama 3's template stays out of the repository.
#   bazel build //tests/jinja:render_cli && PYTHON=venv/bin/python tools/make_tokenizer_goldens.sh DIRECTORY
set -euo pipefail
cd "$(dirname "$0")/.."
models=${1:?usage: make_tokenizer_goldens.sh DIRECTORY}
python=${PYTHON:-python3}
render=${RENDER_CLI:-bazel-bin/tests/jinja/render_cli}
out=tests/data/tokenizer
"$python" tools/compare_tokenizers.py --golden $out/tiny.jsonl --count 220 tests/data/tiny/qwen3
for model in smollm2 qwen3 llama3; do
  "$python" tools/compare_tokenizers.py --golden $out/$model.jsonl --count 100 "$models/$model"
done
"$python" tools/compare_chat_templates.py --binary "$render" --golden $out/templates.jsonl \
  "$models/smollm2" "$models/qwen3" tests/data/tiny/qwen3
"$python" tools/compare_chat_templates.py --binary "$render" --golden $out/templates_llama3.jsonl --no-micro --withhold \
  "$models/llama3"
du -ch $out/*.jsonl | tail -1
