#include "text/tools/header_reader.h"

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "text/tools/json_text.h"

namespace somnus {
namespace {

constexpr size_t kMaxWord = 256;
constexpr size_t kMaxAttributes = 1024;

// Names of functions, and what models make of names; no marker has these bytes first.
bool IsWordByte(char c) {
  return absl::ascii_isalnum(c) || static_cast<unsigned char>(c) >= 0x80 || absl::StrContains("_-.:/", c);
}

// functions.NAME:INDEX, as Kimi K2 writes, is the id; the name is a part of the id.
std::string NameOfFunctionIndex(absl::string_view id) {
  absl::ConsumePrefix(&id, "functions.");
  const size_t colon = id.rfind(':');
  return std::string(id.substr(0, colon));
}

}  // namespace

ReadState HeaderReader::Read(char c) {
  switch (at_) {
    case At::kPrefix:
      return ReadPrefix(c);
    case At::kWord:
      if (IsWordByte(c) && word_.size() < kMaxWord) {
        word_ += c;
        return ReadState::kMore;
      }
      if (word_.empty() && IsJsonSpace(c)) return ReadState::kMore;
      if (word_.empty() && has_type_ && !is_id_ && c == '{') return End(true);
      if (word_.empty() || IsWordByte(c)) return ReadState::kStop;
      EndWord();
      return name_.empty() ? ReadState::kStop : ReadMark(c);
    case At::kMark:
      return ReadMark(c);
    case At::kAttributes:
      return ReadAttributes(c);
    default:
      return ReadState::kStop;
  }
}

ReadState HeaderReader::ReadPrefix(char c) {
  if (mark_.empty() && IsJsonSpace(c)) return ReadState::kMore;
  mark_ += c;
  if (!absl::StartsWith(header_.prefix, mark_)) return ReadState::kStop;
  if (mark_ == header_.prefix) {
    mark_.clear();
    at_ = At::kWord;
  }
  return ReadState::kMore;
}

void HeaderReader::EndWord() {
  if (is_id_) {
    id_ = word_;
  } else if (ids_ == CallIdStyle::kFunctionIndex && absl::StrContains(word_, ':')) {
    id_ = word_;
    name_ = NameOfFunctionIndex(word_);
  } else {
    name_ = word_;
  }
  word_.clear();
  at_ = At::kMark;
}

ReadState HeaderReader::End(bool has_marker) {
  has_end_marker_ = has_marker;
  at_ = At::kEnded;
  return ReadState::kStop;
}

ReadState HeaderReader::ReadAttributes(char c) {
  mark_ += c;
  if (mark_.size() > kMaxAttributes) return ReadState::kStop;
  if (absl::EndsWith(mark_, header_.attributes_end)) End(true);
  return ReadState::kMore;
}

ReadState HeaderReader::ReadMark(char c) {
  if (mark_.empty() && IsJsonSpace(c)) return ReadState::kMore;
  mark_ += c;
  const auto may_be = [this](absl::string_view mark) {
    return !mark.empty() && absl::StartsWith(mark, mark_);
  };
  const bool may_be_type = !has_type_ && may_be(header_.type_end);
  const bool may_be_id = !is_id_ && may_be(header_.id_mark);
  if (may_be_type && mark_ == header_.type_end) {
    has_type_ = true;
    mark_.clear();
    at_ = At::kWord;
    return ReadState::kMore;
  }
  if (may_be_id && mark_ == header_.id_mark) {
    is_id_ = true;
    mark_.clear();
    at_ = At::kWord;
    return ReadState::kMore;
  }
  if (may_be(header_.name_end) && mark_ == header_.name_end) {
    if (header_.attributes_end.empty()) {
      End(true);
    } else {
      at_ = At::kAttributes;
      mark_.clear();
    }
    return ReadState::kMore;
  }
  if (may_be_type || may_be_id || may_be(header_.name_end)) return ReadState::kMore;
  const bool may_end_here = header_.name_end.empty() || header_.name_end_may_lack;
  return may_end_here && mark_.size() == 1 ? End(false) : ReadState::kStop;
}

}  // namespace somnus
