#pragma once
// Requests to the OpenAI HTTP API, and their streamed answers, for `chat` and `generate`.

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "base/flags.h"
#include "tools/cli/server.h"
#include "tools/http/client.h"

namespace somnus::cli {

// A value that is not given is left to the server.
struct SamplingOptions {
  std::optional<std::string> model, stop;
  std::optional<int64_t> max_tokens, top_k, seed;
  std::optional<double> temperature, top_p;
};
FlagGroup SamplingFlags(SamplingOptions* options);

void AddSampling(const SamplingOptions& options, nlohmann::json* request);

struct Answer {
  std::string text;
  std::string finish_reason;
  int prompt_tokens = 0;
  int completion_tokens = 0;
  bool interrupted = false;  // by Ctrl-C
};

// Sends `request` (stream and usage are added) and writes the text to stdout on arrival. Reports on stderr
// when the server goes to sleep meanwhile. Returns FailedPrecondition, at once, when the server does not
// serve now; other errors carry the server's own message. Never returns InvalidArgument, which stands for
// wrong flags.
absl::StatusOr<Answer> StreamAnswer(const Server& server, const std::string& path, nlohmann::json request);

struct ContextUse {
  int64_t num_tokens = 0;  // of the messages, rendered by the model's template
  int64_t max_model_len = 0;
};
// Asks the server how long these messages are for the model that `request` names. An error where the server
// does not say.
absl::StatusOr<ContextUse> CountTokens(const Server& server, const nlohmann::json& request,
                                       const nlohmann::json& messages);

// The message of an error response: the server's words, or the status code.
std::string ErrorMessage(const HttpResponse& response);

// All of standard input. InvalidArgument above 64 MiB.
absl::StatusOr<std::string> ReadStdin();

}  // namespace somnus::cli
