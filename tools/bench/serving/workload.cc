#include "tools/bench/serving/workload.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "tools/http/client.h"
#include "tools/http/json_fields.h"

namespace somnus::bench {
namespace {

using nlohmann::json;

// Common words, most of which are one token of any byte-level BPE after a space.
constexpr const char* kWords[] = {
    "time",     "people",  "water",  "house", "world", "school",  "state",  "family",  "student", "group",
    "country",  "problem", "hand",   "part",  "place", "case",    "week",   "company", "system",  "program",
    "question", "work",    "number", "night", "point", "home",    "room",   "mother",  "area",    "money",
    "story",    "fact",    "month",  "lot",   "right", "study",   "book",   "eye",     "job",     "word",
    "business", "issue",   "side",   "kind",  "head",  "service", "friend", "father"};

// Does its own arithmetic on the generator's bits: std distributions differ between libraries.
class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}
  int64_t Int(int64_t low, int64_t high) {  // inclusive
    return low + static_cast<int64_t>(engine_() % static_cast<uint64_t>(high - low + 1));
  }
  double Exponential(double rate) {
    return -std::log1p(-static_cast<double>(engine_() >> 11) * 0x1p-53) / rate;
  }

 private:
  std::mt19937_64 engine_;
};

std::string RandomText(Random* random, int64_t words) {
  std::string text;
  for (int64_t i = 0; i < words; ++i) {
    absl::StrAppend(&text, i == 0 ? "" : " ", kWords[random->Int(0, std::size(kWords) - 1)]);
  }
  return text;
}

json RequestBody(const BenchOptions& options, json prompt, int32_t output_len) {
  json body = {{"model", options.model},
               {"max_tokens", output_len},
               {"temperature", options.temperature},
               {"stream", true},
               {"stream_options", {{"include_usage", true}}}};
  if (options.chat) {
    body["messages"] = json::array({{{"role", "user"}, {"content", std::move(prompt)}}});
  } else {
    body["prompt"] = std::move(prompt);
  }
  if (options.ignore_eos) body["ignore_eos"] = true;
  return body;
}

std::string Path(const BenchOptions& options) {
  return absl::StrCat(options.base_path, options.chat ? "/v1/chat/completions" : "/v1/completions");
}

HttpClient Client(const BenchOptions& options) {
  HttpClientOptions http;
  http.host = options.host;
  http.port = options.port;
  http.api_key = options.api_key;
  if (options.tls) {
    http.tls.emplace();
    http.tls->authority = options.ca_cert;
  }
  return HttpClient(http);
}

// Returns usage.prompt_tokens of a one-token request; an error where the server refuses the prompt.
absl::StatusOr<int32_t> CountPromptTokens(const BenchOptions& options, json prompt) {
  json body = RequestBody(options, std::move(prompt), 1);
  body.erase("stream");
  body.erase("stream_options");
  ASSIGN_OR_RETURN(const HttpResponse response, Client(options).Post(Path(options), body.dump()));
  const json answer = json::parse(response.body, nullptr, false);
  if (response.status != 200 || !answer.is_object() || !answer.contains("usage")) {
    return absl::InternalError(absl::StrCat("a first request was answered with HTTP ", response.status, ": ",
                                            response.body.substr(0, 200)));
  }
  return IntAt(answer["usage"], "prompt_tokens");
}

absl::StatusOr<std::string> FirstModel(const BenchOptions& options) {
  ASSIGN_OR_RETURN(const HttpResponse response, Client(options).Get(options.base_path + "/v1/models"));
  const json answer = json::parse(response.body, nullptr, false);
  if (response.status != 200 || !answer.is_object() || !answer.contains("data") ||
      !answer["data"].is_array() || answer["data"].empty()) {
    const bool explains = answer.is_object() && answer.contains("error");
    const std::string why = explains ? StringAt(answer["error"], "message") : "";
    return absl::InternalError(absl::StrCat("/v1/models was answered with HTTP ", response.status,
                                            why.empty() ? "; give --model" : absl::StrCat(": ", why)));
  }
  return StringAt(answer["data"][0], "id");
}

// The first question of a ShareGPT conversation and a length for the answer: about four bytes a token.
bool FromConversation(const json& item, std::string* prompt, int32_t* output_len) {
  const auto turns = item.find("conversations");
  if (turns == item.end() || !turns->is_array() || turns->size() < 2) return false;
  *prompt = StringAt((*turns)[0], "value");
  *output_len = static_cast<int32_t>(std::clamp<size_t>(StringAt((*turns)[1], "value").size() / 4, 1, 4096));
  return !prompt->empty();
}

}  // namespace

