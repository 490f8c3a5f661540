#include "coordinator/token_routes/tokens_writer.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/http/json_body.h"
#include "coordinator/openai/response_json.h"

namespace somnus {
namespace {

constexpr int64_t kTokenIdJsonBytes = 8;  // an estimate

class TokensWriter : public ResponseWriter {
 public:
  TokensWriter(const GenerateParams& params, const ServedModel& model)
      : params_(params), model_(model), choices_(params.prompts.size() * static_cast<size_t>(params.n)) {
    head_ = "{\"request_id\":";
    AppendJsonString(params.response_id, &head_);
    head_ += ",\"output_mode\":\"tokens\",\"choices\":[";
  }

  std::string OnUpdate(ChoiceUpdate update, const UsageCounts& usage) override {
    OutputDelta& delta = update.delta;
    Choice& choice = choices_[update.index];
    // The choices of one prompt have the same.
    if (update.index == 0) {
      for (Logprobs& position : delta.prompt_logprobs) {
        held_bytes_ += kLogprobJsonBytes * static_cast<int64_t>(position.token_ids.size());
        prompt_logprobs_.push_back(std::move(position));
      }
    }
    AddLogprobs(delta, &choice);
    if (params_.return_weight_versions) choice.weight_versions.Add(delta);
    choice.token_ids.insert(choice.token_ids.end(), delta.token_ids.begin(), delta.token_ids.end());
    const bool finished = delta.finish_reason != FinishReason::kNone;
    const bool has_tokens = !delta.token_ids.empty();
    if (!params_.stream) {
      held_bytes_ += kTokenIdJsonBytes * static_cast<int64_t>(delta.token_ids.size());
      if (finished) choice.last = std::move(delta);
      return "";
    }
    if (!finished && !has_tokens) return "";
    std::string out = absl::StrCat("data: ", head_);
    choice.last = std::move(delta);
    WriteChoice(update.index, &out);
    out += ']';
    if (finished && weights_version_ > 0) absl::StrAppend(&out, ",\"weight_version\":", weights_version_);
    if (params_.include_usage && params_.continuous_usage) AddUsage(usage, &out);
    return out + "}\n\n";
  }

  std::string Finish(const UsageCounts& usage) override {
    std::string out;
    if (params_.stream) {
      if (params_.include_usage) {
        absl::StrAppend(&out, "data: ", head_, "]");
        AddUsage(usage, &out);
        out += "}\n\n";
      }
      return out + "data: [DONE]\n\n";
    }
    out = head_;
    for (size_t i = 0; i < choices_.size(); ++i) {
      if (i > 0) out += ',';
      WriteChoice(static_cast<int32_t>(i), &out);
    }
    out += "],\"prompt_logprobs\":";
    if (params_.prompt_logprobs) {
      AppendPromptLogprobs(*model_.tokenizer, prompt_logprobs_, &out);
    } else {
      out += "null";
    }
    AddUsage(usage, &out);
    return out + ",\"kv_transfer_params\":null}";
  }

 private:
  // The outputs of a choice; in a stream, the outputs that are in no event yet.
  struct Choice {
    std::vector<int32_t> token_ids;
    std::string logprobs;  // entries of logprobs.content
    OutputDelta last;
    WeightVersionSpans weight_versions;  // also of tokens that are in events
  };

  void AddLogprobs(const OutputDelta& delta, Choice* choice) {
    if (!params_.logprobs) return;
    const size_t before = choice->logprobs.size();
    for (const Logprobs& logprobs : delta.logprobs) {
      if (!choice->logprobs.empty()) choice->logprobs += ',';
      AppendChatLogprob(params_, *model_.tokenizer, logprobs, &choice->logprobs);
    }
    if (!params_.stream) held_bytes_ += static_cast<int64_t>(choice->logprobs.size() - before);
  }

  static void AddUsage(const UsageCounts& usage, std::string* out) {
    *out += ",\"usage\":";
    AppendUsage(usage, out);
  }

  // Writes, and then drops, the tokens of a choice.
  void WriteChoice(int32_t index, std::string* out) {
    Choice& choice = choices_[index];
    absl::StrAppend(out, "{\"index\":", index, ",\"logprobs\":");
    if (params_.logprobs) {
      absl::StrAppend(out, "{\"content\":[", choice.logprobs, "]}");
    } else {
      *out += "null";
    }
    const FinishReason reason = choice.last.finish_reason;
    const std::string name =
        reason == FinishReason::kNone ? "null" : absl::StrCat("\"", FinishReasonName(reason), "\"");
    absl::StrAppend(out, ",\"finish_reason\":", name, ",\"stop_reason\":");
    AppendStopReason(choice.last, out);
    *out += ",\"token_ids\":";
    AppendIds(choice.token_ids, out);
    if (params_.return_weight_versions && reason != FinishReason::kNone) choice.weight_versions.Write(out);
    *out += '}';
    std::string().swap(choice.logprobs);
    choice.token_ids.clear();
  }

  const GenerateParams& params_;
  const ServedModel& model_;
  std::string head_;
  std::vector<Choice> choices_;
  std::vector<Logprobs> prompt_logprobs_;
};

}  // namespace

std::unique_ptr<ResponseWriter> MakeTokensWriter(const GenerateParams& params, const ServedModel& model) {
  return std::make_unique<TokensWriter>(params, model);
}

}  // namespace somnus
