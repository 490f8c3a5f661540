#include "coordinator/messages/messages_writer.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/http/json_body.h"
#include "coordinator/messages/messages_error.h"
#include "coordinator/messages/tool_input.h"

namespace somnus {
namespace {

using Kind = TurnEvent::Kind;

// An estimate of a block's JSON beside its texts.
constexpr int64_t kBlockJsonBytes = 96;

void AppendMember(const char* name, absl::string_view text, std::string* out) {
  absl::StrAppend(out, ",\"", name, "\":");
  AppendJsonString(text, out);
}

void AppendUsage(const UsageCounts& usage, std::string* out) {
  absl::StrAppend(out, "\"usage\":{\"input_tokens\":", usage.prompt_tokens - usage.cached_tokens,
                  ",\"cache_creation_input_tokens\":0,\"cache_read_input_tokens\":", usage.cached_tokens,
                  ",\"output_tokens\":", usage.completion_tokens, "}");
}

// The kind of the block that holds the event.
Kind BlockKind(const TurnEvent& event) {
  return event.kind == Kind::kArguments ? Kind::kCallBegin : event.kind;
}

// The part that the whole and the streamed writer share.
class MessagesWriter : public ResponseWriter {
 public:
  MessagesWriter(const GenerateParams& params, const ServedModel& model) : params_(params), model_(model) {}

  // The shape has no reason to stop that says that an operator has aborted the answer.
  std::optional<ApiError> ErrorOfAbort() const override {
    return ApiError{503, "The answer was aborted by the server.", ""};
  }
  std::string Fail(const ApiError& error) override { return MessagesErrorEvent(error); }

 protected:
  // Returns the parts of an update. An answer that is not taken apart is text.
  std::vector<TurnEvent> EventsOf(OutputDelta* delta) {
    std::vector<TurnEvent> events = std::move(delta->events);
    if (params_.answer == nullptr && !delta->text.empty())
      events.push_back({.kind = Kind::kContent, .text = std::move(delta->text)});
    for (const TurnEvent& event : events) has_calls_ |= event.kind == Kind::kCallBegin;
    return events;
  }
  void NoteEnd(OutputDelta delta) {
    is_cut_ = delta.finish_reason == FinishReason::kLength;
    cuts_call_ = delta.cuts_call;
    if (!is_cut_ && (!has_calls_ || cuts_call_)) stop_string_ = std::move(delta.stop_string);
  }
  // Appends id, type, role and model.
  void AppendHead(std::string* out) const {
    *out += "\"type\":\"message\",\"role\":\"assistant\"";
    AppendMember("id", params_.response_id, out);
    AppendMember("model", model_.name, out);
  }
  void AppendStop(std::string* out) const {
    const char* reason = is_cut_                    ? "max_tokens"
                         : stop_string_.has_value() ? "stop_sequence"
                         : has_calls_               ? "tool_use"
                                                    : "end_turn";
    absl::StrAppend(out, "\"stop_reason\":\"", reason, "\",\"stop_sequence\":");
    if (stop_string_.has_value()) {
      AppendJsonString(*stop_string_, out);
    } else {
      *out += "null";
    }
  }
  // Clients send the signature back with the thinking, and some drop thinking that has none. Nothing here
  // checks a signature.
  const std::string& Signature() const { return params_.response_id; }

  // Whether the last call may lack its end.
  bool is_cut() const { return is_cut_ || cuts_call_; }
  bool GoesOn(const TurnEvent& event) const {
    return event.kind != Kind::kCallBegin && open_ == BlockKind(event);
  }

  const GenerateParams& params_;
  std::optional<Kind> open_;  // the kind of the block that is under way

 private:
  const ServedModel& model_;
  bool has_calls_ = false;
  bool is_cut_ = false;                     // by the length
  bool cuts_call_ = false;                  // as of OutputDelta
  std::optional<std::string> stop_string_;  // that ended the answer
};

class WholeMessageWriter : public MessagesWriter {
 public:
  using MessagesWriter::MessagesWriter;

  std::string OnUpdate(ChoiceUpdate update, const UsageCounts&) override {
    for (TurnEvent& event : EventsOf(&update.delta)) Add(std::move(event));
    if (update.delta.finish_reason != FinishReason::kNone) NoteEnd(std::move(update.delta));
    return "";
  }

  std::string Finish(const UsageCounts& usage) override {
    std::string out = "{";
    AppendHead(&out);
    out += ",\"content\":[";
    for (size_t i = 0; i < blocks_.size(); ++i) {
      if (i > 0) out += ',';
      AppendBlock(blocks_[i], /*is_last=*/i + 1 == blocks_.size(), &out);
      std::string().swap(blocks_[i].text);  // a large response must not be in memory twice
    }
    out += "],";
    AppendStop(&out);
    out += ',';
    AppendUsage(usage, &out);
    return out + '}';
  }

 private:
  void Add(TurnEvent event) {
    if (event.kind == Kind::kCallEnd) return open_.reset();
    held_bytes_ += static_cast<int64_t>(event.text.size());
    if (GoesOn(event)) {
      blocks_.back().text += event.text;
      return;
    }
    held_bytes_ += kBlockJsonBytes + static_cast<int64_t>(event.id.size() + event.name.size());
    open_ = BlockKind(event);
    blocks_.push_back(std::move(event));
  }

