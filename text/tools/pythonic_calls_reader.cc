#include "text/tools/pythonic_calls_reader.h"

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "text/tools/json_text.h"

namespace somnus {
namespace {

constexpr size_t kMaxName = 256;

bool IsNameStart(char c) {
  return absl::ascii_isalpha(c) || c == '_' || static_cast<unsigned char>(c) >= 0x80;
}
bool IsKeyByte(char c) { return IsNameStart(c) || absl::ascii_isdigit(c); }
// Tools' names may have dots and dashes, which Python's identifiers have not.
bool IsNameByte(char c) { return IsKeyByte(c) || c == '.' || c == '-'; }

}  // namespace

ReadState PythonicCallsReader::Read(char c) {
  switch (at_) {
    case At::kStart:
      return ReadStart(c);
    case At::kName:
      return ReadName(c);
    case At::kFirstKey:
    case At::kNextKey:
      return ReadKeyStart(c);
    case At::kKey:
    case At::kKeyEnd:
      return ReadKey(c);
    case At::kValue:
      return ReadValue(c);
    case At::kAfterValue:
      return ReadAfterValue(c);
    default:
      return ReadNext(c);
  }
}

ReadState PythonicCallsReader::ReadStart(char c) {
  if (IsJsonSpace(c)) return ReadState::kMore;
  if (c == '[' && !in_list_) {
    in_list_ = true;
    return ReadState::kMore;
  }
  if (!IsNameStart(c) || (needs_list_ && !in_list_)) return ReadState::kStop;
  name_ = c;
  at_ = At::kName;
  return ReadState::kMore;
}

ReadState PythonicCallsReader::ReadName(char c) {
  if (IsNameByte(c) && name_.size() < kMaxName) {
    name_ += c;
    return ReadState::kMore;
  }
  if (c != '(') return ReadState::kStop;
  at_ = At::kFirstKey;
  begun_ = false;
  bytes_ = 0;
  return ReadState::kMore;
}

ReadState PythonicCallsReader::ReadKeyStart(char c) {
  if (IsJsonSpace(c)) return ReadState::kMore;
  if (c == ')') return EndCall();
  if (!IsNameStart(c)) return Stop();
  key_ = c;
  at_ = At::kKey;
  return ReadState::kMore;
}

// A name and "=": only now a call differs from words in brackets.
ReadState PythonicCallsReader::ReadKey(char c) {
  if (at_ == At::kKey && IsKeyByte(c) && key_.size() < kMaxName) {
    key_ += c;
    return ReadState::kMore;
  }
  at_ = At::kKeyEnd;
  if (IsJsonSpace(c)) return ReadState::kMore;
  if (c != '=') return Stop();
  const bool is_first = !begun_;
  if (is_first && !output_->Begin(name_, "")) return ReadState::kStop;
  begun_ = true;
  output_->Arguments(absl::StrCat(is_first ? "{" : ", ", Quoted(key_), ": "));
  value_ = LooseValue("", limits_.max_depth);
  at_ = At::kValue;
  return ReadState::kMore;
}

ReadState PythonicCallsReader::ReadValue(char c) {
  std::string json;
  const ReadState state = value_.Read(c, &json);
  bytes_ += static_cast<int64_t>(json.size()) + 1;
  output_->Arguments(json);
  if (bytes_ > limits_.max_argument_bytes) return Stop();
  if (state == ReadState::kMore) return state;
  if (state == ReadState::kStop && !value_.ended()) return Stop();
  at_ = At::kAfterValue;
  return state == ReadState::kStop ? ReadAfterValue(c) : ReadState::kMore;
}

ReadState PythonicCallsReader::ReadAfterValue(char c) {
  if (IsJsonSpace(c)) return ReadState::kMore;
  if (c == ')') return EndCall();
  if (c != ',') return Stop();
  at_ = At::kNextKey;
  return ReadState::kMore;
}

ReadState PythonicCallsReader::EndCall() {
  if (!begun_ && !output_->Begin(name_, "")) return ReadState::kStop;
  output_->Arguments(begun_ ? "}" : "{}");
  output_->End();
  begun_ = false;
  at_ = At::kNext;
  return ReadState::kMore;
}

ReadState PythonicCallsReader::ReadNext(char c) {
  if (IsJsonSpace(c)) return ReadState::kMore;
  if (in_list_ && c == ']') return ReadState::kDone;
  if (c == ',' || (c == ';' && !in_list_)) {
    at_ = At::kStart;
    return ReadState::kMore;
  }
  return in_list_ ? ReadState::kStop : ReadStart(c);
}

void PythonicCallsReader::CloseCall() {
  std::string json;
  if (at_ == At::kValue) value_.Close(&json);
  output_->Arguments(json + "}");
  output_->End();
  begun_ = false;
}

ReadState PythonicCallsReader::Stop() {
  if (begun_) CloseCall();
  return ReadState::kStop;
}

void PythonicCallsReader::Finish(bool is_cut) {
  if (!begun_) return;
  if (!is_cut) return CloseCall();
  output_->End(/*is_whole=*/false);
}

}  // namespace somnus
