#include "coordinator/responses/answer_items.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/http/json_body.h"
#include "coordinator/openai/request_fields.h"

namespace somnus {
namespace {

// An estimate of an item's JSON beside the texts.
constexpr int64_t kItemBytes = 256;

void AppendMember(const char* name, const std::string& text, std::string* out) {
  absl::StrAppend(out, ",\"", name, "\":");
  AppendJsonString(text, out);
}

std::string Quoted(const std::string& text) {
  std::string quoted;
  AppendJsonString(text, &quoted);
  return quoted;
}

}  // namespace

std::string AnswerItems::Place() const {
  const Item& item = items_.back();
  return absl::StrCat(",\"item_id\":\"", item.id, "\",\"output_index\":", items_.size() - 1,
                      item.kind == Kind::kCall ? "" : ",\"content_index\":0");
}

void AnswerItems::AppendPart(const Item& item, std::string* out) {
  const bool is_message = item.kind == Kind::kMessage;
  absl::StrAppend(out, "{\"type\":\"", is_message ? "output_text" : "reasoning_text", "\"");
  AppendMember("text", item.text, out);
  if (is_message) absl::StrAppend(out, ",\"annotations\":[],\"logprobs\":[", item.logprobs, "]");
  *out += '}';
}

void AnswerItems::AppendItem(const Item& item, bool with_text, std::string* out) {
  absl::StrAppend(out, "{\"id\":\"", item.id, "\",\"status\":\"", item.status, "\"");
  if (item.kind == Kind::kCall) {
    *out += ",\"type\":\"function_call\"";
    AppendMember("call_id", item.call_id, out);
    AppendMember("name", item.name, out);
    AppendMember("arguments", with_text ? item.text : "", out);
  } else {
    *out += item.kind == Kind::kMessage ? ",\"type\":\"message\",\"role\":\"assistant\""
                                        : ",\"type\":\"reasoning\",\"summary\":[]";
    *out += ",\"content\":[";
    if (with_text) AppendPart(item, out);
    *out += ']';
  }
  *out += '}';
}

void AnswerItems::Open(Item item, std::string* out) {
  bytes_ += kItemBytes + static_cast<int64_t>(item.call_id.size() + item.name.size());
  items_.push_back(std::move(item));
  is_open_ = true;
  if (events_ == nullptr) return;
  const Item& opened = items_.back();
  std::string members = absl::StrCat(",\"output_index\":", items_.size() - 1, ",\"item\":");
  AppendItem(opened, /*with_text=*/false, &members);
  events_->Add("response.output_item.added", members, out);
  if (opened.kind == Kind::kCall) return;
  members = absl::StrCat(Place(), ",\"part\":");
  AppendPart(opened, &members);
  events_->Add("response.content_part.added", members, out);
}

void AnswerItems::OpenText(Kind kind, std::string* out) {
  if (is_open_ && items_.back().kind == kind) return;
  Close(/*is_cut=*/false, out);
  const char* const prefix = kind == Kind::kMessage ? "msg_" : "rs_";
  Open({.kind = kind, .id = NewResponseId(prefix), .status = "in_progress"}, out);
}

void AnswerItems::Grow(const std::string& text, const std::string& logprobs, std::string* out) {
  Item& item = items_.back();
  item.text += text;
  absl::StrAppend(&item.logprobs, item.logprobs.empty() || logprobs.empty() ? "" : ",", logprobs);
  bytes_ += static_cast<int64_t>(text.size() + logprobs.size());
  if (events_ == nullptr || text.empty()) return;
  std::string members = absl::StrCat(Place(), ",\"delta\":", Quoted(text));
  switch (item.kind) {
    case Kind::kReasoning:
      return events_->Add("response.reasoning_text.delta", members, out);
    case Kind::kMessage:
      absl::StrAppend(&members, ",\"logprobs\":[", logprobs, "]");
      return events_->Add("response.output_text.delta", members, out);
    case Kind::kCall:
      return events_->Add("response.function_call_arguments.delta", members, out);
  }
}

void AnswerItems::Close(bool is_cut, std::string* out) {
  if (!std::exchange(is_open_, false)) return;
  Item& item = items_.back();
  item.status = is_cut ? "incomplete" : "completed";
  if (events_ == nullptr) return;
  const std::string place = Place(), text = Quoted(item.text);
  if (item.kind == Kind::kCall) {
    const std::string members = absl::StrCat(place, ",\"name\":", Quoted(item.name), ",\"arguments\":", text);
    events_->Add("response.function_call_arguments.done", members, out);
  } else {
    std::string members = absl::StrCat(place, ",\"text\":", text);
    if (item.kind == Kind::kMessage) absl::StrAppend(&members, ",\"logprobs\":[", item.logprobs, "]");
    events_->Add(item.kind == Kind::kMessage ? "response.output_text.done" : "response.reasoning_text.done",
                 members, out);
    members = absl::StrCat(place, ",\"part\":");
    AppendPart(item, &members);
    events_->Add("response.content_part.done", members, out);
  }
  std::string members = absl::StrCat(",\"output_index\":", items_.size() - 1, ",\"item\":");
  AppendItem(item, /*with_text=*/true, &members);
  events_->Add("response.output_item.done", members, out);
}

void AnswerItems::Add(const TurnEvent& event, const std::string& logprobs, std::string* out) {
  switch (event.kind) {
    case TurnEvent::Kind::kReasoning:
      OpenText(Kind::kReasoning, out);
      return Grow(event.text, "", out);
    case TurnEvent::Kind::kContent:
      OpenText(Kind::kMessage, out);
      return Grow(event.text, logprobs, out);
    case TurnEvent::Kind::kCallBegin:
      Close(/*is_cut=*/false, out);
      return Open({.kind = Kind::kCall,
                   .id = NewResponseId("fc_"),
                   .call_id = event.id,
                   .name = event.name,
                   .status = "in_progress"},
                  out);
    case TurnEvent::Kind::kArguments:
      return Grow(event.text, "", out);
    case TurnEvent::Kind::kCallEnd:
      return Close(event.is_cut, out);
  }
}

void AnswerItems::End(bool is_cut, std::string* out) {
  if (items_.empty()) OpenText(Kind::kMessage, out);
  Close(is_cut, out);
}

void AnswerItems::AppendOutput(std::string* out) const {
  *out += '[';
  for (size_t i = 0; i < items_.size(); ++i) {
    if (i > 0) *out += ',';
    AppendItem(items_[i], /*with_text=*/true, out);
  }
  *out += ']';
}

}  // namespace somnus
