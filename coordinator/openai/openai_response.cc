#include "coordinator/openai/openai_response.h"

#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "coordinator/http/json_body.h"
#include "coordinator/openai/embeddings.h"
#include "coordinator/openai/prefix_request.h"
#include "coordinator/openai/response_json.h"
#include "coordinator/openai/turn_json.h"

namespace somnus {
namespace {

// An estimate of a token id's JSON bytes.
constexpr int64_t kTokenIdJsonBytes = 8;

int64_t LogprobsJsonBytes(const std::vector<Logprobs>& positions) {
  int64_t count = 0;
  for (const Logprobs& position : positions) count += static_cast<int64_t>(position.token_ids.size());
  return kLogprobJsonBytes * count;
}

int64_t JsonBytes(const OutputDelta& delta) {
  int64_t event_bytes = 0;
  for (const TurnEvent& event : delta.events) event_bytes += TurnEventJsonBytes(event);
  return static_cast<int64_t>(delta.text.size()) + event_bytes +
         kTokenIdJsonBytes * static_cast<int64_t>(delta.token_ids.size()) +
         LogprobsJsonBytes(delta.logprobs) + LogprobsJsonBytes(delta.prompt_logprobs);
}

// The record of a choice in both kinds of response.
struct ChoiceText {
  ChoiceText(const GenerateParams& params, const Tokenizer& tokenizer) : logprobs(params, tokenizer) {}
  std::string text;        // of a completion
  CollectedTurn turn;      // of a chat answer
  bool has_calls = false;  // tool calls have come
  std::vector<int32_t> token_ids;
  WeightVersionSpans weight_versions;
  CompletionLogprobs logprobs;
  std::string chat_logprobs;  // entries of logprobs.content
  std::vector<Logprobs> prompt_logprobs;
  OutputDelta last;  // the update that ended the choice
  OutputDelta held;  // stream_interval: tokens and text that are in no event yet
  int64_t held_bytes = 0;
  bool started = false;
  bool told = false;
};

class Writer : public ResponseWriter {
 public:
  Writer(const GenerateParams& params, const ServedModel& model)
      : params_(params), model_(model), created_(absl::ToUnixSeconds(absl::Now())) {
    const size_t count = params.prompts.size() * params.n;
    choices_.reserve(count);
    for (size_t i = 0; i < count; ++i) choices_.emplace_back(params, *model.tokenizer);
  }

 protected:
  const GenerateParams::Prompt& PromptOf(int32_t index) const { return params_.prompts[index / params_.n]; }

  // Adds the prompt's log-probabilities to a choice that echoes the prompt, before the log-probabilities of
  // the choice's first token.
  void AddPromptLogprobs(int32_t index) {
    ChoiceText& choice = choices_[index];
    if (params_.chat || !params_.echo || !params_.logprobs) return;
    const std::vector<int32_t>& ids = PromptOf(index).ids;
    for (size_t i = 0; i < ids.size(); ++i) {
      if (i < choice.prompt_logprobs.size() && !choice.prompt_logprobs[i].token_ids.empty()) {
        choice.logprobs.Add(choice.prompt_logprobs[i]);
      } else {
        choice.logprobs.AddBare(ids[i]);
      }
    }
  }
  void AddLogprobs(const OutputDelta& delta, ChoiceText* choice) {
    if (!params_.logprobs) return;
    for (const Logprobs& logprobs : delta.logprobs) {
      if (!params_.chat) {
        choice->logprobs.Add(logprobs);
        continue;
      }
      if (!choice->chat_logprobs.empty()) choice->chat_logprobs += ',';
      AppendChatLogprob(params_, *model_.tokenizer, logprobs, &choice->chat_logprobs);
    }
  }
  // Writes the object of the entries that were added since the last call, or null.
  void WriteLogprobs(ChoiceText* choice, std::string* out) {
    if (!params_.logprobs) {
      *out += "null";
    } else if (params_.chat) {
      absl::StrAppend(out, "{\"content\":[", choice->chat_logprobs, "]}");
      choice->chat_logprobs.clear();
    } else {
      choice->logprobs.Write(out);
    }
  }
  // "tool_calls" where the model has ended a turn with calls; a turn that was cut stays "length", or "stop"
  // where a stop string has cut a call, so that a cut call can be told.
  const char* FinishReasonOf(const ChoiceText& choice, const OutputDelta& last) const {
    const bool is_call = last.finish_reason == FinishReason::kStop && choice.has_calls && !last.cuts_call &&
                         !params_.answer->ends_as_stop;
    if (!is_call) return FinishReasonName(last.finish_reason);
    return params_.answer->legacy_functions ? "function_call" : "tool_calls";
  }
  bool legacy_functions() const { return params_.answer != nullptr && params_.answer->legacy_functions; }
  static void NoteCalls(const OutputDelta& delta, ChoiceText* choice) {
    for (const TurnEvent& event : delta.events)
      choice->has_calls |= event.kind == TurnEvent::Kind::kCallBegin;
  }
  static void DropOutput(OutputDelta* delta) {
    delta->text.clear();
    delta->events.clear();
    delta->token_ids.clear();
    delta->logprobs.clear();
    delta->stop_string.reset();
    delta->stop_token_id.reset();
    if (delta->finish_reason == FinishReason::kStop) delta->finish_reason = FinishReason::kLength;
  }

