#include "tools/cli/openai.h"

#include <stdio.h>

#include <limits>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "base/request_bounds.h"
#include "base/status_macros.h"
#include "tools/cli/control_client.h"
#include "tools/cli/terminal.h"
#include "tools/http/json_fields.h"

namespace somnus::cli {
namespace {

using nlohmann::json;

constexpr size_t kMaxStdinBytes = size_t{64} << 20;

// Text of one choice of a chat or a completion chunk.
std::string ChoiceText(const json& choice) {
  return choice.contains("delta") ? StringAt(choice["delta"], "content") : StringAt(choice, "text");
}

class AnswerReader {
 public:
  void OnEvent(absl::string_view data) {
    if (data == "[DONE]") return;
    const json event = json::parse(data.begin(), data.end(), nullptr, /*allow_exceptions=*/false);
    if (!event.is_object()) {
      status_ = absl::DataLossError("the server sent an event that is not JSON");
    } else if (event.contains("error")) {
      status_ = absl::InternalError(StringAt(event["error"], "message"));
    } else {
      TakeChunk(event);
    }
  }

  absl::StatusOr<Answer> Finish() {
    RETURN_IF_ERROR(status_);
    if (answer_.finish_reason.empty())
      return absl::DataLossError("the server ended its answer without a finish_reason");
    return answer_;
  }
  Answer& answer() { return answer_; }

 private:
  void TakeChunk(const json& event) {
    if (event.contains("usage") && event["usage"].is_object()) {
      answer_.prompt_tokens = IntAt(event["usage"], "prompt_tokens");
      answer_.completion_tokens = IntAt(event["usage"], "completion_tokens");
    }
    const auto choices = event.find("choices");
    if (choices == event.end() || !choices->is_array() || choices->empty()) return;
    const json& choice = choices->front();
    const std::string text = ChoiceText(choice);
    WriteModelText(text);
    answer_.text += text;
    if (const std::string reason = StringAt(choice, "finish_reason"); !reason.empty())
      answer_.finish_reason = reason;
  }

  Answer answer_;
  absl::Status status_;
};

}  // namespace

FlagGroup SamplingFlags(SamplingOptions* o) {
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  return {
      "Request",
      {Flag::Text("model", &o->model, "which model").Shows("NAME").Default("the first one that is served"),
       Flag::Int("max-tokens", &o->max_tokens, 1, kMax, "longest answer, in tokens"),
       Flag::Number("temperature", &o->temperature, 0, kMaxTemperature, "0 is greedy")
           .Default("the server's: 1, or the model's"),
       Flag::Number("top-p", &o->top_p, 0, 1, "sample from the likeliest tokens of this total probability"),
       Flag::Int("top-k", &o->top_k, -1, kMax, "sample from the N likeliest tokens"),
       Flag::Int("seed", &o->seed, std::numeric_limits<int64_t>::min(), kMax,
                 "the same seed gives the same answer"),
       Flag::Text("stop", &o->stop, "end the answer before this text")}};
}

void AddSampling(const SamplingOptions& options, json* request) {
  const auto add = [request](const char* field, const auto& value) {
    if (value.has_value()) (*request)[field] = *value;
  };
  add("model", options.model);
  add("max_tokens", options.max_tokens);
  add("temperature", options.temperature);
  add("top_p", options.top_p);
  add("top_k", options.top_k);
  add("seed", options.seed);
  add("stop", options.stop);
}

std::string ErrorMessage(const HttpResponse& response) {
  const json body = json::parse(response.body, nullptr, /*allow_exceptions=*/false);
  if (body.is_object() && body.contains("error")) {
    const json& error = body["error"];
    const std::string message = error.is_string() ? error.get<std::string>() : StringAt(error, "message");
    if (!message.empty()) return absl::StrCat(message, " (HTTP ", response.status, ")");
  }
  return absl::StrCat("the server answered HTTP ", response.status);
}

absl::StatusOr<Answer> StreamAnswer(const Server& server, const std::string& path, json request) {
  const std::string model = StringAt(request, "model");
  RETURN_IF_ERROR(CheckServing(server, model));
  request["stream"] = true;
  request["stream_options"] = {{"include_usage", true}};
  AnswerReader reader;
  InterruptScope interrupts;
  StreamWatch watch;
  watch.on_event = [&](absl::string_view data) { reader.OnEvent(data); };
  watch.on_silence = [&] {
    if (const absl::Status status = CheckServing(server, model); absl::IsFailedPrecondition(status)) {
      fputs(absl::StrCat("(", Printable(status.message()), ")\n").c_str(), stderr);
    }
  };
  watch.cancel = InterruptScope::flag();
  // Arguments and pipes may hold any bytes; bytes that are not UTF-8 become U+FFFD.
  const std::string body = request.dump(-1, ' ', false, json::error_handler_t::replace);
  const absl::StatusOr<HttpResponse> response = server.Client().PostStream(path, body, watch);
  if (absl::IsCancelled(response.status())) {
    reader.answer().interrupted = true;
    return reader.answer();
  }
  RETURN_IF_ERROR(response.status());
  if (response->status != 200) return absl::InternalError(ErrorMessage(*response));
  return reader.Finish();
}

absl::StatusOr<ContextUse> CountTokens(const Server& server, const json& request, const json& messages) {
  json question = {{"messages", messages}};
  if (request.contains("model")) question["model"] = request["model"];
  const std::string body = question.dump(-1, ' ', false, json::error_handler_t::replace);
  ASSIGN_OR_RETURN(const HttpResponse response, server.Client().Post("/tokenize", body));
  if (response.status != 200) return absl::InternalError(ErrorMessage(response));
  const json answer = json::parse(response.body, nullptr, /*allow_exceptions=*/false);
  const ContextUse use = {IntAt(answer, "count"), IntAt(answer, "max_model_len")};
  if (use.max_model_len <= 0) return absl::DataLossError("the server does not say how long its context is");
  return use;
}

absl::StatusOr<std::string> ReadStdin() {
  std::string text;
  char buffer[65536];
  while (const size_t n = fread(buffer, 1, sizeof(buffer), stdin)) {
    text.append(buffer, n);
    if (text.size() > kMaxStdinBytes) return absl::InvalidArgumentError("more than 64 MiB on standard input");
  }
  return text;
}

}  // namespace somnus::cli
