#pragma once
// Reads one value that is written as a Python literal or in Gemma's way, byte by byte, and writes JSON:
// strings in single or double quotes with Python's escapes, or between markers without escapes; True, None
// and their like; lists; objects whose keys may have no quotes. A bare word that is no number and no constant
// becomes a string. Not thread safe.

#include <string>

#include "absl/strings/string_view.h"
#include "text/tools/call_reader.h"

namespace somnus {

class LooseValue {
 public:
  // `marker` stands around strings besides quotes; empty: nothing does. `marker` must outlive the value.
  LooseValue(absl::string_view marker, int max_depth) : marker_(marker), max_depth_(max_depth) {}

  // kDone: the byte was the value's last. kStop: the byte was not read; ended() says whether the value has
  // ended before the byte, or cannot go on with the byte.
  ReadState Read(char c, std::string* json);
  bool ended() const { return at_ == At::kEnded; }
  // The text has ended inside of the value, or the value cannot go on: appends what makes the JSON whole.
  void Close(std::string* json);

 private:
  enum class At { kValue, kAfter, kWord, kQuote, kQuoteQuote, kString, kEscape, kMarker, kMarked, kEnded };

  ReadState ReadValueStart(char c, std::string* json);
  ReadState ReadAfter(char c, std::string* json);
  ReadState ReadWord(char c, std::string* json);
  ReadState ReadQuotes(char c, std::string* json);
  ReadState ReadString(char c, std::string* json);
  ReadState ReadEscape(char c, std::string* json);
  ReadState ReadMarker(char c, std::string* json);
  ReadState ReadMarked(char c, std::string* json);
  bool IsLiteralByte(char c) const;
  bool CloseBracket(char c, std::string* json);
  void BeginValue(std::string* json);
  ReadState EndValue();
  bool is_key() const { return !open_.empty() && open_.back() == '}' && expects_key_; }

  absl::string_view marker_;
  int max_depth_;
  At at_ = At::kValue;
  std::string open_;          // the brackets that close what is open, outermost first
  bool expects_key_ = false;  // in an object: before a colon
  bool needs_comma_ = false;  // a value has ended, and no bracket has closed since
  std::string word_;          // a bare word, an escape, or a part of a marker
  char quote_ = 0;
  bool is_triple_ = false;
  int quotes_ = 0;  // quotes in a row, at the end of a triple-quoted string
};

}  // namespace somnus