  const GenerateParams& params_;
  const ServedModel& model_;
  const int64_t created_;
  std::vector<ChoiceText> choices_;
};

class WholeWriter : public Writer {
 public:
  using Writer::Writer;

  std::string OnUpdate(ChoiceUpdate update, const UsageCounts&) override {
    OutputDelta& delta = update.delta;
    ChoiceText& choice = choices_[update.index];
    held_bytes_ += JsonBytes(delta);
    for (Logprobs& position : delta.prompt_logprobs) choice.prompt_logprobs.push_back(std::move(position));
    const bool finished = delta.finish_reason != FinishReason::kNone;
    if (params_.echo_only) DropOutput(&delta);
    if (params_.return_weight_versions) choice.weight_versions.Add(delta);
    if (!choice.started && (finished || !delta.token_ids.empty())) {
      choice.started = true;
      if (params_.echo) {
        held_bytes_ += static_cast<int64_t>(PromptOf(update.index).echo_text.size());
        AddText(PromptOf(update.index).echo_text, &choice);
      }
      AddPromptLogprobs(update.index);
    }
    NoteCalls(delta, &choice);
    AddText(delta.text, &choice);
    choice.turn.Add(delta.events);
    if (params_.return_token_ids) {
      choice.token_ids.insert(choice.token_ids.end(), delta.token_ids.begin(), delta.token_ids.end());
    }
    AddLogprobs(delta, &choice);
    if (finished) choice.last = std::move(delta);
    return "";
  }

  std::string Finish(const UsageCounts& usage) override {
    std::string out = "{";
    AppendHead(params_, model_.name, params_.chat ? "chat.completion" : "text_completion", created_, &out);
    out += ",\"choices\":[";
    for (size_t i = 0; i < choices_.size(); ++i) {
      if (i > 0) out += ',';
      WriteChoice(static_cast<int32_t>(i), &out);
    }
    out += "],\"usage\":";
    AppendUsage(usage, &out);
    out += ",\"service_tier\":null,\"system_fingerprint\":null";
    if (params_.chat) {
      WritePromptParts(0, &out);
      out += ",\"prompt_text\":";
      if (params_.return_prompt_text) {
        AppendJsonString(params_.prompt_text, &out);
      } else {
        out += "null";
      }
    }
    return out + ",\"kv_transfer_params\":null}";
  }

 private:
  void WritePromptParts(int32_t index, std::string* out) {
    *out += ",\"prompt_logprobs\":";
    if (params_.prompt_logprobs) {
      AppendPromptLogprobs(*model_.tokenizer, choices_[index].prompt_logprobs, out);
    } else {
      *out += "null";
    }
    *out += ",\"prompt_token_ids\":";
    if (params_.return_token_ids) {
      AppendIds(PromptOf(index).ids, out);
    } else {
      *out += "null";
    }
  }

  void AddText(const std::string& text, ChoiceText* choice) const {
    if (text.empty()) return;
    if (!params_.chat) {
      choice->text += text;
    } else {
      choice->turn.Add({{.text = text}});
    }
  }

