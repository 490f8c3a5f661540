#include "text/tools/named_call_reader.h"

#include "text/tools/element_arguments.h"
#include "text/tools/json_scanner.h"
#include "text/tools/loose_value.h"
#include "text/tools/tag_arguments.h"

namespace somnus {
namespace {

// {"a": 1}. A header with an end marker has said that a call follows: no JSON behind the header is no
// arguments.
class JsonArguments : public ArgumentReader {
 public:
  JsonArguments(bool may_lack, int max_depth) : may_lack_(may_lack), scanner_(max_depth) {}

  ReadState Read(char c, std::string* json) override {
    const size_t size = json->size();
    const JsonScanner::Result result = scanner_.Read(c, json);
    has_text_ = has_text_ || json->size() > size;
    if (result == JsonScanner::Result::kMore) return ReadState::kMore;
    if (result == JsonScanner::Result::kDone) return ReadState::kDone;
    if (result == JsonScanner::Result::kBad) *json += has_text_ ? scanner_.Missing() : may_lack_ ? "{}" : "";
    return ReadState::kStop;
  }

  bool Finish(bool is_cut, std::string* json) override {
    const std::string missing = is_cut ? "" : has_text_ ? scanner_.Missing() : "{}";
    *json += missing;
    return !missing.empty();
  }

  bool started() const override { return has_text_ || may_lack_; }

 private:
  const bool may_lack_;
  JsonScanner scanner_;
  bool has_text_ = false;
};

// {a:<|"|>text<|"|>}
class GemmaArguments : public ArgumentReader {
 public:
  GemmaArguments(absl::string_view quote, int max_depth) : value_(quote, max_depth) {}

  ReadState Read(char c, std::string* json) override {
    if (!started_ && c != '{') return ReadState::kStop;
    started_ = true;
    const ReadState state = value_.Read(c, json);
    if (state == ReadState::kStop) value_.Close(json);
    return state;
  }

  bool Finish(bool is_cut, std::string* json) override {
    if (!is_cut) value_.Close(json);
    return !is_cut;
  }

  bool started() const override { return started_; }

 private:
  LooseValue value_;
  bool started_ = false;
};

}  // namespace

ReadState NamedCallReader::Read(char c) {
  if (arguments_ != nullptr) return ReadArguments(c);
  const ReadState state = header_.Read(c);
  if (!header_.ended()) return state;
  if (EndHeader() == ReadState::kStop) return ReadState::kStop;
  return state == ReadState::kStop ? ReadArguments(c) : ReadState::kMore;
}

ReadState NamedCallReader::EndHeader() {
  const bool is_certain = header_.has_end_marker();
  switch (format_.arguments) {
    case ArgumentSyntax::kTags:
      arguments_ = std::make_unique<TagArguments>(format_, schemas_, header_.name(), is_certain, limits_);
      break;
    case ArgumentSyntax::kElements:
      arguments_ = std::make_unique<ElementArguments>(format_, schemas_, header_.name(), limits_);
      break;
    case ArgumentSyntax::kGemma:
      arguments_ = std::make_unique<GemmaArguments>(format_.quote, limits_.max_depth);
      break;
    default:
      arguments_ = std::make_unique<JsonArguments>(is_certain, limits_.max_depth);
  }
  return !arguments_->started() || Begin() ? ReadState::kMore : ReadState::kStop;
}

bool NamedCallReader::Begin() {
  begun_ = output_->Begin(header_.name(), header_.id());
  return begun_;
}

void NamedCallReader::Emit(const std::string& json) {
  bytes_ += static_cast<int64_t>(json.size());
  output_->Arguments(json);
}

ReadState NamedCallReader::ReadArguments(char c) {
  std::string json;
  ReadState state = arguments_->Read(c, &json);
  if (!begun_ && (!arguments_->started() || !Begin()))
    return state == ReadState::kMore ? state : ReadState::kStop;
  Emit(json);
  // The held part of a value counts with the value's JSON; a value that is too long ends the call.
  if (state == ReadState::kMore && bytes_ > limits_.max_argument_bytes) state = ReadState::kStop;
  if (state != ReadState::kMore) output_->End();
  return state;
}

void NamedCallReader::Finish(bool is_cut) {
  if (!begun_) return;
  std::string json;
  const bool is_whole = arguments_->Finish(is_cut, &json);
  output_->Arguments(json);
  output_->End(is_whole);
}

std::string NamedCallReader::unread() const { return arguments_ == nullptr ? "" : arguments_->unread(); }

}  // namespace somnus
