#include "tools/bench/serving/options.h"

#include <stdlib.h>

#include <limits>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "base/flags.h"
#include "base/host_port.h"
#include "base/status_macros.h"

namespace somnus::bench {
namespace {

constexpr int64_t kMaxRequests = 1'000'000;
constexpr int64_t kMaxTokens = 1 << 20;

// "128" or "64-256" (also "64:256").
absl::Status SetRange(const std::string& text, LengthRange* range) {
  const std::pair<std::string, std::string> ends =
      absl::StrSplit(text, absl::MaxSplits(absl::ByAnyChar("-:"), 1));
  LengthRange parsed;
  const std::string& high = ends.second.empty() ? ends.first : ends.second;
  if (!absl::SimpleAtoi(ends.first, &parsed.low) || !absl::SimpleAtoi(high, &parsed.high) || parsed.low < 1 ||
      parsed.high < parsed.low || parsed.high > kMaxTokens) {
    return absl::InvalidArgumentError(absl::StrCat("is not N or LOW-HIGH of 1 to ", kMaxTokens));
  }
  *range = parsed;
  return absl::OkStatus();
}

absl::Status SetGoodput(const std::string& text, Goodput* goodput) {
  for (const absl::string_view part : absl::StrSplit(text, absl::ByAnyChar(" ,"), absl::SkipEmpty())) {
    const std::pair<std::string, std::string> item = absl::StrSplit(part, absl::MaxSplits(':', 1));
    double* bound = item.first == "ttft"   ? &goodput->ttft_ms
                    : item.first == "tpot" ? &goodput->tpot_ms
                    : item.first == "e2e"  ? &goodput->e2e_ms
                                           : nullptr;
    if (bound == nullptr || !absl::SimpleAtod(item.second, bound) || !(*bound > 0)) {
      return absl::InvalidArgumentError("is not ttft:MS, tpot:MS and e2e:MS, separated by commas");
    }
  }
  return absl::OkStatus();
}

// http://host[:port][/path] or https://, an IPv6 address in brackets; a path that ends in /v1 is the same as
// the path without /v1.
absl::Status SetBaseUrl(const std::string& url, BenchOptions* options) {
  absl::string_view rest = url;
  options->tls = absl::ConsumePrefix(&rest, "https://");
  if (!options->tls && !absl::ConsumePrefix(&rest, "http://")) {
    return absl::InvalidArgumentError("does not start with http:// or https://");
  }
  const size_t slash = rest.find('/');
  if (slash != rest.npos) {
    options->base_path = std::string(absl::StripSuffix(absl::StripSuffix(rest.substr(slash), "/"), "/v1"));
    rest = rest.substr(0, slash);
  }
  // A colon within brackets is part of an IPv6 address.
  const bool has_port = rest.rfind(':') != rest.npos && !absl::EndsWith(rest, "]");
  const std::optional<HostPort> address =
      SplitHostPort(has_port ? rest : absl::StrCat(rest, options->tls ? ":443" : ":80"));
  if (!address.has_value()) return absl::InvalidArgumentError("has no host or no port");
  if (!absl::SimpleAtoi(address->port, &options->port) || options->port < 1 || options->port > 65535) {
    return absl::InvalidArgumentError("has a bad port");
  }
  options->host = address->host;
  return absl::OkStatus();
}

// Flags from which Finish makes options.
struct Given {
  std::optional<bool> ignore_eos;
  std::optional<int32_t> concurrency;
  std::optional<double> request_rate;
  absl::Duration timeout = absl::Minutes(10);
};

FlagGroup TargetFlags(BenchOptions* o, Given* given) {
  return {
      "Server and load",
      {
          Flag::Custom(
              "base-url", "URL", "http://127.0.0.1:8000",
              [o](const std::string& url) { return SetBaseUrl(url, o); }, "the server"),
          Flag::Text("model", &o->model, "model to ask for").Shows("NAME").Default("the first of /v1/models"),
          Flag::Text("ca-cert", &o->ca_cert,
                     "authorities in PEM for https, of which the server must have one")
              .Shows("PATH")
              .Default("the system's"),
          Flag::Text("api-key", &o->api_key, "bearer token").Shows("KEY").Default("SOMNUS_API_KEY"),
          Flag::OneOf("endpoint", &o->chat, {{"completions", false}, {"chat", true}}, "which route is asked"),
          Flag::Int("num-requests", &o->num_requests, 1, kMaxRequests, "requests that are measured"),
          Flag::Int("warmup", &o->warmup, 0, kMaxRequests, "requests before that"),
          Flag::Int("concurrency", &given->concurrency, 1, 10'000,
                    "closed loop: that many requests at any time"),
          Flag::Number("request-rate", &given->request_rate, 1e-6, 1e6,
                       "open loop: Poisson arrivals, that many per second")
              .Default("without either, all at once"),
          Flag::Time("timeout", &given->timeout, absl::Milliseconds(1), absl::Hours(24),
                     "a request that takes longer is an error"),
      }};
}

FlagGroup WorkloadFlags(BenchOptions* o, Given* given) {
  constexpr int64_t kMaxId = std::numeric_limits<int32_t>::max();
  return {"Workload",
          {
              Flag::Custom(
                  "input-len", "N|LOW-HIGH", "64",
                  [o](const std::string& text) { return SetRange(text, &o->input); },
                  "prompt tokens of random prompts"),
              Flag::Custom(
                  "output-len", "N|LOW-HIGH", "128",
                  [o](const std::string& text) { return SetRange(text, &o->output); }, "tokens to generate"),
              Flag::OneOf("prompt-format", &o->prompt_format,
                          {{"auto", PromptFormat::kAuto},
                           {"ids", PromptFormat::kTokenIds},
                           {"text", PromptFormat::kText}},
                          "of random prompts; auto: as token ids where the server takes them"),
              Flag::Int("vocab-low", &o->vocab_low, 0, kMaxId, "lowest random token id"),
              Flag::Int("vocab-high", &o->vocab_high, 1, kMaxId, "end of random token ids"),
              Flag::Text("dataset", &o->dataset,
                         "prompts: ShareGPT JSON, or JSONL with prompt or prompt_token_ids, and output_len")
                  .Shows("FILE"),
              Flag::Switch("in-order", &o->in_order,
                           "the dataset from its first line on, each once; otherwise drawn from it"),
              Flag::Int("seed", &o->seed, 0, std::numeric_limits<int64_t>::max(),
                        "the same seed gives the same requests"),
              Flag::Switch("ignore-eos", &given->ignore_eos, "generate all output tokens")
                  .Default("true for random prompts"),
              Flag::Number("temperature", &o->temperature, 0, 1e6, "of sampling"),
          }};
}

FlagGroup ReportFlags(BenchOptions* o) {
  return {"Report",
          {
              Flag::Custom(
                  "goodput", "ttft:MS,tpot:MS,e2e:MS", "",
                  [o](const std::string& text) { return SetGoodput(text, &o->goodput); },
                  "bounds of a good request"),
              Flag::Text("json", &o->json, "write everything as JSON; - is stdout").Shows("FILE"),
              Flag::Switch("probe", &o->probe, "measure the machine before and after"),
          }};
}

FlagTable Flags(BenchOptions* options, Given* given) {
  FlagTable table;
  table.program = "serving_bench";
  table.usage = "serving_bench [flags]";
  table.about =
      "Load on any OpenAI-compatible server (Somnus, vLLM, llama-server), streamed, and what its clients "
      "see: time\n"
      "to first token (TTFT), time per output token after it (TPOT), gaps between tokens (ITL), end-to-end "
      "latency,\n"
      "throughput, goodput. The machine's memory speed is measured before and after.\n\n"
      "  serving_bench --base-url http://127.0.0.1:8000 --concurrency 8 --num-requests 64\n"
      "  serving_bench --request-rate 4 --dataset ShareGPT.json --goodput ttft:500,tpot:50 --json "
      "result.json";
  table.groups = {TargetFlags(options, given), WorkloadFlags(options, given), ReportFlags(options)};
  return table;
}

absl::Status Finish(const Given& given, BenchOptions* options) {
  if (options->vocab_high <= options->vocab_low)
    return absl::InvalidArgumentError("--vocab-high: must be above --vocab-low");
  if (options->in_order && options->dataset.empty())
    return absl::InvalidArgumentError("--in-order: needs --dataset");
  if (options->in_order && options->warmup > 0)
    return absl::InvalidArgumentError("--warmup: would send what --in-order measures");
  if (given.concurrency.has_value() && given.request_rate.has_value()) {
    return absl::InvalidArgumentError("--concurrency and --request-rate exclude each other");
  }
  options->concurrency = given.concurrency.value_or(0);
  options->request_rate = given.request_rate.value_or(0);
  options->ignore_eos = given.ignore_eos.value_or(options->dataset.empty());
  options->timeout_s = absl::ToDoubleSeconds(given.timeout);
  const char* key = getenv("SOMNUS_API_KEY");
  if (options->api_key.empty() && key != nullptr) options->api_key = key;
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<BenchOptions> ParseOptions(const std::vector<std::string>& args) {
  BenchOptions options;
  Given given;
  ASSIGN_OR_RETURN(const ParsedArgs parsed, ParseArgs(Flags(&options, &given), args));
  RETURN_IF_ERROR(Finish(given, &options));
  return options;
}

std::optional<int> ParseOptions(int argc, const char* const* argv, BenchOptions* options) {
  Given given;
  const FlagTable table = Flags(options, &given);
  if (const auto code = ParseCommandLine(table, argc, argv); code.has_value()) return code;
  if (const absl::Status status = Finish(given, options); !status.ok()) return UsageError(table, status);
  return std::nullopt;
}

}  // namespace somnus::bench