absl::StatusOr<Workload> Workload::Create(BenchOptions* options) {
  if (options->model.empty()) {
    ASSIGN_OR_RETURN(options->model, FirstModel(*options));
  }
  Workload workload(*options);
  if (options->dataset.empty()) {
    RETURN_IF_ERROR(workload.ChoosePromptFormat());
  } else {
    RETURN_IF_ERROR(workload.LoadDataset());
  }
  return workload;
}

absl::Status Workload::ChoosePromptFormat() {
  if (options_.prompt_format != PromptFormat::kText && !options_.chat) {
    constexpr int32_t kProbeTokens = 16;
    const absl::StatusOr<int32_t> counted =
        CountPromptTokens(options_, std::vector<int32_t>(kProbeTokens, options_.vocab_low));
    use_ids_ = counted.ok() && *counted == kProbeTokens;
    if (use_ids_) return absl::OkStatus();
    if (options_.prompt_format == PromptFormat::kTokenIds) {
      RETURN_IF_ERROR(counted.status());
      return absl::FailedPreconditionError(
          absl::StrCat(kProbeTokens, " token ids were counted as ", *counted));
    }
  }
  Random random(options_.seed);
  ASSIGN_OR_RETURN(const int32_t few, CountPromptTokens(options_, RandomText(&random, 8)));
  ASSIGN_OR_RETURN(const int32_t many, CountPromptTokens(options_, RandomText(&random, 264)));
  if (many <= few) return absl::FailedPreconditionError("the server does not count prompt tokens");
  words_per_token_ = 256.0 / (many - few);
  overhead_tokens_ = std::max(0, few - static_cast<int32_t>(std::lround(8 / words_per_token_)));
  return absl::OkStatus();
}

absl::Status Workload::LoadDataset() {
  std::ifstream file(options_.dataset, std::ios::binary);
  std::stringstream contents;
  if (!file || !(contents << file.rdbuf())) {
    return absl::InvalidArgumentError(absl::StrCat("--dataset ", options_.dataset, ": cannot be read"));
  }
  const std::string text = contents.str();
  json all = json::parse(text, nullptr, false);
  if (!all.is_array()) {  // JSONL
    all = json::array();
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) all.push_back(json::parse(line, nullptr, false));
  }
  for (const json& item : all) AddSample(item);
  const size_t wanted = options_.in_order ? static_cast<size_t>(options_.num_requests) : 1;
  if (samples_.size() >= wanted) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("--dataset ", options_.dataset, ": ", samples_.size(),
                                                 " prompts in it where ", wanted, " are wanted"));
}

void Workload::AddSample(const json& item) {
  if (!item.is_object()) return;
  Sample sample;
  sample.prompt = StringAt(item, "prompt");
  sample.output_len = item.contains("output_len") ? IntAt(item, "output_len") : options_.output.high;
  const auto ids = item.find("prompt_token_ids");
  if (ids != item.end() && !options_.chat) {
    if (!ids->is_array()) return;
    for (const json& id : *ids) {
      if (!id.is_number_integer()) return;
      sample.prompt_ids.push_back(id.get<int32_t>());
    }
  }
  if (sample.prompt.empty() && sample.prompt_ids.empty() &&
      !FromConversation(item, &sample.prompt, &sample.output_len)) {
    return;
  }
  if (sample.output_len > 0) samples_.push_back(std::move(sample));
}

absl::StatusOr<std::vector<BenchRequest>> Workload::Make(int32_t count, uint64_t stream) const {
  Random random(options_.seed * 0x9E3779B97F4A7C15u + stream);
  std::vector<BenchRequest> requests;
  requests.reserve(count);
  for (int32_t i = 0; i < count; ++i) {
    json prompt;
    int32_t output_len = static_cast<int32_t>(random.Int(options_.output.low, options_.output.high));
    const int64_t input_len = random.Int(options_.input.low, options_.input.high);
    if (!samples_.empty()) {
      const int64_t drawn = options_.in_order ? i : random.Int(0, static_cast<int64_t>(samples_.size()) - 1);
      const Sample& sample = samples_[drawn];
      prompt = sample.prompt_ids.empty() ? json(sample.prompt) : json(sample.prompt_ids);
      output_len = sample.output_len;
    } else if (use_ids_) {
      prompt = json::array();
      for (int64_t t = 0; t < input_len; ++t)
        prompt.push_back(random.Int(options_.vocab_low, options_.vocab_high - 1));
    } else {
      const double words = static_cast<double>(input_len - overhead_tokens_) * words_per_token_;
      prompt = RandomText(&random, std::max<int64_t>(1, std::lround(words)));
    }
    BenchRequest request;
    request.path = Path(options_);
    request.body = RequestBody(options_, std::move(prompt), output_len)
                       .dump(-1, ' ', false, json::error_handler_t::replace);
    if (options_.request_rate > 0 && i > 0) request.gap_s = random.Exponential(options_.request_rate);
    requests.push_back(std::move(request));
  }
  return requests;
}

}  // namespace somnus::bench
