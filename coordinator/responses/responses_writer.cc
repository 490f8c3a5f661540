#include "coordinator/responses/responses_writer.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "coordinator/http/json_body.h"
#include "coordinator/openai/response_json.h"
#include "coordinator/responses/answer_items.h"
#include "coordinator/responses/input_items.h"

namespace somnus {
namespace {

std::string UsageJson(const UsageCounts& usage) {
  return absl::StrCat(
      "{\"input_tokens\":", usage.prompt_tokens,
      ",\"input_tokens_details\":{\"cached_tokens\":", usage.cached_tokens,
      ",\"cache_write_tokens\":0},\"output_tokens\":", usage.completion_tokens,
      ",\"output_tokens_details\":{\"reasoning_tokens\":", std::max<int64_t>(0, usage.reasoning_tokens),
      "},\"total_tokens\":", usage.prompt_tokens + usage.completion_tokens, "}");
}

// The turn that a later request goes on with. `output`: the list of the response's items.
std::string TurnOf(const std::string& input, const std::string& output) {
  std::string turn = input;
  nlohmann::ordered_json messages = nlohmann::ordered_json::array();
  // The items are of AnswerItems, so that none can be refused.
  ReadInput(nlohmann::ordered_json::parse(output), &messages);
  AppendMessages(messages, &turn);
  return turn;
}

// The members of a response that depend on how far the response is.
struct Progress {
  const char* status = "in_progress";
  std::string error = "null";
  std::string incomplete_details = "null";
  std::string output = "[]";
  std::string usage = "null";
};

class ResponsesWriter : public ResponseWriter {
 public:
  ResponsesWriter(const GenerateParams& params, const ServedModel& model,
                  std::shared_ptr<const ResponseContext> context)
      : params_(params),
        model_(model),
        context_(std::move(context)),
        created_(absl::ToUnixSeconds(absl::Now())),
        items_(params.stream ? &events_ : nullptr) {
    if (context_->store != nullptr) context_->store->Begin(params_.response_id, Body({}));
    CountHeld();
  }
  ~ResponsesWriter() override {
    if (context_->store == nullptr || is_finished_) return;
    if (params_.stream && has_begun_) {
      context_->store->EndWithoutTurn(params_.response_id, Body({.status = "cancelled"}));
    } else {
      context_->store->Remove(params_.response_id);
    }
  }

  std::string OnUpdate(ChoiceUpdate update, const UsageCounts&) override {
    std::string out;
    OutputDelta& delta = update.delta;
    Begin(&out);
    if (delta.finish_reason != FinishReason::kNone) finish_reason_ = delta.finish_reason;
    cuts_call_ |= delta.cuts_call;
    TakeLogprobs(delta);
    if (delta.touches_reasoning) logprobs_.clear();
    if (params_.answer == nullptr && !delta.text.empty()) delta.events = {{.text = std::move(delta.text)}};
    for (const TurnEvent& event : delta.events) {
      items_.Add(event, std::exchange(logprobs_, ""), &out);
    }
    CountHeld();
    return out;
  }

  std::string Finish(const UsageCounts& usage) override {
    std::string out;
    Begin(&out);
    items_.End(IsCut(), &out);
    Progress progress{.usage = UsageJson(usage)};
    progress.output.clear();
    items_.AppendOutput(&progress.output);
    const bool is_complete = finish_reason_ == FinishReason::kStop;
    progress.status = is_complete                               ? "completed"
                      : finish_reason_ == FinishReason::kLength ? "incomplete"
                                                                : "cancelled";
    if (finish_reason_ == FinishReason::kLength)
      progress.incomplete_details = "{\"reason\":\"max_output_tokens\"}";
    std::string body = Body(progress);
    Keep(body, finish_reason_ == FinishReason::kAbort ? nullptr : &progress.output);
    if (!params_.stream) return body;
    // There is no event for a response that somebody has cancelled: the status in the event says so.
    AddWithResponse(is_complete ? "response.completed" : "response.incomplete", body, &out);
    return out;
  }