  void WriteChoice(int32_t index, std::string* out) {
    ChoiceText& choice = choices_[index];
    absl::StrAppend(out, "{\"index\":", index, ",", params_.chat ? "\"message\":{\"role\":" : "\"text\":");
    if (params_.chat) {
      AppendJsonString(params_.role, out);
      *out += ',';
      choice.turn.AppendMessage(legacy_functions(), out);
      choice.turn = {};  // a large response must not be in memory twice
      *out += '}';
    } else {
      AppendJsonString(choice.text, out);
      std::string().swap(choice.text);
    }
    *out += ",\"logprobs\":";
    WriteLogprobs(&choice, out);
    absl::StrAppend(out, ",\"finish_reason\":\"", FinishReasonOf(choice, choice.last), "\",\"stop_reason\":");
    AppendStopReason(choice.last, out);
    *out += ",\"token_ids\":";
    if (params_.return_token_ids) {
      AppendIds(choice.token_ids, out);
    } else {
      *out += "null";
    }
    if (params_.return_weight_versions) choice.weight_versions.Write(out);
    if (!params_.chat) WritePromptParts(index, out);
    *out += '}';
  }
};

class StreamWriter : public Writer {
 public:
  StreamWriter(const GenerateParams& params, const ServedModel& model) : Writer(params, model) {
    head_ = "data: {";
    AppendHead(params_, model_.name, params_.chat ? "chat.completion.chunk" : "text_completion", created_,
               &head_);
    head_ += ",\"choices\":[";
  }

  std::string OnUpdate(ChoiceUpdate update, const UsageCounts& usage) override {
    OutputDelta& delta = update.delta;
    ChoiceText& choice = choices_[update.index];
    for (Logprobs& position : delta.prompt_logprobs) choice.prompt_logprobs.push_back(std::move(position));
    const bool finished = delta.finish_reason != FinishReason::kNone;
    std::string out;
    if (params_.echo_only) DropOutput(&delta);
    if (params_.return_weight_versions) choice.weight_versions.Add(delta);
    if (!choice.started && (finished || !delta.token_ids.empty())) {
      choice.started = true;
      Begin(update.index, usage, &out);
    }
    const int64_t bytes = JsonBytes(delta);
    AddLogprobs(delta, &choice);
    NoteCalls(delta, &choice);
    const bool has_text =
        params_.answer == nullptr ? !delta.text.empty() : absl::c_any_of(delta.events, IsTold);
    const bool says_something = finished || has_text || (!delta.token_ids.empty() && TellsTokens());
    if (!says_something && choice.held.token_ids.empty()) return out;
    if (params_.stream_interval > 1) {
      Hold(delta, bytes, &choice);
      const bool enough = static_cast<int64_t>(choice.held.token_ids.size()) >= params_.stream_interval;
      if (!finished && choice.told && !enough) return out;
      Release(&choice, &delta);
    }
    WriteUpdate(update.index, delta, usage, &out);
    choice.told = true;
    return out;
  }

  std::string Finish(const UsageCounts& usage) override {
    std::string out;
    if (params_.include_usage) {
      absl::StrAppend(&out, head_, "],\"usage\":");
      AppendUsage(usage, &out);
      out += "}\n\n";
    }
    return out + "data: [DONE]\n\n";
  }

 private:
  // Whether events tell of tokens also where the tokens have no text.
  bool TellsTokens() const { return params_.logprobs || params_.return_token_ids; }
  // `bytes`: the size of `delta` before the log-probabilities were moved to the choice.
  void Hold(const OutputDelta& delta, int64_t bytes, ChoiceText* choice) {
    OutputDelta& held = choice->held;
    held.text += delta.text;
    held.events.insert(held.events.end(), delta.events.begin(), delta.events.end());
    held.token_ids.insert(held.token_ids.end(), delta.token_ids.begin(), delta.token_ids.end());
    choice->held_bytes += bytes;
    held_bytes_ += bytes;
  }
  // Moves all text and tokens that were held back to `delta`.
  void Release(ChoiceText* choice, OutputDelta* delta) {
    delta->text = std::exchange(choice->held.text, "");
    delta->events = std::exchange(choice->held.events, {});
    delta->token_ids = std::exchange(choice->held.token_ids, {});
    held_bytes_ -= std::exchange(choice->held_bytes, 0);
  }

