#!/usr/bin/env bash
# Fuzzes the parsers of checkpoints, chat templates and text with libFuzzer, AddressSanitizer and
# UndefinedBehaviorSanitizer.
#
#   tools/fuzz.sh [SECONDS] [TARGET...]     default: 60 seconds each of
#     safetensors gguf config tokenizer pieces   files of a checkpoint
#     chat_template regex encode            a template, a pre-tokenizer's pattern with a text, a prompt
#     turn_parser                           a model's turn with tool calls and reasoning
#
# Needs clang-14 (apt-get install clang-14 libclang-rt-14-dev). Corpus and findings stay in $FUZZ_DIR (default: a
# folder in the temporary directory) so that a later run goes on where this one stopped.
set -euo pipefail
cd "$(dirname "$0")/.."

seconds="${1:-60}"
shift || true
targets=("${@:-safetensors gguf config tokenizer pieces chat_template regex encode turn_parser}")
read -r -a targets <<<"${targets[*]}"
work="${FUZZ_DIR:-${TMPDIR:-/tmp}/somnus-fuzz}"

flags=(-std=c++20 -O1 -g -I. -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=undefined
       -fno-omit-frame-pointer)
libs=(absl_status absl_statusor absl_strings absl_str_format absl_flat_hash_map absl_flat_hash_set absl_cleanup
      absl_hash absl_synchronization)

# compile FOLDER SOURCE...: objects in $work/obj/FOLDER, made again when a header or the source is newer.
compile() {
  local folder="$work/obj/$1" source object
  shift
  mkdir -p "$folder"
  for source in "$@"; do
    object="$folder/$(basename "$source" .cc).o"
    if [[ ! -e "$object" || "$source" -nt "$object" ||
          -n "$(find base checkpoint text tests/checkpoint tests/tokenizer tests/text_tools -newer "$object" -name '*.h')" ]]; then
      clang++-14 "${flags[@]}" -c "$source" -o "$object"
    fi
  done
}

# link TARGET: $work/fuzz_TARGET, from the room that the target belongs to.
link() {
  local objects=() room=checkpoint extra=()
  case "$1" in
    chat_template | regex | encode) room=tokenizer ;;
    turn_parser) room=text_tools ;;
  esac
  if [[ $room == checkpoint ]]; then
    compile checkpoint base/utf8.cc checkpoint/*.cc checkpoint/families/*.cc tests/checkpoint/fuzz/entries.cc
    source=tests/checkpoint/fuzz/fuzz_$1.cc
    extra=(-lcrypto)  # the fingerprint's
  elif [[ $room == text_tools ]]; then
    compile text_tools base/utf8.cc base/random_hex.cc text/jinja/*.cc text/tools/*.cc tests/text_tools/fuzz_entries.cc \
      tests/text_tools/recorded_*.cc
    source=tests/text_tools/fuzz_$1.cc
    extra=(-licuuc)
  else
    compile tokenizer base/utf8.cc base/random_hex.cc text/tokenizer/*.cc text/jinja/*.cc tests/tokenizer/fuzz_entries.cc
    source=tests/tokenizer/fuzz_$1.cc
    extra=(-lpcre2-8 -licuuc)
  fi
  objects=("$work/obj/$room"/*.o)
  # shellcheck disable=SC2046
  clang++-14 "${flags[@]}" -fsanitize=fuzzer "$source" "${objects[@]}" "${extra[@]}" \
    $(pkg-config --libs "${libs[@]}") -o "$work/fuzz_$1"
}

seed() {  # seed TARGET: the real files that the target starts from
  local corpus="$work/corpus/$1" model
  mkdir -p "$corpus"
  case "$1" in
    safetensors) for model in tests/data/tiny/*/; do head -c 65536 "$model/model.safetensors" >"$corpus/$(basename "$model")"; done ;;
    pieces) cp tests/data/pieces/tokenizer.model "$corpus/" ;;
    gguf) cp tests/data/gguf/*.gguf "$corpus/" ;;
    config) for model in tests/data/tiny/*/; do
              { cat "$model/config.json"; printf '\0'; cat "$model/generation_config.json"; } >"$corpus/$(basename "$model")"
            done ;;
    tokenizer) for model in tests/data/tiny/*/; do
              { cat "$model/tokenizer.json"; printf '\0'; cat "$model/tokenizer_config.json"; } >"$corpus/$(basename "$model")"
            done ;;
    turn_parser) ;;  # the binary reads the turns of the tests; any bytes are a turn
    *) python3 tests/tokenizer/fuzz_seeds.py "$1" "$corpus" ;;
  esac
}

for target in "${targets[@]}"; do
  link "$target"
  seed "$target"
  mkdir -p "$work/findings/$target"
  echo "== $target: $seconds s"
  # Each input may take 512 MiB and 5 s: a parser that needs more for a small file has a fault, too. A hostile pattern
  # is small, but may use its whole match budget again and again, so its text stays short.
  log="$work/$target.log"
  longest=262144
  [[ $target != regex ]] || longest=512
  dictionary=()
  [[ ! -e tests/tokenizer/fuzz_$target.dict ]] || dictionary=("-dict=tests/tokenizer/fuzz_$target.dict")
  status=0
  "$work/fuzz_$target" -max_total_time="$seconds" -rss_limit_mb=512 -timeout=5 -max_len="$longest" \
    -print_final_stats=1 "${dictionary[@]}" -artifact_prefix="$work/findings/$target/" "$work/corpus/$target" \
    >"$log" 2>&1 || status=$?
  grep -E '^(Done|stat::)|ERROR|SUMMARY|runtime error|^ +#[0-9]+ ' "$log" || true
  if ((status != 0)); then
    echo "$target: a finding; see $log and $work/findings/$target"
    exit "$status"
  fi
done
