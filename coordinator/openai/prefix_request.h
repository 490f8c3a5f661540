#pragma once
// Requests that pin a prompt (/v1/prefixes, PrefixService.PinPrefix): the prompt is pinned, and a request of
// one token, which nobody gets, computes the prompt. Thread safe.

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "coordinator/engine/pinned_prefixes.h"
#include "coordinator/openai/model_table.h"
#include "coordinator/openai/openai_request.h"
#include "coordinator/openai/openai_response.h"

namespace somnus {

// Reads a body with the prompt of /v1/completions or the messages of /v1/chat/completions. No prompt of an
// answer follows the messages unless add_generation_prompt says so: further messages may follow.
GenerateOrError ParsePrefixRequest(absl::string_view body, const ServedModel& model, const ApiLimits& limits);
// The same from fields that are parsed, without messages.
GenerateOrError ParsePrefixFields(const nlohmann::json& json, const ServedModel& model,
                                  const ApiLimits& limits);

// A prompt that is pinned, unless the claim ends before Keep: then the pin is taken back. For one thread at a
// time.
class PrefixClaim {
 public:
  // `model` must be the model with the engine that has pinned the prompt.
  PrefixClaim(SharedModel model, PinnedPrefix prefix);
  ~PrefixClaim();
  PrefixClaim(const PrefixClaim&) = delete;
  PrefixClaim& operator=(const PrefixClaim&) = delete;

  // The pin stays, unless somebody has ended the pin meanwhile. Returns the pin's present state.
  PinnedPrefix Keep();
  // The pin is taken back now.
  void TakeBack();

 private:
  const SharedModel model_;
  const PinnedPrefix prefix_;  // as of the time of pinning
  bool is_settled_ = false;    // the pin stays, or was taken back
};

// The error for a prompt whose request was aborted.
absl::Status PrefixAborted();

// Pins the prompt of `params`. Errors are PinnedPrefixes::Pin's.
absl::StatusOr<std::shared_ptr<PrefixClaim>> ClaimPrefix(const SharedModel& model,
                                                         const GenerateParams& params);
// The form of an error of ClaimPrefix for clients.
ApiError PinError(const absl::Status& status, const GenerateParams& params);

// Not set: the model's engine has no pin with this id.
std::optional<PinnedPrefix> FindPrefix(const ServedModel& model, const std::string& id);
nlohmann::ordered_json PrefixJson(const ServedModel& model, const PinnedPrefix& prefix);

// Writes the pin of params.prefix once the prompt has been computed.
std::unique_ptr<ResponseWriter> MakePrefixWriter(const GenerateParams& params, const ServedModel& model);

}  // namespace somnus
