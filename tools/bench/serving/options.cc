#include "tools/bench/serving/options.h"

#include <stdlib.h>

#include <limits>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"

namespace somnus::bench {
namespace {

constexpr int64_t kMaxRequests = 1'000'000;
constexpr int64_t kMaxTokens = 1 << 20;

// "128" or "64-256" (also "64:256").
absl::StatusOr<LengthRange> ParseRange(const cli::Args& args, absl::string_view flag, LengthRange otherwise) {
  if (!args.Has(flag)) return otherwise;
  const std::string text = args.Get(flag);
  const std::pair<std::string, std::string> ends =
      absl::StrSplit(text, absl::MaxSplits(absl::ByAnyChar("-:"), 1));
  LengthRange range;
  const std::string& high = ends.second.empty() ? ends.first : ends.second;
  if (!absl::SimpleAtoi(ends.first, &range.low) || !absl::SimpleAtoi(high, &range.high) || range.low < 1 ||
      range.high < range.low || range.high > kMaxTokens) {
    return absl::InvalidArgumentError(absl::StrCat("--", flag, " must be N or LOW-HIGH, not '", text, "'"));
  }
  return range;
}

absl::StatusOr<Goodput> ParseGoodput(const std::string& text) {
  Goodput goodput;
  for (const absl::string_view part : absl::StrSplit(text, absl::ByAnyChar(" ,"), absl::SkipEmpty())) {
    const std::pair<std::string, std::string> item = absl::StrSplit(part, absl::MaxSplits(':', 1));
    double* bound = item.first == "ttft"   ? &goodput.ttft_ms
                    : item.first == "tpot" ? &goodput.tpot_ms
                    : item.first == "e2e"  ? &goodput.e2e_ms
                                           : nullptr;
    if (bound == nullptr || !absl::SimpleAtod(item.second, bound) || !(*bound > 0)) {
      return absl::InvalidArgumentError(
          absl::StrCat("--goodput takes ttft:MS, tpot:MS and e2e:MS, separated by commas, not '", part, "'"));
    }
  }
  return goodput;
}

// http://host[:port][/path]; a path that ends in /v1 is the same as the one before it.
absl::Status ParseBaseUrl(const std::string& url, BenchOptions* options) {
  absl::string_view rest = url;
  if (!absl::ConsumePrefix(&rest, "http://")) {
    return absl::InvalidArgumentError(absl::StrCat("--base-url must start with http://, not '", url, "'"));
  }
  const size_t slash = rest.find('/');
  if (slash != rest.npos) {
    options->base_path = std::string(absl::StripSuffix(absl::StripSuffix(rest.substr(slash), "/"), "/v1"));
    rest = rest.substr(0, slash);
  }
  const size_t colon = rest.rfind(':');
  options->port = 80;
  if (colon != rest.npos) {
    if (!absl::SimpleAtoi(rest.substr(colon + 1), &options->port) || options->port < 1 ||
        options->port > 65535) {
      return absl::InvalidArgumentError(absl::StrCat("--base-url: bad port in '", url, "'"));
    }
    rest = rest.substr(0, colon);
  }
  if (rest.empty()) return absl::InvalidArgumentError(absl::StrCat("--base-url: no host in '", url, "'"));
  options->host = std::string(rest);
  return absl::OkStatus();
}

absl::Status ParseWorkload(const cli::Args& args, BenchOptions* options) {
  ASSIGN_OR_RETURN(options->input, ParseRange(args, "input-len", options->input));
  ASSIGN_OR_RETURN(options->output, ParseRange(args, "output-len", options->output));
  constexpr int64_t kMaxId = std::numeric_limits<int32_t>::max();
  ASSIGN_OR_RETURN(options->vocab_low, args.GetInt("vocab-low", options->vocab_low, 0, kMaxId));
  ASSIGN_OR_RETURN(options->vocab_high, args.GetInt("vocab-high", options->vocab_high, 1, kMaxId));
  if (options->vocab_high <= options->vocab_low)
    return absl::InvalidArgumentError("--vocab-high must be above --vocab-low");
  ASSIGN_OR_RETURN(options->seed, args.GetInt("seed", 0, 0, std::numeric_limits<int64_t>::max()));
  options->dataset = args.Get("dataset");
  options->in_order = args.Has("in-order");
  if (options->in_order && options->dataset.empty())
    return absl::InvalidArgumentError("--in-order needs --dataset");
  ASSIGN_OR_RETURN(options->ignore_eos, args.GetBool("ignore-eos", options->dataset.empty()));
  ASSIGN_OR_RETURN(options->temperature, args.GetDouble("temperature", 0, 0, 1e6));
  const std::string format = args.Get("prompt-format", "auto");
  if (format != "auto" && format != "ids" && format != "text") {
    return absl::InvalidArgumentError(
        absl::StrCat("--prompt-format must be auto, ids or text, not '", format, "'"));
  }
  options->prompt_format = format == "auto"  ? PromptFormat::kAuto
                           : format == "ids" ? PromptFormat::kTokenIds
                                             : PromptFormat::kText;
  return absl::OkStatus();
}

}  // namespace

const cli::Command& BenchCommand() {
  static const cli::Command* command = new cli::Command{
      "serving_bench",
      "serving_bench [flags]",
      "",
      "Load on any OpenAI-compatible server (Somnus, vLLM, llama-server), streamed, and what its clients "
      "see: time to\n"
      "first token (TTFT), time per output token after it (TPOT), gaps between tokens (ITL), end-to-end "
      "latency,\n"
      "throughput, goodput. The machine's memory speed is measured before and after.\n\n"
      "  serving_bench --base-url http://127.0.0.1:8000 --concurrency 8 --num-requests 64\n"
      "  serving_bench --request-rate 4 --dataset ShareGPT.json --goodput ttft:500,tpot:50 --json "
      "result.json",
      {
          {"base-url", "URL", "the server (http://127.0.0.1:8000)"},
          {"model", "NAME", "model to ask for (the first of /v1/models)"},
          {"api-key", "KEY", "bearer token (SOMNUS_API_KEY)"},
          {"endpoint", "completions|chat", "which route is asked (completions)"},
          {"num-requests", "N", "requests that are measured (100)"},
          {"warmup", "N", "requests before that (0)"},
          {"concurrency", "N", "closed loop: so many requests at any time"},
          {"request-rate", "R", "open loop: Poisson arrivals, R per second (neither: all at once)"},
          {"input-len", "N|LOW-HIGH", "prompt tokens of random prompts (64)"},
          {"output-len", "N|LOW-HIGH", "tokens to generate (128)"},
          {"prompt-format", "auto|ids|text",
           "random prompts as token ids where the server takes them (auto)"},
          {"vocab-low", "ID", "lowest random token id (1000)"},
          {"vocab-high", "ID", "end of random token ids (20000)"},
          {"dataset", "FILE",
           "prompts: ShareGPT JSON, or JSONL with prompt or prompt_token_ids, and output_len"},
          {"in-order", "", "the dataset from its first line on, each once; otherwise drawn from it"},
          {"seed", "N", "the same seed gives the same requests (0)"},
          {"ignore-eos", "[=true|false]", "generate all output tokens (true for random prompts)"},
          {"temperature", "T", "(0)"},
          {"timeout", "SECONDS", "a request that takes longer is an error (600)"},
          {"goodput", "ttft:MS,tpot:MS,e2e:MS", "bounds of a good request"},
          {"json", "FILE", "write everything as JSON; - is stdout"},
          {"no-probe", "", "do not measure the machine"},
      }};
  return *command;
}

absl::StatusOr<BenchOptions> ParseOptions(const std::vector<std::string>& argv) {
  ASSIGN_OR_RETURN(const cli::Args args, cli::Args::Parse(BenchCommand(), argv));
  if (!args.positional().empty()) {
    return absl::InvalidArgumentError(absl::StrCat("'", args.positional()[0], "' is no flag"));
  }
  BenchOptions options;
  RETURN_IF_ERROR(ParseBaseUrl(args.Get("base-url", "http://127.0.0.1:8000"), &options));
  RETURN_IF_ERROR(ParseWorkload(args, &options));
  options.model = args.Get("model");
  const char* key = getenv("SOMNUS_API_KEY");
  options.api_key = args.Get("api-key", key == nullptr ? "" : key);
  const std::string endpoint = args.Get("endpoint", "completions");
  if (endpoint != "completions" && endpoint != "chat") {
    return absl::InvalidArgumentError(
        absl::StrCat("--endpoint must be completions or chat, not '", endpoint, "'"));
  }
  options.chat = endpoint == "chat";
  ASSIGN_OR_RETURN(options.num_requests, args.GetInt("num-requests", options.num_requests, 1, kMaxRequests));
  ASSIGN_OR_RETURN(options.warmup, args.GetInt("warmup", 0, 0, kMaxRequests));
  ASSIGN_OR_RETURN(options.concurrency, args.GetInt("concurrency", 0, 1, 10'000));
  ASSIGN_OR_RETURN(options.request_rate, args.GetDouble("request-rate", 0, 1e-6, 1e6));
  if (options.in_order && options.warmup > 0)
    return absl::InvalidArgumentError("--warmup would send what --in-order measures");
  if (args.Has("concurrency") && args.Has("request-rate")) {
    return absl::InvalidArgumentError("--concurrency and --request-rate exclude each other");
  }
  ASSIGN_OR_RETURN(options.timeout_s, args.GetDouble("timeout", options.timeout_s, 0.001, 1e6));
  ASSIGN_OR_RETURN(options.goodput, ParseGoodput(args.Get("goodput")));
  options.json = args.Get("json");
  options.probe = !args.Has("no-probe");
  return options;
}

}  // namespace somnus::bench