  void AppendBlock(const TurnEvent& block, bool is_last, std::string* out) const {
    if (block.kind == Kind::kReasoning) {
      *out += "{\"type\":\"thinking\"";
      AppendMember("thinking", block.text, out);
      AppendMember("signature", Signature(), out);
    } else if (block.kind == Kind::kContent) {
      *out += "{\"type\":\"text\"";
      AppendMember("text", block.text, out);
    } else {
      *out += "{\"type\":\"tool_use\"";
      AppendMember("id", block.id, out);
      AppendMember("name", block.name, out);
      absl::StrAppend(out, ",\"input\":", ToolInput(block.text, is_last && is_cut()));
    }
    *out += '}';
  }

  std::vector<TurnEvent> blocks_;  // the event that began the block, with the texts of all its events
};

class StreamMessageWriter : public MessagesWriter {
 public:
  using MessagesWriter::MessagesWriter;

  std::string OnUpdate(ChoiceUpdate update, const UsageCounts& usage) override {
    OutputDelta& delta = update.delta;
    const bool has_ended = delta.finish_reason != FinishReason::kNone;
    std::string out;
    if (!has_begun_ && (has_ended || !delta.token_ids.empty())) {
      has_begun_ = true;
      Begin(usage, &out);
    }
    for (const TurnEvent& event : EventsOf(&delta)) Write(event, &out);
    if (has_ended) NoteEnd(std::move(delta));
    return out;
  }

  std::string Finish(const UsageCounts& usage) override {
    std::string out;
    EndBlock(&out);
    BeginEvent("message_delta", &out);
    out += ",\"delta\":{";
    AppendStop(&out);
    out += "},";
    AppendUsage(usage, &out);
    if (weights_version_ > 0) absl::StrAppend(&out, ",\"weight_version\":", weights_version_);
    EndEvent(&out);
    BeginEvent("message_stop", &out);
    EndEvent(&out);
    return out;
  }

 private:
  static void BeginEvent(const char* type, std::string* out) {
    absl::StrAppend(out, "event: ", type, "\ndata: {\"type\":\"", type, "\"");
  }
  static void EndEvent(std::string* out) { *out += "}\n\n"; }

  void Begin(const UsageCounts& usage, std::string* out) const {
    BeginEvent("message_start", out);
    *out += ",\"message\":{";
    AppendHead(out);
    *out += ",\"content\":[],\"stop_reason\":null,\"stop_sequence\":null,";
    AppendUsage(usage, out);
    *out += '}';
    EndEvent(out);
  }

  void Write(const TurnEvent& event, std::string* out) {
    if (event.kind == Kind::kCallEnd) return EndBlock(out);
    if (!GoesOn(event)) {
      EndBlock(out);
      BeginBlock(event, out);
    }
    if (event.text.empty()) return;
    switch (BlockKind(event)) {
      case Kind::kReasoning:
        return WriteDelta("thinking_delta", "thinking", event.text, out);
      case Kind::kContent:
        return WriteDelta("text_delta", "text", event.text, out);
      default:
        return WriteDelta("input_json_delta", "partial_json", event.text, out);
    }
  }

  void BeginBlock(const TurnEvent& event, std::string* out) {
    open_ = BlockKind(event);
    BeginEvent("content_block_start", out);
    absl::StrAppend(out, ",\"index\":", index_, ",\"content_block\":{");
    if (open_ == Kind::kReasoning) {
      *out += R"("type":"thinking","thinking":"","signature":"")";
    } else if (open_ == Kind::kContent) {
      *out += R"("type":"text","text":"")";
    } else {
      *out += R"("type":"tool_use","input":{})";
      AppendMember("id", event.id, out);
      AppendMember("name", event.name, out);
    }
    *out += '}';
    EndEvent(out);
  }
  void EndBlock(std::string* out) {
    if (!open_.has_value()) return;
    if (open_ == Kind::kReasoning) WriteDelta("signature_delta", "signature", Signature(), out);
    open_.reset();
    BeginEvent("content_block_stop", out);
    absl::StrAppend(out, ",\"index\":", index_++);
    EndEvent(out);
  }
  void WriteDelta(const char* type, const char* member, const std::string& text, std::string* out) const {
    BeginEvent("content_block_delta", out);
    absl::StrAppend(out, ",\"index\":", index_, ",\"delta\":{\"type\":\"", type, "\"");
    AppendMember(member, text, out);
    *out += '}';
    EndEvent(out);
  }

  bool has_begun_ = false;
  int index_ = 0;  // of the block that is under way, or else of the next block
};

}  // namespace

std::unique_ptr<ResponseWriter> MakeMessagesWriter(const GenerateParams& params, const ServedModel& model) {
  if (params.stream) return std::make_unique<StreamMessageWriter>(params, model);
  return std::make_unique<WholeMessageWriter>(params, model);
}

}  // namespace somnus
