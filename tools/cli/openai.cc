#include "tools/cli/openai.h"

#include <stdio.h>
#include <stdlib.h>

#include <limits>
#include <nlohmann/json.hpp>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/request_bounds.h"
#include "base/status_macros.h"
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

Flag ApiKeyFlag() {
  return {"api-key", "KEY", "bearer token; better in SOMNUS_API_KEY, where `ps` does not show it"};
}

std::string ApiKey(const Args& args) {
  const char* key = getenv("SOMNUS_API_KEY");
  return args.Get("api-key", key == nullptr ? "" : key);
}

std::vector<Flag> HttpFlags() {
  return {{"host", "ADDRESS", "where the server listens (127.0.0.1)"},
          {"port", "PORT", "its HTTP port (8000)"},
          ApiKeyFlag(),
          {"model", "NAME", "which model (the served one)"}};
}

std::vector<Flag> SamplingFlags() {
  return {{"max-tokens", "N", "longest answer"},
          {"temperature", "T", "0 is greedy (the server's default: 1, or the model's)"},
          {"top-p", "P", "sample from the likeliest tokens of total probability P"},
          {"top-k", "K", "sample from the K likeliest tokens"},
          {"seed", "N", "the same seed gives the same answer"},
          {"stop", "TEXT", "end the answer before this text"}};
}

absl::StatusOr<HttpClient> ClientFromFlags(const Args& args) {
  HttpClientOptions options;
  options.host = args.Get("host", options.host);
  ASSIGN_OR_RETURN(const int64_t port, args.GetInt("port", options.port, 1, 65535));
  options.port = static_cast<int>(port);
  options.api_key = ApiKey(args);
  return HttpClient(options);
}

absl::Status AddSampling(const Args& args, json* request) {
  const std::pair<const char*, const char*> ints[] = {
      {"max-tokens", "max_tokens"}, {"top-k", "top_k"}, {"seed", "seed"}};
  for (const auto& [flag, field] : ints) {
    if (!args.Has(flag)) continue;
    ASSIGN_OR_RETURN((*request)[field], args.GetInt(flag, 0, -1, std::numeric_limits<int64_t>::max()));
  }
  const std::tuple<const char*, const char*, double> numbers[] = {
      {"temperature", "temperature", kMaxTemperature}, {"top-p", "top_p", 1}};
  for (const auto& [flag, field, max] : numbers) {
    if (!args.Has(flag)) continue;
    ASSIGN_OR_RETURN((*request)[field], args.GetDouble(flag, 0, 0, max));
  }
  if (args.Has("stop")) (*request)["stop"] = args.Get("stop");
  if (args.Has("model")) (*request)["model"] = args.Get("model");
  return absl::OkStatus();
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

absl::StatusOr<Answer> StreamAnswer(const HttpClient& client, const std::string& path, json request) {
  request["stream"] = true;
  request["stream_options"] = {{"include_usage", true}};
  AnswerReader reader;
  InterruptScope interrupts;
  // Arguments and pipes may hold any bytes; what is not UTF-8 becomes U+FFFD.
  const std::string body = request.dump(-1, ' ', false, json::error_handler_t::replace);
  const absl::StatusOr<HttpResponse> response = client.PostStream(
      path, body, [&](absl::string_view data) { reader.OnEvent(data); }, InterruptScope::flag());
  if (absl::IsCancelled(response.status())) {
    reader.answer().interrupted = true;
    return reader.answer();
  }
  RETURN_IF_ERROR(response.status());
  if (response->status != 200) return absl::InternalError(ErrorMessage(*response));
  return reader.Finish();
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
