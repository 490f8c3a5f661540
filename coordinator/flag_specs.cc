// Every flag: its name, its help, and how its value becomes a field.
#include "coordinator/flag_specs.h"

#include <limits>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "coordinator/kv_cache_dtype.h"

namespace somnus {
namespace {

constexpr int64_t kMaxInt = std::numeric_limits<int32_t>::max();

using Setter = FlagSetter;

Setter Text(std::string Flags::*field) {
  return [field](const std::string& value, Flags* flags) -> std::string {
    if (value.empty()) return "must not be empty";
    flags->*field = value;
    return "";
  };
}

Setter Int(int32_t Flags::*field, int64_t min, int64_t max) {
  return [=](const std::string& value, Flags* flags) -> std::string {
    int64_t number;
    if (!absl::SimpleAtoi(value, &number) || number < min || number > max) {
      return absl::StrCat("must be a whole number from ", min, " to ", max);
    }
    flags->*field = static_cast<int32_t>(number);
    return "";
  };
}

Setter Int64(int64_t Flags::*field, int64_t min, int64_t max) {
  return [=](const std::string& value, Flags* flags) -> std::string {
    int64_t number;
    if (!absl::SimpleAtoi(value, &number) || number < min || number > max) {
      return absl::StrCat("must be a whole number from ", min, " to ", max);
    }
    flags->*field = number;
    return "";
  };
}

Setter Seconds(double Flags::*field, double min) {
  return [=](const std::string& value, Flags* flags) -> std::string {
    double number;
    if (!absl::SimpleAtod(value, &number) || !(number >= min) || number > 1e7) {
      return absl::StrCat("must be a number of seconds from ", min, " to 1e7");
    }
    flags->*field = number;
    return "";
  };
}

Setter Limit(int32_t ApiLimits::*field, int32_t min, int32_t max) {
  return [=](const std::string& value, Flags* flags) -> std::string {
    int32_t number;
    if (!absl::SimpleAtoi(value, &number) || number < min || number > max) {
      return absl::StrCat("must be a whole number from ", min, " to ", max);
    }
    flags->limits.*field = number;
    return "";
  };
}

Setter Limit64(int64_t ApiLimits::*field, int64_t min, int64_t max) {
  return [=](const std::string& value, Flags* flags) -> std::string {
    int64_t number;
    if (!absl::SimpleAtoi(value, &number) || number < min || number > max) {
      return absl::StrCat("must be a whole number from ", min, " to ", max);
    }
    flags->limits.*field = number;
    return "";
  };
}

Setter Limit(absl::Duration ApiLimits::*field) {
  return [=](const std::string& value, Flags* flags) -> std::string {
    double number;
    if (!absl::SimpleAtod(value, &number) || !(number >= 0.001) || number > 1e7) {
      return "must be a number of seconds from 0.001 to 1e7";
    }
    flags->limits.*field = absl::Seconds(number);
    return "";
  };
}

Setter Bool(bool Flags::*field) {
  return [field](const std::string& value, Flags* flags) -> std::string {
    bool on;
    if (!absl::SimpleAtob(value, &on)) return "must be true or false";
    flags->*field = on;
    return "";
  };
}

std::string SetWorkers(const std::string& value, Flags* flags) {
  const bool local = absl::StartsWith(value, "local:");
  int32_t count;
  if ((!local && !absl::StartsWith(value, "remote:")) ||
      !absl::SimpleAtoi(value.substr(value.find(':') + 1), &count) || count < 1 || count > 64) {
    return "must be local:N or remote:N, N from 1 to 64";
  }
  flags->local_workers = local;
  flags->num_workers = count;
  return "";
}

std::string SetDevice(const std::string& value, Flags* flags) {
  if (value != "auto" && value != "cpu" && value != "cuda") return "must be auto, cpu or cuda";
  flags->device = value == "cpu"    ? v1::DEVICE_TYPE_CPU
                  : value == "cuda" ? v1::DEVICE_TYPE_CUDA
                                    : v1::DEVICE_TYPE_UNSPECIFIED;
  return "";
}

// Whole numbers from `min` to `max`, separated by commas.
Setter Ints(std::vector<int32_t> Flags::*field, int32_t min, int32_t max) {
  return [=](const std::string& value, Flags* flags) -> std::string {
    std::vector<int32_t> numbers;
    for (absl::string_view part : absl::StrSplit(value, ',')) {
      int32_t number;
      if (!absl::SimpleAtoi(part, &number) || number < min || number > max || numbers.size() == 1024) {
        return absl::StrCat("must be whole numbers from ", min, " to ", max, ", separated by commas");
      }
      numbers.push_back(number);
    }
    flags->*field = std::move(numbers);
    return "";
  };
}

std::string SetLoadFormat(const std::string& value, Flags* flags) {
  if (value != "auto" && value != "dummy") return "must be auto or dummy";
  flags->load_dummy = value == "dummy";
  return "";
}

std::string SetMemoryUtilization(const std::string& value, Flags* flags) {
  double number;
  if (!absl::SimpleAtod(value, &number) || !(number > 0 && number <= 1))
    return "must be more than 0 and at most 1";
  flags->memory_utilization = number;
  return "";
}

std::string SetDType(const std::string& value, Flags* flags) {
  if (value == "auto") {
    flags->dtype = v1::DTYPE_UNSPECIFIED;
  } else if (value == "bfloat16") {
    flags->dtype = v1::DTYPE_BFLOAT16;
  } else if (value == "float32" || value == "float") {
    flags->dtype = v1::DTYPE_FLOAT32;
  } else if (value == "float16" || value == "half") {
    flags->dtype = v1::DTYPE_FLOAT16;
  } else {
    return "must be auto, bfloat16, float16 or float32";
  }
  return "";
}

std::string SetKvCacheDType(const std::string& value, Flags* flags) {
  const absl::StatusOr<v1::DType> dtype = ParseKvCacheDType(value);
  if (!dtype.ok()) return std::string(dtype.status().message());
  flags->kv_cache_dtype = *dtype;
  flags->kv_cache_dtype_name = absl::StrReplaceAll(value, {{"-", "_"}});
  return "";
}

// "1073741824", "4GiB", "512 MiB", "2GB". 0 for anything else.
int64_t ParseBytes(const std::string& value) {
  const size_t unit_at = std::min(value.find_first_not_of("0123456789."), value.size());
  const std::string unit = absl::AsciiStrToLower(absl::StripAsciiWhitespace(value.substr(unit_at)));
  static const std::pair<const char*, double> kUnits[] = {{"", 1},
                                                          {"b", 1},
                                                          {"kib", 1024.0},
                                                          {"mib", 1048576.0},
                                                          {"gib", 1073741824.0},
                                                          {"tib", 1099511627776.0},
                                                          {"kb", 1e3},
                                                          {"mb", 1e6},
                                                          {"gb", 1e9},
                                                          {"tb", 1e12},
                                                          {"k", 1024.0},
                                                          {"m", 1048576.0},
                                                          {"g", 1073741824.0}};
  double number;
  if (!absl::SimpleAtod(value.substr(0, unit_at), &number)) return 0;
  for (const auto& [name, factor] : kUnits) {
    if (unit == name && number * factor < 9e18) return static_cast<int64_t>(number * factor);
  }
  return 0;
}

std::string SetMemory(const std::string& value, Flags* flags) {
  flags->kv_cache_memory = ParseBytes(value);
  return flags->kv_cache_memory > 0 ? "" : "must be bytes, or a number with a unit, like 4GiB";
}

Setter LimitBytes(int64_t ApiLimits::*field) {
  return [field](const std::string& value, Flags* flags) -> std::string {
    flags->limits.*field = ParseBytes(value);
    return flags->limits.*field >= 1024 && flags->limits.*field <= kMaxInt
               ? ""
               : "must be bytes from 1KiB to below 2GiB, or a number with a unit, like 32MiB";
  };
}

std::string SetPolicy(const std::string& value, Flags* flags) {
  if (value != "fcfs" && value != "priority") return "must be fcfs or priority";
  flags->scheduling_policy = value;
  return "";
}

std::string SetGenerationConfig(const std::string& value, Flags* flags) {
  if (value != "auto" && value != "vllm")
    return "must be auto (the model's sampling defaults) or vllm (neutral ones)";
  flags->generation_config = value == "auto";
  return "";
}

std::string SetSeed(const std::string& value, Flags* flags) {
  return absl::SimpleAtoi(value, &flags->seed) ? "" : "must be a whole number of at most 64 bits";
}

std::string SetLogLevel(const std::string& value, Flags* flags) {
  for (const char* level : {"debug", "info", "warning", "error"}) {
    if (value != level) continue;
    flags->log_level = value;
    return "";
  }
  return "must be debug, info, warning or error";
}

std::string SetTensorParallel(const std::string& value, Flags* flags) {
  return Int(&Flags::num_workers, 1, 64)(value, flags);
}

}  // namespace

const std::vector<FlagSpec>& FlagSpecs() {
  static const std::vector<FlagSpec>* specs = new std::vector<FlagSpec>{
      {"model", "PATH", "Hugging Face directory or GGUF file; may be given without --model",
       Text(&Flags::model)},
      {"served-model-name", "NAME", "what clients call the model (its directory or file name)",
       Text(&Flags::served_model_name)},
      {"host", "ADDR", "listen address of the OpenAI API and gRPC (127.0.0.1)", Text(&Flags::host)},
      {"port", "PORT", "OpenAI HTTP port; 0: any (8000)", Int(&Flags::port, 0, 65535)},
      {"admin-host", "ADDR", "listen address of the operators' HTTP API (127.0.0.1)",
       Text(&Flags::admin_host)},
      {"admin-port", "PORT", "operators' HTTP port; 0: any (8001)", Int(&Flags::admin_port, 0, 65535)},
      {"grpc-port", "PORT", "gRPC port; 0: any (50051)", Int(&Flags::grpc_port, 0, 65535)},
      {"api-key", "KEY", "clients must send it as a bearer token", Text(&Flags::api_key)},
      {"output-threads", "N", "threads that turn tokens into text and JSON; 0: half of the CPUs, 2 to 8 (0)",
       Int(&Flags::output_threads, 0, 256)},
      {"workers", "local:N", "start N workers here, or remote:N: wait for N started by hand (local:1)",
       SetWorkers},
      {"tensor-parallel-size", "N", "the same as --workers=local:N", SetTensorParallel},
      {"threads-per-worker", "N", "compute threads of a worker; 0: CPUs / workers (0)",
       Int(&Flags::threads_per_worker, 0, 1024)},
      {"worker-binary", "PATH", "the worker's binary (../worker/worker beside this one)",
       Text(&Flags::worker_binary)},
      {"cluster-host", "ADDR", "where remote workers register (127.0.0.1)", Text(&Flags::cluster_host)},
      {"cluster-port", "PORT", "and the port (50052)", Int(&Flags::cluster_port, 0, 65535)},
      {"device", "auto|cpu|cuda", "where the model runs (auto)", SetDevice},
      {"device-indices", "I,J,...", "the GPU of each local worker (0,1,...)",
       Ints(&Flags::device_indices, 0, 1023)},
      {"memory-utilization", "SHARE",
       "of a GPU's memory, for everything (0.9); of a host's free memory, for the KV cache (0.5)",
       SetMemoryUtilization},
      {"gpu-memory-utilization", "SHARE", "the same", SetMemoryUtilization},
      {"enforce-eager", "", "no CUDA graphs (false)", Bool(&Flags::enforce_eager)},
      {"graph-sizes", "N,M,...", "batch sizes that get CUDA graphs (1,2,4,8,16,24,... 512)",
       Ints(&Flags::graph_sizes, 1, 4096)},
      {"max-tune-seconds", "S", "for measuring a GPU's ways of multiplying matrices at the start (5)",
       Seconds(&Flags::max_tune_seconds, 0)},
      {"batch-invariant", "",
       "on GPUs: a request's tokens depend on no other request, bit for bit, at some speed; CPUs need none "
       "of it (false)",
       Bool(&Flags::batch_invariant)},
      {"load-format", "auto|dummy",
       "the model's files, or random weights: config.json and the tokenizer are enough (auto)",
       SetLoadFormat},
      {"dtype", "TYPE", "auto, bfloat16, float16 or float32 (auto)", SetDType},
      {"max-model-len", "N", "tokens of prompt and answer together (the model's own)",
       Int(&Flags::max_model_len, 1, kMaxInt / 2)},
      {"max-num-seqs", "N", "sequences that run at once (128)", Int(&Flags::max_num_seqs, 1, 4096)},
      {"max-num-batched-tokens", "N", "tokens of one step (512)",
       Int(&Flags::max_num_batched_tokens, 1, 1 << 20)},
      {"block-size", "N", "tokens of a KV cache block (16)", Int(&Flags::block_size, 1, 1024)},
      {"kv-cache-memory", "BYTES", "KV cache of each worker, like 4GiB (chosen)", SetMemory},
      {"kv-cache-dtype", "TYPE", "auto (the model's), bfloat16, float16, float32 or fp8 = fp8_e4m3 (auto)",
       SetKvCacheDType},
      {"enable-prefix-caching", "", "share the KV cache of equal prompt prefixes (true)",
       Bool(&Flags::enable_prefix_caching)},
      {"overlap", "0|1", "schedule the next step before the answer to this one (1)",
       Int(&Flags::overlap, 0, 1)},
      {"scheduling-policy", "POLICY", "fcfs or priority (fcfs)", SetPolicy},
      {"max-num-partial-prefills", "N", "prompts at once that one step does not complete (2)",
       Int(&Flags::max_num_partial_prefills, 1, 4096)},
      {"max-long-partial-prefills", "N", "long ones among them; shorter ones go ahead of more (1)",
       Int(&Flags::max_long_partial_prefills, 1, 4096)},
      {"long-prefill-token-threshold", "N",
       "a prompt is long with more tokens to compute; it gets no more of a step that others need; 0: half of "
       "--max-num-batched-tokens (0)",
       Int(&Flags::long_prefill_token_threshold, 0, kMaxInt / 2)},
      {"priority-aging-steps", "N",
       "under --scheduling-policy=priority, waiting for that many steps improves a priority by one; 0: never "
       "(512)",
       Int(&Flags::priority_aging_steps, 0, kMaxInt / 2)},
      {"max-num-waiting", "N", "requests that may queue; more are refused (1024)",
       Int(&Flags::max_num_waiting, 1, 1 << 20)},
      {"max-num-waiting-tokens", "N", "prompt tokens of queued requests together (4194304)",
       Int64(&Flags::max_num_waiting_tokens, 1, int64_t{1} << 40)},
      {"generation-config", "auto|vllm", "sampling defaults: the model's or neutral (auto)",
       SetGenerationConfig},
      {"seed", "N", "accepted for scripts; a request without a seed gets a random one", SetSeed},
      {"step-timeout-s", "S", "a step without an answer for so long is a failure (300)",
       Seconds(&Flags::step_timeout_s, 0.001)},
      {"step-stall-s", "S",
       "while a step is under way for longer, /health says so; it goes on until --step-timeout-s (60)",
       Seconds(&Flags::step_stall_s, 0.001)},
      {"heartbeat-timeout-s", "S", "a worker silent for so long is lost (30)",
       Seconds(&Flags::heartbeat_timeout_s, 1)},
      {"register-timeout-s", "S", "how long to wait for the workers (60)",
       Seconds(&Flags::register_timeout_s, 0.001)},
      {"shutdown-timeout", "S", "how long open requests may go on at the end (10)",
       Seconds(&Flags::shutdown_timeout_s, 0)},
      {"max-body-bytes", "BYTES", "of one request, HTTP or gRPC (32MiB)",
       LimitBytes(&ApiLimits::max_body_bytes)},
      {"max-buffered-body-bytes", "BYTES", "of all requests that are being read (256MiB)",
       LimitBytes(&ApiLimits::max_buffered_body_bytes)},
      {"max-stream-backlog-bytes", "BYTES",
       "output that a client has not read; its request ends above (4MiB)",
       LimitBytes(&ApiLimits::max_stream_backlog_bytes)},
      {"max-header-bytes", "N", "of one request (65536)", Limit(&ApiLimits::max_header_bytes, 1024, 1 << 24)},
      {"max-header-fields", "N", "of one request (128)", Limit(&ApiLimits::max_header_fields, 8, 1 << 16)},
      {"max-json-depth", "N", "of a request's JSON (64)", Limit(&ApiLimits::max_json_depth, 8, 1000)},
      {"max-json-values", "N", "of a request's JSON (1000000)",
       Limit(&ApiLimits::max_json_values, 1000, 1 << 28)},
      {"max-connections", "N", "on each HTTP port; above, the one idle for longest is closed (2048)",
       Limit(&ApiLimits::max_connections, 1, 1 << 20)},
      {"max-open-calls", "N", "gRPC streams at once (256)", Limit(&ApiLimits::max_open_calls, 1, 1 << 16)},
      {"max-n", "N", "choices per prompt (128)", Limit(&ApiLimits::max_n, 1, 1 << 16)},
      {"max-prompts", "N", "prompts of one request (1024)", Limit(&ApiLimits::max_prompts, 1, 1 << 20)},
      {"max-sequences", "N", "prompts times choices of one request (1024)",
       Limit(&ApiLimits::max_sequences, 1, 1 << 20)},
      {"max-prompt-logprobs", "N",
       "prompt log-probabilities of one request: its prompts' tokens times choices and alternatives "
       "(4194304)",
       Limit64(&ApiLimits::max_prompt_logprobs, 1, int64_t{1} << 40)},
      {"max-stop-strings", "N", "stop strings of one request (4)",
       Limit(&ApiLimits::max_stop_strings, 1, 1 << 12)},
      {"max-bad-words", "N", "bad words of one request, both spellings counted (128)",
       Limit(&ApiLimits::max_bad_words, 1, 1 << 12)},
      {"header-timeout-s", "S", "from a request's first byte to the end of its headers (10)",
       Limit(&ApiLimits::header_timeout)},
      {"body-timeout-s", "S", "from there to the end of its body (60)", Limit(&ApiLimits::body_timeout)},
      {"idle-timeout-s", "S", "between two requests of a connection (75)", Limit(&ApiLimits::idle_timeout)},
      {"write-timeout-s", "S", "without the client taking a byte (60)", Limit(&ApiLimits::write_timeout)},
      {"linger-timeout-s", "S", "how long the rest of a refused request is still read (10)",
       Limit(&ApiLimits::linger_timeout)},
      {"linger-silence-s", "S", "until its client has been silent for so long (2)",
       Limit(&ApiLimits::linger_silence)},
      {"max-linger-bytes", "BYTES", "and how much of it (48MiB)", LimitBytes(&ApiLimits::max_linger_bytes)},
      {"stay-after-failure", "",
       "when the engine has failed: go on and refuse requests, instead of ending with exit code 1 (false)",
       Bool(&Flags::stay_after_failure)},
      {"log-level", "LEVEL", "debug, info, warning or error (info)", SetLogLevel},
      {"help", "", "this text", Bool(&Flags::help)},
      {"version", "", "the version", Bool(&Flags::version)},
  };
  return *specs;
}

}  // namespace somnus
