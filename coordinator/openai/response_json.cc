#include "coordinator/openai/response_json.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/utf8.h"
#include "coordinator/http/json_body.h"

namespace somnus {
namespace {

// JSON has no infinities: the logarithm of a probability of zero is written as this number, as in vLLM.
constexpr float kLowestLogprob = -9999.0f;

void AppendNumber(float value, std::string* out) {
  if (!(value >= kLowestLogprob)) value = kLowestLogprob;
  absl::StrAppendFormat(out, "%.9g", value);
}

int64_t CountCharacters(const std::string& text) {
  return std::count_if(text.begin(), text.end(),
                       [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; });
}

// Returns at most `count` alternatives, likeliest first, each token once; the chosen token is a candidate,
// too.
std::vector<std::pair<int32_t, float>> Alternatives(const Logprobs& logprobs, size_t count) {
  std::vector<std::pair<int32_t, float>> top;
  for (size_t i = 0; i < logprobs.token_ids.size(); ++i) {
    const auto same = [&](const auto& entry) { return entry.first == logprobs.token_ids[i]; };
    if (std::none_of(top.begin(), top.end(), same))
      top.emplace_back(logprobs.token_ids[i], logprobs.logprobs[i]);
  }
  std::stable_sort(top.begin(), top.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
  if (top.size() > count) top.resize(count);
  return top;
}

void AppendBytes(const std::string& bytes, std::string* out) {
  *out += '[';
  for (size_t i = 0; i < bytes.size(); ++i)
    absl::StrAppend(out, i == 0 ? "" : ",", static_cast<unsigned char>(bytes[i]));
  *out += ']';
}

void AppendChatToken(const GenerateParams& params, const Tokenizer& tokenizer, int32_t id, float logprob,
                     std::string* out) {
  const std::string& bytes = tokenizer.TokenBytes(id);
  *out += "{\"token\":";
  AppendJsonString(params.tokens_as_ids ? absl::StrCat("token_id:", id) : bytes, out);
  *out += ",\"logprob\":";
  AppendNumber(logprob, out);
  *out += ",\"bytes\":";
  AppendBytes(bytes, out);
}

}  // namespace

const char* FinishReasonName(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kAbort:
      return "abort";
    case FinishReason::kError:
      return "error";
    case FinishReason::kNone:
      break;
  }
  return "";
}

void AppendHead(const GenerateParams& params, const std::string& model, const char* object, int64_t created,
                std::string* out) {
  *out += "\"id\":";
  AppendJsonString(params.response_id, out);
  absl::StrAppend(out, ",\"object\":\"", object, "\",\"created\":", created, ",\"model\":");
  AppendJsonString(model, out);
}

void AppendUsage(const UsageCounts& usage, std::string* out) {
  absl::StrAppend(out, "{\"prompt_tokens\":", usage.prompt_tokens,
                  ",\"total_tokens\":", usage.prompt_tokens + usage.completion_tokens,
                  ",\"completion_tokens\":", usage.completion_tokens,
                  ",\"prompt_tokens_details\":{\"cached_tokens\":", usage.cached_tokens, "}");
  if (usage.reasoning_tokens >= 0) {
    absl::StrAppend(out, ",\"completion_tokens_details\":{\"reasoning_tokens\":", usage.reasoning_tokens,
                    "}");
  }
  *out += '}';
}

void AppendIds(const std::vector<int32_t>& ids, std::string* out) {
  *out += '[';
  for (size_t i = 0; i < ids.size(); ++i) absl::StrAppend(out, i == 0 ? "" : ",", ids[i]);
  *out += ']';
}

void WeightVersionSpans::Add(const OutputDelta& delta) {
  if (delta.token_ids.empty()) return;
  const int64_t begin = spans_.empty() ? 0 : spans_.back().end;
  if (spans_.empty() || spans_.back().name != delta.weights_name) spans_.push_back({delta.weights_name});
  spans_.back().end = begin + static_cast<int64_t>(delta.token_ids.size());
}

void WeightVersionSpans::Write(std::string* out) const {
  *out += ",\"weight_versions\":[";
  int64_t begin = 0;
  for (const Span& span : spans_) {
    *out += begin == 0 ? "{\"version\":" : ",{\"version\":";
    AppendJsonString(span.name, out);
    absl::StrAppend(out, ",\"start\":", begin, ",\"end\":", span.end, "}");
    begin = span.end;
  }
  *out += ']';
}

void AppendStopReason(const OutputDelta& delta, std::string* out) {
  if (delta.stop_string.has_value()) {
    AppendJsonString(*delta.stop_string, out);
  } else if (delta.stop_token_id.has_value()) {
    absl::StrAppend(out, *delta.stop_token_id);
  } else {
    *out += "null";
  }
}

// Tokens that are not whole characters are spelled "bytes:\xe4\xbd", as OpenAI does, so that different tokens
// have different names.
std::string CompletionLogprobs::Name(int32_t id) const {
  if (params_.tokens_as_ids) return absl::StrCat("token_id:", id);
  const std::string& bytes = tokenizer_.TokenBytes(id);
  if (IsUtf8(bytes)) return bytes;
  std::string name = "bytes:";
  for (const char c : bytes) absl::StrAppendFormat(&name, "\\x%02x", static_cast<unsigned char>(c));
  return name;
}

void CompletionLogprobs::Append(int32_t id, std::optional<float> logprob, const std::string& top) {
  const char* comma = tokens_.empty() ? "" : ",";
  tokens_ += comma;
  AppendJsonString(Name(id), &tokens_);
  token_logprobs_ += comma;
  if (logprob.has_value()) {
    AppendNumber(*logprob, &token_logprobs_);
  } else {
    token_logprobs_ += "null";
  }
  absl::StrAppend(&top_logprobs_, comma, top);
  absl::StrAppend(&offsets_, comma, offset_);
  offset_ += CountCharacters(tokenizer_.TokenBytes(id));
}

void CompletionLogprobs::AddBare(int32_t id) { Append(id, std::nullopt, "null"); }

void CompletionLogprobs::Add(const Logprobs& logprobs) {
  if (logprobs.token_ids.empty()) return;
  const auto alternatives = Alternatives(logprobs, std::max(1, params_.num_top_logprobs));
  const int32_t chosen = logprobs.token_ids[0];
  std::string top = "{";
  const auto add = [&](int32_t id, float logprob) {
    if (top.size() > 1) top += ',';
    AppendJsonString(Name(id), &top);
    top += ':';
    AppendNumber(logprob, &top);
  };
  add(chosen, logprobs.logprobs[0]);
  for (const auto& [id, logprob] : alternatives) {
    if (id != chosen && params_.num_top_logprobs > 0) add(id, logprob);
  }
  Append(chosen, logprobs.logprobs[0], top + "}");
}

void CompletionLogprobs::Write(std::string* out) {
  absl::StrAppend(out, "{\"text_offset\":[", offsets_, "],\"token_logprobs\":[", token_logprobs_,
                  "],\"tokens\":[", tokens_, "],\"top_logprobs\":[", top_logprobs_, "]}");
  for (std::string* part : {&tokens_, &token_logprobs_, &top_logprobs_, &offsets_}) part->clear();
}

void AppendChatLogprob(const GenerateParams& params, const Tokenizer& tokenizer, const Logprobs& logprobs,
                       std::string* out) {
  if (logprobs.token_ids.empty()) return;
  AppendChatToken(params, tokenizer, logprobs.token_ids[0], logprobs.logprobs[0], out);
  *out += ",\"top_logprobs\":[";
  const char* comma = "";
  for (const auto& [id, logprob] : Alternatives(logprobs, params.num_top_logprobs)) {
    *out += comma;
    AppendChatToken(params, tokenizer, id, logprob, out);
    *out += '}';
    comma = ",";
  }
  *out += "]}";
}

void AppendPromptLogprobs(const Tokenizer& tokenizer, const std::vector<Logprobs>& positions,
                          std::string* out) {
  *out += '[';
  for (size_t i = 0; i < positions.size(); ++i) {
    if (i > 0) *out += ',';
    const Logprobs& position = positions[i];
    if (position.token_ids.empty()) {
      *out += "null";
      continue;
    }
    *out += '{';
    int32_t rank = 0;
    std::vector<int32_t> seen;
    for (size_t k = 0; k < position.token_ids.size(); ++k) {
      const int32_t id = position.token_ids[k];
      if (k > 0) ++rank;
      if (std::find(seen.begin(), seen.end(), id) != seen.end()) continue;
      absl::StrAppend(out, seen.empty() ? "" : ",", "\"", id, "\":{\"logprob\":");
      AppendNumber(position.logprobs[k], out);
      absl::StrAppend(out, ",\"rank\":", k == 0 ? position.rank : rank, ",\"decoded_token\":");
      AppendJsonString(tokenizer.TokenBytes(id), out);
      *out += '}';
      seen.push_back(id);
    }
    *out += '}';
  }
  *out += ']';
}

}  // namespace somnus