  // Writes a choice's first events: chat's role, the echoed prompt.
  void Begin(int32_t index, const UsageCounts& usage, std::string* out) {
    OutputDelta echo;
    if (params_.echo) echo.text = PromptOf(index).echo_text;
    AddPromptLogprobs(index);
    if (!params_.chat) {
      if (params_.echo || params_.return_token_ids) WriteEvent(index, echo, usage, out, /*first=*/true);
      return;
    }
    absl::StrAppend(out, head_, "{\"index\":", index, ",\"delta\":{\"role\":");
    AppendJsonString(params_.role, out);
    *out += ",\"content\":\"\"},\"logprobs\":null,\"finish_reason\":null}]";
    if (params_.return_prompt_text) {
      *out += ",\"prompt_text\":";
      AppendJsonString(params_.prompt_text, out);
    }
    if (params_.return_token_ids) {
      *out += ",\"prompt_token_ids\":";
      AppendIds(PromptOf(index).ids, out);
    }
    EndEvent(usage, out);
    if (echo.text.empty()) return;
    echo.events = {{.text = echo.text}};
    WriteEvent(index, echo, usage, out);
  }

  // An answer that is taken apart has an event of the stream for each part, and one for the end.
  void WriteUpdate(int32_t index, OutputDelta& delta, const UsageCounts& usage, std::string* out) {
    if (params_.answer == nullptr) return WriteEvent(index, delta, usage, out);
    OutputDelta part;
    part.token_ids = std::exchange(delta.token_ids, {});
    bool wrote = false;
    for (TurnEvent& event : delta.events) {
      if (!IsTold(event)) continue;
      part.events = {std::move(event)};
      WriteEvent(index, part, usage, out);
      part.token_ids.clear();
      wrote = true;
    }
    if (wrote && delta.finish_reason == FinishReason::kNone) return;
    delta.token_ids = std::move(part.token_ids);
    delta.events.clear();
    WriteEvent(index, delta, usage, out);
  }

  void WriteContent(const OutputDelta& delta, std::string* out) {
    if (!params_.chat) {
      *out += "\"text\":";
      return AppendJsonString(delta.text, out);
    }
    *out += "\"delta\":{";
    if (params_.answer == nullptr) {
      AppendTurnDelta({.text = delta.text}, legacy_functions(), out);
    } else if (!delta.events.empty()) {
      AppendTurnDelta(delta.events[0], legacy_functions(), out);
    }
    *out += '}';
  }

  void WriteEvent(int32_t index, const OutputDelta& delta, const UsageCounts& usage, std::string* out,
                  bool first = false) {
    absl::StrAppend(out, head_, "{\"index\":", index, ",");
    WriteContent(delta, out);
    *out += ",\"logprobs\":";
    WriteLogprobs(&choices_[index], out);
    const bool finished = delta.finish_reason != FinishReason::kNone;
    absl::StrAppend(out, ",\"finish_reason\":", finished ? "\"" : "null",
                    finished ? FinishReasonOf(choices_[index], delta) : "", finished ? "\"" : "",
                    ",\"stop_reason\":");
    AppendStopReason(delta, out);
    if (params_.return_token_ids) {
      *out += ",\"token_ids\":";
      AppendIds(delta.token_ids, out);
      if (first) {
        *out += ",\"prompt_token_ids\":";
        AppendIds(PromptOf(index).ids, out);
      }
    }
    if (finished && params_.return_weight_versions) choices_[index].weight_versions.Write(out);
    *out += "}]";
    if (finished && weights_version_ > 0) absl::StrAppend(out, ",\"weight_version\":", weights_version_);
    EndEvent(usage, out);
  }

  void EndEvent(const UsageCounts& usage, std::string* out) {
    if (params_.include_usage) {
      *out += ",\"usage\":";
      if (params_.continuous_usage) {
        AppendUsage(usage, out);
      } else {
        *out += "null";
      }
    }
    *out += "}\n\n";
  }

  std::string head_;
};

}  // namespace

std::unique_ptr<ResponseWriter> MakeResponseWriter(const GenerateParams& params, const ServedModel& model) {
  if (params.embedding.has_value()) return MakeEmbeddingsWriter(params, model);
  if (params.prefix != nullptr) return MakePrefixWriter(params, model);
  if (params.make_writer != nullptr) return params.make_writer(params, model);
  if (params.stream) return std::make_unique<StreamWriter>(params, model);
  return std::make_unique<WholeWriter>(params, model);
}

std::string StreamError(const ApiError& error) {
  return absl::StrCat("data: ", ErrorBody(error), "\n\ndata: [DONE]\n\n");
}

}  // namespace somnus
