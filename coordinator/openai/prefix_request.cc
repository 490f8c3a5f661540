#include "coordinator/openai/prefix_request.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "coordinator/http/json_body.h"
#include "coordinator/openai/request_fields.h"

namespace somnus {
namespace {

using Json = nlohmann::json;

// The request's fields about outputs do not count.
GenerateOrError ForPrompt(GenerateOrError parsed) {
  auto* params = std::get_if<GenerateParams>(&parsed);
  if (params == nullptr) return parsed;
  if (params->prompts.size() != 1) return BadRequest("prompt", "prompt must be one prompt");
  params->prompts[0].max_tokens = 1;
  params->n = params->best_of = 1;
  params->sampling = SamplingParams();
  params->sampling.temperature = 0;
  params->output = OutputOptions();
  params->stream = false;
  return parsed;
}

ApiError NoAdapterPins() { return BadRequest("model", "prefixes of adapters cannot be pinned"); }

class PrefixWriter : public ResponseWriter {
 public:
  PrefixWriter(std::shared_ptr<PrefixClaim> claim, const ServedModel& model)
      : claim_(std::move(claim)), model_(model) {}

  std::string OnUpdate(ChoiceUpdate, const UsageCounts&) override { return ""; }
  std::string Finish(const UsageCounts&) override {
    return PrefixJson(model_, claim_->Keep()).dump(-1, ' ', false, Json::error_handler_t::replace);
  }

 private:
  const std::shared_ptr<PrefixClaim> claim_;
  const ServedModel& model_;
};

}  // namespace

GenerateOrError ParsePrefixRequest(absl::string_view body, const ServedModel& model,
                                   const ApiLimits& limits) {
  const absl::StatusOr<Json> json =
      ParseJsonObject(body, JsonLimits{limits.max_json_depth, limits.max_json_values});
  if (!json.ok()) return BadRequest("", json.status().message());
  if (model.is_adapter) return NoAdapterPins();
  FieldReader fields(*json);
  if (fields.Find("messages") == nullptr) return ParsePrefixFields(*json, model, limits);
  if (fields.Find("prompt") != nullptr)
    return BadRequest("messages", "messages and prompt exclude each other");
  return ForPrompt(ParseChatRequest(body, model, limits, /*generation_prompt=*/false));
}

GenerateOrError ParsePrefixFields(const Json& json, const ServedModel& model, const ApiLimits& limits) {
  if (model.is_adapter) return NoAdapterPins();
  return ForPrompt(ParseCompletionFields(json, model, limits));
}

PrefixClaim::PrefixClaim(SharedModel model, PinnedPrefix prefix)
    : model_(std::move(model)), prefix_(std::move(prefix)) {}

PrefixClaim::~PrefixClaim() { TakeBack(); }

void PrefixClaim::TakeBack() {
  if (!std::exchange(is_settled_, true)) model_->engine->pinned_prefixes().Withdraw(prefix_.id);
}

PinnedPrefix PrefixClaim::Keep() {
  is_settled_ = true;
  return FindPrefix(*model_, prefix_.id).value_or(prefix_);
}

absl::Status PrefixAborted() {
  return absl::AbortedError("the request that computed the prompt was aborted; nothing is pinned");
}

absl::StatusOr<std::shared_ptr<PrefixClaim>> ClaimPrefix(const SharedModel& model,
                                                         const GenerateParams& params) {
  absl::StatusOr<PinnedPrefix> pinned = model->engine->pinned_prefixes().Pin({.id = NewResponseId("prefix-"),
                                                                              .prompt = params.prompts[0].ids,
                                                                              .cache_salt = params.cache_salt,
                                                                              .created = absl::Now()});
  if (!pinned.ok()) return pinned.status();
  return std::make_shared<PrefixClaim>(model, *std::move(pinned));
}

ApiError PinError(const absl::Status& status, const GenerateParams& params) {
  ApiError error = FromStatus(status);
  error.param = params.chat ? "messages" : "prompt";
  return error;
}

std::optional<PinnedPrefix> FindPrefix(const ServedModel& model, const std::string& id) {
  for (PinnedPrefix& prefix : model.engine->pinned_prefixes().List()) {
    if (prefix.id == id) return std::move(prefix);
  }
  return std::nullopt;
}

nlohmann::ordered_json PrefixJson(const ServedModel& model, const PinnedPrefix& prefix) {
  return {{"id", prefix.id},
          {"object", "prefix"},
          {"model", model.name},
          {"created", absl::ToUnixSeconds(prefix.created)},
          {"tokens", prefix.num_tokens},
          {"blocks", prefix.num_blocks},
          {"held_blocks", prefix.num_held}};
}

std::unique_ptr<ResponseWriter> MakePrefixWriter(const GenerateParams& params, const ServedModel& model) {
  return std::make_unique<PrefixWriter>(params.prefix, model);
}

}  // namespace somnus