  std::string Fail(const ApiError& error) override {
    std::string out, message;
    AppendJsonString(error.message, &message);
    if (!has_begun_) {
      // OpenAI's client raises an exception only for an event with the member `error`; the API does not have
      // that member.
      const auto body = nlohmann::json::parse(ErrorBody(error));
      events_.Add("error",
                  absl::StrCat(",\"code\":\"", error.status, "\",\"message\":", message,
                               ",\"param\":null,\"error\":", body["error"].dump()),
                  &out);
      return out;
    }
    items_.End(/*is_cut=*/true, &out);
    Progress progress{.status = "failed",
                      .error = absl::StrCat("{\"code\":\"server_error\",\"message\":", message, "}")};
    progress.output.clear();
    items_.AppendOutput(&progress.output);
    std::string body = Body(progress);
    Keep(body, /*output=*/nullptr);
    AddWithResponse("response.failed", body, &out);
    return out;
  }

 private:
  bool IsCut() const {
    return cuts_call_ || (finish_reason_ != FinishReason::kNone && finish_reason_ != FinishReason::kStop);
  }

  // The response has ended. `output`: null where no request can go on with the response.
  void Keep(const std::string& body, const std::string* output) {
    is_finished_ = true;
    if (context_->store == nullptr) return;
    if (output == nullptr) return context_->store->EndWithoutTurn(params_.response_id, body);
    context_->store->End(params_.response_id, body, context_->before, TurnOf(context_->input, *output));
  }

  // Writes a stream's first events.
  void Begin(std::string* out) {
    if (std::exchange(has_begun_, true) || !params_.stream) return;
    const std::string body = Body({});
    for (const char* type : {"response.created", "response.in_progress"}) AddWithResponse(type, body, out);
  }

  void AddWithResponse(const char* type, const std::string& body, std::string* out) {
    std::string members = absl::StrCat(",\"response\":", body);
    if (weights_version_ > 0) absl::StrAppend(&members, ",\"weight_version\":", weights_version_);
    events_.Add(type, members, out);
  }

  // Log-probabilities wait for the text of the tokens, which may be held back for a while.
  void TakeLogprobs(const OutputDelta& delta) {
    if (!params_.logprobs) return;
    for (const Logprobs& logprobs : delta.logprobs) {
      if (!logprobs_.empty()) logprobs_ += ',';
      AppendChatLogprob(params_, *model_.tokenizer, logprobs, &logprobs_);
    }
  }

  std::string Body(const Progress& progress) const {
    const bool is_complete = progress.status == absl::string_view("completed");
    std::string body = "{\"id\":";
    AppendJsonString(params_.response_id, &body);
    absl::StrAppend(&body, ",\"object\":\"response\",\"created_at\":", created_, ",\"status\":\"",
                    progress.status, "\",\"completed_at\":");
    absl::StrAppend(&body, is_complete ? absl::StrCat(absl::ToUnixSeconds(absl::Now())) : "null",
                    ",\"error\":", progress.error, ",\"incomplete_details\":", progress.incomplete_details,
                    ",\"model\":");
    AppendJsonString(model_.name, &body);
    absl::StrAppend(&body, ",\"temperature\":", params_.sampling.temperature,
                    ",\"top_p\":", params_.sampling.top_p, ",", context_->echo,
                    ",\"output\":", progress.output, ",\"usage\":", progress.usage, "}");
    return body;
  }

  void CountHeld() {
    held_bytes_ = items_.bytes() +
                  static_cast<int64_t>(logprobs_.size() + context_->echo.size() + context_->input.size());
  }

  const GenerateParams& params_;
  const ServedModel& model_;
  const std::shared_ptr<const ResponseContext> context_;
  const int64_t created_;
  StreamEvents events_;
  AnswerItems items_;
  std::string logprobs_;  // of tokens whose text has not come
  FinishReason finish_reason_ = FinishReason::kNone;
  bool cuts_call_ = false;  // as of OutputDelta
  bool has_begun_ = false;
  bool is_finished_ = false;
};

}  // namespace

std::unique_ptr<ResponseWriter> MakeResponsesWriter(const GenerateParams& params, const ServedModel& model,
                                                    std::shared_ptr<const ResponseContext> context) {
  return std::make_unique<ResponsesWriter>(params, model, std::move(context));
}

}  // namespace somnus
