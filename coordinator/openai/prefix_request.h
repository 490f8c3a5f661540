#pragma once
// Requests that pin a prompt (/v1/prefixes, PrefixService.PinPrefix): the prompt is pinned, and a request
// of one token, which nobody gets, computes it. Thread safe.

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
// answer follows the messages unless add_generation_prompt says so: others may follow them.
GenerateOrError ParsePrefixRequest(absl::string_view body, const ServedModel& model, const ApiLimits& limits);
// The same from fields that are parsed, without messages.
GenerateOrError ParsePrefixFields(const nlohmann::json& json, const ServedModel& model,
                                  const ApiLimits& limits);

// A prompt that is pinned, unless the claim ends before Keep: then the pin is taken back. For one thread at a
// time.
class PrefixClaim {
 public:
  // `model` must be the one whose engine has pinned it.
  PrefixClaim(SharedModel model, PinnedPrefix prefix);
  ~PrefixClaim();
  PrefixClaim(const PrefixClaim&) = delete;
  PrefixClaim& operator=(const PrefixClaim&) = delete;

  // The pin stays, unless somebody has ended it meanwhile. Returns what there is of it now.
  PinnedPrefix Keep();
  // The pin is taken back now.
  void TakeBack();

 private:
  const SharedModel model_;
  const PinnedPrefix prefix_;  // as it was pinned
  bool is_settled_ = false;    // it stays, or was taken back
};

// What has become of a prompt whose request was aborted.
absl::Status PrefixAborted();

// Pins the prompt of `params`. Errors are PinnedPrefixes::Pin's.
absl::StatusOr<std::shared_ptr<PrefixClaim>> ClaimPrefix(const SharedModel& model,
                                                         const GenerateParams& params);
// What such an error is to clients.
ApiError PinError(const absl::Status& status, const GenerateParams& params);

// Not set: the model's engine has no pin with this id.
std::optional<PinnedPrefix> FindPrefix(const ServedModel& model, const std::string& id);
nlohmann::ordered_json PrefixJson(const ServedModel& model, const PinnedPrefix& prefix);

// Writes the pin of params.prefix once it has been computed.
std::unique_ptr<ResponseWriter> MakePrefixWriter(const GenerateParams& params, const ServedModel& model);

}  // namespace somnus
