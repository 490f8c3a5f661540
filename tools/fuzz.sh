#!/usr/bin/env bash
# Fuzzes the checkpoint parsers with libFuzzer, AddressSanitizer and UndefinedBehaviorSanitizer.
#
#   tools/fuzz.sh [SECONDS] [TARGET...]     default: 60 seconds each of safetensors gguf config tokenizer
#
# Needs clang-14 (apt-get install clang-14 libclang-rt-14-dev). Corpus and findings stay in $FUZZ_DIR (default: a
# folder in the temporary directory) so that a later run goes on where this one stopped.
set -euo pipefail
cd "$(dirname "$0")/.."

seconds="${1:-60}"
shift || true
targets=("${@:-safetensors gguf config tokenizer}")
read -r -a targets <<<"${targets[*]}"
work="${FUZZ_DIR:-${TMPDIR:-/tmp}/somnus-fuzz}"
mkdir -p "$work/obj"

flags=(-std=c++20 -O1 -g -I. -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=undefined
       -fno-omit-frame-pointer)
libs=(absl_status absl_statusor absl_strings absl_str_format absl_flat_hash_map absl_flat_hash_set absl_cleanup)

objects=()
for source in checkpoint/*.cc tests/checkpoint/fuzz/entries.cc; do
  object="$work/obj/$(basename "$source" .cc).o"
  objects+=("$object")
  if [[ ! -e "$object" || -n "$(find checkpoint tests/checkpoint/fuzz -newer "$object" -name '*.[hc]*')" ]]; then
    clang++-14 "${flags[@]}" -c "$source" -o "$object"
  fi
done

seed() {  # seed TARGET: the real files that the target starts from
  local corpus="$work/corpus/$1" model
  mkdir -p "$corpus"
  case "$1" in
    safetensors) for model in tests/data/tiny/*/; do head -c 65536 "$model/model.safetensors" >"$corpus/$(basename "$model")"; done ;;
    gguf) cp tests/data/gguf/*.gguf "$corpus/" ;;
    config) for model in tests/data/tiny/*/; do
              { cat "$model/config.json"; printf '\0'; cat "$model/generation_config.json"; } >"$corpus/$(basename "$model")"
            done ;;
    tokenizer) for model in tests/data/tiny/*/; do
              { cat "$model/tokenizer.json"; printf '\0'; cat "$model/tokenizer_config.json"; } >"$corpus/$(basename "$model")"
            done ;;
  esac
}

for target in "${targets[@]}"; do
  binary="$work/fuzz_$target"
  # shellcheck disable=SC2046
  clang++-14 "${flags[@]}" -fsanitize=fuzzer "tests/checkpoint/fuzz/fuzz_$target.cc" "${objects[@]}" \
    $(pkg-config --libs "${libs[@]}") -o "$binary"
  seed "$target"
  mkdir -p "$work/findings/$target"
  echo "== $target: $seconds s"
  # 512 MiB and 5 s per input: a parser that needs more for a small file has a fault, too.
  log="$work/$target.log"
  status=0
  "$binary" -max_total_time="$seconds" -rss_limit_mb=512 -timeout=5 -max_len=262144 -print_final_stats=1 \
    -artifact_prefix="$work/findings/$target/" "$work/corpus/$target" >"$log" 2>&1 || status=$?
  grep -E '^(Done|stat::)|ERROR|SUMMARY|runtime error|^ +#[0-9]+ ' "$log" || true
  if ((status != 0)); then
    echo "$target: a finding; see $log and $work/findings/$target"
    exit "$status"
  fi
done
