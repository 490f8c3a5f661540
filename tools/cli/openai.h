#pragma once
// Requests to the OpenAI HTTP API, and their streamed answers, as `chat` and `generate` need them.

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "nlohmann/json_fwd.hpp"
#include "tools/cli/args.h"
#include "tools/http/client.h"

namespace somnus::cli {

// Flags of every command that talks HTTP, and of those that generate.
std::vector<Flag> HttpFlags();
std::vector<Flag> SamplingFlags();

// --api-key, and its value: the flag's, else SOMNUS_API_KEY, else empty.
Flag ApiKeyFlag();
std::string ApiKey(const Args& args);

// InvalidArgument for a bad --port.
absl::StatusOr<HttpClient> ClientFromFlags(const Args& args);

// Puts model and sampling flags into `request`; those not given are left to the server.
absl::Status AddSampling(const Args& args, nlohmann::json* request);

struct Answer {
  std::string text;
  std::string finish_reason;
  int prompt_tokens = 0;
  int completion_tokens = 0;
  bool interrupted = false;  // by Ctrl-C
};

// Sends `request` (stream and usage are added) and writes the text to stdout as it comes. The error carries
// the server's own message; InvalidArgument is never answered (that is for flags).
absl::StatusOr<Answer> StreamAnswer(const HttpClient& client, const std::string& path,
                                    nlohmann::json request);

// Message of an error answer: the server's words, or the status code.
std::string ErrorMessage(const HttpResponse& response);

// All of standard input. InvalidArgument above 64 MiB.
absl::StatusOr<std::string> ReadStdin();

}  // namespace somnus::cli
